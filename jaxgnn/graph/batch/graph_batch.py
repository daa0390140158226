"""GraphBatch: many small graphs as one large graph of a fixed shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn._arrays.arrays import (
    KeepsArrays,
    is_concrete,
    own,
    require_one,
    require_size,
    shown,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.batch.layout import (
    check_weights,
    joined,
    layout_of,
    same_normalization,
    sorted_edges,
)
from jaxgnn.graph.batch.samples import (
    GraphSample,
    Part,
    host_features,
    is_graphs_tuple,
    parts_of_batched_tuple,
    read_part,
)
from jaxgnn.graph.batch.shape import BatchShape, PadTo, batch_shape
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.graph.plan.sorting import row_ids_on_host


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GraphBatch(KeepsArrays):
    """Many graphs as one graph without edges between them, padded to a fixed shape.

    The nodes of the first graph come first, then those of the second, and so on; so do the edges.
    After the real graphs there is, as in jraph, one padding graph, which has all padding nodes (at
    least one) and all padding edges, and after it graphs without nodes. So every id in
    ``graph_ids`` is in range, and sums over the nodes of a graph need no mask. Padding edges are
    after ``graph.indptr[-1]``, where no op reads them.

    A batch is built on the host, and all of its arrays are numpy arrays. It is a pytree: pass it to
    a jitted function, which compiles once for each shape. ``graph`` has its plan, but without
    ``edge_blocks``, which take several times as long to build as the rest.

    Attributes:
      graph: the graphs as one, [nodes, nodes] with ``edges`` slots.
      graph_ids: graph of each node, ascending, int32 [nodes].
      num_nodes_of_each: number of nodes of each graph, padding graphs included, int32 [graphs].
      num_edges_of_each: number of edges of each graph, padding graphs included, int32 [graphs].
      node_mask: False for padding nodes, [nodes] bool.
      graph_mask: False for padding graphs, [graphs] bool.
      nodes: features of the nodes, a pytree of arrays [nodes, ...], zero for padding; or None.
      edges: the same of the edges in the order of ``graph.indices``, [edges, ...].
      globals: the same of the graphs, [graphs, ...].
    """

    graph: CSRGraph
    graph_ids: Int[Array, " nodes"]
    num_nodes_of_each: Int[Array, " graphs"]
    num_edges_of_each: Int[Array, " graphs"]
    node_mask: Bool[Array, " nodes"]
    graph_mask: Bool[Array, " graphs"]
    nodes: Any = None
    edges: Any = None
    globals: Any = None

    def __repr__(self) -> str:
        """Shows shapes instead of arrays."""
        features = {name: getattr(self, name) for name in ("nodes", "edges", "globals")}
        shapes = ", ".join(f"{k}={_shapes(v)}" for k, v in features.items())
        return f"GraphBatch(num_graphs={self.num_graphs}, graph={self.graph!r}, {shapes})"

    def _repr_html_(self) -> str:
        """A table for notebooks, with a drawing of a small batch; shapes alone under a trace."""
        from jaxgnn.graph.html import html_of_batch

        return html_of_batch(self)

    # -- constructors ------------------------------------------------------------------------

    @classmethod
    def from_graphs(
        cls, graphs: Sequence[CSRGraph | GraphSample | Any], pad_to: PadTo = None
    ) -> GraphBatch:
        """Joins graphs to one batch, on the host.

        A jitted function compiles once for each shape of a batch, which depends on ``pad_to``:

        - ``(nodes, edges, graphs)`` are the sizes of the batch. Because of the padding graph there
          is space for ``nodes - 1`` nodes and ``graphs - 1`` graphs.
        - ``(nodes, edges)`` sets the number of graphs to one more than there are.
        - A table of such sizes, from small to large, chooses the first in which the graphs fit.
        - ``"power_of_two"`` chooses the least powers of two in which they fit, for each size.
        - None adds no padding and no padding graph.

        Args:
          graphs: square ``CSRGraph`` objects, ``GraphSample`` objects, or ``jraph.GraphsTuple``
            objects of one graph each. Weights, scales and features must be of one kind in all.
          pad_to: the shape of the batch.

        Raises:
          ValueError: if there are no graphs, they do not fit into ``pad_to``, one of them is
            traced, not square, has ids out of range or integers that JAX would cut, or they differ
            in weights, normalisation, or the structure, shape or dtype of features. The message
            names the graph by its place.
        """
        where = "GraphBatch.from_graphs"
        if not isinstance(graphs, Sequence) or is_graphs_tuple(graphs):
            raise bad_input(where, "graphs", "a list of graphs", type(graphs).__name__)
        parts = [read_part(where, place, graph) for place, graph in enumerate(graphs)]
        if not parts:
            raise bad_input(where, "graphs", "a list of at least one graph", "an empty list")
        sizes = np.array([(part.num_nodes, part.num_edges) for part in parts]).T
        shape = batch_shape(where, pad_to, *sizes)
        return batch_parts(where, parts, shape)

    @classmethod
    def from_graphs_tuple(cls, graphs: Any, *, padded: bool = False) -> GraphBatch:
        """Builds a batch from a batched ``jraph.GraphsTuple``, of the same shape, on the host.

        Args:
          graphs: the tuple. Its edge features are put into the order of the batch: by receiver.
          padded: True if the tuple was padded by ``jraph.pad_with_graphs``, which can not be
            detected. Its padding graphs are then those of the batch.

        Raises:
          ValueError: if it is no such tuple or is traced, it lacks senders or receivers, an edge
            leads from one of its graphs to another, or features have a wrong length.
        """
        where = "GraphBatch.from_graphs_tuple"
        parts, shape = parts_of_batched_tuple(where, graphs, padded=padded)
        return batch_parts(where, parts, shape)

    # -- shape -------------------------------------------------------------------------------

    @property
    def num_graphs(self) -> int:
        """Number of graph slots, including padding: ``num_segments`` of sums over graphs."""
        return self.num_nodes_of_each.shape[-1]

    def edge_mask(self) -> Bool[Array, " edges"]:
        """False for padding edges, [edges] bool; works under ``jit``."""
        require_one("GraphBatch.edge_mask", "self", self.graph)
        xp: Any = np if isinstance(self.graph.indptr, np.ndarray) else jnp
        places = xp.arange(self.graph.num_edges, dtype=self.graph.indptr.dtype)
        return places < self.graph.indptr[-1]

    # -- back --------------------------------------------------------------------------------

    def to_graphs_tuple(self) -> Any:
        """Returns the batch as a ``jraph.GraphsTuple`` of the same shape and padding.

        Edges are in the order of the batch. Padding edges lead from the first padding node to
        itself, as in ``jraph.pad_with_graphs``.

        Raises:
          ValueError: if the batch is traced, or has weights or scales, which a tuple can not store.
        """
        where = "GraphBatch.to_graphs_tuple"
        _require_host(where, "self", self)
        if self.graph.weights is not None or self.graph.is_normalized:
            kind = self.graph.normalization
            got = f"weights {shown(self.graph.weights)} and normalization {kind!r}"
            raise bad_input(where, "self.graph", "unweighted and not normalised", got)
        from jaxgnn.graph.csr.jraph import jraph

        padding_node = int(np.asarray(self.node_mask).sum())
        rows = row_ids_on_host(self.graph.indptr, self.graph.num_edges)
        receivers: Any = np.where(self.edge_mask(), rows, np.int32(padding_node))
        return jraph.GraphsTuple(
            nodes=self.nodes,
            edges=self.edges,
            globals=self.globals,
            senders=self.graph.indices,
            receivers=receivers,
            n_node=self.num_nodes_of_each,
            n_edge=self.num_edges_of_each,
        )


# A graph knows nothing of batches, which are made of graphs.
CSRGraph.batch = GraphBatch.from_graphs


def unbatch(
    batch: GraphBatch, tree: Any, of: Literal["nodes", "edges", "globals"] = "nodes"
) -> list[Any]:
    """Splits arrays of a batch into those of its real graphs, on the host.

    Args:
      batch: a batch that is not traced.
      tree: a pytree of arrays, with an entry per node, edge or graph slot of the batch.
      of: meaning of the first axis of the arrays: ``"nodes"``, ``"edges"`` or ``"globals"``.

    Returns:
      For each real graph, in their order, the pytree of its numpy arrays, views where possible:
      [its nodes, ...], [its edges, ...] in the order of the batch, or globals without an axis.

    Raises:
      ValueError: if ``batch`` is no ``GraphBatch``, it or ``tree`` is traced, ``of`` has no such
        name, or an array has not one entry per slot.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> [x.tolist() for x in unbatch(batch, np.arange(8))]
      [[0, 1], [2, 3]]
    """
    if not isinstance(batch, GraphBatch):
        raise bad_input("unbatch", "batch", "a GraphBatch", type(batch).__name__)
    _require_host("unbatch", "batch", batch)
    counts = {
        "nodes": batch.num_nodes_of_each,
        "edges": batch.num_edges_of_each,
        "globals": np.ones(batch.num_graphs, np.int32),
    }
    if of not in counts:
        raise bad_input("unbatch", "of", " or ".join(map(repr, counts)), repr(of))
    ends = np.cumsum(counts[of])
    leaves, structure = jax.tree.flatten(host_features("unbatch", "tree", tree, int(ends[-1])))
    graphs = range(int(np.asarray(batch.graph_mask).sum()))
    if of == "globals":
        return [structure.unflatten([array[at] for array in leaves]) for at in graphs]
    bounds = [0, *ends.tolist()]
    return [
        structure.unflatten([array[bounds[at] : bounds[at + 1]] for array in leaves])
        for at in graphs
    ]


def batch_parts(where: str, parts: Sequence[Part], shape: BatchShape) -> GraphBatch:
    """Joins graphs that have been read; ValueError names one that does not fit the others."""
    for what, size in zip(("nodes", "edges", "graphs"), shape, strict=True):
        require_size(where, f"the number of {what} in the batch", size)
    normalization = same_normalization(where, parts)
    layout = layout_of(parts, shape)
    indptr, indices, order = sorted_edges(where, parts, layout)
    weights = joined(where, parts, "weights", shape.edges, order)
    if weights is not None:
        check_weights(where, parts, layout, weights, order)
    graph = CSRGraph(
        indptr=indptr,
        indices=indices,
        weights=weights,
        num_cols=shape.nodes,
        row_scale=joined(where, parts, "row_scale", shape.nodes),
        col_scale=joined(where, parts, "col_scale", shape.nodes),
        plan=make_plan(indptr, indices, shape.nodes),
        normalization=normalization,
        in_range=True,
    )
    ids = np.repeat(np.arange(shape.graphs, dtype=np.int32), layout.num_nodes)
    return GraphBatch(
        graph=graph,
        graph_ids=own(ids),
        num_nodes_of_each=own(layout.num_nodes.astype(np.int32)),
        num_edges_of_each=own(layout.num_edges.astype(np.int32)),
        node_mask=own(np.arange(shape.nodes) < layout.real_nodes),
        graph_mask=own(np.arange(shape.graphs) < layout.num_real),
        nodes=joined(where, parts, "nodes", shape.nodes),
        edges=joined(where, parts, "edges", shape.edges, order),
        globals=joined(where, parts, "globals", shape.graphs),
    )


def _require_host(where: str, argument: str, batch: GraphBatch) -> None:
    """Raises ValueError unless the host can read this batch, and it is a single one."""
    require_one(where, argument, batch.graph)
    if not is_concrete(*jax.tree.leaves(batch)):
        raise bad_input(where, argument, "concrete; call it outside jit", "a tracer")


def _shapes(tree: Any) -> str:
    """Returns a pytree with dtypes and shapes instead of its arrays."""
    return str(jax.tree.map(shown, tree)).replace("'", "")


def dynamic_batches(
    graphs: Iterable[CSRGraph | GraphSample | Any],
    max_nodes: int,
    max_edges: int,
    max_graphs: int,
) -> Iterator[GraphBatch]:
    """Fills batches of one shape with graphs, in their order, and yields each when it is full.

    All batches have the shape ``max_nodes``, ``max_edges``, ``max_graphs``, so a jitted step
    compiles once. As in ``jraph.dynamically_batch``, one node and one graph are padding.

    Args:
      graphs: any iterable of graphs that ``GraphBatch.from_graphs`` accepts. It is read lazily, and
        may be infinite.
      max_nodes: nodes of each batch, at least 1.
      max_edges: edge slots of each batch.
      max_graphs: graphs of each batch, at least 2.

    Returns:
      An iterator over batches; the last may have fewer graphs than fit.

    Raises:
      ValueError: at once for a bad budget; while iterating, for a graph that is larger than the
        budget, which the message names by its place in ``graphs``, and for all inputs that
        ``GraphBatch.from_graphs`` rejects.

    Example:
      >>> sizes = [3, 2, 4]
      >>> chains = [GraphSample(range(n - 1), range(1, n), n) for n in sizes]
      >>> batches = dynamic_batches(chains, max_nodes=6, max_edges=8, max_graphs=4)
      >>> [batch.num_nodes_of_each.tolist() for batch in batches]
      [[3, 2, 1, 0], [4, 2, 0, 0]]
    """
    where = "dynamic_batches"
    least = {"max_nodes": 1, "max_edges": 0, "max_graphs": 2}
    shape = BatchShape(max_nodes, max_edges, max_graphs)
    for (name, at_least), size in zip(least.items(), shape, strict=True):
        require_size(where, name, size)
        if size < at_least:
            raise bad_input(where, name, f"at least {at_least}", size)
    return _filled(where, graphs, shape)


def _filled(where: str, graphs: Iterable[Any], shape: BatchShape) -> Iterator[GraphBatch]:
    """Yields batches, each of as many graphs as fit."""
    parts: list[Part] = []
    empty = needed = BatchShape(nodes=1, edges=0, graphs=1)  # The padding graph has one node.
    for place, graph in enumerate(graphs):
        part = read_part(where, place, graph)
        if not shape.holds(empty.plus(part.num_nodes, part.num_edges)):
            most_nodes = f"{shape.nodes - 1} nodes (max_nodes less one)"
            expected = f"of at most {most_nodes} and {shape.edges} edges"
            got = f"{part.num_nodes} nodes and {part.num_edges} edges"
            raise bad_input(where, f"graphs[{place}]", expected, got)
        if not shape.holds(needed.plus(part.num_nodes, part.num_edges)):
            yield batch_parts(where, parts, shape)
            parts, needed = [], empty
        parts.append(part)
        needed = needed.plus(part.num_nodes, part.num_edges)
    if parts:
        yield batch_parts(where, parts, shape)
