"""The order of unsorted ids: a counting sort on a CPU, a radix sort on a GPU."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jaxgnn._ffi import aggregate as ffi
from jaxgnn.ops.core import dispatch


def sorted_order(
    ids: Int[Array, " entries"], num_segments: int
) -> tuple[Int[Array, " segments+1"], Int[Array, " entries"]]:
    """The reference of ``segment_order``: XLA has a radix sort for exactly two operands."""
    places = jnp.where((ids < 0) | (ids >= num_segments), num_segments, ids)
    entries = jnp.arange(ids.shape[0], dtype=jnp.int32)
    keys, entries = lax.sort((places, entries), num_keys=1, is_stable=True)
    ends = jnp.arange(num_segments + 1, dtype=ids.dtype)
    return jnp.searchsorted(keys, ends).astype(jnp.int32), entries


def order_of_sorted(
    ids: Int[Array, " entries"], num_segments: int
) -> tuple[Int[Array, " segments+1"], Int[Array, " entries"]]:
    """The same of ascending ids, which nothing has to sort; negative ones come first."""
    ends = jnp.arange(num_segments + 1, dtype=ids.dtype)
    indptr = jnp.searchsorted(ids, ends).astype(jnp.int32)
    size = jnp.int32(ids.shape[0])
    entries = jnp.arange(ids.shape[0], dtype=jnp.int32) + indptr[0]
    return indptr - indptr[0], jnp.where(entries < size, entries, entries - size)


ORDER = dispatch.Kernel(
    "aggregate.segment_order",
    {
        "xla": dispatch.xla(sorted_order, scatters=False),
        "ffi": dispatch.ffi(dtypes=(), cpu=ffi.segment_order),
    },
)


def segment_order(
    ids: Int[Array, " entries"], num_segments: int, *, is_sorted: bool = False
) -> tuple[Int[Array, " segments+1"], Int[Array, " entries"]]:
    """Sorts entries by their segment, keeping the given order within a segment.

    It is for ids that are known only when the program runs.

    Args:
      ids: the segment of each entry, int32; entries of ids out of range are last.
      num_segments: number of segments.
      is_sorted: whether the ids ascend, so that nothing is sorted.

    Returns:
      Offsets of the segments in the order, int32, and the entries in the order, int32.
    """
    if is_sorted:
        return order_of_sorted(ids, num_segments)
    return ORDER(dispatch.resolve("segment_order", None), ids, num_segments=num_segments)
