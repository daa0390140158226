"""Activations of dense layers inside kernels: those of ``jaxgnn.ops.reference``, by ``exp``.

Hyperbolic tangents are written as logistic functions, ``(1 + tanh u) / 2 = σ(2u)``: where they
approach their limits these keep their precision, and the exponential is what the hardware has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax import lax

_Function = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class Activation:
    """An elementwise function of float32 with its derivative.

    Attributes:
      value: of the preactivation z.
      derivative: of ``value``; of y where ``of_output``, else of z.
      of_output: whether the derivative takes ``y = value(z)``.
    """

    value: _Function
    derivative: _Function
    of_output: bool = False


def pull_back(slope: jax.Array, dy: jax.Array) -> jax.Array:
    """The gradient to z; a unit that is off passes nothing on, not even what is not finite."""
    return jnp.where(slope == 0.0, 0.0, dy * slope)


def _reciprocal(x):
    """Of a number that is not negative; a division would be a subroutine, to round exactly."""
    root = lax.rsqrt(x)
    return root * root


def _sigmoid(z):
    return _reciprocal(1.0 + jnp.exp(-z))


def _positive(z):
    return jnp.maximum(z, 0.0)


def _step(y):
    return jnp.where(y > 0.0, 1.0, 0.0)


_CUBIC = 0.044715
_TWICE_SCALE = 2 * math.sqrt(2 / math.pi)


def _gelu(z):
    return z * _sigmoid(_TWICE_SCALE * z * (1.0 + _CUBIC * z * z))


def _clip(z, most):
    return jnp.minimum(jnp.maximum(z, -most), most)


def _gelu_derivative(z):
    z = _clip(z, 16.0)
    s = _sigmoid(_TWICE_SCALE * z * (1.0 + _CUBIC * z * z))
    inner = z * (_TWICE_SCALE + 3 * _CUBIC * _TWICE_SCALE * z * z)
    return s * (1.0 + (1.0 - s) * inner)


# Abramowitz and Stegun, 7.1.26, with an error of at most 1.5e-7.
_RATE = 0.3275911 * math.sqrt(0.5)
_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _normal(z):
    """The normal distribution: the error function does not lower."""
    size = jnp.maximum(z, -z)
    t = _reciprocal(1.0 + _RATE * size)
    polynomial = 0.0
    for coefficient in _COEFFICIENTS:
        polynomial = (polynomial + coefficient) * t
    beyond = 0.5 * polynomial * jnp.exp(-0.5 * size * size)
    return jnp.where(z < 0.0, beyond, 1.0 - beyond)


def _gelu_exact_derivative(z):
    z = _clip(z, 40.0)
    return _normal(z) + z * jnp.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))


def _silu_derivative(z):
    s = _sigmoid(z)
    return s * (1.0 + z * (1.0 - s))


def _mish_parts(z):
    """``e = exp(z)``, with n = (1 + e)² - 1, and 1 / (n + 2), whose product is tanh(log(1 + e)).

    Beyond 20 that is 1 in float32, and e would overflow.
    """
    e = jnp.exp(jnp.minimum(z, 20.0))
    n = e * (e + 2.0)
    return e, n, _reciprocal(n + 2.0)


def _mish(z):
    _, n, r = _mish_parts(z)
    return z * (n * r)


def _mish_derivative(z):
    # t + z (1 - t²) σ(z) with t = n r, of which 1 - t² = 4 (1 + e)² r² and σ(z) = e / (1 + e).
    e, n, r = _mish_parts(z)
    return r * (n + 4.0 * z * (e * (1.0 + e) * r))


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "relu": Activation(_positive, _step, of_output=True),
        "gelu": Activation(_gelu, _gelu_derivative),
        "gelu_exact": Activation(lambda z: z * _normal(z), _gelu_exact_derivative),
        "silu": Activation(lambda z: z * _sigmoid(z), _silu_derivative),
        "mish": Activation(_mish, _mish_derivative),
        "squared_relu": Activation(
            lambda z: _positive(z) * _positive(z), lambda y: 2.0 * jnp.sqrt(y), of_output=True
        ),
    }
)
