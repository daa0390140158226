"""Sums over the edges of each row, with rounding that does not grow with their number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn.graph.plan.sorting import row_ids

# Number of terms that are added one after the other, as XLA does on a CPU.
_MOST_IN_TURN = 32


def sum_rows(
    values: Float[Array, "edges *rest"], indptr: Int[Array, " rows+1"]
) -> Float[Array, "rows *rest"]:
    """Returns the sum of the values of each row's edges; padding slots are ignored.

    ``jax.ops.segment_sum`` adds the numbers of a segment one after the other on a CPU, so a row of
    a million edges has a million roundings. Here a row is cut into parts of at most 32 edges, and
    the sums of all parts but the first are summed in the same way, in the dtype of the values.
    """
    indptr = jnp.asarray(
        indptr
    )  # an array of the host, as of a batch, can not be indexed under jit
    num_rows, size = indptr.shape[0] - 1, values.shape[0]
    rows = row_ids(indptr, size)
    # Sizes that are known only when an exported program runs are not compared.
    if not isinstance(size, int) or size <= _MOST_IN_TURN:
        return jax.ops.segment_sum(values, rows, num_rows, indices_are_sorted=True)
    # The sums of the first parts are followed by the sums of the other parts, row after row.
    others = jnp.maximum(jnp.diff(indptr) - 1, 0) // _MOST_IN_TURN
    zero = jnp.zeros(1, indptr.dtype)
    offsets = jnp.concatenate([zero, jnp.cumsum(others, dtype=indptr.dtype)])
    part = (jnp.arange(size, dtype=indptr.dtype) - indptr[rows]) // _MOST_IN_TURN
    num_sums = num_rows + size // _MOST_IN_TURN
    later = num_rows - 1 + offsets[rows] + part
    place = jnp.where(part == 0, rows.astype(indptr.dtype), later)
    place = jnp.where(rows < num_rows, place, num_sums)
    sums = jax.ops.segment_sum(values, place, num_sums)
    return sums[:num_rows] + sum_rows(sums[num_rows:], offsets)


def sum_segments(
    values: Float[Array, "entries *rest"], ids: Int[Array, " entries"], num_segments: int
) -> Float[Array, "segments *rest"]:
    """Sums the values of each id, in any order, with few roundings for sums of many values.

    Values with the id ``num_segments``, the largest allowed, are dropped.
    """
    order = jnp.argsort(ids)
    ends = jnp.arange(num_segments + 1, dtype=ids.dtype)
    indptr = jnp.searchsorted(ids[order], ends).astype(ids.dtype)
    return sum_rows(values[order], indptr)
