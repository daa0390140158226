"""Rows of a store on the device, by way of host memory that is used again and again."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.arrays import to_device
from jaxgnn.sampling._memory import Spare, aligned_empty
from jaxgnn.sampling.features import FeatureStore
from jaxgnn.sampling.features._store import read_rows


def default_device() -> Any:
    """The device of ``with jax.default_device(...)``, which other threads do not see, or None."""
    device = jax.config.jax_default_device
    return jax.devices(device)[0] if isinstance(device, str) else device


class StagedRows:
    """Reads rows of a store and copies them to a device.

    Fresh memory for the rows of each batch would cost more than the copy, as the system clears it
    page by page. On a GPU a buffer is used again as soon as its copy is complete. On a CPU JAX
    reads rows where they are, so each batch has its own memory.

    Args:
      where: the loader, for errors.
      store: the store.
      device: the device, or None for the default one.
    """

    def __init__(self, where: str, store: FeatureStore, device: Any):
        self._where, self._store, self._device = where, store, device
        self._free: Spare[np.ndarray] = Spare()
        self._reuses = (jax.default_backend() if device is None else device.platform) != "cpu"

    def gather(self, ids: np.ndarray) -> jax.Array:
        """Returns rows on the device, zeros for -1.

        Raises:
          ValueError: if the store returns other rows than asked for, or integers that JAX would
            cut.
        """
        if not self._reuses:
            return self._place(read_rows(self._where, self._store, ids))
        buffer = self._buffer(len(ids))
        rows = read_rows(self._where, self._store, ids, buffer)
        placed = self._place(rows)
        if rows is buffer:
            placed.block_until_ready()
            self._free.give_back(buffer)
        else:  # the rows of this store are on a device
            self._reuses = False
        return placed

    def _place(self, rows: Any) -> jax.Array:
        return to_device(self._where, rows, self._device, name="features")

    def _buffer(self, count: int) -> np.ndarray:
        """A free buffer of this length, or a new one."""
        while (buffer := self._free.borrow()) is not None:
            if buffer.shape[0] == count:
                return buffer
        return aligned_empty((count, *self._store.shape[1:]), self._store.dtype)
