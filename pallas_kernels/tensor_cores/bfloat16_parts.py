"""float32 numbers as sums of bfloat16 ones, so that tensor cores multiply them exactly.

A float32 has 24 significant bits, a bfloat16 8: three parts have them all. Of the products of two
such sums those below 2^-24 of the first are left out.
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
    """bfloat16 numbers that add up to float32 ``x``, largest first, along a new first axis."""
    made = []
    for _ in range(parts):
        # A cast there and back could be taken for needless.
        part = lax.reduce_precision(x, *_BFLOAT16)
        made.append(part.astype(jnp.bfloat16))
        x = x - part
    return jnp.stack(made)


def split_words(warp: Warp, values: list[Value], parts: int = PARTS) -> list[list[Value]]:
    """As ``split``, in a kernel: words of two neighbours each, for each part."""
    made = []
    for _ in range(parts):
        words = [warp.to_bfloat16(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
        made.append(words)
        rounded = [bits.bits("f32") for word in words for bits in (word << 16, word & 0xFFFF0000)]
        values = [value - part for value, part in zip(values, rounded, strict=True)]
    return made


def products(left: int, right: int) -> list[tuple[int, int]]:
    """Pairs of parts whose products count, the smallest first."""
    pairs = [(a, b) for a in range(left) for b in range(right) if a + b < max(left, right)]
    return sorted(pairs, key=lambda pair: (-sum(pair), pair))


def add_products(
    warp: Warp,
    total: list[Value],
    left: list[list[list[Value]]],
    right: list[list[list[Value]]],
) -> list[Value]:
    """``total`` plus the product of two matrices, whose parts are fragments of ``Warp.mma``.

    Tensor cores cut off what they add. Few of their sums go into one another here, and these are
    added to the total by an addition that rounds.

    Args:
      warp: of the lanes.
      total: four numbers of a lane, as ``Warp.mma`` has them.
      left: of each part the fragments, one after another along the summed axis.
      right: likewise.

    Returns:
      As ``total``.
    """
    made = [warp.f32(0.0)] * 4
    for a, b in products(len(left), len(right)):
        for fragment_a, fragment_b in zip(left[a], right[b], strict=True):
            made = warp.mma(fragment_a, fragment_b, made)
    return [old + new for old, new in zip(total, made, strict=True)]
