"""The bridge to jraph, and the only module that imports it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from jaxgnn._arrays.arrays import in_native_order, is_concrete, put_own, require_kept_integers
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.edge_list import require_leading
from jaxgnn.graph.csr.rows import CompressedRows
from jaxgnn.graph.plan.sorting import row_ids_on_host


def edge_list(
    graphs: Any, *, padded: bool
) -> tuple[Int[Array, " edges"], Int[Array, " edges"], int, Bool[Array, " edges"] | None]:
    """Reads ``(senders, receivers, num_nodes, edge_mask)`` from a ``GraphsTuple``.

    The mask is None unless ``padded``, otherwise False for the edges of the padding graphs.
    """
    where = "CSRGraph.from_graphs_tuple"
    if not isinstance(graphs, jraph.GraphsTuple):
        raise bad_input(where, "graphs", "a jraph.GraphsTuple", type(graphs).__name__)
    if graphs.senders is None or graphs.receivers is None:
        raise bad_input(where, "graphs.senders and graphs.receivers", "arrays", None)
    if padded and graphs.n_node.shape[-1] < 2:
        expected = "False for a tuple of fewer than two graphs, as jraph.pad_with_graphs adds one"
        raise bad_input(where, "padded", expected, f"True for {graphs.n_node.shape[-1]}")
    mask = _edge_mask(graphs) if padded else None
    return graphs.senders, graphs.receivers, _num_nodes(where, graphs), mask


def _edge_mask(graphs: jraph.GraphsTuple) -> Bool[Array, " edges"]:
    if not is_concrete(graphs.n_node, graphs.n_edge):
        return jraph.get_edge_padding_mask(graphs)  # pyrefly: ignore[bad-return]
    # The same on the host: the last graph that has nodes is padding, and all after it.
    nodes, edges = np.asarray(graphs.n_node), np.asarray(graphs.n_edge)
    padding = int(np.argmin(nodes[::-1] == 0)) + 1
    senders: Any = graphs.senders
    mask: Any = np.arange(len(senders)) < len(senders) - edges[-padding]
    return mask


def _num_nodes(where: str, graphs: jraph.GraphsTuple) -> int:
    leaves = jax.tree.leaves(graphs.nodes)
    if leaves:
        return leaves[0].shape[0]
    if not is_concrete(graphs.n_node):
        raise bad_input(where, "graphs.nodes", "given under jit, to tell the number of nodes", None)
    return int(np.asarray(graphs.n_node).sum())


def graphs_tuple(
    graph: CompressedRows, nodes: PyTree, edges: PyTree, globals: PyTree, *, padded: bool
) -> jraph.GraphsTuple:
    """Builds the ``GraphsTuple`` of a graph, with a second one for its padding if ``padded``."""
    where = "CSRGraph.to_graphs_tuple"
    if graph.num_rows != graph.num_cols:
        raise bad_input(where, "self", "square", f"shape {graph.shape}")
    lengths = (
        ("nodes", nodes, graph.num_rows, "row"),
        ("edges", edges, graph.num_edges, "edge slot"),
        ("globals", globals, 1, "graph"),
    )
    for name, tree, length, of_what in lengths:
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            path_name = name + jax.tree_util.keystr(path)
            require_leading(where, path_name, leaf, length, of_what)
            require_kept_integers(where, path_name, leaf)
    if padded:
        return _padded_tuple(graph, nodes, edges, globals)
    if not is_concrete(graph.indptr, graph.indices):
        expected = "True for a traced graph, whose number of padding slots is not known"
        raise bad_input(where, "padded", expected, "False")
    count = int(np.asarray(graph.indptr)[-1])
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=edges if count == graph.num_edges else jax.tree.map(lambda leaf: leaf[:count], edges),
        senders=put_own(np.array(graph.indices)[:count]),
        receivers=put_own(row_ids_on_host(graph.indptr, count)),
        n_node=put_own(np.array([graph.num_rows], np.int32)),
        n_edge=put_own(np.array([count], np.int32)),
        globals=globals,
    )


def _padded_tuple(graph, nodes, edges, globals):
    # Padding slots have the row ``num_rows``, which is the node of the padding graph.
    receivers = graph.receivers()
    real = receivers < graph.num_rows
    count = graph.indptr[-1]

    def with_zeros(leaf):
        leaf = jnp.asarray(in_native_order(leaf))
        return jnp.concatenate([leaf, jnp.zeros_like(leaf, shape=(1, *leaf.shape[1:]))])

    return jraph.GraphsTuple(
        nodes=jax.tree.map(with_zeros, nodes),
        edges=edges,
        senders=jnp.where(real, graph.indices, graph.num_rows),
        receivers=receivers,
        n_node=jnp.array([graph.num_rows, 1], np.int32),
        n_edge=jnp.stack([count, graph.num_edges - count]).astype(np.int32),
        globals=jax.tree.map(with_zeros, globals),
    )
