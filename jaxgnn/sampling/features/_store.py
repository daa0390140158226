"""The protocol of feature stores."""

from __future__ import annotations

import os
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from jaxgnn._arrays.arrays import dtype_of_jax, in_native_order, is_concrete, shown
from jaxgnn._errors import bad_input


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
    from jaxgnn.sampling.features._device import DeviceFeatures
    from jaxgnn.sampling.features._files import FileFeatures
    from jaxgnn.sampling.features._host import HostFeatures

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
