"""Activations of the fused linear layers: values, and derivatives as formulae."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn.ops.core.dtypes import accumulation_dtype

Name = Literal["relu", "gelu", "gelu_exact", "silu", "mish", "squared_relu", "tanh", "sigmoid"]
"""Activations that ops know by name; gelu is computed by tanh, or exactly by erf."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function with its derivative, for float32 and float64.

    Attributes:
      value: the function itself, of the preactivation z.
      derivative: the derivative of ``value``, finite where ``value`` is, and 0 at a kink.
      of_output: whether ``derivative`` takes ``y = value(z)`` instead of z.
      selects: whether ``value`` gives z or zero, and so is exact in any dtype.
    """

    value: Callable[[Array], Array]
    derivative: Callable[[Array], Array]
    of_output: bool = False
    selects: bool = False

    def activate(self, z: Array) -> Array:
        """Computes ``value`` of z, in the accumulation dtype unless it only selects from z."""
        return self.value(z if self.selects else z.astype(accumulation_dtype(z.dtype)))

    def pull_back(self, known: Array, dy: Array) -> Array:
        """The gradient to z from ``dy`` and from ``known``, which is y or z.

        It has the accumulation dtype, or the dtype of ``dy`` where nothing is rounded. A unit whose
        derivative is 0 has a zero gradient, even if ``dy`` is infinite.
        """
        if self.selects:
            return jnp.where(self.derivative(known) == 0, jnp.zeros_like(dy), dy)
        dy = dy.astype(accumulation_dtype(dy.dtype))
        slope = self.derivative(known.astype(dy.dtype))
        return jnp.where(slope == 0, 0, dy * slope)


def _step(y):
    return (y > 0).astype(y.dtype)


def _gelu_derivative(z):
    # Constant beyond 16 in every dtype; further out the cube would overflow.
    z = jnp.clip(z, -16, 16)
    scale = math.sqrt(2 / math.pi)
    t = jnp.tanh(scale * (z + 0.044715 * z**3))
    inner = scale * (1 + 3 * 0.044715 * z**2)
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * inner


def _gelu_exact_derivative(z):
    # Constant beyond 40 in every dtype; further out infinity would meet zero.
    z = jnp.clip(z, -40, 40)
    density = jnp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return 0.5 * jax.lax.erfc(-z * math.sqrt(0.5)) + z * density


def _silu_derivative(z):
    return jax.nn.sigmoid(z) * (1 + z * jax.nn.sigmoid(-z))


def _mish_derivative(z):
    t = jnp.tanh(jax.nn.softplus(z))
    return t + z * (1 - t * t) * jax.nn.sigmoid(z)


def _identity(z):
    return z


ACTIVATIONS: Mapping[Name | None, Activation] = MappingProxyType(
    {
        None: Activation(_identity, jnp.ones_like, selects=True),
        "relu": Activation(jax.nn.relu, _step, of_output=True, selects=True),
        "gelu": Activation(jax.nn.gelu, _gelu_derivative),
        "gelu_exact": Activation(
            lambda z: jax.nn.gelu(z, approximate=False), _gelu_exact_derivative
        ),
        "silu": Activation(jax.nn.silu, _silu_derivative),
        "mish": Activation(jax.nn.mish, _mish_derivative),
        "squared_relu": Activation(
            lambda z: jnp.square(jax.nn.relu(z)), lambda y: 2 * jnp.sqrt(y), of_output=True
        ),
        "tanh": Activation(jnp.tanh, lambda y: (1 - y) * (1 + y), of_output=True),
        "sigmoid": Activation(jax.nn.sigmoid, lambda y: y * (1 - y), of_output=True),
    }
)
