"""Reads .npy and .npz files without numpy's reader, which trusts their headers.

A dtype with fields, objects or subarrays can turn bytes into addresses, and a shape that does not
fit its bytes reads past them. Here dtypes have no parts, and every byte is accounted for.
"""

import math
import re
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import naming, require_file, require_room

_MAGIC = b"\x93NUMPY"
_ZIP_MAGICS = (b"PK\3\4", b"PK\5\6")  # of a member, and of the end of an archive without any
_HEADER_SIZES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}  # bytes of its length, by version
_NEWEST = b"\x03\x00"  # which Python 2 never wrote
_LONG = re.compile(r"[0-9]L", re.ASCII)
_LONGEST_HEADER = 10_000
_BLOCK = 1 << 18
_LARGEST_READ = 1 << 20

_QUOTED = "'[^'\"]*'|\"[^'\"]*\""
_ENTRY = re.compile(
    rf"\s*({_QUOTED})\s*:\s*({_QUOTED}|True|False|\([0-9L,\s]*\))\s*(,|(?=\s*\}}))", re.ASCII
)
_SIZE = re.compile(r"\s*([0-9]{1,19})L?\s*", re.ASCII)

_PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,8})", re.ASCII)
# Numpy's notation of floats that it does not support itself, such as bfloat16: by their size.
_SHORT_FLOAT = re.compile(r"[<>=|]?V[12]", re.ASCII)
_MOST_AXES = 32
_LAST_INT32 = np.iinfo(np.int32).max
_LAST_CODE_POINT = 0x10FFFF


def read_npy(path: Path, contents: str) -> np.ndarray:
    """Reads the one array of an .npy file: plain numbers or strings."""
    require_file(path, contents)
    with naming(path, "an .npy array"), open(path, "rb") as file:
        return _read_array(file, path.stat().st_size)


def map_npy(path: Path, contents: str) -> np.ndarray:
    """Memory-maps the one array of an .npy file, so that parts are read when they are used.

    Its numbers are not checked, and have the byte order of the file.
    """
    require_file(path, contents)
    with naming(path, "an .npy array"), open(path, "rb") as file:
        size = path.stat().st_size
        dtype, columns_first, shape = _read_header(file, size)
        if dtype.kind not in "iuf":
            raise ValueError(f"expected numbers, got {dtype}")
        if not array_size(dtype, shape):
            return np.zeros(shape, dtype)
        order = "F" if columns_first else "C"
        return np.memmap(path, dtype, "r", file.tell(), shape, order)


def read_next_array(stream: IO[bytes]) -> np.ndarray:
    """Reads an array from a stream that may go on behind it, as after several ``numpy.save``."""
    dtype, columns_first, shape, _ = _read_any_header(stream)
    data = read_exactly(stream, array_size(dtype, shape))
    return array_of(data, dtype, shape, columns_first=columns_first)


def read_npz(
    path: Path, keys: tuple[str, ...] | None, contents: str, *, short_floats: bool = False
) -> dict[str, np.ndarray]:
    """Reads arrays of an .npz archive.

    Args:
      path: the file.
      keys: names of the arrays to read; None for all. Others are not decompressed.
      contents: expected content of the file, for the message if it is missing.
      short_floats: whether floats of one or two bytes that numpy does not support are read too, as
        bytes.
    """
    require_file(path, contents)
    with naming(path, "an .npz archive"), opened_archive(path) as archive:
        members = _members(archive)
        wanted = tuple(members) if keys is None else keys
        missing = [key for key in wanted if key not in members]
        if missing:
            raise ValueError(f"no array {missing[0]!r} among {sorted(members)[:20]}")
        unpacked = sum(members[key].file_size for key in wanted)
        require_room(path, unpacked, "what it holds")
        return {key: _read_member(archive, members[key], short_floats) for key in wanted}


def npz_names(path: Path, contents: str) -> frozenset[str]:
    """Names of the arrays in an .npz archive."""
    require_file(path, contents)
    with naming(path, "an .npz archive"), opened_archive(path) as archive:
        return frozenset(_members(archive))


class _SmallReads:
    """A file object that returns at most a megabyte per read.

    A zip file's list of members is read at once, and becomes many times as large in Python.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int | None = -1) -> bytes:
        everything = size is None or size < 0
        data = self._file.read(_LARGEST_READ + 1 if everything else min(size, _LARGEST_READ + 1))
        if len(data) > _LARGEST_READ:
            raise ValueError("its list of members is too long")
        return data


@contextmanager
def opened_archive(path: Path) -> Generator[zipfile.ZipFile]:
    """Opens a zip file whose list of members is short enough to be read at once."""
    with open(path, "rb") as file:
        start = file.read(len(_MAGIC))
        if start == _MAGIC:
            raise ValueError("it holds a single array")
        if not start.startswith(_ZIP_MAGICS):  # zipfile searches from the end, and skips a prefix
            raise ValueError("it does not begin as a zip file does")
        small: Any = _SmallReads(file)
        with zipfile.ZipFile(small) as archive:
            yield archive


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"it holds the array {name!r} twice")
        members[name] = info
    return members


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, short_floats: bool) -> np.ndarray:
    with archive.open(info) as stream:
        try:
            return _read_array(stream, info.file_size, short_floats=short_floats)
        except ValueError as error:
            raise ValueError(f"{info.filename}: {error}") from error


def _read_array(stream: IO[bytes], size: int, *, short_floats: bool = False) -> np.ndarray:
    """Reads a stream of ``size`` bytes that is one array."""
    dtype, columns_first, shape = _read_header(stream, size, short_floats=short_floats)
    data = read_exactly(stream, array_size(dtype, shape))
    if stream.read(1):  # reading to the end compares the checksum of a zip file
        raise ValueError("expected nothing behind its array")
    return array_of(data, dtype, shape, columns_first=columns_first)


def _read_header(
    stream: IO[bytes], size: int, *, short_floats: bool = False
) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """Reads the header of a stream of ``size`` bytes: dtype, Fortran order, shape."""
    dtype, columns_first, shape, used = _read_any_header(stream, short_floats=short_floats)
    expected, got = array_size(dtype, shape), size - used
    if expected != got:
        raise ValueError(f"expected {expected} bytes for {dtype}{list(shape)}, got {got}")
    return dtype, columns_first, shape


def _read_any_header(
    stream: IO[bytes], *, short_floats: bool = False
) -> tuple[np.dtype, bool, tuple[int, ...], int]:
    """Reads the header of an array: dtype, Fortran order, shape, and the size of the header."""
    start = bytes(read_exactly(stream, 8))
    length_size = _HEADER_SIZES.get(start[6:])
    if start[:6] != _MAGIC or length_size is None:
        raise ValueError(f"it starts with {start!r}, as no array does")
    length = int.from_bytes(read_exactly(stream, length_size), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"expected a header of at most {_LONGEST_HEADER} bytes, got {length}")
    header = read_exactly(stream, length).decode("latin1")
    if start[6:] == _NEWEST and _LONG.search(header):
        raise ValueError(f"expected a header as Python 3 writes it, got {header[:200]!r}")
    descr, columns_first, shape = _parse_header(header)
    dtype = plain_dtype(descr, short_floats=short_floats)
    return dtype, columns_first, shape, 8 + length_size + length


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
    while (found := _ENTRY.match(text, position)) is not None:
        key, position = found[1][1:-1], found.end()
        if key in entries:
            raise ValueError(f"its header has {key!r} twice")
        entries[key] = found[2]
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


def plain_dtype(text: Any, *, short_floats: bool = False) -> np.dtype:
    """The dtype of a name such as "<f8": numbers of at most eight bytes, or strings."""
    names = [_PLAIN, _SHORT_FLOAT] if short_floats else [_PLAIN]
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
