"""The format of .npy files, read without numpy's reader, which trusts their headers.

A dtype with fields, objects or subarrays can turn bytes into addresses, and a shape that does not
fit its bytes reads past them. Here dtypes have no parts, and every byte is accounted for. Functions
take opened files; whoever opens them names them in errors.
"""

from __future__ import annotations

import math
import os
import re
from typing import IO, Any, NamedTuple

import numpy as np

MAGIC = b"\x93NUMPY"
# Bytes of the header's length, by version.
_HEADER_SIZES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
_NEWEST = b"\x03\x00"  # Python 2 never wrote this version.
_LONG = re.compile(r"[0-9]L", re.ASCII)
_LONGEST_HEADER = 10_000
_BLOCK = 1 << 18

_QUOTED = "'[^'\"]*'|\"[^'\"]*\""
_ENTRY = re.compile(
    rf"\s*({_QUOTED})\s*:\s*({_QUOTED}|True|False|\([0-9L,\s]*\))\s*(,|(?=\s*\}}))", re.ASCII
)
_SIZE = re.compile(r"\s*([0-9]{1,19})L?\s*", re.ASCII)

_PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,8})", re.ASCII)
# Numpy's notation of floats that it does not support itself, such as bfloat16: by their size.
_SHORT_FLOAT = re.compile(r"[<>=|]?V[12]", re.ASCII)
_COMPLEX = re.compile(r"[<>=]?c(8|16)", re.ASCII)
_MOST_AXES = 32
_LAST_INT32 = np.iinfo(np.int32).max
_LAST_CODE_POINT = 0x10FFFF


class Header(NamedTuple):
    """The header of an array in a file.

    Attributes:
      dtype: dtype of its numbers, in the byte order of the file.
      columns_first: whether the first axis varies fastest, in Fortran order.
      shape: shape of the array.
      size: number of bytes of the header.
    """

    dtype: np.dtype
    columns_first: bool
    shape: tuple[int, ...]
    size: int

    @property
    def num_bytes(self) -> int:
        """Number of bytes of the array behind the header."""
        return array_size(self.dtype, self.shape)

    def require_size(self, size: int) -> None:
        """Raises ValueError unless a file of ``size`` bytes has this header and its array alone."""
        if self.size + self.num_bytes != size:
            expected = f"expected {self.num_bytes} bytes for {self.dtype}{list(self.shape)}"
            raise ValueError(f"{expected}, got {size - self.size}")


def read_header(
    stream: IO[bytes], *, short_floats: bool = False, complex_numbers: bool = False
) -> Header:
    """Reads the header of an array, up to the first byte of the array.

    Args:
      stream: a stream at the begin of the header.
      short_floats: whether floats of one or two bytes that numpy does not support are allowed.
      complex_numbers: whether complex numbers are allowed.

    Raises:
      ValueError: it is no header of plain numbers or strings.
    """
    start = bytes(read_exactly(stream, 8))
    length_size = _HEADER_SIZES.get(start[6:])
    if start[:6] != MAGIC or length_size is None:
        raise ValueError(f"it starts with {start!r}, as no array does")
    length = int.from_bytes(read_exactly(stream, length_size), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"expected a header of at most {_LONGEST_HEADER} bytes, got {length}")
    header = read_exactly(stream, length).decode("latin1")
    if start[6:] == _NEWEST and _LONG.search(header):
        raise ValueError(f"expected a header as Python 3 writes it, got {header[:200]!r}")
    descr, columns_first, shape = _parse_header(header)
    dtype = plain_dtype(descr, short_floats=short_floats, complex_numbers=complex_numbers)
    return Header(dtype, columns_first, shape, 8 + length_size + length)


def map_array(file: IO[bytes], *, kinds: str = "iuf", short_floats: bool = False) -> np.ndarray:
    """Memory-maps the one array of an opened .npy file, so that parts are read when they are used.

    Its numbers are not checked, and have the byte order of the file. The map outlives ``file``.

    Args:
      file: a regular file, opened for reading in binary mode, at its begin.
      kinds: kinds of dtypes of numpy that are allowed.
      short_floats: whether two bytes without a name are allowed, as which numpy stores bfloat16.

    Raises:
      ValueError: its header is damaged, its dtype is another one, or bytes of it are missing or
        follow its array.
    """
    size = os.fstat(file.fileno()).st_size
    header = read_header(file, short_floats=short_floats, complex_numbers="c" in kinds)
    header.require_size(size)
    dtype, shape = header.dtype, header.shape
    if dtype.kind not in kinds and not (short_floats and dtype == np.dtype("V2")):
        raise ValueError(f"expected numbers, got {dtype}")
    if not header.num_bytes:
        return np.zeros(shape, dtype)
    order = "F" if header.columns_first else "C"
    return np.memmap(file, dtype, "r", header.size, shape, order)  # pyrefly: ignore


def read_exactly(stream: IO[bytes], size: int) -> bytearray:
    """Reads ``size`` bytes, and allocates no more than has arrived so far."""
    data = bytearray()
    while len(data) < size:
        block = stream.read(min(_BLOCK, size - len(data)))
        if not block:
            raise ValueError(f"it ends after {len(data)} of {size} bytes")
        data += block
    return data


def _parse_header(header: str) -> tuple[str, bool, tuple[int, ...]]:
    """Parses the entries descr, fortran_order and shape of numpy's header."""
    text, entries, position = header.strip(" \n"), {}, 1
    while (entry := _ENTRY.match(text, position)) is not None:
        key, position = entry[1][1:-1], entry.end()
        if key in entries:
            raise ValueError(f"its header has {key!r} twice")
        entries[key] = entry[2]
    complete = text[:1] == "{" and text[position:].strip(" \n") == "}"
    if not complete or entries.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError(
            "expected a header of descr (of plain numbers or strings), fortran_order and shape, "
            f"got {header[:200]!r}"
        )
    descr, order, shape = (entries[key] for key in ("descr", "fortran_order", "shape"))
    if descr[0] not in "'\"" or order not in ("True", "False") or shape[0] != "(":
        raise ValueError(f"expected a header as numpy writes it, got {header[:200]!r}")
    return descr[1:-1], order == "True", _parse_shape(shape)


def _parse_shape(text: str) -> tuple[int, ...]:
    """Sizes such as "(3, 4)", "(3,)" or "()"; Python 2 wrote them with an L."""
    inside = text[1:-1].strip()
    if not inside:
        return ()
    parts = inside.removesuffix(",").split(",")
    sizes = [_SIZE.fullmatch(part) for part in parts]
    if None in sizes or (len(parts) == 1 and not inside.endswith(",")):
        raise ValueError(f"expected a shape, got {text[:80]}")
    return tuple(int(size[1]) for size in sizes if size is not None)


def plain_dtype(
    text: Any, *, short_floats: bool = False, complex_numbers: bool = False
) -> np.dtype:
    """The dtype of a name such as "<f8": numbers of at most eight bytes, or strings."""
    names = [_PLAIN, *[_SHORT_FLOAT] * short_floats, *[_COMPLEX] * complex_numbers]
    if not isinstance(text, str) or not any(name.fullmatch(text) for name in names):
        raise ValueError(f"expected a dtype of plain numbers or strings, got {_quote(text)}")
    return np.dtype(text)


def array_size(dtype: np.dtype, shape: Any) -> int:
    """Number of bytes of an array; raises ValueError if ``shape`` is not a tuple of sizes."""
    is_shape = isinstance(shape, tuple) and len(shape) <= _MOST_AXES
    if not is_shape or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"expected a shape of at most {_MOST_AXES} sizes, got {_quote(shape)}")
    count = math.prod(shape)
    if count == 0 and max(shape, default=0) > _LAST_INT32:
        raise ValueError(f"expected a shape that numpy can have, got {_quote(shape)}")
    return count * dtype.itemsize


def array_of(data: Any, dtype: np.dtype, shape: Any, *, columns_first: bool) -> np.ndarray:
    """The array of all of ``data``, in the byte order of this machine.

    Args:
      data: bytes, which the array uses without a copy if they are already in this order.
      dtype: a dtype without fields, objects or subarrays.
      shape: shape of the array.
      columns_first: whether the first axis varies fastest, in Fortran order.
    """
    size = array_size(dtype, shape)
    if size != len(data):
        raise ValueError(f"expected {size} bytes for {dtype}{list(shape)}, got {len(data)}")
    if not size:
        return np.zeros(shape, dtype.newbyteorder("="))
    flat = np.frombuffer(data, dtype)
    # Numpy does not check that bytes are valid values of their dtype.
    if dtype.kind == "b" and flat.view(np.uint8).max() > 1:
        raise ValueError("expected truth values 0 or 1")
    if dtype.kind == "U" and flat.view(dtype.str[0] + "u4").max() > _LAST_CODE_POINT:
        raise ValueError("expected characters of Unicode")
    values = flat.reshape(shape, order="F" if columns_first else "C")
    return values.astype(dtype.newbyteorder("="), order="K", copy=False)


def _quote(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | tuple) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:80] + "..."
