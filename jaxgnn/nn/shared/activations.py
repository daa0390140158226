"""Activation functions: their names in the ops, and those of recurrent cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn import ops
from jaxgnn.ops.core.activations import ACTIVATIONS

Function = Callable[[Array], Array]

# Functions that the ops fuse and know by name. Names can be pickled; JAX's functions cannot.
_NAMED: tuple[tuple[Function, ops.Activation], ...] = (
    (jax.nn.gelu, "gelu"),
    (jax.nn.relu, "relu"),
    (jax.nn.silu, "silu"),
    (jax.nn.mish, "mish"),
    (jnp.tanh, "tanh"),
    (jax.nn.sigmoid, "sigmoid"),
)


def name_of(activation: Function | ops.Activation | None) -> Function | ops.Activation | None:
    """Returns the name under which the ops know an activation, or the function if it has none."""
    return next((name for function, name in _NAMED if function is activation), activation)


def function_of(activation: Function | ops.Activation | None) -> Function:
    """Returns the activation as a function, for layers that do not fuse it into an op."""
    if callable(activation):
        return activation
    return ACTIVATIONS[activation].value


def _sigmoid(z: Array) -> Array:
    return jax.nn.sigmoid(z)


def _tanh(z: Array) -> Array:
    return jnp.tanh(z)


CELL_FUNCTIONS: dict[str, Any] = {
    "gate_fn": _sigmoid,
    "activation_fn": _tanh,
}
"""Options of a cell, equal to Flax's defaults. Flax's own functions are compiled by JAX, cannot be
found by name, and so cannot be pickled."""
