"""Random numbers of samplers under ``jit``: the bits of ``_random.py``, without 64-bit types.

A random word of 64 bits is a pair of uint32 arrays, the upper half first.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32

Words = tuple[Array, Array]
"""Two arrays of uint32: a key, a counter, or the halves of random words of 64 bits."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_HALF, _LOW = np.uint32(16), np.uint32(0xFFFF)


def threefry(key: Words, counter: Words) -> Words:
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
    batch_key = threefry(seed, (epoch, step))
    return threefry(batch_key, (jnp.uint32(hop), jnp.uint32(stream)))


def draw(key: Words, nodes: Array, slots: Array) -> Words:
    """Random words for pairs of a node and a slot, both int32 and not negative; they broadcast."""
    return threefry(key, (nodes.astype(jnp.uint32), slots.astype(jnp.uint32)))


def below(words: Words, bounds: Array) -> Array:
    """Integers in [0, bound), int32: the upper half of word times bound."""
    high, low = words
    bounds = bounds.astype(jnp.uint32)
    across = high * bounds
    carried = across + _upper_product(low, bounds) < across
    return (_upper_product(high, bounds) + carried.astype(jnp.uint32)).astype(jnp.int32)


def moving_normal(now: Words, then: Words, angle: Array) -> Float[Array, "*shape"]:
    """Standard normal deviates that move from one draw to another, as ``_reference`` moves them.

    The reference computes them in float64, this in float32, so they agree to a relative error of
    about 1e-6 and may order two senders of nearly equal deviates differently.
    """
    return _normal(now) * jnp.cos(angle) + _normal(then) * jnp.sin(angle)


def ascending_bits(values: Float[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Integers in the order of finite float32 values."""
    bits = lax.bitcast_convert_type(values + np.float32(0), jnp.uint32)  # -0 becomes 0
    sign = np.uint32(1 << 31)
    return jnp.where(bits & sign, ~bits, bits | sign)


def _normal(words: Words) -> jax.Array:
    """Deviates by Box and Muller's method."""
    high, low = (word.astype(jnp.float32) for word in words)
    unit = np.float32(2.0**-32)
    radius = jnp.sqrt(
        np.float32(-2) * jnp.log(jnp.minimum((high + np.float32(1)) * unit, np.float32(1)))
    )
    return radius * jnp.cos(low * (unit * np.float32(2 * np.pi)))


def _upper_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of products of uint32, from parts of 16 bits."""
    (a_high, a_low), (b_high, b_low) = ((x >> _HALF, x & _LOW) for x in (a, b))
    across, back = a_low * b_high, a_high * b_low
    carried = (a_low * b_low >> _HALF) + (across & _LOW) + (back & _LOW)
    return a_high * b_high + (across >> _HALF) + (back >> _HALF) + (carried >> _HALF)
