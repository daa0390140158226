"""Activations of dense layers in kernels of tensor cores, computed with ``exp2``.

They equal those of ``jaxgnn.ops.reference``. Hyperbolic tangents are written as logistic functions,
``(1 + tanh u) / 2 = σ(2u)``, which keep their precision near their limits and need the exponential
that the hardware has. The hardware computes few exponentials at a time, so a value and its slope
share one.
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


def _takes_output(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Takes the place of ``value_and_slope`` where the derivative is computed from the output."""
    raise TypeError("the derivative is computed from the output")


@dataclass(frozen=True)
class Activation:
    """An elementwise function of float32, and how gradients pass back through it.

    Attributes:
      value: the function of the preactivation z.
      value_and_slope: returns ``value(z)`` and its derivative, from z.
      gate: returns the gradient to z from ``y = value(z)`` and dy, where the derivative follows
        from y; else None.
    """

    value: _Function
    value_and_slope: Callable[[jax.Array], tuple[jax.Array, jax.Array]] = _takes_output
    gate: Callable[[jax.Array, jax.Array], jax.Array] | None = None

    @classmethod
    def of_preactivation(cls, value_and_slope) -> Activation:
        """Returns an activation whose derivative is computed from z."""
        return cls(lambda z: value_and_slope(z)[0], value_and_slope)

    @property
    def of_output(self) -> bool:
        """Whether the derivative is computed from the output ``value(z)`` instead of z."""
        return self.gate is not None

    def pull_back(self, known: jax.Array, dy: jax.Array) -> jax.Array:
        """Returns the gradient to z; ``known`` is the output if ``of_output``, else the slope.

        Where the derivative is zero the gradient is zero, even if ``dy`` is not finite.
        """
        if self.gate is not None:
            return self.gate(known, dy)
        return jnp.where(known == 0.0, 0.0, dy * known)


def _reciprocal(x):
    """Returns the reciprocal of a number that is not negative, by ``rsqrt``.

    A division would call a subroutine, since it rounds exactly.
    """
    root = lax.rsqrt(x)
    return root * root


_LOG2_E = math.log2(math.e)
_LARGEST = 3e38  # about the largest float32


def _logistic(exponent):
    """Returns ``s = 1 / (1 + 2^exponent)`` and ``1 - s``, without cancellation in the latter."""
    power = jnp.exp2(exponent)
    s = _reciprocal(1.0 + power)
    return s, jnp.minimum(power, _LARGEST) * s


def _positive(z):
    return jnp.maximum(z, 0.0)


def _relu_gate(y, dy):
    return jnp.where(y > 0.0, dy, 0.0)


def _squared_relu_gate(y, dy):
    return jnp.where(y > 0.0, dy * (2.0 * jnp.sqrt(y)), 0.0)


def _sigmoid(z):
    return _logistic(-_LOG2_E * z)[0]


def _sigmoid_gate(y, dy):
    slope = y * (1.0 - y)
    return jnp.where(slope == 0.0, 0.0, dy * slope)


def _tanh(z):
    # Near zero the logistic function would lose digits: there it is an odd polynomial.
    square = z * z
    near = z * (1.0 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315))))
    s, _ = _logistic((-2 * _LOG2_E) * z)
    return jnp.where(square < 0.04, near, 2.0 * s - 1.0)


def _tanh_gate(y, dy):
    slope = (1.0 - y) * (1.0 + y)
    return jnp.where(slope == 0.0, 0.0, dy * slope)


_CUBIC = 0.044715
_TWICE_SCALE = 2 * math.sqrt(2 / math.pi)
_MOST_SQUARE = 1e30  # products of larger squares would overflow


def _gelu(z):
    # y = z s with s = σ(u) and u = a z + b z³. The slope of y is s + y (1 - s) u'.
    square = jnp.minimum(z * z, _MOST_SQUARE)
    exponent = z * (-_LOG2_E * _TWICE_SCALE - (_LOG2_E * _TWICE_SCALE * _CUBIC) * square)
    s, rest = _logistic(exponent)
    y = z * s
    return y, s + (y * rest) * (_TWICE_SCALE + (3 * _TWICE_SCALE * _CUBIC) * square)


# Abramowitz and Stegun, 7.1.26, with an error of at most 1.5e-7; halved.
_RATE = 0.3275911 * math.sqrt(0.5)
_COEFFICIENTS = (0.5307027145, -0.7265760135, 0.7107068705, -0.142248368, 0.127414796)


def _gelu_exact(z):
    # Pallas does not lower the error function. Beyond 40 the slope is constant, since z² would
    # overflow.
    size = jnp.minimum(jnp.maximum(z, -z), 40.0)
    t = _reciprocal(1.0 + _RATE * size)
    bell = jnp.exp2((-0.5 * _LOG2_E) * size * size)
    first, *rest = _COEFFICIENTS
    polynomial = first * t
    for coefficient in rest:
        polynomial = (polynomial + coefficient) * t
    beyond = polynomial * bell
    normal = jnp.where(z < 0.0, beyond, 1.0 - beyond)
    off = size == 40.0
    return z * normal, normal + jnp.where(off, 0.0, z * bell * (1 / math.sqrt(2 * math.pi)))


def _silu(z):
    s, rest = _logistic(-_LOG2_E * z)
    y = z * s
    return y, s + y * rest


def _mish(z):
    # With e = exp(z) and n = (1 + e)² - 1, t = tanh(log(1 + e)) is n r with r = 1 / (n + 2), and
    # 1 - t² = 4 (1 + e)² r². Beyond 20 it is 1 in float32, and e would overflow.
    near = jnp.minimum(z, 20.0)
    e = jnp.exp2(_LOG2_E * near)
    n = e * (e + 2.0)
    r = _reciprocal(n + 2.0)
    return z * (n * r), r * (n + near * (4.0 * (e * (1.0 + e)) * r))


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "relu": Activation(_positive, gate=_relu_gate),
        "gelu": Activation.of_preactivation(_gelu),
        "gelu_exact": Activation.of_preactivation(_gelu_exact),
        "silu": Activation.of_preactivation(_silu),
        "mish": Activation.of_preactivation(_mish),
        "squared_relu": Activation(lambda z: _positive(z) * _positive(z), gate=_squared_relu_gate),
        "tanh": Activation(_tanh, gate=_tanh_gate),
        "sigmoid": Activation(_sigmoid, gate=_sigmoid_gate),
    }
)
