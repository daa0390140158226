"""How the kernels of dense layers are run without a GPU, and lowered for one."""

import contextlib
import queue

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense import terms as dense_terms
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, ROWS
from pallas_kernels.tensor_cores.stores import (
    ReleaseSlot,
    SendChunk,
    StoreChunk,
    WaitForSlot,
    WaitForTile,
)
from tests.pallas_kernels._tensor_cores import interpreting, put_in_place


@contextlib.contextmanager
def interpreted():
    """Memory there has no layout, and what lies in one place would be two arrays.

    Nor does the interpreter take factors of tensor cores that are in registers, or ``simt``.
    """
    with pytest.MonkeyPatch.context() as patch, interpreting():
        put_in_place(
            patch,
            copied_tiles=tc.tiles,
            tile_views=lambda tiles: (tiles, tiles),
            product_from_registers=_product,
            RefUnion=lambda *forms: forms,
        )
        patch.setattr(dense_terms, "split_tiles", _split_tiles)
        patch.setattr(dense_terms, "split_views", lambda tiles: tiles)
        patch.setattr(dense_terms, "reused_tiles", _reused_tiles)
        patch.setattr(dense_terms, "reused_views", lambda tiles: tiles)
        patch.setattr(simt, "inline", _Inline())
        yield


def _split_tiles(dtype, width, *places):
    """What was read, and its terms, each in a place of its own."""
    shape = (*places, width // tc.COLUMNS, 2, tc.ROWS, tc.COLUMNS)
    chunked = tc.chunked(dtype, width, *places)
    return [chunked, tc.tiles(jnp.bfloat16, *shape)]


def _reused_tiles(dtype, width, staged, places=1):
    terms = tc.tiles(jnp.bfloat16, places, 2, tc.ROWS, width)
    return [terms, tc.chunked(dtype, staged, places)]


def _product(pairs, columns, meanwhile):
    total = jnp.zeros((tc.ROWS, columns), jnp.float32)
    for a, b in pairs:
        assert a.dtype == b.dtype
        total += a.astype(jnp.float32) @ b[...].astype(jnp.float32)
    meanwhile()
    return total


_FREE = -1


class _Inline:
    """Takes the place of ``simt.inline`` in the interpreter: what is sent goes through queues."""

    def __init__(self):
        self._queues, self._tiles = {}, None

    def _queue(self, *names):
        return self._queues.setdefault(tuple(map(int, names)), queue.SimpleQueue())

    def _put(self, step, chunk, value):
        """Callbacks of a thread are in no order, so that each has its queue."""

        def put(block, step, chunk, value):
            self._queue(block, step, chunk).put(np.asarray(value))

        io_callback(put, None, lax.axis_index(BLOCK), step, chunk, value)

    def _get(self, step, chunk, form):
        def get(block, step, chunk):
            return self._queue(block, step, chunk).get(timeout=60)

        return io_callback(get, form, lax.axis_index(BLOCK), step, chunk)

    def __call__(self, kernel, numbers, references, products=(), *, cluster=1):
        references = [reference for reference, _ in references]
        if isinstance(kernel, StoreChunk):
            (first,), (result,), (values,) = numbers, references, products

            @pl.loop(0, jnp.minimum(result.shape[0] - first, ROWS))
            def _(i):
                result[first + i, kernel.column : kernel.column + COLUMNS] = values[i]
        elif isinstance(kernel, SendChunk):
            (chunk, step), (self._tiles, _) = numbers, references
            self._put(step, lax.rem(chunk, self._tiles.shape[1]), products[0])
        elif isinstance(kernel, WaitForTile):
            (step,), slots = numbers, self._tiles.shape[0]
            for chunk in range(kernel.nbytes // (2 * ROWS * COLUMNS)):
                form = jax.ShapeDtypeStruct((ROWS, COLUMNS), self._tiles.dtype)
                self._tiles[lax.rem(step, slots), chunk] = self._get(step, chunk, form)
        elif isinstance(kernel, ReleaseSlot):
            self._put(*numbers, _FREE, 1)
        elif isinstance(kernel, WaitForSlot):
            self._get(*numbers, _FREE, jax.ShapeDtypeStruct((), jnp.int32))


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
