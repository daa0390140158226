"""Random numbers of samplers under ``jit``: the bits of ``_random.py``, without 64-bit types.

A random word of 64 bits is a pair of uint32 arrays, the upper half first.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Words = tuple[Array, Array]
"""Two arrays of uint32: a key, a counter, or the halves of random words of 64 bits."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_HALF, _LOW = np.uint32(16), np.uint32(0xFFFF)


def threefry_2x32(key: Words, counter: Words) -> Words:
    """Encrypts a counter of two uint32 words by a key of two words; arrays broadcast."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = second << np.uint32(rotation) | second >> np.uint32(32 - rotation)
            second = second ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def hop_key(seed: Words, epoch: Array, step: Array, hop: int, stream: int) -> Words:
    """The key of one stream of random numbers of one hop of a batch."""
    batch_key = threefry_2x32(seed, (epoch, step))
    return threefry_2x32(batch_key, (jnp.uint32(hop), jnp.uint32(stream)))


def draw(key: Words, nodes: Array, slots: Array) -> Words:
    """Random words for pairs of a node and a slot, both int32 and not negative; they broadcast."""
    return threefry_2x32(key, (nodes.astype(jnp.uint32), slots.astype(jnp.uint32)))


def below(words: Words, bounds: Array) -> Array:
    """Integers in [0, bound), int32: the upper half of word times bound."""
    high, low = words
    bounds = bounds.astype(jnp.uint32)
    across = high * bounds
    carried = across + _upper_product(low, bounds) < across
    return (_upper_product(high, bounds) + carried.astype(jnp.uint32)).astype(jnp.int32)


def mixed(words: Words, next_words: Words, factors: tuple[Array, Array]) -> Words:
    """Sums of the upper halves of two words times factors of at most 2^31."""
    now, then = (words[0], factors[0]), (next_words[0], factors[1])
    low = now[0] * now[1]
    total = low + then[0] * then[1]
    carried = (total < low).astype(jnp.uint32)
    return _upper_product(*now) + _upper_product(*then) + carried, total


def _upper_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of products of uint32, from parts of 16 bits."""
    (a_high, a_low), (b_high, b_low) = ((x >> _HALF, x & _LOW) for x in (a, b))
    across, back = a_low * b_high, a_high * b_low
    carried = (a_low * b_low >> _HALF) + (across & _LOW) + (back & _LOW)
    return a_high * b_high + (across >> _HALF) + (back >> _HALF) + (carried >> _HALF)
