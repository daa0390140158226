"""Normalisation by degree: scales of an unweighted graph, or other weights of a weighted one."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Normalization = Literal["mean", "sym"]


def degree_scales(
    row_degrees: Int[Array, " rows"], column_degrees: Int[Array, " cols"] | None
) -> tuple[Float[Array, " rows"], Float[Array, " cols"] | None]:
    """The row and column scales of an unweighted graph; without column degrees, of its mean.

    They are float64 where JAX has that, for features of it, and else float32.
    """
    dtype = jax.dtypes.canonicalize_dtype(jnp.float64)
    degrees = row_degrees.astype(dtype)
    if column_degrees is None:
        return _power_or_zero(degrees, -1.0), None
    columns = column_degrees.astype(dtype)
    return _power_or_zero(degrees, -0.5), _power_or_zero(columns, -0.5)


def normalized_weights(
    kind: Normalization,
    stored: Float[Array, " edges"],
    rows: Int[Array, " edges"],
    senders: Int[Array, " edges"],
    shape: tuple[int, int],
) -> Float[Array, " edges"]:
    """The weights of a weighted graph, of ``shape``, divided by sums of weights.

    Slots whose row is no row are padding, and get weight zero.
    """
    num_rows, num_cols = shape
    real = rows < num_rows
    # Padding slots may hold anything. Sums need more bits than half-precision weights have.
    accumulator = jnp.float64 if stored.dtype == jnp.float64 else jnp.float32
    weights = jnp.where(real, stored, 0).astype(accumulator)
    row_sums = jax.ops.segment_sum(weights, rows, num_rows)
    if kind == "mean":
        scale = _of_nodes(_power_or_zero(row_sums, -1.0), rows)
    else:
        columns = jnp.where(real, senders, num_cols)
        column_sums = jax.ops.segment_sum(weights, columns, num_cols)
        scale = _of_nodes(_power_or_zero(row_sums, -0.5), rows)
        scale = scale * _of_nodes(_power_or_zero(column_sums, -0.5), columns)
    return (weights * scale).astype(stored.dtype)


def _of_nodes(scales: Float[Array, " n"], nodes: Int[Array, " edges"]) -> Float[Array, " edges"]:
    """The scale of each edge's node, zero where a padding slot names no node."""
    return scales.at[nodes].get(mode="fill", fill_value=0)


def _power_or_zero(degrees: Float[Array, " n"], exponent: float) -> Float[Array, " n"]:
    """``degrees ** exponent`` where positive, else zero, with finite gradients in both cases."""
    positive = degrees > 0
    return jnp.where(positive, jnp.where(positive, degrees, 1) ** exponent, 0)
