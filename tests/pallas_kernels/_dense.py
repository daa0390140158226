"""How the kernels of dense layers are run without a GPU, and lowered for one."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack, _dense_terms


@contextlib.contextmanager
def interpreted():
    """Memory there has no layout, and what lies in one place would be two arrays.

    Nor does the interpreter take factors of tensor cores that are in registers.
    """
    with pytest.MonkeyPatch.context() as patch, plgpu.force_gpu_interpret_mode():
        patch.setattr(_dense_stack, "copied_tiles", _dense_stack.tiles)
        patch.setattr(_dense_stack, "faces", lambda tiles: (tiles, tiles))
        patch.setattr(_dense_terms, "split_tiles", _split_tiles)
        patch.setattr(_dense_terms, "faces", lambda tiles: tiles)
        patch.setattr(_dense_terms, "made_tiles", _made_tiles)
        patch.setattr(_dense_terms, "faces_of_made", lambda tiles: tiles)
        patch.setattr(_dense_stack, "product_from_registers", _product)
        yield


def _split_tiles(dtype, width, *places):
    """What was read, and its terms, each in a place of its own."""
    shape = (*places, width // _dense_stack.COLUMNS, 2, _dense_stack.ROWS, _dense_stack.COLUMNS)
    chunked = _dense_stack.chunked(dtype, width, *places)
    return [chunked, _dense_stack.tiles(jnp.bfloat16, *shape)]


def _made_tiles(dtype, width, staged, places=1):
    terms = _dense_stack.tiles(jnp.bfloat16, places, 2, _dense_stack.ROWS, width)
    return [terms, _dense_stack.chunked(dtype, staged, places)]


def _product(pairs, columns, meanwhile):
    total = jnp.zeros((_dense_stack.ROWS, columns), jnp.float32)
    for a, b in pairs:
        assert a.dtype == b.dtype
        total += a.astype(jnp.float32) @ b[...].astype(jnp.float32)
    meanwhile()
    return total


def kernels_of(function, *arguments) -> list[str]:
    """The kernels that it lowers to, in order; lowering refuses too much shared memory."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return [line for line in lowered.as_text().splitlines() if "mosaic_gpu_v2" in line]


def structs(tree):
    """Shapes and dtypes."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def with_gradients(function, *inputs):
    """The value, and the gradients to all of the inputs."""

    def both(*inputs):
        y, pull_back = jax.vjp(function, *inputs)
        return y, pull_back(y)

    return both, *inputs
