"""Inputs of a batch: edge lists, graphs and jraph tuples, all read as one kind."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxgnn._arrays.arrays import (
    in_native_order,
    is_concrete,
    require_integers,
    require_length,
    require_no_heads,
    require_size,
    shown,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.batch.shape import BatchShape
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.rows import Normalization
from jaxgnn.graph.plan.sorting import row_ids_on_host


@dataclass(frozen=True, eq=False)
class GraphSample:
    """One graph of a data set, as plain numpy arrays, to be put into batches.

    The arrays are not copied. Features are pytrees of arrays or None, and must have the same
    structure, dtypes and trailing axes in all graphs of a batch.

    Attributes:
      senders: node that each edge leaves, integers [edges].
      receivers: node that each edge enters, integers [edges], in any order.
      num_nodes: number of nodes.
      nodes: features of the nodes, each array [num_nodes, ...].
      edges: features of the edges in the order of ``senders``, each array [edges, ...].
      globals: features of the whole graph, arrays or numbers without an axis for the graph.
      weights: edge weights in the order of ``senders``, [edges] floating; None for ones.

    Raises:
      ValueError: if ids are no integers, or ids or weights do not have one entry per edge. Features
        and the range of ids are checked when a batch is built.

    Example:
      >>> water = GraphSample(senders=[0, 0, 1, 2], receivers=[1, 2, 0, 0], num_nodes=3)
      >>> water.num_edges
      4
    """

    senders: np.ndarray
    receivers: np.ndarray
    num_nodes: int
    nodes: Any = None
    edges: Any = None
    globals: Any = None
    weights: np.ndarray | None = None

    def __post_init__(self):
        require_size("GraphSample", "num_nodes", self.num_nodes)
        for name in ("senders", "receivers"):
            ids = host_array("GraphSample", name, getattr(self, name))
            ids = ids if ids.size else np.zeros(ids.shape, np.int32)  # NumPy makes [] float.
            object.__setattr__(self, name, ids)
        check_ids("GraphSample", "", self.senders, self.receivers)
        if self.weights is not None:
            weights = host_array("GraphSample", "weights", self.weights)
            require_length("GraphSample", "weights", weights, self.num_edges, "per edge")
            object.__setattr__(self, "weights", weights)

    @property
    def num_edges(self) -> int:
        """Number of edges of the graph, each direction counted."""
        return self.senders.shape[0]

    @classmethod
    def from_graph(
        cls, graph: CSRGraph, *, nodes: Any = None, edges: Any = None, globals: Any = None
    ) -> GraphSample:
        """Joins a graph and its features. Padding slots of the graph are dropped.

        Args:
          graph: a concrete square graph that has no scales; its weights become the sample's.
          nodes: features of the nodes, each array [num_rows, ...].
          edges: features of the edge slots in the graph's order, each array [num_edges, ...].
          globals: features of the graph, without an axis for it.

        Raises:
          ValueError: if the graph is traced, invalid, not square, or normalised, or features do
            not have one entry per node, or per edge slot.
        """
        where = "GraphSample.from_graph"
        graph.validate()
        if graph.num_rows != graph.num_cols:
            raise bad_input(where, "graph", "square", f"shape {graph.shape}")
        if graph.is_normalized:
            expected = "not normalised yet; normalise the graph of the batch"
            raise bad_input(where, "graph", expected, repr(graph.normalization))
        part = read_part(where, 0, graph)
        in_slots = host_features(where, "edges", edges, graph.num_edges)
        return cls(
            senders=part.senders,
            receivers=row_ids_on_host(graph.indptr, part.num_edges),
            num_nodes=part.num_nodes,
            nodes=host_features(where, "nodes", nodes, graph.num_rows),
            edges=jax.tree.map(operator.itemgetter(slice(part.num_edges)), in_slots),
            globals=globals,
            weights=part.weights,
        )


class Part(NamedTuple):
    """One graph of a batch as host arrays; edges by ``receivers``, or by ``indptr`` if sorted."""

    place: int
    num_nodes: int
    num_edges: int
    senders: np.ndarray
    receivers: np.ndarray | None = None
    indptr: np.ndarray | None = None
    weights: Any = None
    row_scale: Any = None
    col_scale: Any = None
    normalization: Normalization | None = None
    nodes: Any = None
    edges: Any = None
    globals: Any = None


def read_part(where: str, place: int, graph: Any) -> Part:
    """Reads one graph of any accepted kind; ValueError names ``where`` and its ``place``."""
    if isinstance(graph, GraphSample):
        return Part(
            place=place,
            num_nodes=int(graph.num_nodes),
            num_edges=graph.senders.shape[0],
            senders=graph.senders,
            receivers=graph.receivers,
            weights=graph.weights,
            nodes=graph.nodes,
            edges=graph.edges,
            globals=graph.globals,
        )
    if isinstance(graph, CSRGraph):
        return _part_of_graph(where, place, graph)
    if is_graphs_tuple(graph):
        return _part_of_tuple(where, place, graph)
    expected = "a CSRGraph, a GraphSample or a jraph.GraphsTuple"
    raise bad_input(where, f"graphs[{place}]", expected, type(graph).__name__)


def is_graphs_tuple(graph: Any) -> bool:
    """Returns whether it has the fields of a ``jraph.GraphsTuple``, without importing jraph."""
    return isinstance(graph, tuple) and hasattr(graph, "n_node") and hasattr(graph, "n_edge")


def _part_of_graph(where: str, place: int, graph: CSRGraph) -> Part:
    indptr = host_array(where, f"graphs[{place}]", graph.indptr)
    indices = host_array(where, f"graphs[{place}]", graph.indices)
    if indptr.ndim != 1:
        expected = "a single graph; batch the members of a stacked one"
        raise bad_input(where, f"graphs[{place}]", expected, f"indptr {shown(indptr)}")
    if graph.num_cols != len(indptr) - 1:
        raise bad_input(where, f"graphs[{place}]", "square", f"shape {graph.shape}")
    count = int(indptr[-1])
    if indptr[0] != 0 or count > len(indices):
        expected = f"row offsets from 0 to at most {len(indices)}, the number of edge slots"
        raise bad_input(where, f"graphs[{place}].indptr", expected, f"{indptr[0]} to {count}")
    weights = graph.weights
    if weights is not None:
        require_no_heads(where, f"graphs[{place}]", weights)
        weights = host_array(where, f"graphs[{place}].weights", weights)[:count]
    return Part(
        place=place,
        num_nodes=len(indptr) - 1,
        num_edges=count,
        senders=indices[:count],
        indptr=indptr,
        weights=weights,
        row_scale=graph.row_scale,
        col_scale=graph.col_scale,
        normalization=graph.normalization,
    )


def _part_of_tuple(where: str, place: int, graph: Any) -> Part:
    name = f"graphs[{place}]"
    count = host_array(where, f"{name}.n_node", graph.n_node)
    if count.shape != (1,):
        expected = "a jraph.GraphsTuple of one graph; GraphBatch.from_graphs_tuple reads batches"
        raise bad_input(where, name, expected, f"n_node of shape {count.shape}")
    if graph.senders is None or graph.receivers is None:
        raise bad_input(where, f"{name}.senders and {name}.receivers", "arrays", None)
    senders = host_array(where, f"{name}.senders", graph.senders)
    receivers = host_array(where, f"{name}.receivers", graph.receivers)
    check_ids(where, f"{name}.", senders, receivers)
    return Part(
        place=place,
        num_nodes=int(count[0]),
        num_edges=len(senders),
        senders=senders,
        receivers=receivers,
        nodes=graph.nodes,
        edges=graph.edges,
        globals=_first(graph.globals),
    )


def _first(tree: Any) -> Any:
    """Returns the first entries of all arrays of a pytree."""
    if hasattr(tree, "dtype"):  # A single array is fast.
        return tree[0]
    return jax.tree.map(operator.itemgetter(0), tree)


def check_ids(where: str, prefix: str, senders: np.ndarray, receivers: np.ndarray) -> None:
    """Raises ValueError unless both are integers with one entry per edge."""
    for name, ids in (("senders", senders), ("receivers", receivers)):
        if ids.dtype.kind not in "iu":
            require_integers(where, f"{prefix}{name}", ids)
    require_length(where, f"{prefix}receivers", receivers, receivers.size, "per edge")
    require_length(where, f"{prefix}senders", senders, receivers.size, "per receiver")


def host_features(where: str, name: str, tree: Any, length: int) -> Any:
    """Returns the arrays of a pytree in numpy, after a check of their first axes."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    arrays = []
    for path, leaf in flat:
        argument = f"{name}{jax.tree_util.keystr(path)}"
        array = host_array(where, argument, leaf)
        if array.ndim == 0 or len(array) != length:
            raise bad_input(where, argument, f"of shape [{length}, ...]", f"shape {array.shape}")
        arrays.append(array)
    return structure.unflatten(arrays)


def host_array(where: str, argument: str, values: Any) -> np.ndarray:
    """Returns ``values`` as a numpy array; ValueError if they are traced."""
    if isinstance(values, np.ndarray):
        return in_native_order(values)
    if not is_concrete(values):
        raise bad_input(where, argument, "concrete; make batches outside jit", "a tracer")
    return np.asarray(values)


def parts_of_batched_tuple(
    where: str, graphs: Any, *, padded: bool
) -> tuple[list[Part], BatchShape]:
    """Splits a batched ``jraph.GraphsTuple``; see ``GraphBatch.from_graphs_tuple``.

    Returns:
      Its graphs without the padding graphs, and the shape of the whole.
    """
    if not is_graphs_tuple(graphs):
        raise bad_input(where, "graphs", "a jraph.GraphsTuple", type(graphs).__name__)
    if graphs.senders is None or graphs.receivers is None:
        raise bad_input(where, "graphs.senders and graphs.receivers", "arrays", None)
    senders, receivers, num_nodes, num_edges = (
        host_array(where, f"graphs.{name}", getattr(graphs, name))
        for name in ("senders", "receivers", "n_node", "n_edge")
    )
    shape = BatchShape(int(num_nodes.sum()), int(num_edges.sum()), len(num_nodes))
    check_ids(where, "graphs.", senders, receivers)
    require_length(where, "graphs.n_edge", num_edges, shape.graphs, "per entry of n_node")
    require_length(where, "graphs.senders", senders, shape.edges, "per edge counted by n_edge")
    features = {
        name: host_features(where, f"graphs.{name}", getattr(graphs, name), size)
        for name, size in zip(("nodes", "edges", "globals"), shape, strict=True)
    }
    num_real = shape.graphs - _num_padding_graphs(num_nodes) if padded else shape.graphs
    if num_real < 1:
        expected = "a tuple of at least one graph, padding graphs not counted"
        raise bad_input(where, "graphs", expected, f"{shape.graphs} graphs and padded={padded}")
    node_ends, edge_ends = np.cumsum(num_nodes), np.cumsum(num_edges)
    parts = []
    for at in range(num_real):
        first_node = node_ends[at] - num_nodes[at]
        nodes = slice(first_node, node_ends[at])
        edges = slice(edge_ends[at] - num_edges[at], edge_ends[at])
        parts.append(
            Part(
                place=at,
                num_nodes=int(num_nodes[at]),
                num_edges=int(num_edges[at]),
                senders=senders[edges].astype(np.int64) - first_node,
                receivers=receivers[edges].astype(np.int64) - first_node,
                nodes=jax.tree.map(operator.itemgetter(nodes), features["nodes"]),
                edges=jax.tree.map(operator.itemgetter(edges), features["edges"]),
                globals=jax.tree.map(operator.itemgetter(at), features["globals"]),
            )
        )
    return parts, shape


def _num_padding_graphs(num_nodes: np.ndarray) -> int:
    """Counts the padding graphs: the last graph that has nodes, and all after it."""
    return int(np.argmin(num_nodes[::-1] == 0)) + 1
