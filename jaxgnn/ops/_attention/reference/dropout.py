"""Dropout of edges in attention, by a hash of the seed, the edge and the head.

Nothing is stored, and every implementation draws the same in its forward and backward passes:
``ffi/include/jaxgnn_ffi/dropout.h`` is the same definition. It uses 32-bit integers only: six
operations an edge, and eight for each of its heads.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

# Odd multipliers of a mixing function with low bias (https://nullprogram.com/blog/2018/07/31/).
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B
# The golden ratio, which spreads the numbers of heads over all bits.
_HEADS = 0x9E3779B9


def draws(
    seed: UInt32[Array, "2"], slots: Int[Array, " edges"], heads: int
) -> UInt32[Array, "edges heads"]:
    """One uniform word for each edge and head: ``mix(mix(seed_0 ^ edge) ^ (seed_1 + head c))``.

    Args:
      seed: two uniform words.
      slots: edge slots of the graph, of which the lower 32 bits are used.
      heads: number of heads.
    """
    edges = _mix(seed[0] ^ slots.astype(jnp.uint32))
    numbers = seed[1] + jnp.arange(heads, dtype=jnp.uint32) * jnp.uint32(_HEADS)
    return _mix(edges[:, None] ^ numbers)


def kept(
    seed: UInt32[Array, "2"], slots: Int[Array, " edges"], heads: int, dropped: int
) -> Bool[Array, "edges heads"]:
    """Whether an edge is kept for a head, which is so for all but ``dropped`` of 2^32 words."""
    return draws(seed, slots, heads) >= jnp.uint32(dropped)


def _mix(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    word = (word ^ (word >> 16)) * jnp.uint32(_FIRST)
    word = (word ^ (word >> 15)) * jnp.uint32(_SECOND)
    return word ^ (word >> 16)
