"""Features in the memory of the host, or in one mapped file."""

from __future__ import annotations

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.sampling._mapped import check_files, is_mapped
from jaxgnn.sampling._memory import aligned_empty
from jaxgnn.sampling.features._disk_reads import advise_random, take_at_once
from jaxgnn.sampling.features._store import RowsLike


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
