"""Sorts the edges of large concrete graphs on a GPU, by programs for a few sizes.

A host sorts a hundred million edges in seconds, and a GPU in a tenth of a second, but the program
takes seconds to compile. So arrays are padded to one of few sizes, for which the program is
compiled once. Results are cut to their own size again, and equal those of the host bit for bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from jaxgnn._arrays.arrays import MAX_INT32, to_device
from jaxgnn._arrays.eager import run_now
from jaxgnn.graph.plan.sorting import row_ids

# Fewer edges are sorted on the host in less time than a compilation takes.
_LEAST_EDGES = 1 << 20
# Sizes are padded by less than ``1 / _PARTS`` of them.
_PARTS = 4


def on_gpu() -> bool:
    """Returns whether arrays are placed on a GPU by default."""
    device = jax.config.jax_default_device
    if device is None:
        return jax.default_backend() == "gpu"
    return (device if isinstance(device, str) else device.platform) in ("gpu", "cuda")


def is_for_device(num_edges: int) -> bool:
    """Whether a concrete graph of ``num_edges`` edges is best prepared on the default device."""
    return on_gpu() and num_edges >= _LEAST_EDGES and bucket(num_edges) <= MAX_INT32


def bucket(size: int) -> int:
    """Returns the size to which ``size`` is padded: four in each factor of two."""
    step = max(1, (1 << max(size - 1, 0).bit_length()) // (2 * _PARTS))
    return -(-size // step) * step


def sort_on_device(
    receivers: Any, senders: Any, num_rows: int, mask: Any = None
) -> tuple[Array, Array, Array]:
    """Sorts edges by receiver, keeping the given order among the edges of one receiver.

    Edges with a False ``mask`` become the last; the receivers of the others must be in range.

    Returns:
      ``(indptr, indices, order)``: row offsets, sender and input position of each sorted edge, all
      int32 on the default device.
    """
    num_edges = receivers.shape[0]
    arrays = run_now(to_device, "CSRGraph", (receivers, senders, mask))
    padded = run_now(_resized, arrays, sizes=(bucket(num_edges),) * 3)
    result = run_now(_sort, *padded, np.int32(num_edges), num_rows=bucket(num_rows))
    # The caller may change its arrays from now on.
    return jax.block_until_ready(
        run_now(_resized, result, sizes=(num_rows + 1, num_edges, num_edges))
    )


def transpose_on_device(
    indptr: Int[Array, " rows+1"], indices: Int[Array, " edges"], num_cols: int
) -> tuple[Array, Array, Array]:
    """Sorts the edges of a graph by sender; see ``transpose_on_host`` for the results."""
    num_rows, num_edges = indptr.shape[0] - 1, indices.shape[0]
    arrays = run_now(to_device, "CSRGraph", (indptr, indices))
    padded = run_now(_resized, arrays, sizes=(bucket(num_rows) + 1, bucket(num_edges)))
    result = run_now(_transpose, *padded, np.int32(num_rows), num_cols=bucket(num_cols))
    return run_now(_resized, result, sizes=(num_cols + 1, num_edges, num_edges))


@partial(jax.jit, static_argnames="sizes")
def _resized(arrays: Any, sizes: tuple[int, ...]) -> Any:
    """Cuts each array to its size, or repeats its last entry; which compiles fast."""

    def resized(array, size):
        if array is None:
            return None
        return jnp.pad(array[:size], (0, max(size - array.shape[0], 0)), mode="edge")

    return tuple(map(resized, arrays, sizes))


@partial(jax.jit, static_argnames="num_rows")
def _sort(receivers, senders, mask, num_edges, num_rows):
    real = jnp.arange(receivers.shape[0], dtype=jnp.int32) < num_edges
    if mask is not None:
        real &= mask
    keys, order = _sorted(jnp.where(real, receivers.astype(jnp.int32), MAX_INT32))
    return _offsets(keys, num_rows), senders.astype(jnp.int32)[order], order


@partial(jax.jit, static_argnames="num_cols")
def _transpose(indptr, indices, num_rows, num_cols):
    rows = row_ids(indptr, indices.shape[0])
    real = rows < indptr.shape[0] - 1
    keys, order = _sorted(jnp.where(real, indices, MAX_INT32))
    receivers = jnp.clip(rows[order], 0, jnp.maximum(num_rows - 1, 0))
    return _offsets(keys, num_cols), receivers, order


def _sorted(keys):
    """The sorted keys, and their positions; XLA has a radix sort for exactly two operands."""
    positions = jnp.arange(keys.shape[0], dtype=jnp.int32)
    return lax.sort((keys, positions), num_keys=1, is_stable=True)


def _offsets(keys, count):
    ids = jnp.arange(count + 1, dtype=jnp.int32)
    return jnp.searchsorted(keys, ids, side="left").astype(jnp.int32)
