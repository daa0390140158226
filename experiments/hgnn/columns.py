"""Training on a hypergraph whose features several devices share by columns.

Each device has the whole hypergraph, and of the features between the layers, of the parameters and
of the optimizer's state some columns, so that what it gathers and adds up is as much narrower. XLA
divides the plain ops so, and sends what a device lacks for the products with the parameters.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_AXIS = "columns"


def spread_columns[Batch](model: nnx.Module, batch: Batch, devices: int) -> Batch:
    """Puts columns of the parameters on each device, in place, and the batch on all of them.

    Args:
      model: a network of plain XLA ops.
      batch: what it is trained on, a pytree of arrays.
      devices: how many of the first devices; with one nothing moves.

    Returns:
      The batch where it lies now.
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
