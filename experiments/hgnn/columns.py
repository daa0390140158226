"""Training on a hypergraph whose feature columns are divided among several devices.

Each device has the whole hypergraph, and some columns of the features between the layers, of the
parameters and of the optimizer's state. Its gathers and sums are narrower by that factor. XLA
partitions the plain ops in this way, and exchanges what the products with the parameters need.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_AXIS = "columns"


def spread_columns[Batch](model: nnx.Module, batch: Batch, devices: int) -> Batch:
    """Puts columns of the parameters on each device, in place, and the whole batch on all of them.

    Args:
      model: a network of plain XLA ops.
      batch: training data, a pytree of arrays.
      devices: number of devices, the first ones; with one nothing moves.

    Returns:
      The batch on the devices.
    """
    if devices == 1:
        return batch
    mesh = Mesh(np.array(jax.devices()[:devices]), (_AXIS,))

    def sharding(array: Any) -> NamedSharding:
        is_divisible = array.ndim > 0 and array.shape[-1] % devices == 0
        last = (*(None,) * (array.ndim - 1), _AXIS) if is_divisible else ()
        return NamedSharding(mesh, PartitionSpec(*last))

    state = nnx.state(model)
    nnx.update(model, jax.device_put(state, jax.tree.map(sharding, state)))
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec()))
