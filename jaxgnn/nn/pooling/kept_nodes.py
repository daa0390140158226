"""Sub-batch of selected nodes of a batch, in a fixed shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn.graph import CSRGraph, GraphBatch
from jaxgnn.nn.shared.graph_ids import rows_where


def batch_of_nodes(batch: GraphBatch, node_ids: Int[Array, " capacity"]) -> GraphBatch:
    """The batch of selected nodes and of the edges between them.

    It may be traced: the new batch has a node slot for each id, and the edge slots of the old one.
    Unused slots belong to the first padding graph. If all graphs are real, they belong to none:
    their id is the number of graphs.

    Args:
      batch: the graphs, not normalised. Features of nodes and edges follow their nodes and edges.
      node_ids: different nodes, in the order of their graphs; the number of nodes, an invalid id,
        for unused slots.
    """
    nodes, capacity = batch.node_mask.shape[0], node_ids.shape[0]
    real = node_ids < nodes
    slot_of = jnp.full(nodes, capacity, jnp.int32)
    slot_of = slot_of.at[node_ids].set(jnp.arange(capacity, dtype=jnp.int32), mode="drop")
    old = batch.graph
    rows = jnp.asarray(old.receivers())
    receivers = jnp.where(rows < nodes, slot_of[jnp.minimum(rows, nodes - 1)], capacity)
    senders = slot_of[jnp.asarray(old.indices)]
    is_edge = (receivers < capacity) & (senders < capacity)
    graph, (edges,) = CSRGraph.from_edges(
        jnp.where(is_edge, senders, 0),
        jnp.where(is_edge, receivers, 0),
        capacity,
        weights=None if old.weights is None else jnp.asarray(old.weights),
        edge_mask=is_edge,
        edge_data=(jax.tree.map(jnp.asarray, batch.edges),),
    )
    # The first padding graph; the number of graphs, an invalid id, if all are real.
    padding = jnp.sum(jnp.asarray(batch.graph_mask), dtype=jnp.int32)
    ids = jnp.where(real, jnp.asarray(batch.graph_ids)[jnp.where(real, node_ids, 0)], padding)
    counts = jnp.zeros(batch.num_graphs, jnp.int32).at[ids].add(1, mode="drop")
    of_edges = jnp.where(is_edge, ids[jnp.minimum(receivers, capacity - 1)], padding)
    edge_counts = jnp.zeros(batch.num_graphs, jnp.int32).at[of_edges].add(1, mode="drop")
    there = jnp.arange(graph.num_edges) < jnp.asarray(graph.indptr)[-1]
    return GraphBatch(
        graph=graph,
        graph_ids=ids,
        num_nodes_of_each=counts,
        num_edges_of_each=edge_counts,
        node_mask=real,
        graph_mask=jnp.asarray(batch.graph_mask),
        nodes=jax.tree.map(lambda leaf: rows_at(node_ids, leaf), batch.nodes),
        edges=jax.tree.map(lambda leaf: rows_where(there, leaf), edges),
        globals=batch.globals,
    )


def rows_at(
    node_ids: Int[Array, " capacity"], x: Float[Array, "nodes *rest"]
) -> Float[Array, "capacity *rest"]:
    """The rows of these nodes; zeros for an id equal to the number of nodes."""
    x = jnp.asarray(x)
    real = node_ids < x.shape[0]
    return rows_where(real, x[jnp.where(real, node_ids, 0)])
