"""The functions that Flax's recurrent cells are given here, so that layers of them are pickled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def _sigmoid(z: Array) -> Array:
    return jax.nn.sigmoid(z)


def _tanh(z: Array) -> Array:
    return jnp.tanh(z)


CELL_FUNCTIONS: dict[str, Any] = {
    "gate_fn": _sigmoid,
    "activation_fn": _tanh,
}
"""The options of a cell. They are Flax's defaults, whose own functions JAX has compiled: such are
found by no name, and so cannot be pickled."""
