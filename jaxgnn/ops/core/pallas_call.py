"""Functions that all calls of Mosaic GPU kernels share.

The kernels are imported when the first of them is called: Mosaic GPU would slow down the import of
the library, and is not available on every platform. Pallas does not cache calls outside of ``jit``,
so each is compiled once for each shape by its own ``jit``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

compiled = partial(jax.jit, inline=True)


def flat_tokens[T](batch_dims: int, arrays: T) -> T:
    """Merges the ``batch_dims`` leading axes of every array in a pytree into one."""

    def flatten(array):
        return array.reshape(math.prod(array.shape[:batch_dims]), *array.shape[batch_dims:])

    return jax.tree.map(flatten, arrays)


def batches_as_rows[**P, T](run: Callable[P, T]) -> Callable[P, T]:
    """``run`` on matrices with independent rows, to which ``jax.vmap`` adds further rows.

    By Pallas' own rule each member of a batch would be a separate array, which may not be aligned
    to 16 bytes, with its own blocks, of which CUDA supports at most 65,535.

    Args:
      run: a function from matrices to matrices, all with the same number of rows.
    """
    call = custom_vmap(run)

    @call.def_vmap
    def _(size, is_batched, *matrices):
        whole = [
            m if batched else jnp.broadcast_to(m, (size, *m.shape))
            for m, batched in zip(matrices, is_batched, strict=True)
        ]
        made = call(*flat_tokens(2, whole))
        rows = whole[0].shape[1]
        made = jax.tree.map(lambda m: m.reshape(size, rows, m.shape[-1]), made)
        return made, jax.tree.map(lambda _: True, made)

    return call


_FORGET_VARIATION = Primitive("jaxgnn_forget_variation")
_FORGET_VARIATION.def_impl(lambda array: array)
_FORGET_VARIATION.def_abstract_eval(lambda array: array.update(manual_axis_type=type(array.mat)()))
mlir.register_lowering(_FORGET_VARIATION, lambda _, array: [array])
batching.primitive_batchers[_FORGET_VARIATION] = lambda arrays, axes: (
    _FORGET_VARIATION.bind(*arrays),
    axes[0],
)


def forget_variation(operand: jax.Array) -> jax.Array:
    """Inside ``shard_map``, an operand as if it did not vary over the mesh; this has no cost.

    For kernels in which single warps use the operand: there Pallas does not support operands that
    vary. ``vary_like`` restores the variation in their results.
    """
    return _FORGET_VARIATION.bind(operand) if jax.typeof(operand).mat.varying else operand


def vary_like(operand: Any, result: jax.Array) -> jax.Array:
    """Inside ``shard_map``, lets the result of a kernel vary over the mesh axes of the operands."""
    missing = jax.typeof(operand).mat.varying - jax.typeof(result).mat.varying
    return lax.pcast(result, tuple(missing), to="varying") if missing else result
