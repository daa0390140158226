"""float32 numbers as sums of bfloat16 parts, which tensor cores multiply without rounding.

A float32 has 24 significant bits and a bfloat16 has 8, so three parts hold all of them. Of the
products of two such sums, those that are below 2^-24 of the largest are ignored.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp

PARTS = 3
# Exponent and mantissa bits of bfloat16.
_BFLOAT16 = (8, 7)


def split(x: jax.Array, parts: int = PARTS) -> jax.Array:
    """Splits float32 numbers into bfloat16 parts that add up to them, along a new first axis.

    The largest part comes first.
    """
    made = []
    for _ in range(parts):
        # The compiler could remove a cast to bfloat16 and back.
        part = lax.reduce_precision(x, *_BFLOAT16)
        made.append(part.astype(jnp.bfloat16))
        x = x - part
    return jnp.stack(made)


def split_words(warp: Warp, values: list[Value], parts: int = PARTS) -> list[list[Value]]:
    """Splits float32 values of a lane into bfloat16 parts, in SIMT code.

    Returns for each part, the largest first, the words of two neighbouring values each.
    """
    made = []
    for _ in range(parts):
        words = [warp.to_bfloat16(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
        made.append(words)
        rounded = [bits.bits("f32") for word in words for bits in (word << 16, word & 0xFFFF0000)]
        values = [value - part for value, part in zip(values, rounded, strict=True)]
    return made


def products(left: int, right: int) -> list[tuple[int, int]]:
    """Returns the pairs of parts that have to be multiplied, the smallest products first."""
    pairs = [(a, b) for a in range(left) for b in range(right) if a + b < max(left, right)]
    return sorted(pairs, key=lambda pair: (-sum(pair), pair))


def add_products(
    warp: Warp,
    total: list[Value],
    left: list[list[list[Value]]],
    right: list[list[list[Value]]],
) -> list[Value]:
    """Adds the product of two matrices to ``total``; both are given as parts, in fragments.

    Tensor cores truncate their sums. To keep that error small, they accumulate only few products,
    and their sum is added to the total by an addition that rounds.

    Args:
      warp: the warp that multiplies.
      total: the four sums of a lane, in the layout of ``Warp.mma``.
      left: for each part of the left matrix, its fragments for ``Warp.mma``, one after another
        along the summed axis.
      right: for each part of the right matrix, its fragments in the same order.

    Returns:
      The four new sums of the lane.
    """
    made = [warp.f32(0.0)] * 4
    for a, b in products(len(left), len(right)):
        for fragment_a, fragment_b in zip(left[a], right[b], strict=True):
            made = warp.mma(fragment_a, fragment_b, made)
    return [old + new for old, new in zip(total, made, strict=True)]
