"""Stores in front of other stores: a cache on the device, and rows in 8 bits."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import host_array, to_device
from jaxgnn._errors import bad_input
from jaxgnn.sampling.features.stores import RowsLike, as_store, read_rows, rows_or_zeros

_LEAST_MISSES = 128


class CachedFeatures(RowsLike):
    """Some rows on the device, and all rows in a store on the host that is read for the others.

    ``loader.read_counts()`` counts how often batches read each row; those that are read most are
    the ones to keep.

    Args:
      features: all rows: an array, a path of .npy files, or any store.
      rows: numbers of the distinct rows to keep on the device.

    Attributes:
      hits: number of rows that were found on the device.
      misses: number of rows that were read from the store.

    Example:
      >>> store = CachedFeatures(np.eye(4, dtype=np.float32), rows=[3, 0])
      >>> store.gather(np.array([0, 1, -1])).tolist()
      [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
      >>> store.hit_rate
      0.5
    """

    def __init__(self, features: Any, rows: npt.ArrayLike):
        self._store = self._like = as_store("CachedFeatures", features)
        rows = np.asarray(rows)
        is_list = rows.ndim == 1 and (rows.dtype.kind in "iu" or not rows.size)
        if not is_list or rows.size != np.unique(rows).size:
            got = f"{rows.dtype} of shape {rows.shape}"
            raise bad_input("CachedFeatures", "rows", "a list of distinct integers", got)
        if rows.size and not 0 <= rows.min() <= rows.max() < self._store.num_rows:
            expected = f"in [0, {self._store.num_rows})"
            raise bad_input("CachedFeatures", "rows", expected, f"{rows.min()} to {rows.max()}")
        self._place = np.full(self._store.num_rows, -1, np.int32)
        self._place[rows.astype(np.int64)] = np.arange(rows.size)
        self._cached = self._read(rows.astype(np.int64))
        self.hits = self.misses = 0
        self._counting = threading.Lock()

    @classmethod
    def hottest(cls, features: Any, counts: npt.ArrayLike, share: float = 0.1) -> CachedFeatures:
        """Keeps the rows of the largest counts.

        Args:
          features: all rows.
          counts: for each row how often it is read, such as ``loader.read_counts()``.
          share: share of the rows to keep, from 0 to 1. Rows that were never read are left out.

        Raises:
          ValueError: if ``share`` is not in [0, 1], or ``counts`` have another length.
        """
        where = "CachedFeatures.hottest"
        if not 0 <= share <= 1:
            raise bad_input(where, "share", "in [0, 1]", share)
        store, counts = as_store(where, features), np.asarray(counts)
        if counts.shape != (store.num_rows,):
            expected = f"of shape ({store.num_rows},), one for each row"
            raise bad_input(where, "counts", expected, f"shape {counts.shape}")
        order = np.argsort(-counts, kind="stable")[: int(share * counts.size)]
        return cls(store, order[counts[order] > 0])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_counting"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _counting=threading.Lock())

    @property
    def hit_rate(self) -> float:
        """Share of the rows that were found on the device; NaN before the first."""
        total = self.hits + self.misses
        return self.hits / total if total else float("nan")

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None) -> jax.Array:
        """Returns rows on the device, zeros for -1; ``out`` is ignored."""
        del out
        ids = host_array("CachedFeatures", "ids", ids)
        places = np.where(ids >= 0, np.take(self._place, ids, mode="clip"), -1)
        missing = np.flatnonzero((ids >= 0) & (places < 0))
        hits = int((places >= 0).sum())
        with self._counting:
            self.hits, self.misses = self.hits + hits, self.misses + missing.size
        if not missing.size:
            return rows_or_zeros(self._cached, places)
        slots = _slots(missing.size, ids.size)
        wanted = np.full(slots, -1, ids.dtype)
        wanted[: missing.size] = ids[missing]
        # Numbers of padding slots are past the last row, and are dropped.
        into = np.full(slots, ids.size, np.int32)
        into[: missing.size] = missing
        return _with_rows(self._cached, places, self._read(wanted), into)

    def _read(self, ids: np.ndarray) -> jax.Array:
        """Rows of the store behind the cache, on the device."""
        rows = read_rows("CachedFeatures", self._store, ids)
        return to_device("CachedFeatures", rows, name="features")


def _slots(count: int, most: int) -> int:
    """A number of slots for ``count`` rows, of few different ones: a sixteenth above a power."""
    step = max(1 << max(count - 1, 1).bit_length() >> 4, _LEAST_MISSES)
    return min(-(-count // step) * step, most)


@jax.jit
def _with_rows(cached: jax.Array, places: jax.Array, rows: jax.Array, into: jax.Array) -> jax.Array:
    return rows_or_zeros(cached, places).at[into].set(rows, mode="drop")


class Int8Features(RowsLike):
    """Rows of int8, times a scale for each row: a quarter of the memory, transfers and reads.

    ``Int8Features.of(array)`` rounds an array of floats. The error of an entry is at most 1 / 254
    of the largest entry of its row.

    Args:
      values: int8 [rows, ...], in an array, in files, or in any store.
      scales: scale of each row, floating [rows].
      dtype: dtype of the rows that ``gather`` returns.

    Example:
      >>> store = Int8Features.of(np.array([[1.0, -0.5], [0.0, 0.0]], np.float32))
      >>> store.gather(np.array([0, 1, -1])).round(1).tolist()
      [[1.0, -0.5], [0.0, 0.0], [0.0, 0.0]]
    """

    def __init__(self, values: Any, scales: npt.ArrayLike, *, dtype: Any = jnp.float32):
        self._values = self._like = as_store("Int8Features", values)
        if self._values.dtype != np.int8:
            raise bad_input("Int8Features", "values", "of dtype int8", self._values.dtype)
        scales = np.asarray(scales, np.float32)
        if scales.shape != (self._values.num_rows,):
            expected = f"of shape ({self._values.num_rows},), one for each row"
            raise bad_input("Int8Features", "scales", expected, f"shape {scales.shape}")
        self._scales, self._dtype = scales, jnp.dtype(dtype)

    @classmethod
    def of(cls, array: np.ndarray, *, dtype: Any = jnp.float32) -> Int8Features:
        """Rounds an array of floats [rows, ...] to 8 bits.

        Raises:
          ValueError: if an entry is NaN or infinite.
        """
        flat = np.asarray(array, np.float32).reshape(len(array), -1)
        largest = np.abs(flat).max(axis=1, initial=0.0)
        if not np.isfinite(largest).all():
            row = int(np.argmin(np.isfinite(largest)))
            raise bad_input("Int8Features", f"array[{row}]", "finite", "NaN or infinity")
        scales = largest / 127
        values = np.rint(flat / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
        return cls(values.reshape(np.shape(array)), scales, dtype=dtype)

    @property
    def dtype(self) -> Any:
        """Dtype of gathered rows."""
        return self._dtype

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None) -> jax.Array:
        """Returns rows on the device, zeros for -1; what is copied there has 8 bits."""
        del out
        ids = np.asarray(ids)
        scales = np.take(self._scales, ids, mode="clip")
        return _scaled(read_rows("Int8Features", self._values, ids), scales, dtype=self._dtype)


def _scaled_rows(values: jax.Array, scales: jax.Array, *, dtype: Any) -> jax.Array:
    by_row = scales.reshape(-1, *(1,) * (values.ndim - 1))
    return (values.astype(jnp.float32) * by_row).astype(dtype)


_scaled = jax.jit(_scaled_rows, static_argnames="dtype")
