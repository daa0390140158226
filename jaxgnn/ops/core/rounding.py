"""Quotients and exponentials of float32 that are rounded as well on a GPU as on a CPU.

On a GPU, XLA's division is an approximation that may be wrong by two units in the last place, and
so is its exponential. This matters where a function promises the results of ``jax.ops`` or jraph on
a CPU. Here the approximate quotient is corrected by its remainder, which float32 represents
exactly, and an exponential is a sum of a large part that is exact and a small part. Every product
and difference for a remainder is exact, so fusions of the compiler do not change the results.

A CPU rounds correctly; there, and for other dtypes, these are JAX's own functions.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

# The logarithm of two in two parts; a product of the first with an exponent of float32 is exact.
_LOG_2_HIGH = math.ldexp(math.floor(math.ldexp(math.log(2), 14)), -14)
_LOG_2_LOW = math.log(2) - _LOG_2_HIGH

# The remainder of smaller numbers has parts that are below the normal numbers.
_LEAST_CORRECTED = 1e-22

# Smaller arguments are rounded to zero, larger ones to infinity.
_LEAST, _MOST = -104.0, 89.0

# Coefficients of exp(r) - 1 - r, from the second power on; |r| is at most half of log(2).
_COEFFICIENTS = tuple(1 / math.factorial(power) for power in range(2, 9))


@jax.custom_jvp
def quotient(a: Float[Array, "*shape"], b: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``a / b``, of float32 rounded to the nearest.

    Where one of the three numbers is outside of 1e-22 to 1e38, it is XLA's quotient.
    """
    return _where_needed(jnp.divide, divided, a, b)


@quotient.defjvp
def _quotient_jvp(primals, tangents):
    (_, b), (da, db) = primals, tangents
    y = quotient(*primals)
    return y, (da - y * db) / b


@jax.custom_jvp
def exponential(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``exp(x)``, of float32 wrong by at most two thirds of a unit in the last place."""
    return _where_needed(jnp.exp, exponential_in_parts, x)


@exponential.defjvp
def _exponential_jvp(primals, tangents):
    y = exponential(*primals)
    return y, y * tangents[0]


def _where_needed(plain, careful, *arrays):
    """The careful function for float32 on anything but a CPU, else the plain one."""
    if arrays[0].dtype != jnp.float32:
        return plain(*arrays)
    return lax.platform_dependent(*arrays, cpu=plain, default=careful)


def divided(a: Float32[Array, "*shape"], b: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """The quotient, by XLA's division and a correction."""
    return corrected(a, b, a / b)


def corrected(
    a: Float32[Array, "*shape"], b: Float32[Array, "*shape"], q: Float32[Array, "*shape"]
) -> Float32[Array, "*shape"]:
    """``a / b``, from an approximate quotient ``q`` and its remainder."""
    q_high, q_low = _halves(q)
    b_high, b_low = _halves(b)
    remainder = ((a - q_high * b_high) - q_high * b_low - q_low * b_high) - q_low * b_low
    nearer = q + remainder / b
    sizes = jnp.minimum(jnp.minimum(jnp.abs(a), jnp.abs(b)), jnp.abs(q))
    # Where the correction is not finite, q is not, or one of the products is beyond the range.
    is_sound = (sizes >= _LEAST_CORRECTED) & (remainder != 0) & jnp.isfinite(nearer)
    return jnp.where(is_sound, nearer, q)


def _halves(x: Float32[Array, "*shape"]) -> tuple[Array, Array]:
    """Two numbers of twelve bits whose sum is ``x``."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    high = lax.bitcast_convert_type(bits & jnp.int32(-(2**12)), jnp.float32)
    return high, x - high


def exponential_in_parts(x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """The exponential, as ``2**n * exp(r)`` with a small ``r``."""
    x = jnp.clip(x, _LEAST, _MOST)
    n = jnp.round(x * (1 / math.log(2)))
    near = x - n * _LOG_2_HIGH
    r = near - n * _LOG_2_LOW
    lost = (near - r) - n * _LOG_2_LOW
    # 1 + high is exact, and so is r - high.
    high = jnp.round(r * 2**12) * 2.0**-12
    polynomial = jnp.zeros_like(r)
    for coefficient in reversed(_COEFFICIENTS):
        polynomial = polynomial * r + coefficient
    small = (r - high) + (r * r * polynomial + lost)
    return ((1 + high) + small) * _power_of_two(n // 2) * _power_of_two(n - n // 2)


def _power_of_two(n: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """``2**n`` for a whole ``n`` between -126 and 127, from its bits."""
    exponents = (n.astype(jnp.int32) + 127) << 23
    return lax.bitcast_convert_type(exponents, jnp.float32)
