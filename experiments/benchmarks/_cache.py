"""Bandwidth of the device's last-level cache, which limits gathers as copy speed limits passes."""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp

from jaxgnn.testing.timing import measure

_CPU_BYTES = 2**23
_GPU_BYTES = 2**24
_TIMES = 64


def cache_bandwidth(nbytes: int | None = None, **timing: float) -> float:
    """Measures the last cache's bandwidth for element-wise reads and writes on the current device.

    Two functions pass many times over an array that fits the cache. The first passes over it in
    place, one launch a pass; it is faster on a CPU. The second sums overlapping windows in one
    launch, because on a GPU a single pass takes hardly longer than its launch. Its reads are far
    enough apart that no smaller cache still holds the data. Requested bytes are counted, and the
    faster function is used, because other times are compared with this limit.

    Args:
      nbytes: size of the array; by default 8 MiB on a CPU and 16 MiB elsewhere, less than the last
        cache and more than the smaller caches.
      **timing: further arguments of ``measure``.

    Returns:
      GB/s, 10^9 bytes a second.
    """
    if nbytes is None:
        nbytes = _CPU_BYTES if jax.default_backend() == "cpu" else _GPU_BYTES
    array = jnp.zeros(max(2 * _TIMES, nbytes // 4), jnp.float32)
    # Each window is half the array, and their sum is written once.
    requested = {_passes: 2 * _TIMES * array.nbytes, _windows: (_TIMES + 1) * array.nbytes // 2}
    return max(
        count / measure(function, array, **timing).min_ms / 1e6  # pyrefly: ignore
        for function, count in requested.items()
    )


def _passes(array: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, _TIMES, lambda _, x: x + 1, array)


def _windows(array: jax.Array) -> jax.Array:
    """XLA fuses the slices and the sums."""
    length = array.size // 2
    shift = length // _TIMES
    windows = (array[number * shift :][:length] for number in range(_TIMES))
    return functools.reduce(operator.add, windows)
