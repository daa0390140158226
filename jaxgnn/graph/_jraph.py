"""The bridge to jraph, and the only module that imports it."""

from __future__ import annotations

from typing import Any

import jax
import jraph
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn._errors import bad_input
from jaxgnn.graph._arrays import is_concrete


def edge_list(
    graphs: Any, *, padded: bool
) -> tuple[Int[Array, " edges"], Int[Array, " edges"], int, Bool[Array, " edges"] | None]:
    """Reads ``(senders, receivers, num_nodes, edge_mask)`` off a ``GraphsTuple``.

    The mask is None unless ``padded``, and else False on the edges of the padding graphs.

    Raises:
      ValueError: if ``graphs`` is no ``GraphsTuple`` with senders and receivers, its number of
        nodes can not be told from its shapes, or it has too few graphs to be padded.
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
    # The same on the host: the last graph that has nodes is padding, and all behind it.
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
