"""What each of two processes runs: ``two_processes.py ADDRESS PROCESS OPTION``.

Each has two CPU devices. They train a network for two steps on one graph over all four, and process
0 prints the losses. With the OPTION mapped each reads the edges of its own rows from a file in
which the others are wrong. With graph or partition, process 1 has another one. With alone each fits
a model, and with together all fit one. Another OPTION of one process is found out.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from jaxgnn import CSRGraph, distributed, training
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


def shard_others(process, option):
    """Spreads a ring that has another edge, or other parts, in process 1."""
    mesh = Mesh(np.array(jax.devices()), ("nodes",))
    receivers = np.roll(np.arange(8), 1)
    if option == "graph":
        receivers[3] -= process
    parts = np.roll(np.arange(8) % 4, process if option == "partition" else 0)
    distributed.shard(CSRGraph.from_edges(np.arange(8), receivers, 8), mesh, partition=parts)


def fit(mesh):
    """Fits a model; returns the messages of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.fit(
            nnx.Linear(2, 1, rngs=nnx.Rngs(0)),
            optax.sgd(0.1),
            lambda model, x, rngs: (jnp.sum(model(x) ** 2), {}),
            lambda step: np.ones((4, 2), np.float32),
            config=training.LoopConfig(steps=2),
            progress=False,
            mesh=mesh,
        )
    return [str(warning.message) for warning in caught]


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
    if option in ("graph", "partition"):
        shard_others(int(process), option)
    if option in ("alone", "together"):
        everywhere = Mesh(np.array(jax.devices()), ("batch",))
        print(json.dumps(fit(everywhere if option == "together" else None)))
        sys.exit()
    own = [2 * int(process), 2 * int(process) + 1] if option == "mapped" else None
    losses = train(jax.devices(), own)
    if process == "0":
        print(json.dumps(losses))
