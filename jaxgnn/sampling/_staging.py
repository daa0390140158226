"""Rows of a store on the device, by way of host memory that is used again and again."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxgnn.sampling._memory import Spare, aligned_empty
from jaxgnn.sampling.features import FeatureStore


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
      store: the store.
      device: the device, or None for the default one.
    """

    def __init__(self, store: FeatureStore, device: Any):
        self._store, self._device = store, device
        self._free: Spare[np.ndarray] = Spare()
        self._reuses = (jax.default_backend() if device is None else device.platform) != "cpu"

    def gather(self, ids: np.ndarray) -> jax.Array:
        """Returns rows on the device, zeros for -1."""
        if not self._reuses:
            return jax.device_put(self._store.gather(ids), self._device)
        buffer = self._buffer(len(ids))
        rows = self._store.gather(ids, buffer)
        placed = jax.device_put(rows, self._device)
        if rows is buffer:
            placed.block_until_ready()
            self._free.give_back(buffer)
        else:  # the rows of this store are on a device
            self._reuses = False
        return placed

    def _buffer(self, count: int) -> np.ndarray:
        """A free buffer of this length, or a new one."""
        while (buffer := self._free.borrow()) is not None:
            if buffer.shape[0] == count:
                return buffer
        return aligned_empty((count, *self._store.shape[1:]), self._store.dtype)
