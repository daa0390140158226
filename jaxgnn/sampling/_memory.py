"""Memory of arrays that are handed to JAX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# JAX on a CPU reads NumPy arrays in place if they begin at a multiple of this many bytes. It copies
# others.
_ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array without values, which JAX on a CPU does not copy."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    made = memory[begin : begin + size].view(dtype).reshape(shape)
    # The last writable view: when it is made read-only, graphs keep it without a copy.
    memory.flags.writeable = False
    return made


def filled(values: np.ndarray, length: int, padding: Any, dtype: Any = None) -> np.ndarray:
    """A copy of values, with padding after them up to a length."""
    made = aligned_empty((length, *values.shape[1:]), values.dtype if dtype is None else dtype)
    made[: values.shape[0]] = values
    made[values.shape[0] :] = padding
    return made
