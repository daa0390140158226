"""Reductions of segments of an array in plain JAX, by the functions of ``jax.ops``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn.ops._core.dtypes import accumulation_dtype


def reduce_segments(
    ids: Int[Array, " entries"],
    x: Float[Array, "entries dim"],
    *,
    reduction: str,
    num_segments: int,
    is_sorted: bool,
    keep: bool,
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"], Array | None]:
    """The reduction of each segment, zero without entries, and the number of its entries.

    Args:
      ids: segment of each entry; entries out of range are dropped.
      x: the entries.
      reduction: ``"sum"``, ``"max"``, ``"min"`` or ``"logsumexp"``.
      num_segments: number of segments.
      is_sorted: whether the ids ascend.
      keep: whether to also return the number of entries with the extreme; None otherwise.
    """
    how = {"num_segments": num_segments, "indices_are_sorted": is_sorted}
    wide = x.astype(accumulation_dtype(x.dtype))
    members = jax.ops.segment_sum(jnp.ones(ids.shape, jnp.int32), ids, **how)
    ties = None
    if reduction == "sum":
        made = jax.ops.segment_sum(wide, ids, **how)
    elif reduction == "logsumexp":
        peaks = jax.ops.segment_max(wide, ids, **how)
        peaks = jnp.where(peaks == -jnp.inf, 0, peaks)
        exponentials = jnp.exp(wide - spread(ids, peaks))
        made = jnp.log(jax.ops.segment_sum(exponentials, ids, **how)) + peaks
    else:
        extreme = jax.ops.segment_max if reduction == "max" else jax.ops.segment_min
        made = extreme(wide, ids, **how)
        if keep:
            have_it = (wide == spread(ids, made)).astype(wide.dtype)
            ties = jax.ops.segment_sum(have_it, ids, **how)
    return jnp.where(members[:, None] > 0, made, 0).astype(x.dtype), members, ties


def spread(
    ids: Int[Array, " entries"], per_segment: Float[Array, "segments dim"]
) -> Float[Array, "entries dim"]:
    """The value of the segment of each entry; zero for those out of range."""
    places = jnp.where(ids < 0, per_segment.shape[0], ids)  # a negative id is no id from the end
    return per_segment.at[places].get(mode="fill", fill_value=0)
