"""The functions by which every wrapper calls its FFI target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxgnn._arrays.arrays import empty_like

Shape = tuple[int, ...]


def call(
    target: str, result: tuple[Shape, Any], *operands: Array | None, **attributes: Any
) -> Array:
    """Calls an FFI target of one result on arrays without batch dimensions.

    An operand of None is passed as an array of no elements. Under ``vmap`` the handler gets all
    operands with extra leading dimensions, of size one where an operand is shared: a shared graph
    is never tiled.

    Args:
      target: name in the table of targets.
      result: shape and dtype of the result.
      *operands: arrays, all varying over the same mesh axes.
      **attributes: static numpy scalars or strings.
    """
    return call_many(target, [result], *operands, **attributes)[0]


def call_many(
    target: str,
    results: Sequence[tuple[Shape, Any]],
    *operands: Array | None,
    vmap_method: str = "expand_dims",
    **attributes: Any,
) -> Sequence[Array]:
    """Calls an FFI target of several results on arrays without batch dimensions.

    Operands and attributes may be the same as for ``call``.

    Args:
      target: name in the table of targets.
      results: shape and dtype of each result.
      *operands: arrays, all varying over the same mesh axes.
      vmap_method: how ``vmap`` passes operands; ``"broadcast_all"`` copies those that are shared.
      **attributes: static numpy scalars, strings, or tuples of integers.
    """
    like = next(o for o in operands if o is not None)
    structs = tuple(_result(shape, dtype, like) for shape, dtype in results)
    return _compiled(target, structs, vmap_method, tuple(sorted(attributes.items())), *operands)


# Empty arrays are created here, inside the compiled program, by ``empty_like``. One function
# serves all calls, so that an eager call finds the program of an earlier call with equal shapes.
@partial(jax.jit, static_argnums=(0, 1, 2, 3), inline=True)
def _compiled(target, structs, vmap_method, attributes, *operands):
    like = next(o for o in operands if o is not None)
    none = jax.ShapeDtypeStruct((0,), jnp.float32)
    kinds = [none if o is None else o for o in operands]
    arrays = [empty_like(k, like) if 0 in k.shape else k for k in kinds]
    function = jax.ffi.ffi_call(target, structs, vmap_method=vmap_method)
    return function(*arrays, **{name: _attribute(value) for name, value in attributes})


def _attribute(value: Any) -> Any:
    return np.array(value, np.int64) if isinstance(value, tuple) else value


def _result(shape, dtype, like) -> jax.ShapeDtypeStruct:
    kind = jax.typeof(like)
    if not kind.mat.varying:
        return jax.ShapeDtypeStruct(shape, dtype)
    # Inside shard_map the result varies over the same mesh axes as the operands.
    return jax.ShapeDtypeStruct(shape, dtype, sharding=kind.sharding, manual_axis_type=kind.mat)


def widened(array: Array) -> Array:
    """Casts float16 to float32, for kernels that have no float16; other arrays stay as they are.

    XLA's cast takes less time than kernels that convert a number each time they gather it.
    """
    return array.astype(jnp.float32) if array.dtype == jnp.float16 else array
