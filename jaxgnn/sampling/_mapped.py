"""Files of memory-mapped arrays."""

from __future__ import annotations

import os

import numpy as np

from jaxgnn._arrays.npy_format import read_header
from jaxgnn._errors import bad_input


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
    found = None
    while isinstance(array, np.ndarray):
        found = array if isinstance(array, np.memmap) else found
        array = array.base
    return found
