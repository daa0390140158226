"""Virtual nodes, through which all nodes of a graph reach each other in two steps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxgnn import ops
from jaxgnn.graph import CSRGraph, GraphBatch, LocalGraph, is_concrete, sum_over_devices
from jaxgnn.graph.local.local_graph import max_over_devices
from jaxgnn.ops.core.dtypes import accumulation_dtype


class SpreadNodes(NamedTuple):
    """Nodes of one graph that is spread over devices; ``shown`` masks those that are attended."""

    graph: LocalGraph
    shown: Bool[Array, " nodes"]

    def attend(
        self,
        queries: Float[Array, "*batch 1 queries dim"],
        keys: Float[Array, "*batch nodes heads dim"],
        values: Float[Array, "*batch nodes heads dim"],
    ) -> Float[Array, "*batch 1 queries dim"]:
        """Returns ``ops.dot_attention`` over the nodes of all devices, the same on each.

        Each device sums over its own nodes, and only these sums are sent.
        """
        wide = accumulation_dtype(keys.dtype)
        shown = self.shown[:, None, None]
        keys, shown_values = (jnp.where(shown, part, 0).astype(wide) for part in (keys, values))
        by_head = (*queries.shape[:-3], keys.shape[-2], -1, queries.shape[-1])
        scores = jnp.einsum("...hqd,...nhd->...hqn", queries.astype(wide).reshape(by_head), keys)
        scores = jnp.where(self.shown, scores / math.sqrt(queries.shape[-1]), -jnp.inf)
        largest = max_over_devices(self.graph, jax.lax.stop_gradient(jnp.max(scores, axis=-1)))
        weights = jnp.exp(scores - jnp.where(largest == -jnp.inf, 0, largest)[..., None])
        sums = jnp.einsum("...hqn,...nhd->...hqd", weights, shown_values), jnp.sum(weights, axis=-1)
        total, count = sum_over_devices(self.graph, sums)
        means = total / jnp.where(count == 0, 1, count)[..., None]
        return means.astype(values.dtype).reshape(queries.shape)


class VirtualNodes(NamedTuple):
    """The edges between the nodes of some graphs and the virtual nodes of each graph.

    Attributes:
      members: the graph [graphs, nodes] from the nodes of a graph, except hidden ones, to its
        virtual nodes; or the nodes of one graph that is spread over devices.
      readers: the graph [nodes, graphs times virtual nodes] from virtual nodes, ordered by graph,
        to the nodes of their graph.
    """

    members: CSRGraph | SpreadNodes
    readers: CSRGraph

    def attend(
        self,
        queries: Float[Array, "*batch graphs queries dim"],
        keys: Float[Array, "*batch nodes heads dim"],
        values: Float[Array, "*batch nodes heads dim"],
        implementation: ops.Name | None,
    ) -> Float[Array, "*batch graphs queries dim"]:
        """Returns the attention of the virtual nodes of each graph to its nodes."""
        if isinstance(self.members, SpreadNodes):
            return self.members.attend(queries, keys, values)
        attended: Any = ops.dot_attention(
            self.members, queries, keys, values, implementation=implementation
        )
        return attended


def virtual_nodes(
    graph: CSRGraph | GraphBatch, count: int, node_mask: Bool[Array, " nodes"] | None
) -> VirtualNodes:
    """Joins the nodes of each graph with ``count`` virtual nodes.

    ``node_mask`` is False for nodes of one graph that no virtual node reads. The edges are in numpy
    if the arguments are concrete, so that no size is compiled.
    """
    structure = graph.graph if isinstance(graph, GraphBatch) else graph
    nodes = structure.num_rows
    xp: Any = np if is_concrete(structure.indptr, node_mask) else jnp
    indices = xp.arange(nodes, dtype=np.int32)
    if isinstance(graph, GraphBatch):
        ends = xp.cumsum(xp.asarray(graph.num_nodes_of_each), dtype=np.int32)
    elif node_mask is None:
        ends = xp.asarray([nodes], dtype=np.int32)
    else:
        mask = xp.asarray(node_mask)
        # Hidden nodes come last, past the end of the only row.
        indices = xp.argsort(~mask, stable=True).astype(np.int32)
        ends = mask.sum(dtype=np.int32)[None]
    members: CSRGraph | SpreadNodes
    if isinstance(structure, LocalGraph):
        shown = structure.is_real_row
        members = SpreadNodes(structure, shown if node_mask is None else shown & node_mask)
    else:
        members = _planned(xp.concatenate([xp.zeros(1, np.int32), ends]), indices, nodes)
    of_graphs = graph_ids(graph, xp)[:, None] * count + xp.arange(count, dtype=np.int32)
    return VirtualNodes(
        members=members,
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
    """Number of graphs, padding graphs included."""
    return graph.num_graphs if isinstance(graph, GraphBatch) else 1


def _planned(indptr: Any, indices: Any, num_cols: int) -> CSRGraph:
    """Builds a graph with its plan for attention, once for all layers."""
    graph = CSRGraph(indptr, indices, num_cols=num_cols)
    return graph.with_parts("schedule", "transpose", "permutation")
