"""Features on the device."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.sampling.features._store import RowsLike


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
