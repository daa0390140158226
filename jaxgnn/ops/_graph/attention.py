"""Attention along the edges of a graph, from the ops that have kernels.

Batch axes, heads among them, come first and share the graph.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph.segment_softmax import segment_softmax
from jaxgnn.ops._graph.spmm import sddmm, spmm
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.eager import run_compiled


def row_scores(
    values: Float[Array, "*batch heads rows dim"], vectors: Float[Array, "heads dim"]
) -> Float[Array, "*batch heads rows"]:
    """The inner product of each row with its head's vector, in the accumulation dtype."""
    return run_compiled(_row_scores, None, (values, vectors))


def _row_scores(static: None, arguments: tuple[Array, Array]) -> Array:
    values, vectors = arguments
    dtype = accumulation_dtype(values.dtype)
    return jnp.einsum("...hnf,hf->...hn", values.astype(dtype), vectors.astype(dtype))


def edge_scores(
    graph: CSRGraph,
    rows: Float[Array, "*batch rows"],
    columns: Float[Array, "*batch cols"],
    implementation: dispatch.Name | None,
) -> Float[Array, "*batch edges"]:
    """Adds the numbers of each edge's row and column; zero in padding slots.

    It uses ``sddmm``, whose gradients sum rows in order, where those of a gather would scatter.
    """
    batch = jnp.broadcast_shapes(rows.shape[:-1], columns.shape[:-1])
    rows = jnp.broadcast_to(rows, (*batch, rows.shape[-1]))
    columns = jnp.broadcast_to(columns, (*batch, columns.shape[-1]))
    left = jnp.stack([rows, jnp.ones_like(rows)], axis=-1)
    right = jnp.stack([jnp.ones_like(columns), columns], axis=-1)
    return sddmm(graph, left, right, implementation=implementation)


def row_softmax(
    graph: CSRGraph, scores: Float[Array, "*batch edges"], implementation: dispatch.Name | None
) -> Float[Array, "*batch edges"]:
    """Softmax over the edges of each row."""
    heads = scores.reshape(math.prod(scores.shape[:-1]), graph.num_edges).T
    return segment_softmax(graph, heads, implementation=implementation).T.reshape(scores.shape)


def weighted_sums(
    graph: CSRGraph,
    weights: Float[Array, "*batch edges"],
    values: Float[Array, "*batch cols dim"],
    implementation: dispatch.Name | None,
) -> Float[Array, "*batch rows dim"]:
    """Runs ``spmm`` with separate weights for each member of the batch."""

    def one(weights, values):
        return spmm(graph.with_weights(weights), values, implementation=implementation)

    batch = jnp.broadcast_shapes(weights.shape[:-1], values.shape[:-2])
    weights = jnp.broadcast_to(weights, (*batch, weights.shape[-1]))
    values = jnp.broadcast_to(values, (*batch, *values.shape[-2:]))
    return dispatch.vmap_leading(one, len(batch), (0, 0))(weights, values)
