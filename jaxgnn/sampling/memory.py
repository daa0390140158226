"""Memory of arrays that are handed to JAX, used again and again, or mapped from files."""

from __future__ import annotations

import math
import os
from collections import deque
from typing import Any

import numpy as np

from jaxgnn._arrays.npy_format import read_header
from jaxgnn._errors import bad_input

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
    array = memory[begin : begin + size].view(dtype).reshape(shape)
    # The last writable view: when it is made read-only, graphs keep it without a copy.
    memory.flags.writeable = False
    return array


def filled(values: np.ndarray, length: int, padding: Any, dtype: Any = None) -> np.ndarray:
    """A copy of values, with padding after them up to a length."""
    array = aligned_empty((length, *values.shape[1:]), values.dtype if dtype is None else dtype)
    array[: values.shape[0]] = values
    array[values.shape[0] :] = padding
    return array


def check_files(where: str, **arrays: np.ndarray | None) -> None:
    """Raises ValueError, which names the file, if a memory-mapped array has one of a wrong size.

    To read a mapped file beyond its end kills the process, without an exception. A file that holds
    more may be mapped in part; but where the whole array of an .npy file is mapped, bytes behind it
    mean that bytes were inserted or appended, so that rows may be shifted.
    """
    for name, array in arrays.items():
        mapped = _memmap_of(array)
        if mapped is None or mapped.filename is None:
            continue
        needed, size = mapped.offset + mapped.nbytes, os.path.getsize(mapped.filename)
        if size < needed:
            expected = f"in a file of at least {needed} bytes"
            raise bad_input(where, name, expected, f"{size} bytes in {mapped.filename}")
        if size > needed and _is_whole_array(mapped):
            expected = f"in a .npy file of {needed} bytes, its header and its array"
            raise bad_input(where, name, expected, f"{size} bytes in {mapped.filename}")


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array, or what it is a view of, is mapped from a file."""
    return _memmap_of(array) is not None


def _is_whole_array(mapped: np.memmap) -> bool:
    """Whether an array is all that the header of an .npy file describes, as ``np.load`` maps it."""
    try:
        with open(str(mapped.filename), "rb") as file:
            header = read_header(file, short_floats=True, complex_numbers=True)
    except (OSError, ValueError):
        return False
    return (header.size, header.num_bytes) == (mapped.offset, mapped.nbytes)


def _memmap_of(array: object) -> np.memmap | None:
    """The whole memory-mapped array of which this is a view, if any."""
    mapped = None
    while isinstance(array, np.ndarray):
        mapped = array if isinstance(array, np.memmap) else mapped
        array = array.base
    return mapped
