"""A training on two CPU devices, of which the second one fails in step 2: ``failing_device.py``."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from jaxgnn.training import LoopConfig, fit


def _fail(place, step):
    if place == 1 and step == 2:
        raise MemoryError("no room for 95 GiB")
    return np.float32(1)


def _loss(model, batch, rngs):
    mesh = Mesh(np.array(jax.devices()), ("devices",))

    def mean(x, step):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        one = jax.pure_callback(_fail, shape, jax.lax.axis_index("devices"), step)
        return jax.lax.pmean(one * x, "devices")

    own = PartitionSpec("devices"), PartitionSpec()
    over = jax.shard_map(
        mean, mesh=mesh, in_specs=own, out_specs=PartitionSpec("devices"), check_vma=False
    )
    scale = jax.lax.stop_gradient(over(jnp.ones(2), batch))
    return jnp.sum(jax.lax.stop_gradient(scale)) * jnp.sum(model.kernel[...] ** 2), {}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    config = LoopConfig(steps=3, log_every=1)
    fit(model, optax.sgd(0.1), _loss, lambda step: jnp.int32(step), config=config, progress=False)
