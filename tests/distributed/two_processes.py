"""What each of two processes runs: ``two_processes.py ADDRESS PROCESS OPTION``.

Each has two CPU devices. They train a network for two steps on one graph over all four, and process
0 prints the losses. Another OPTION of one process is found out.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxgnn import CSRGraph, distributed
from jaxgnn.models import MaxKGNN


def train(devices):
    """Losses of two steps of gradient descent."""
    draws = np.random.default_rng(0)
    graph = CSRGraph.from_edges(*draws.integers(0, 50, (2, 400)), 50)
    x = draws.standard_normal((50, 8)).astype(np.float32)
    mesh = Mesh(np.array(devices), ("nodes",))
    sharded = distributed.shard(graph, mesh)
    graphdef, params = nnx.split(MaxKGNN(8, 16, 3, k=4, num_layers=1, rngs=nnx.Rngs(0)))

    def loss(graph, x, params):
        y = nnx.merge(graphdef, params)(graph, x, rngs=nnx.Rngs(dropout=1))
        return distributed.mean_over_nodes(graph, jnp.sum(y**2, axis=-1)), y

    def step(graph, x, params):
        (value, _), gradient = jax.value_and_grad(loss, argnums=2, has_aux=True)(graph, x, params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    run = jax.jit(distributed.sharded(step, mesh, outputs="all"))
    rows, losses = sharded.shard_rows(x), []
    for _ in range(2):
        value, params = run(sharded, rows, params)
        losses.append(float(value))
    np.testing.assert_array_equal(sharded.gather_rows(rows), x)
    return losses


if __name__ == "__main__":
    address, process, option = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 2)
    distributed.initialize(address, 2, int(process))
    distributed.check_same("the options", option)
    losses = train(jax.devices())
    if process == "0":
        print(json.dumps(losses))
