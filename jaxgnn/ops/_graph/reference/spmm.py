"""Sparse times dense, and its dense-dense-sampled companion, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype


def spmm(graph: CSRGraph, x: Float[Array, "cols *heads dim"]) -> Float[Array, "rows *heads dim"]:
    """``y_i = r_i Σ_j w_ij c_j x_j``, with the weights of a head for its features."""
    accumulator = accumulation_dtype(x.dtype)
    row_scale, col_scale = _scales(graph, accumulator)
    messages = _times(col_scale, x.astype(accumulator))[graph.indices]
    if graph.weights is not None:
        # Weights of padding slots are undefined.
        weights = jnp.where(_of_real_edges(graph, graph.weights), graph.weights, 0)
        messages = _times(weights.astype(accumulator), messages)
    return _times(row_scale, sum_rows(messages, graph.indptr)).astype(x.dtype)


def sddmm(
    graph: CSRGraph, a: Float[Array, "rows *heads dim"], b: Float[Array, "cols *heads dim"]
) -> Float[Array, "edges *heads"]:
    """``e_ij = r_i c_j ⟨a_i, b_j⟩`` for each edge; zero in padding slots. Weights are ignored.

    The result stays in the accumulation dtype: the gradient of float32 weights must not be rounded
    to the dtype of the features.
    """
    accumulator = accumulation_dtype(a.dtype)
    row_scale, col_scale = _scales(graph, accumulator)
    rows = graph.receivers()
    scaled = _times(row_scale, a.astype(accumulator))
    left = rows_at(scaled, rows, are_sorted=True)
    right = _times(col_scale, b.astype(accumulator))[graph.indices]
    products = jnp.sum(left * right, axis=-1)
    return jnp.where(_of_real_edges(graph, products), products, 0)


def _times(factors: Float[Array, "*leading"], values: Float[Array, "*leading_and_more"]) -> Array:
    """Multiplies with factors that have the first axes of the values."""
    return values * factors.reshape(*factors.shape, *[1] * (values.ndim - factors.ndim))


def _of_real_edges(graph: CSRGraph, values: Float[Array, "edges *heads"]) -> Bool[Array, "..."]:
    """A mask of edge slots that are not padding, with axes to broadcast against ``values``."""
    real = graph.receivers() < graph.num_rows
    return real.reshape(-1, *[1] * (values.ndim - 1))


def _scales(graph: CSRGraph, dtype) -> tuple[Array, Array]:
    """The constants ``r`` and ``c`` of a normalised graph, ones where there are none."""
    scales = (graph.row_scale, graph.num_rows), (graph.col_scale, graph.num_cols)
    row_scale, col_scale = (
        jnp.ones(size, dtype) if s is None else lax.stop_gradient(s).astype(dtype)
        for s, size in scales
    )
    return row_scale, col_scale
