"""Memory of arrays that are handed to JAX, or used again and again."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

# JAX on a CPU reads NumPy arrays in place if they begin at a multiple of this many bytes. It copies
# others.
_ALIGNMENT = 64


class Spare[Buffer]:
    """Buffers that threads borrow and give back.

    A borrowed buffer is not kept here. So one whose borrower is interrupted or runs out of memory,
    at any place, is dropped, and never used again in the state that it was left in.
    """

    def __init__(self) -> None:
        self._buffers: deque[Buffer] = deque()  # its methods are atomic

    def borrow(self) -> Buffer | None:
        """Takes a buffer out; None if all are in use."""
        try:
            return self._buffers.pop()
        except IndexError:
            return None

    def give_back(self, buffer: Buffer) -> None:
        """Keeps a buffer for others."""
        self._buffers.append(buffer)


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
