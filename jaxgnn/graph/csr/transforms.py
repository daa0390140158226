"""Functions from a graph to a graph of another size, on the host in numpy and scipy.

The sizes of their results depend on the values of the arrays, so they take concrete graphs, outside
of ``jax.jit``, and compile nothing. No gradient flows through them. Padding slots are dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from jaxgnn._arrays.arrays import is_concrete, own, require_one, take
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.validation import arrays_of
from jaxgnn.graph.plan.sorting import inverse_permutation, row_ids_on_host, sort_edges


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
    permuted, _, edge_ids = _part(graph, edges, order)
    permuted = dataclasses.replace(
        permuted,
        row_scale=None if graph.row_scale is None else take(graph.row_scale, order),
        col_scale=None if graph.col_scale is None else take(graph.col_scale, order),
        normalization=graph.normalization,
    )
    return (permuted, edge_ids) if return_edges else permuted


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
    ends = edges.senders[slots], edges.receivers[slots]
    weights = None if edges.weights is None else edges.weights[slots]
    result = CSRGraph.from_edges(*ends, graph.num_rows, weights)
    return (result, own(slots)) if return_edges else result


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
      weight: see ``CSRGraph.with_self_loops``, also for ``duplicates``.
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
    looped = graph.with_self_loops(weight, duplicates=duplicates)
    if not return_edges:
        return looped
    old, new = np.asarray(graph.indptr), np.asarray(looped.indptr)
    rows_with_a_new_loop = np.flatnonzero(np.diff(new) > np.diff(old))
    edge_ids = np.insert(np.arange(len(edges.senders)), old[rows_with_a_new_loop + 1], -1)
    padding = np.full(looped.num_edges - len(edge_ids), -1)
    return looped, own(np.concatenate([edge_ids, padding]))


def _part(graph: CSRGraph, edges: Edges, nodes: np.ndarray) -> Subgraph:
    """Returns the graph of these nodes, in this order."""
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
    part = CSRGraph.from_edges(senders[slots], receivers[slots], len(nodes), weights)
    return Subgraph(part, own(nodes), own(slots))


class Edges(NamedTuple):
    """The edges of a graph without its padding, in numpy; weights are [edges] or [edges, heads]."""

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray | None


def edges_of(
    where: str, graph: CSRGraph, *, allow_bipartite: bool = False, allow_normalized: bool = False
) -> Edges:
    """Reads and checks the edges of a concrete graph."""
    if not isinstance(graph, CSRGraph):
        raise bad_input(where, "graph", "a CSRGraph", type(graph).__name__)
    require_one(where, "graph", graph)
    if not is_concrete(*arrays_of(graph)):
        expected = "concrete, since its values tell the size of the result; call it outside jit"
        raise bad_input(where, "graph", expected, "a tracer")
    if not allow_bipartite and graph.num_rows != graph.num_cols:
        raise bad_input(where, "graph", "square", f"shape {graph.shape}")
    if not allow_normalized and graph.is_normalized:
        expected = "not normalised, since its degrees change; normalise the result"
        raise bad_input(where, "graph", expected, repr(graph.normalization))
    graph.concrete_parts()  # This checks the structure.
    indptr = np.asarray(graph.indptr)
    real = slice(0, int(indptr[-1]))
    weights = None if graph.weights is None else np.asarray(graph.weights)[real]
    receivers = row_ids_on_host(indptr, int(indptr[-1]))
    return Edges(np.asarray(graph.indices)[real], receivers, weights)


def distinct_ids(where: str, name: str, nodes: npt.ArrayLike, num_nodes: int) -> np.ndarray:
    """Reads distinct node ids, or a mask, as int32 ids."""
    if not is_concrete(nodes):
        raise bad_input(where, name, "concrete; call it outside jit", "a tracer")
    ids = np.asarray(nodes)
    if ids.size == 0:
        ids = ids.astype(bool if ids.dtype == bool else np.int32)
    if ids.ndim != 1:
        raise bad_input(where, name, "of one axis", f"shape {ids.shape}")
    if ids.dtype == bool:
        if len(ids) != num_nodes:
            expected = f"of shape ({num_nodes},), as a mask has it"
            raise bad_input(where, name, expected, f"shape {ids.shape}")
        return np.flatnonzero(ids).astype(np.int32)
    if not np.issubdtype(ids.dtype, np.integer):
        raise bad_input(where, name, "of an integer dtype, or bool", ids.dtype)
    outside = np.flatnonzero((ids < 0) | (ids >= num_nodes))
    if outside.size:
        at = int(outside[0])
        raise bad_input(where, f"{name}[{at}]", f"in [0, {num_nodes})", int(ids[at]))
    by_id = np.argsort(ids, kind="stable")
    again = by_id[1:][ids[by_id[1:]] == ids[by_id[:-1]]]
    if again.size:
        at = int(again.min())
        first = int(np.flatnonzero(ids == ids[at])[0])
        expected = f"an id that occurs once, since {name}[{first}] is the same"
        raise bad_input(where, f"{name}[{at}]", expected, int(ids[at]))
    return ids.astype(np.int32)


Reduce = Literal["sum", "mean", "min", "max", "mul"]
"""Reduction of the weights of merged edges."""

_UFUNCS: dict[Reduce, Callable[..., np.ndarray]] = {
    "sum": np.add.reduceat,
    "mean": np.add.reduceat,  # The sum is then divided by the number of edges.
    "min": np.minimum.reduceat,
    "max": np.maximum.reduceat,
    "mul": np.multiply.reduceat,
}


@overload
def coalesce(graph: CSRGraph, reduce: Reduce = "sum") -> CSRGraph: ...
@overload
def coalesce(
    graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: Literal[True]
) -> tuple[CSRGraph, np.ndarray]: ...
def coalesce(graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: bool = False) -> Any:
    """Merges all edges from one node to another into one edge.

    An unweighted graph stays without weights, so an edge that occurred three times then counts
    once. To keep the count, give the graph weights of one first.

    Args:
      graph: a graph that is not normalised; it may be bipartite.
      reduce: how the weights of merged edges are combined, in float64: ``"sum"``, ``"mean"``,
        ``"min"``, ``"max"`` or ``"mul"``.
      return_slots: whether to return the new slots of the edges.

    Returns:
      The graph, its edges sorted by receiver and then by sender. With ``return_slots`` also the new
      slot of each old edge (padding aside), int [edges]; ``jax.ops.segment_sum`` combines edge
      features by it.

    Raises:
      ValueError: if the graph is traced or normalised, or ``reduce`` is unknown.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> graph = CSRGraph.from_edges([2, 0, 2], [1, 1, 1], 3, np.float32([1, 2, 3]))
      >>> made, slots = coalesce(graph, return_slots=True)
      >>> made.indices.tolist(), made.weights.tolist(), slots.tolist()
      ([0, 2], [2.0, 4.0], [1, 0, 1])
    """
    edges = edges_of("coalesce", graph, allow_bipartite=True)
    merged, slots = _merge("coalesce", edges, reduce, graph.shape)
    return (merged, own(slots)) if return_slots else merged


@overload
def to_undirected(graph: CSRGraph, reduce: Reduce = "sum") -> CSRGraph: ...
@overload
def to_undirected(
    graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: Literal[True]
) -> tuple[CSRGraph, np.ndarray]: ...
def to_undirected(graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: bool = False) -> Any:
    """Adds the reverse of every edge, then merges all edges from one node to another.

    As in PyTorch Geometric, ``"sum"`` gives both directions the sum of the weights of both. So a
    graph that is undirected already gets twice its weights, and so does every self loop.
    ``"mean"`` and ``"max"`` do not change an undirected graph without repeated edges. An unweighted
    graph stays without weights.

    Args:
      graph: a square graph that is not normalised.
      reduce: how the weights of merged edges are combined; see ``coalesce``.
      return_slots: whether to return the new slots of the edges.

    Returns:
      The graph, its edges sorted by receiver and then by sender. With ``return_slots`` also the new
      slots of each old edge (padding aside), int [2, edges]: its own, and that of its reverse.

    Raises:
      ValueError: if the graph is traced, not square or normalised, or ``reduce`` is unknown.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> path = CSRGraph.from_edges([0, 1], [1, 2], 3)
      >>> made = to_undirected(path)
      >>> made.indices.tolist(), made.receivers().tolist()
      ([1, 0, 2, 1], [0, 1, 1, 2])
    """
    edges = edges_of("to_undirected", graph)
    both = Edges(
        senders=np.concatenate([edges.senders, edges.receivers]),
        receivers=np.concatenate([edges.receivers, edges.senders]),
        weights=None if edges.weights is None else np.concatenate([edges.weights] * 2),
    )
    merged, slots = _merge("to_undirected", both, reduce, graph.shape)
    return (merged, own(slots.reshape(2, -1))) if return_slots else merged


def _merge(
    where: str, edges: Edges, reduce: Reduce, shape: tuple[int, int]
) -> tuple[CSRGraph, np.ndarray]:
    """Returns the graph of the distinct edges, and the slot there of each old edge.

    Raises:
      ValueError: if ``reduce`` is not the name of a reduction.
    """
    if reduce not in _UFUNCS:
        raise bad_input(where, "reduce", f"one of {', '.join(map(repr, _UFUNCS))}", repr(reduce))
    # Two counting sorts, which are linear and keep the order of equal ends.
    _, by_sender = sort_edges(edges.senders, shape[1])
    _, by_receiver = sort_edges(edges.receivers[by_sender], shape[0])
    order = by_sender[by_receiver]
    senders, receivers = edges.senders[order], edges.receivers[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (senders[1:] != senders[:-1]) | (receivers[1:] != receivers[:-1])
    starts = np.flatnonzero(is_first)
    slots = np.empty(len(order), np.int64)
    slots[order] = np.cumsum(is_first) - 1
    weights = edges.weights
    if weights is not None:
        wide = weights[order].astype(np.float64)
        combined = _UFUNCS[reduce](wide, starts) if len(starts) else wide
        if reduce == "mean":
            counts = np.diff(starts, append=len(order))
            combined = combined / counts.reshape(-1, *[1] * (weights.ndim - 1))
        weights = combined.astype(weights.dtype)
    ends = senders[starts], receivers[starts]
    return CSRGraph.from_edges(*ends, shape[0], weights, num_senders=shape[1]), slots
