"""Features in 8 bits, with a scale for each row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxgnn._errors import bad_input
from jaxgnn.sampling.features._store import RowsLike, as_store, read_rows


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
