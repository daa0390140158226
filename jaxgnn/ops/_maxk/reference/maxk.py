"""The k largest entries of each row, in plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.graph import CBSR, column_dtype
from jaxgnn.ops.core.dtypes import accumulation_dtype


def maxk(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: int | None) -> CBSR:
    """Keeps the ``k`` entries of each row with the largest ranks, columns ascending."""
    dim = x.shape[-1]
    rank = ranks(x, by)
    if early_stop is None:
        # top_k is stable: among equal ranks the lowest column comes first.
        columns = jnp.sort(lax.top_k(rank, k)[1], axis=-1)
    else:
        columns = _first_columns(rank >= _threshold(rank, k, early_stop)[..., None], k)
    values = jnp.take_along_axis(x, columns, axis=-1)
    return CBSR(values, columns.astype(column_dtype(dim)), dim)


def ranks(x: Float[Array, "*batch dim"], by: str) -> Float[Array, "*batch dim"]:
    """The numbers by which entries are compared: values or magnitudes, NaN as +inf, -0 as +0."""
    x = lax.stop_gradient(x).astype(accumulation_dtype(x.dtype))
    x = jnp.abs(x) if by == "magnitude" else x
    return jnp.where(jnp.isnan(x), jnp.inf, jnp.where(x == 0, 0, x))


def _threshold(rank: Float[Array, "*batch dim"], k: int, steps: int) -> Float[Array, "*batch"]:
    """Bisects ``steps`` times for a threshold that at least ``k`` entries reach."""
    largest = jnp.finfo(rank.dtype).max
    bounded = jnp.clip(rank, -largest, largest)

    def halve(_, bounds):
        low, high = bounds
        # Halved separately: XLA would halve the sum, which may be infinite.
        half_low, half_high = lax.optimization_barrier((0.5 * low, 0.5 * high))
        middle = half_low + half_high
        enough = jnp.sum(bounded >= middle[..., None], axis=-1) >= k
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    # One bound per row. Both are computed from x, so that they vary over a mesh if x does.
    bounds = bounded.min(axis=-1), bounded.max(axis=-1)
    return lax.fori_loop(0, steps, halve, bounds)[0]


def _first_columns(mask: Array, k: int) -> Array:
    """The first ``k`` columns where ``mask`` holds, ascending; it holds in at least ``k``."""
    dim = mask.shape[-1]
    columns = jnp.where(mask, jnp.arange(dim), dim)
    return jnp.sort(columns, axis=-1)[..., :k]


def todense(cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """Spreads the kept values out over rows of zeros."""
    return jax.vmap(_scatter_row, in_axes=(0, 0, None))(
        cbsr.values.reshape(-1, cbsr.k), cbsr.indices.reshape(-1, cbsr.k), cbsr.dim
    ).reshape(cbsr.shape)


def _scatter_row(values, columns, dim):
    zeros = jnp.zeros(dim, values.dtype)
    return zeros.at[columns.astype(jnp.int32)].set(values, unique_indices=True)


def gather_columns(
    dense: Float[Array, "*batch rows dim"], indices: Array
) -> Float[Array, "*batch rows k"]:
    """Picks the entries of each row that ``indices`` names: the transpose of ``todense``."""
    return jnp.take_along_axis(dense, indices.astype(jnp.int32), axis=-1)
