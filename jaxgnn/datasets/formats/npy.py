"""Reads .npy and .npz files without numpy's reader: each array by ``jaxgnn._arrays.npy_format``."""

import os
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxgnn._arrays.npy_format import MAGIC, array_of, map_array, read_exactly, read_header
from jaxgnn.datasets.formats.file_errors import naming, require_file, require_room

_ZIP_MAGICS = (b"PK\3\4", b"PK\5\6")  # a member, and the end of an archive without any
_LARGEST_READ = 1 << 20


def read_npy(path: Path, contents: str) -> np.ndarray:
    """Reads the one array of an .npy file: plain numbers or strings."""
    require_file(path, contents)
    with naming(path, "an .npy array"), open(path, "rb") as file:
        return _read_array(file, os.fstat(file.fileno()).st_size)


def map_npy(path: Path, contents: str) -> np.ndarray:
    """Memory-maps the one array of an .npy file, so that parts are read when they are used.

    Its numbers are not checked, and have the byte order of the file.
    """
    require_file(path, contents)
    with naming(path, "an .npy array"), open(path, "rb") as file:
        return map_array(file)


def read_next_array(stream: IO[bytes]) -> np.ndarray:
    """Reads an array from a stream that may go on behind it, as after several ``numpy.save``."""
    header = read_header(stream)
    data = read_exactly(stream, header.num_bytes)
    return array_of(data, header.dtype, header.shape, columns_first=header.columns_first)


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
        start = file.read(len(MAGIC))
        if start == MAGIC:
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
    header = read_header(stream, short_floats=short_floats)
    header.require_size(size)
    data = read_exactly(stream, header.num_bytes)
    if stream.read(1):  # reading to the end compares the checksum of a zip file
        raise ValueError("expected nothing behind its array")
    return array_of(data, header.dtype, header.shape, columns_first=header.columns_first)
