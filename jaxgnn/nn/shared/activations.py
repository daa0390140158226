"""Activation functions, and the names under which the ops know some of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jaxtyping import Array

from jaxgnn import ops
from jaxgnn.ops._core.activations import ACTIVATIONS

Function = Callable[[Array], Array]

# Functions that the ops fuse and know by name. Names can be pickled; JAX's functions cannot.
_NAMED: tuple[tuple[Function, ops.Activation], ...] = (
    (jax.nn.gelu, "gelu"),
    (jax.nn.relu, "relu"),
    (jax.nn.silu, "silu"),
    (jax.nn.mish, "mish"),
)


def name_of(activation: Function | ops.Activation | None) -> Function | ops.Activation | None:
    """Returns the name under which the ops know an activation, or the function if it has none."""
    return next((name for function, name in _NAMED if function is activation), activation)


def function_of(activation: Function | ops.Activation | None) -> Function:
    """Returns the activation as a function, for layers that do not fuse it into an op."""
    if callable(activation):
        return activation
    return ACTIVATIONS[activation].value
