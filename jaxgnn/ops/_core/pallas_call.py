"""What the calls of Mosaic GPU kernels share.

The kernels are imported when the first of them is called: Mosaic GPU would slow down the import of
the library, and is not there on every platform. Calls outside of ``jit`` are compiled once for each
shape by a ``jit`` of their own, which Pallas does not do.
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
    """A pytree of arrays, their leading axes, one number of them for all, as one."""

    def flatten(array):
        return array.reshape(math.prod(array.shape[:batch_dims]), *array.shape[batch_dims:])

    return jax.tree.map(flatten, arrays)


def batches_as_rows[**P, T](run: Callable[P, T]) -> Callable[P, T]:
    """``run`` of matrices, whose rows are independent: of ``vmap`` they have more rows.

    By Pallas' own rule each member of a batch would be an array by itself, which begins where 16
    bytes need not, and blocks of its own, of which CUDA takes no more than 65,535.

    Args:
      run: matrices in, matrices out, of as many rows all of them.
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
    """Inside ``shard_map``, an operand as if it did not vary over the mesh; compiled to nothing.

    For kernels that ``vary_like`` follows, in which warps by themselves use the operand: Pallas
    refuses them one that varies.
    """
    return _FORGET_VARIATION.bind(operand) if jax.typeof(operand).mat.varying else operand


def vary_like(operand: Any, result: jax.Array) -> jax.Array:
    """Inside ``shard_map``, lets the result of a kernel vary over the mesh as the operands do."""
    missing = jax.typeof(operand).mat.varying - jax.typeof(result).mat.varying
    return lax.pcast(result, tuple(missing), to="varying") if missing else result
