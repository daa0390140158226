"""Weights of edges, and the last layer, applied after a weighted sum."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._core.custom_gradient import custom_vjp
from jaxgnn.ops._core.dtypes import accumulation_dtype
from jaxgnn.ops._dense.reference.fused_linear import gradients, product


def of_edges(
    graph: CSRGraph, weights: Float[Array, "*batch edges"] | None, dtype: DTypeLike
) -> Float[Array, "*batch edges"] | None:
    """``r_i w_ij c_j`` in the accumulation dtype; None for ones.

    Args:
      graph: the graph; its weights are used if ``weights`` is None, and its scales are constants.
      weights: a number for each edge, or None for the weights of the graph.
      dtype: dtype of the features.
    """
    accumulator = accumulation_dtype(dtype)
    weights = graph.weights if weights is None else weights
    factors = [] if weights is None else [weights.astype(accumulator)]
    ends = (graph.row_scale, graph.receivers), (graph.col_scale, lambda: graph.indices)
    for scale, nodes in ends:
        if scale is not None:
            constants = lax.stop_gradient(scale).astype(accumulator)
            factors.append(constants.at[nodes()].get(mode="fill", fill_value=0))
    product = None
    for factor in factors:
        product = factor if product is None else product * factor
    return product


def of_sum(
    graph: CSRGraph,
    weights: Float[Array, "batch edges"] | None,
    dtype: DTypeLike,
    *,
    mean: bool,
    degree: int | None,
) -> tuple[Float[Array, "batch edges"] | None, Float[Array, "batch rows"]]:
    """Weights that turn the reduction into a sum, and the sum of the weights of each row.

    A mean is a sum with ``w_ij / Σ_j w_ij``, or with zeros where that sum is not positive.

    Args:
      graph: the graph; its weights are ignored.
      weights: a number for each edge, or None for ones.
      dtype: dtype of the features.
      mean: whether the reduction is a mean.
      degree: number of edges of every row if all rows are known to have the same number, else None.
    """
    accumulator = accumulation_dtype(dtype)
    if weights is None:
        totals = graph.degrees().astype(accumulator)[None]
    else:
        totals = _sum_rows(graph, weights, degree, exact=mean)
    if not mean:
        return weights, totals
    positive = totals > 0
    scales = jnp.where(positive, 1 / jnp.where(positive, totals, 1), 0)
    shares = _at_rows(graph, scales, degree)
    return shares if weights is None else weights * shares, positive.astype(accumulator)


def _sum_rows(
    graph: CSRGraph, weights: Array, degree: int | None, *, exact: bool
) -> Float[Array, "batch rows"]:
    """Sums the weights of each row; ``exact`` keeps the precision of long sums."""
    batch = weights.shape[0]
    if degree is not None:
        return jnp.sum(weights.reshape(batch, graph.num_rows, degree), axis=2)
    if exact:
        return sum_rows(weights.T, graph.indptr).T
    rows, num_rows = graph.receivers(), graph.num_rows
    real = jnp.where(rows < num_rows, weights, 0)
    totals = jnp.zeros((batch, num_rows), weights.dtype)
    return totals.at[:, rows].add(real, mode="drop", indices_are_sorted=True)


def _at_rows(graph: CSRGraph, scales: Array, degree: int | None) -> Float[Array, "batch edges"]:
    if degree is not None:
        return jnp.repeat(scales, degree, axis=1)
    rows = graph.receivers()
    return scales.at[:, rows].get(mode="fill", fill_value=0, indices_are_sorted=True)


@custom_vjp
def last_layer(
    sums: Float[Array, "batch rows in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    totals: Float[Array, "batch|1 rows"],
    real: Bool[Array, " rows"] | None,
) -> Float[Array, "batch rows out"]:
    """``sums @ kernel + totals bias``, rounded once: the last layer, applied after a sum.

    Its gradients round the factors of their products to the dtype of the operands.

    Args:
      sums: weighted sums, by row, of the results of the layer before.
      kernel: weights of the last layer.
      bias: bias of the last layer, or None for zeros.
      totals: sum of the weights of each row.
      real: False for rows without edges; None if all rows have edges.
    """
    y = product(sums, kernel, ((2,), (0,)), None)
    if bias is not None:
        y = y + totals[..., None] * bias.astype(y.dtype)
    return y.astype(sums.dtype)


def _last_layer_forward(*inputs):
    return last_layer(*inputs), inputs


def _last_layer_backward(inputs, dy):
    sums, kernel, bias, totals, real = inputs
    dz = dy.astype(totals.dtype)
    if real is not None:
        # A row without edges does not affect the layer: its zeros times NaN would be NaN.
        dz = jnp.where(real[:, None], dz, 0)
    dsums, dkernel, _ = gradients(sums, kernel, None, dz, None)
    dbias, dtotals = None, jnp.zeros_like(totals)
    if bias is not None:
        dbias = jnp.sum(totals[..., None] * dz, axis=(0, 1)).astype(bias.dtype)
        dtotals = jnp.sum(dz * bias.astype(dz.dtype), axis=-1)
        if totals.shape[0] != dtotals.shape[0]:
            dtotals = jnp.sum(dtotals, axis=0, keepdims=True)
    return dsums.astype(sums.dtype), dkernel, dbias, dtotals, None


last_layer.defvjp(_last_layer_forward, _last_layer_backward)
