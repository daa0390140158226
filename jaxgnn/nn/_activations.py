"""Activations as functions and by the names that the ops have for some of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jaxtyping import Array

from jaxgnn import ops
from jaxgnn.ops._core.activations import ACTIVATIONS

Function = Callable[[Array], Array]

# Functions that an op has under a name, and does in one pass with what is around them. A name can
# be pickled, which JAX's functions can not.
_NAMED: tuple[tuple[Function, ops.Activation], ...] = (
    (jax.nn.gelu, "gelu"),
    (jax.nn.relu, "relu"),
    (jax.nn.silu, "silu"),
    (jax.nn.mish, "mish"),
)


def name_of(activation: Function | ops.Activation | None) -> Function | ops.Activation | None:
    """The ops' name of an activation, or the function if it has none."""
    return next((name for function, name in _NAMED if function is activation), activation)


def function_of(activation: Function | ops.Activation | None) -> Function:
    """What a layer without such an op applies."""
    if callable(activation):
        return activation
    return ACTIVATIONS[activation].value
