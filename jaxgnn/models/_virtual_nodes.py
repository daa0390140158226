"""Virtual nodes, through which all nodes of a graph reach each other in two steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn.graph import CSRGraph, GraphBatch, is_concrete


class VirtualNodes(NamedTuple):
    """The edges between the nodes of some graphs and the virtual nodes of each graph.

    Attributes:
      members: a row for each graph, whose senders are its nodes, without those that are hidden:
        [graphs, nodes].
      readers: a row for each node, whose senders are the virtual nodes of its graph, those of the
        first graph first: [nodes, graphs times virtual nodes].
    """

    members: CSRGraph
    readers: CSRGraph


def virtual_nodes(
    graph: CSRGraph | GraphBatch, count: int, node_mask: Bool[Array, " nodes"] | None
) -> VirtualNodes:
    """Joins the nodes of each graph with ``count`` virtual nodes.

    Args:
      graph: one graph, or a batch, whose padding nodes are graphs of their own.
      count: number of virtual nodes of each graph.
      node_mask: of one graph, False for nodes that no virtual node reads; None for no such nodes.

    Returns:
      The edges, in numpy if the arguments are concrete, so that no size is compiled.
    """
    nodes = _structure(graph).num_rows
    xp: Any = np if is_concrete(_structure(graph).indptr, node_mask) else jnp
    indices = xp.arange(nodes, dtype=np.int32)
    if isinstance(graph, GraphBatch):
        ends = xp.cumsum(xp.asarray(graph.num_nodes_of_each), dtype=np.int32)
    elif node_mask is None:
        ends = xp.asarray([nodes], dtype=np.int32)
    else:
        mask = xp.asarray(node_mask)
        # Nodes that are hidden come last, and lie behind the end of the only row.
        indices = xp.argsort(~mask, stable=True).astype(np.int32)
        ends = mask.sum(dtype=np.int32)[None]
    of_graphs = graph_ids(graph, xp)[:, None] * count + xp.arange(count, dtype=np.int32)
    return VirtualNodes(
        members=_planned(xp.concatenate([xp.zeros(1, np.int32), ends]), indices, nodes),
        readers=_planned(
            xp.arange(nodes + 1, dtype=np.int32) * count,
            of_graphs.reshape(-1),
            num_graphs(graph) * count,
        ),
    )


def graph_ids(graph: CSRGraph | GraphBatch, xp: Any = jnp) -> Int[Array, " nodes"]:
    """The graph of each node."""
    if isinstance(graph, GraphBatch):
        return xp.asarray(graph.graph_ids, dtype=np.int32)
    return xp.zeros(graph.num_rows, np.int32)


def num_graphs(graph: CSRGraph | GraphBatch) -> int:
    """The number of graphs, with those that are padding."""
    return graph.num_graphs if isinstance(graph, GraphBatch) else 1


def _structure(graph: CSRGraph | GraphBatch) -> CSRGraph:
    return graph.graph if isinstance(graph, GraphBatch) else graph


def _planned(indptr: Any, indices: Any, num_cols: int) -> CSRGraph:
    """A graph with what attention needs of it, which is made once for all layers."""
    graph = CSRGraph(indptr, indices, num_cols=num_cols)
    return graph.with_parts("schedule", "transpose", "permutation")
