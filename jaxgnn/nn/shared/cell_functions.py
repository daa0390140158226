"""Functions passed to Flax's recurrent cells, so that layers with these cells can be pickled."""

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
"""Options of a cell, equal to Flax's defaults. Flax's own functions are compiled by JAX, cannot be
found by name, and so cannot be pickled."""
