"""Features in .npy files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.npy_format import map_array
from jaxgnn._errors import bad_input, require_regular_file
from jaxgnn.sampling._memory import aligned_empty
from jaxgnn.sampling.features._host import HostFeatures
from jaxgnn.sampling.features._store import RowsLike

_WHERE = "FileFeatures"


class FileFeatures(RowsLike):
    """Rows of one .npy file, or of all .npy files of a folder, one after the other.

    The files are mapped, so that only the rows that are asked for are read. Numbers in names count
    as numbers: ``part-2.npy`` comes before ``part-10.npy``.

    Args:
      path: a file, or a folder with arrays [rows, ...] of one dtype, in either byte order, and one
        shape of a row. NumPy stores bfloat16 as two bytes without a name, which are read as
        bfloat16.

    Raises:
      ValueError: if there are no files, one is damaged, has no numbers, or more or fewer bytes than
        its header says, or they differ in more than their number of rows; the message names the
        file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        files = _files(Path(path))
        arrays = [_mapped(file) for file in files]
        kind = arrays[0].dtype.newbyteorder("="), arrays[0].shape[1:]
        for file, array in zip(files, arrays, strict=True):
            if (array.dtype.newbyteorder("="), array.shape[1:]) != kind:
                expected = f"of {kind[0]} and shape (rows, {', '.join(map(str, kind[1]))})"
                expected += f", as {files[0].name}"
                got = f"{array.dtype} of shape {array.shape} in {file}"
                raise bad_input(_WHERE, "path", expected, got)
        self._shards = [HostFeatures(array) for array in arrays]
        self._ends = np.cumsum([shard.num_rows for shard in self._shards])
        # One entry in memory, with the shape of all rows.
        self._like = np.broadcast_to(np.zeros((), kind[0]), (int(self._ends[-1]), *kind[1]))

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Returns rows as a NumPy array, zeros for -1.

        Raises:
          ValueError: if a file has another size now; the message names it.
        """
        if len(self._shards) == 1:
            return self._shards[0].gather(ids, out)
        if out is None:
            out = aligned_empty((len(ids), *self.shape[1:]), self.dtype)
        ids = np.asarray(ids)
        shard_of = np.searchsorted(self._ends, ids, side="right")
        out[ids < 0] = 0
        for place, shard in enumerate(self._shards):
            wanted = np.flatnonzero((shard_of == place) & (ids >= 0))
            if wanted.size:
                begin = self._ends[place] - shard.num_rows
                out[wanted] = shard.gather(ids[wanted] - begin)
        return out


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob("*.npy"), key=lambda file: _natural(file.name))
    if not files:
        raise bad_input(_WHERE, "path", "a .npy file, or a folder with some", str(path))
    return files


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which numbers in names count as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _mapped(file: Path) -> np.ndarray:
    """The memory-mapped array of a file."""
    expected = ".npy files of numbers"
    if file.is_dir():
        raise bad_input(_WHERE, "path", expected, f"{file}, which is no regular file")
    require_regular_file(file, "an array of features")
    try:
        with open(file, "rb") as opened:
            array = map_array(opened, kinds="biufc", short_floats=True)
    except (OSError, ValueError) as error:
        raise bad_input(_WHERE, "path", expected, f"{file}: {error}") from None
    if not array.ndim:
        raise bad_input(_WHERE, "path", "an array [rows, ...] in each file", f"a number in {file}")
    if array.dtype == np.dtype("V2"):
        return array.view(jnp.dtype(jnp.bfloat16))
    return array
