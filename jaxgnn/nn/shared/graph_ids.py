"""Sums, extremes and softmax over the nodes of each graph of a batch, without padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphBatch
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype


def check_batch(where: str, x: Any, batch: Any) -> GraphBatch:
    """Raises ValueError unless ``x`` has a row for each node slot of a batch of graphs."""
    if not isinstance(batch, GraphBatch):
        expected = "a jaxgnn.graph.GraphBatch"
        if getattr(batch, "ndim", 0) == 1:  # the common mistake: ids of the graph of each node
            expected += " (of ids of graphs there are jaxgnn.segment_mean and its like)"
        raise bad_input(where, "batch", expected, type(batch).__name__)
    if not hasattr(x, "ndim"):
        raise bad_input(where, "x", "an array", type(x).__name__)
    nodes = batch.node_mask.shape[-1]
    if x.ndim < 2 or x.shape[0] != nodes:
        expected = f"of shape [{nodes}, ...], a row for each node slot of the batch"
        raise bad_input(where, "x", expected, f"shape {x.shape}")
    if not batch.num_graphs:
        raise bad_input(where, "batch", "of at least one graph", "an empty batch")
    return batch


def check_features(where: str, x: Array, features: int) -> None:
    """Raises ValueError unless the rows of ``x`` have the width of the layer."""
    if x.ndim != 2 or x.shape[-1] != features:
        expected = f"of shape [nodes, {features}]"
        raise bad_input(where, "x", expected, f"shape {x.shape}")


def rows_where(
    mask: Bool[Array, " nodes"], x: Float[Array, "nodes *rest"], other: Any = 0
) -> Array:
    """The rows of ``x`` where the mask is true, ``other`` elsewhere."""
    return jnp.where(jnp.expand_dims(mask, range(1, x.ndim)), x, other)


def num_real_nodes(batch: GraphBatch) -> Int[Array, " graphs"]:
    """Number of nodes of each graph, without padding."""
    return jnp.where(jnp.asarray(batch.graph_mask), jnp.asarray(batch.num_nodes_of_each), 0)


def sums(x: Float[Array, "nodes *rest"], batch: GraphBatch) -> Float[Array, "graphs *rest"]:
    """The sum over the nodes of each graph, in at least float32."""
    wide = x.astype(accumulation_dtype(x.dtype))
    masked = rows_where(jnp.asarray(batch.node_mask), wide)
    return sum_rows(masked, _offsets(batch))


def means(x: Float[Array, "nodes *rest"], batch: GraphBatch) -> Float[Array, "graphs *rest"]:
    """Computes the mean over the nodes of each graph, in at least float32; zero without nodes."""
    total = sums(x, batch)
    count = jnp.maximum(num_real_nodes(batch), 1).astype(total.dtype)
    return total / jnp.expand_dims(count, range(1, x.ndim))


def variances(x: Float[Array, "nodes *rest"], batch: GraphBatch) -> Float[Array, "graphs *rest"]:
    """The variance over the nodes of each graph, with their number in the denominator."""
    wide = rows_where(jnp.asarray(batch.node_mask), x.astype(accumulation_dtype(x.dtype)))
    return means(jnp.square(wide - spread_to_nodes(means(wide, batch), batch)), batch)


def extremes(
    x: Float[Array, "nodes *rest"], batch: GraphBatch, *, largest: bool
) -> Float[Array, "graphs *rest"]:
    """The maximum or minimum over each graph's nodes; zero for a graph without nodes."""
    function: Callable[..., Array] = jax.ops.segment_max if largest else jax.ops.segment_min
    masked = rows_where(jnp.asarray(batch.node_mask), x, -jnp.inf if largest else jnp.inf)
    ids = jnp.asarray(batch.graph_ids)
    bounds = function(masked, ids, batch.num_graphs, indices_are_sorted=True)
    return rows_where(num_real_nodes(batch) > 0, bounds)


def spread_to_nodes(
    values: Float[Array, "graphs *rest"], batch: GraphBatch
) -> Float[Array, "nodes *rest"]:
    """Broadcasts the values of graphs to their nodes."""
    return values[jnp.asarray(batch.graph_ids)]


def softmax(logits: Float[Array, "nodes *rest"], batch: GraphBatch) -> Float[Array, "nodes *rest"]:
    """Weights that sum to one over the nodes of each graph, in float32; zero for padding."""
    wide = logits.astype(accumulation_dtype(logits.dtype))
    highest = jax.lax.stop_gradient(extremes(wide, batch, largest=True))
    # Padding must stay finite, even where it is masked afterwards.
    centred = rows_where(jnp.asarray(batch.node_mask), wide - spread_to_nodes(highest, batch))
    powers = rows_where(jnp.asarray(batch.node_mask), jnp.exp(centred))
    total = sums(powers, batch)
    return powers / spread_to_nodes(rows_where(num_real_nodes(batch) > 0, total, 1), batch)


def _offsets(batch: GraphBatch) -> Int[Array, " graphs+1"]:
    """Offsets of the nodes of each graph, with the end of the last one."""
    counts = jnp.asarray(batch.num_nodes_of_each)
    return jnp.pad(jnp.cumsum(counts, dtype=counts.dtype), (1, 0))
