"""Sparse times dense, and its dense-dense-sampled companion, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.graph._row_sums import sum_rows
from jaxgnn.ops._core.dtypes import accumulation_dtype


def spmm(graph: CSRGraph, x: Float[Array, "cols dim"]) -> Float[Array, "rows dim"]:
    """``y_i = r_i Σ_j w_ij c_j x_j``."""
    accumulator = accumulation_dtype(x.dtype)
    row_scale, col_scale = _scales(graph, accumulator)
    sources = x.astype(accumulator) * col_scale[:, None]
    messages = sources[graph.indices]
    if graph.weights is not None:
        # Weights of padding slots may be anything.
        weights = jnp.where(graph.receivers() < graph.num_rows, graph.weights, 0)
        messages = messages * weights.astype(accumulator)[:, None]
    sums = sum_rows(messages, graph.indptr)
    return (sums * row_scale[:, None]).astype(x.dtype)


def sddmm(
    graph: CSRGraph, a: Float[Array, "rows dim"], b: Float[Array, "cols dim"]
) -> Float[Array, " edges"]:
    """``e_ij = r_i c_j ⟨a_i, b_j⟩`` for each edge; zero in padding slots. Weights are ignored.

    The result stays in the accumulation dtype: the gradient of float32 weights must not be rounded
    to the dtype of the features.
    """
    accumulator = accumulation_dtype(a.dtype)
    row_scale, col_scale = _scales(graph, accumulator)
    rows = graph.receivers()
    scaled = a.astype(accumulator) * row_scale[:, None]
    left = scaled.at[rows].get(mode="fill", fill_value=0, indices_are_sorted=True)
    right = (b.astype(accumulator) * col_scale[:, None])[graph.indices]
    products = jnp.sum(left * right, axis=-1)
    return jnp.where(rows < graph.num_rows, products, 0)


def _scales(graph: CSRGraph, dtype) -> tuple[Array, Array]:
    """The constants ``r`` and ``c`` of a normalised graph, ones where there are none."""
    scales = (graph.row_scale, graph.num_rows), (graph.col_scale, graph.num_cols)
    row_scale, col_scale = (
        jnp.ones(size, dtype) if s is None else lax.stop_gradient(s).astype(dtype)
        for s, size in scales
    )
    return row_scale, col_scale
