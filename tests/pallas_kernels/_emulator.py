"""Runs kernels in the vocabulary of ``pallas_kernels.simt.warp`` in NumPy, all warps at once.

Stricter than a GPU: reads and writes outside of an array, vectors that are not aligned, shared
memory that a lane reads before the lane that wrote it was waited for, also of another block of the
cluster, and barriers that not all of a block reach are errors; memory that was not written, or
whose copy was not waited for, holds NaN.
"""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import jax
import numpy as np

from jaxgnn.ops._maxk import pallas as maxk_calls
from pallas_kernels import simt
from tests.pallas_kernels._numpy_warp import NumpyWarp


def launch(
    kernel, inputs, outputs, *, name, grid, shared=None, block_shared=None, updated=(), seed=0
):
    """Takes the place of ``pallas_kernels.simt.launch``."""
    leaves, tree = jax.tree.flatten(inputs)
    made = [np.full(s.shape, 0xFF, np.uint8).repeat(s.dtype.itemsize, -1) for s in outputs]
    made = [m.view(s.dtype).reshape(s.shape) for m, s in zip(made, outputs, strict=True)]
    changed = [np.array(array) for array in updated]
    for slice_number in range(grid.slices):
        warp = NumpyWarp(grid, slice_number, seed)
        arrays = [warp.array(np.asarray(leaf), True) for leaf in leaves]
        written = [warp.array(array, False) for array in (*changed, *made)]
        scratch = {n: warp.shared(kind, count) for n, (kind, count) in (shared or {}).items()}
        scratch |= {n: warp.block_shared(form) for n, form in (block_shared or {}).items()}
        with np.errstate(all="ignore"):
            kernel(warp, tree.unflatten(arrays), *written, **scratch)
        warp.end()
    return tuple(jax.device_put(array) for array in (*made, *changed))


@contextlib.contextmanager
def emulated(seed=0):
    """Lets all kernels run here, on concrete arrays; what is side by side in some random order."""
    seeded = functools.partial(launch, seed=seed)
    # A rule for vmap is traced, also without jit.
    direct = mock.patch.object(maxk_calls, "batches_as_rows", lambda run: run)
    with mock.patch.object(simt, "launch", seeded), direct, jax.disable_jit():
        yield
