"""Functions from a graph to a graph of another size, on the host in numpy and scipy.

The sizes of their results depend on the values of the arrays, so they take concrete graphs, outside
of ``jax.jit``, and compile nothing. No gradient flows through them. Padding slots are dropped.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from jaxgnn._arrays.arrays import own, take
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.transform_input import Edges, distinct_ids, edges_of
from jaxgnn.graph.plan.sorting import inverse_permutation, sort_edges


class Subgraph(NamedTuple):
    """A part of a graph, and the ids of its nodes and edges in the whole.

    Attributes:
      graph: the part, whose nodes are numbered from zero.
      node_ids: node of the whole for each node of the part, int32 [nodes]; ``x[node_ids]`` are the
        features of the part.
      edge_ids: edge slot of the whole for each edge of the part, int [edges].
    """

    graph: CSRGraph
    node_ids: np.ndarray
    edge_ids: np.ndarray


def subgraph(graph: CSRGraph, nodes: npt.ArrayLike) -> Subgraph:
    """Returns the given nodes, and all edges between them.

    Args:
      graph: a square graph that is not normalised. Its weights are kept.
      nodes: distinct node ids, integers [nodes], in the order of the subgraph; or
        a mask, bool [num_rows], which keeps the order of the nodes.

    Returns:
      The subgraph, with the ids of its nodes and edges in ``graph``.

    Raises:
      ValueError: if the graph is traced, not square or normalised, or an id is out of range or
        occurs twice.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> ring = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4)
      >>> part = subgraph(ring, [2, 1])
      >>> part.graph.indices.tolist(), part.graph.receivers().tolist()
      ([1], [0])
      >>> part.node_ids.tolist(), part.edge_ids.tolist()
      ([2, 1], [2])
    """
    edges = edges_of("subgraph", graph)
    return _part(graph, edges, distinct_ids("subgraph", "nodes", nodes, graph.num_rows))


def largest_component(
    graph: CSRGraph, *, connection: Literal["weak", "strong"] = "weak"
) -> Subgraph:
    """The largest connected component; among several of one size, the one with the lowest node id.

    Args:
      graph: a square graph that is not normalised. Its weights are kept, and an edge of weight zero
        connects like any other.
      connection: ``"weak"`` ignores the direction of edges; in a ``"strong"`` component every node
        reaches every other one along the direction of the edges.

    Returns:
      The component, its nodes in the order of ``graph``, with the ids of its nodes and edges there.

    Raises:
      ValueError: if the graph is traced, not square or normalised, or ``connection`` is unknown.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> graph = CSRGraph.from_edges([1, 2], [2, 3], 4)
      >>> largest_component(graph).node_ids.tolist()
      [1, 2, 3]
    """
    where = "largest_component"
    edges = edges_of(where, graph)
    if connection not in ("weak", "strong"):
        raise bad_input(where, "connection", "'weak' or 'strong'", repr(connection))
    nodes = np.zeros(0, np.int32)
    if graph.num_rows:
        entries = np.ones(len(edges.senders), np.int8)
        matrix = scipy.sparse.csr_array(
            (entries, edges.senders, np.asarray(graph.indptr)), shape=graph.shape
        )
        _, labels = connected_components(matrix, connection=connection)
        sizes = np.bincount(labels)[labels]
        first = int(np.argmax(sizes))
        nodes = np.flatnonzero(labels == labels[first]).astype(np.int32)
    return _part(graph, edges, nodes)


@overload
def permute(graph: CSRGraph, order: npt.ArrayLike) -> CSRGraph: ...
@overload
def permute(
    graph: CSRGraph, order: npt.ArrayLike, *, return_edges: Literal[True]
) -> tuple[CSRGraph, np.ndarray]: ...
def permute(graph: CSRGraph, order: npt.ArrayLike, *, return_edges: bool = False) -> Any:
    """Renumbers the nodes: node ``i`` of the result is node ``order[i]`` of the graph.

    So ``spmm(permute(graph, order), x[order])`` equals ``spmm(graph, x)[order]``.

    Args:
      graph: a square graph. Its weights and normalisation are kept.
      order: a permutation of the node ids, integers [num_rows].
      return_edges: whether to also return the edge ids.

    Returns:
      The graph; with ``return_edges`` also the old edge slot of each edge, int [edges].

    Raises:
      ValueError: if the graph is traced or not square, or ``order`` is no permutation.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> path = CSRGraph.from_edges([0, 1], [1, 2], 3)
      >>> reverse, edge_ids = permute(path, [2, 1, 0], return_edges=True)
      >>> reverse.indices.tolist(), reverse.receivers().tolist(), edge_ids.tolist()
      ([1, 2], [0, 1], [1, 0])
    """
    edges = edges_of("permute", graph, allow_normalized=True)
    order = distinct_ids("permute", "order", order, graph.num_rows)
    if len(order) != graph.num_rows:
        expected = f"a permutation of the {graph.num_rows} nodes"
        raise bad_input("permute", "order", expected, f"{len(order)} ids")
    made, _, edge_ids = _part(graph, edges, order)
    made = dataclasses.replace(
        made,
        row_scale=None if graph.row_scale is None else take(graph.row_scale, order),
        col_scale=None if graph.col_scale is None else take(graph.col_scale, order),
        normalization=graph.normalization,
    )
    return (made, edge_ids) if return_edges else made


@overload
def remove_self_loops(graph: CSRGraph) -> CSRGraph: ...
@overload
def remove_self_loops(
    graph: CSRGraph, *, return_edges: Literal[True]
) -> tuple[CSRGraph, np.ndarray]: ...
def remove_self_loops(graph: CSRGraph, *, return_edges: bool = False) -> Any:
    """Removes every edge from a node to itself.

    Args:
      graph: a square graph that is not normalised. The other weights are kept.
      return_edges: whether to also return the edge ids.

    Returns:
      The graph; with ``return_edges`` also the old edge slot of each edge, int [edges].

    Raises:
      ValueError: if the graph is traced, not square or normalised.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> graph = CSRGraph.from_edges([0, 0, 1], [0, 1, 1], 2)
      >>> remove_self_loops(graph).indices.tolist()
      [0]
    """
    edges = edges_of("remove_self_loops", graph)
    slots = np.flatnonzero(edges.senders != edges.receivers)
    made = _selected(edges, slots, graph.num_rows)
    return (made, own(slots)) if return_edges else made


@overload
def add_self_loops(
    graph: CSRGraph, weight: float = 1.0, *, duplicates: bool = False
) -> CSRGraph: ...
@overload
def add_self_loops(
    graph: CSRGraph,
    weight: float = 1.0,
    *,
    duplicates: bool = False,
    return_edges: Literal[True],
) -> tuple[CSRGraph, np.ndarray]: ...
def add_self_loops(
    graph: CSRGraph, weight: float = 1.0, *, duplicates: bool = False, return_edges: bool = False
) -> Any:
    """Adds an edge from each node to itself if there is none: ``CSRGraph.with_self_loops``.

    The function of this name in PyTorch Geometric adds the edge everywhere, as ``duplicates=True``
    does here.

    Args:
      graph: a square graph that is not normalised. Its weights are kept.
      weight: weight of each new edge; ignored on an unweighted graph.
      duplicates: whether to add the edge even if the node has a self loop already.
      return_edges: whether to also return the edge ids.

    Returns:
      The graph, where a new loop is the last edge of its row; with ``return_edges`` also the old
      edge slot of each edge, int [edges], which is -1 for the new loops.

    Raises:
      ValueError: if the graph is traced, not square or normalised.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> graph = CSRGraph.from_edges([0, 0], [0, 1], 2)
      >>> made, edge_ids = add_self_loops(graph, return_edges=True)
      >>> made.indices.tolist(), edge_ids.tolist()
      ([0, 0, 1], [0, 1, -1])
    """
    edges = edges_of("add_self_loops", graph)
    made = graph.with_self_loops(weight, duplicates=duplicates)
    if not return_edges:
        return made
    old, new = np.asarray(graph.indptr), np.asarray(made.indptr)
    rows_with_a_new_loop = np.flatnonzero(np.diff(new) > np.diff(old))
    edge_ids = np.insert(np.arange(len(edges.senders)), old[rows_with_a_new_loop + 1], -1)
    padding = np.full(made.num_edges - len(edge_ids), -1)
    return made, own(np.concatenate([edge_ids, padding]))


def _part(graph: CSRGraph, edges: Edges, nodes: np.ndarray) -> Subgraph:
    """The graph of these nodes, in this order."""
    if len(nodes) == graph.num_rows:
        new_ids = inverse_permutation(nodes)
    else:
        new_ids = np.full(graph.num_rows, -1, np.int32)
        new_ids[nodes] = np.arange(len(nodes), dtype=np.int32)
    senders, receivers = new_ids[edges.senders], new_ids[edges.receivers]
    slots = np.flatnonzero((senders >= 0) & (receivers >= 0))
    _, order = sort_edges(receivers[slots], len(nodes))
    slots = slots[order]
    weights = None if edges.weights is None else edges.weights[slots]
    made = CSRGraph.from_edges(senders[slots], receivers[slots], len(nodes), weights)
    return Subgraph(made, own(nodes), own(slots))


def _selected(edges: Edges, slots: np.ndarray, num_nodes: int) -> CSRGraph:
    """The graph of all nodes, with the edges of these ascending slots."""
    weights = None if edges.weights is None else edges.weights[slots]
    return CSRGraph.from_edges(edges.senders[slots], edges.receivers[slots], num_nodes, weights)
