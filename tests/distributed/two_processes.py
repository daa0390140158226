"""What each of two processes runs: ``two_processes.py ADDRESS PROCESS OPTION``.

Each has two CPU devices. They train a network for two steps on one graph over all four, and process
0 prints the losses. With the OPTION mapped each reads the edges of its own rows from a file in
which the others are wrong. Another OPTION of one process is found out.
"""

import json
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxgnn import CSRGraph, distributed
from jaxgnn.models import MaxKGNN


def mapped_graph(graph, parts, own_parts, folder):
    """A graph in two files, where senders of other parts than the own ones are out of range."""
    part_of = distributed.partition(graph, parts, "contiguous").part_of
    is_own = np.isin(part_of[np.asarray(graph.receivers())], own_parts)
    senders = np.where(is_own, graph.indices, np.iinfo(np.int32).max)
    np.save(folder / "indptr.npy", graph.indptr)
    np.save(folder / "indices.npy", senders)
    files = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices"))
    return CSRGraph(*files)


def train(devices, own_parts=None):
    """Losses of two steps of gradient descent.

    Args:
      devices: what the graph is spread over.
      own_parts: read the graph from files in which only the edges of these parts are right; None
        for the graph in memory.
    """
    draws = np.random.default_rng(0)
    graph = CSRGraph.from_edges(*draws.integers(0, 50, (2, 400)), 50)
    x = draws.standard_normal((50, 8)).astype(np.float32)
    mesh = Mesh(np.array(devices), ("nodes",))
    if own_parts is None:
        sharded = distributed.shard(graph, mesh)
    else:
        with tempfile.TemporaryDirectory() as folder:
            mapped = mapped_graph(graph, len(devices), own_parts, Path(folder))
            options = {"partition": "contiguous", "exchange": "all_gather"}
            sharded = distributed.shard(mapped, mesh, **options)
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
    own = [2 * int(process), 2 * int(process) + 1] if option == "mapped" else None
    losses = train(jax.devices(), own)
    if process == "0":
        print(json.dumps(losses))
