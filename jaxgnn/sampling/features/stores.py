"""Stores of features: their protocol, in memory, in files, on the device."""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import re
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxgnn._arrays.arrays import as_jax, dtype_of_jax, in_native_order, is_concrete, shown
from jaxgnn._arrays.npy_format import map_array
from jaxgnn._errors import bad_input, require_regular_file
from jaxgnn.sampling.memory import aligned_empty, check_files, is_mapped


@runtime_checkable
class FeatureStore(Protocol):
    """Rows of features that a loader reads by number.

    ``gather`` is called by several threads at once. A store of your own needs these four names
    and no base class.
    """

    @property
    def num_rows(self) -> int:
        """Number of rows, one for each node."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all features, [rows, ...]."""
        ...

    @property
    def dtype(self) -> Any:
        """Dtype of gathered rows."""
        ...

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None) -> Any:
        """Returns rows, on the host or on the device.

        Args:
          ids: row numbers, integers [ids]; -1 for a row of zeros.
          out: array [ids, ...] to write to and return, for a store that reads to the host; other
            stores ignore it.
        """
        ...


def read_rows(
    where: str, store: FeatureStore, ids: np.ndarray, out: np.ndarray | None = None
) -> Any:
    """Returns rows of any store, of its dtype in native byte order, zeros for -1.

    Args:
      where: the reading class or function, for errors.
      store: the store.
      ids: row numbers, integers [ids].
      out: array [ids, ...] to read to, for stores that read to the host; None for new memory.

    Raises:
      ValueError: if the store returns rows of another number, shape or dtype.
    """
    rows = store.gather(ids) if out is None else store.gather(ids, out)
    shape, dtype = (len(ids), *store.shape[1:]), dtype_of_jax(store.dtype)
    if not hasattr(rows, "dtype") or (rows.shape, dtype_of_jax(rows.dtype)) != (shape, dtype):
        expected = f"a store whose gather returns {dtype}{list(shape)} for {len(ids)} ids"
        got = shown(rows) if hasattr(rows, "dtype") else type(rows).__name__
        raise bad_input(where, "features", expected, f"{got} of {type(store).__name__}")
    return in_native_order(rows)


class RowsLike:
    """Base class of stores whose rows are those of something with a shape and a dtype."""

    _like: Any

    @property
    def num_rows(self) -> int:
        """Number of rows of the features, one for each node."""
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all features, [rows, ...]."""
        return self._like.shape

    @property
    def dtype(self) -> Any:
        """Dtype of gathered rows, in native byte order."""
        return np.dtype(self._like.dtype).newbyteorder("=")


def as_store(where: str, features: Any) -> FeatureStore:
    """Returns the store of an array, or of files; a store itself is returned unchanged.

    Raises:
      ValueError: if it is none of these.
    """
    if isinstance(features, np.ndarray):
        return HostFeatures(features)
    if isinstance(features, jax.Array) and is_concrete(features):
        return DeviceFeatures(features)
    if isinstance(features, str | os.PathLike):
        return FileFeatures(features)
    if isinstance(features, FeatureStore):
        return features
    expected = "an array, a path of .npy files, or a store with num_rows, shape, dtype and gather"
    raise bad_input(where, "features", expected, type(features).__name__)


class HostFeatures(RowsLike):
    """Rows of a NumPy array, or of an array that is mapped from a file, such as ``np.memmap``.

    Args:
      array: [rows, ...], in either byte order. It is not copied, so it must not change.

    Example:
      >>> store = HostFeatures(np.eye(3, dtype=np.float32))
      >>> store.gather(np.array([2, -1])).tolist()
      [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, array: np.ndarray):
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            got = getattr(array, "shape", type(array).__name__)
            raise bad_input("HostFeatures", "array", "a NumPy array [rows, ...]", got)
        self._array = self._like = array
        self._is_mapped = is_mapped(array)
        if self._is_mapped:
            advise_random(array)

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Returns rows as a NumPy array, zeros for -1.

        Raises:
          ValueError: if the features are mapped from a file that has another size now.
        """
        check_files("HostFeatures", array=self._array)
        ids = np.asarray(ids)
        if out is None:
            out = aligned_empty((len(ids), *self.shape[1:]), self.dtype)
        # Bytes are copied in their order, and then swapped in place.
        stored = out if self._array.dtype.isnative else out.view(self._array.dtype)
        if self._is_mapped:
            take_at_once(self._array, ids, stored)
        else:
            # Any other mode goes through a copy of the result.
            np.take(self._array, ids, axis=0, out=stored, mode="clip")
        if stored is not out:
            stored.byteswap(inplace=True)
        out[ids < 0] = 0
        return out


class DeviceFeatures(RowsLike):
    """Rows of an array of JAX, gathered on its device, or on those over which it is sharded.

    Args:
      array: [rows, ...]. If its rows are spread over a mesh, each device gathers those that it has,
        and gathered rows are copied to all devices.
    """

    def __init__(self, array: jax.Array):
        if not isinstance(array, jax.Array) or array.ndim == 0:
            got = getattr(array, "shape", type(array).__name__)
            raise bad_input("DeviceFeatures", "array", "an array of JAX [rows, ...]", got)
        self._array = self._like = array
        self._gather = rows_or_zeros
        if isinstance(array.sharding, NamedSharding) and array.sharding.mesh.size > 1:
            everywhere = NamedSharding(array.sharding.mesh, PartitionSpec())
            self._gather = jax.jit(rows_or_zeros, out_shardings=everywhere)

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None) -> jax.Array:
        """Returns rows on the device, zeros for -1; ``out`` is ignored."""
        del out
        return self._gather(self._array, as_jax("DeviceFeatures", "ids", ids))


@jax.jit
def rows_or_zeros(array: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows of an array; zeros where the id is -1."""
    return array.at[ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)


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


# A disk serves that many requests in little more time than one. Threads that wait use no core.
_THREADS = 32


# Fewer rows than that are read by the caller.
_LEAST_ROWS = 64


def take_at_once(array: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    """Copies rows of a mapped array to ``out``, by threads; ids out of range are clipped."""
    parts = min(_THREADS, len(ids) // _LEAST_ROWS)
    if parts < 2:
        np.take(array, ids, axis=0, out=out, mode="clip")
        return
    cuts = np.linspace(0, len(ids), parts + 1).astype(int).tolist()

    def take(begin: int, end: int) -> None:
        np.take(array, ids[begin:end], axis=0, out=out[begin:end], mode="clip")

    readers = _readers(os.getpid())
    reads = [readers.submit(take, *cut) for cut in itertools.pairwise(cuts)]
    try:
        for read in reads:
            read.result()  # raises what the thread raised
    finally:
        for read in reads:
            read.cancel()
        wait(reads)  # after an interrupt too, nothing may write to a buffer of the caller


def advise_random(array: np.ndarray) -> None:
    """Has the system read the pages of a mapped array that are asked for, and none around them."""
    mapping = array
    while isinstance(mapping, np.ndarray):
        mapping = mapping.base
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)


@functools.cache
def _readers(process: int) -> ThreadPoolExecutor:
    """Threads of a process, which all stores share; those of one batch suffice for the disk.

    A fork of the process has none of its threads, and needs others.
    """
    del process
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="jaxgnn-reads")
