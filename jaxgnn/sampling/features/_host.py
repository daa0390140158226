"""Features in the memory of the host, or in one mapped file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input


class HostFeatures:
    """Rows of a NumPy array, or of an array that is mapped from a file, such as ``np.memmap``.

    Args:
      array: [rows, ...]. It is not copied, so it must not change.

    Example:
      >>> store = HostFeatures(np.eye(3, dtype=np.float32))
      >>> store.gather(np.array([2, -1])).tolist()
      [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, array: np.ndarray):
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            got = getattr(array, "shape", type(array).__name__)
            raise bad_input("HostFeatures", "array", "a NumPy array [rows, ...]", got)
        self._array = array
        self._file = MappedFile.of(array)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._array.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all features."""
        return self._array.shape

    @property
    def dtype(self) -> Any:
        """Dtype of the features."""
        return self._array.dtype

    def gather(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Returns rows as a NumPy array, zeros for -1.

        Raises:
          OSError: if the features are mapped from a file that has become shorter.
        """
        if self._file is not None:
            self._file.check()
        if out is None:
            out = np.empty((len(ids), *self.shape[1:]), self.dtype)
        # Any other mode goes through a copy of the result.
        np.take(self._array, ids, axis=0, out=out, mode="clip")
        out[np.asarray(ids) < 0] = 0
        return out


class MappedFile:
    """A file that is mapped into memory.

    Reading a mapped file beyond its end kills the process, without an error. So its length is
    compared with that of the array before each read.

    Args:
      path: the file.
      size: number of bytes that it must have.
    """

    def __init__(self, path: str | os.PathLike[str], size: int):
        self.path, self.size = os.fspath(path), size

    @classmethod
    def of(cls, array: np.ndarray) -> MappedFile | None:
        """The file of an array, or None if it is in memory."""
        base: Any = array
        while isinstance(base, np.ndarray):
            if isinstance(base, np.memmap) and not isinstance(base.base, np.memmap):
                if base.filename is None:
                    return None
                return cls(base.filename, base.offset + base.nbytes)
            base = base.base
        return None

    def check(self) -> None:
        """Raises OSError if the file is shorter than the array."""
        size = os.stat(self.path).st_size
        if size < self.size:
            raise OSError(
                f"features: {self.path} must have {self.size} bytes, got {size}; it has become "
                "shorter since it was opened"
            )
