"""What the calls of Mosaic GPU kernels share.

The kernels are imported when the first of them is called: Mosaic GPU would slow down the import of
the library, and is not there on every platform. Calls outside of ``jit`` are compiled once for each
shape by a ``jit`` of their own, which Pallas does not do.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
from jax import lax

compiled = partial(jax.jit, inline=True)


def flat_tokens[T](batch_dims: int, arrays: T) -> T:
    """A pytree of arrays, their leading axes, one number of them for all, as one."""

    def flatten(array):
        return array.reshape(math.prod(array.shape[:batch_dims]), *array.shape[batch_dims:])

    return jax.tree.map(flatten, arrays)


def vary_like(operand: Any, result: jax.Array) -> jax.Array:
    """Inside ``shard_map``, lets the result of a kernel vary over the mesh as the operands do."""
    missing = jax.typeof(operand).mat.varying - jax.typeof(result).mat.varying
    return lax.pcast(result, tuple(missing), to="varying") if missing else result
