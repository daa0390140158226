"""Times an epoch of GraphSAGE that samples, gathers and trains in one jitted step on the device.

``python -m experiments.benchmarks.sampled_epoch`` makes a graph of the size of ogbn-products on the
device, with features, labels and training nodes of the published numbers, and trains three layers
of 256 for an epoch. ``--graph papers`` is one of the size of ogbn-papers100M. A row has the seconds
of the epoch, milliseconds of a step, the part of it in which the device is busy, the largest memory
in use, and the batches that did not fit their slots.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

from experiments.benchmarks._command import command
from experiments.benchmarks._random_graph import DeviceGraph, random_graph
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks.sample_on_device import Workload
from jaxgnn import nn
from jaxgnn._errors import bad_input
from jaxgnn.sampling import DeviceSample, Relabelling, masked_mean, sample_on_device
from jaxgnn.testing.timing import Candidate, device_description, kernel_time

Step = Callable[..., Any]


class Published(NamedTuple):
    """Sizes of a data set: training nodes, features and classes."""

    train: int
    features: int
    classes: int


DATA = {
    "products": Published(196_615, 100, 47),
    "papers": Published(1_207_179, 128, 172),
    "small": Published(1_000, 8, 5),
}

COLUMNS = (
    Column("graph", "graph", 9),
    Column("fan-outs", lambda row: ",".join(map(str, row["fanouts"])), 9),
    Column("dtype", "dtype", 9),
    Column("ids by", "relabelling", 6),
    Column("steps", "steps", 6, "d"),
    Column("epoch s", "epoch_s", 8, ".3f"),
    Column("ms/step", "ms_per_step", 8, ".3f"),
    Column("busy", "busy", 5, ".2f"),
    Column("GB", lambda row: row["peak_bytes"] / 1e9, 6, ".1f"),
    Column("overflows", "overflows", 9, "d"),
    Column("compile s", "compile_s", 9, ".1f"),
)


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      graph: "products", "papers" or "small".
      dtypes: dtypes of features and layers.
      fanouts: neighbours that each hop draws; there is a layer for each.
      hidden: width of the layers.
      batch_size: seeds of a batch.
      relabelling: how local ids are found: "sort", "marks", or both.
    """

    graph: str = "products"
    dtypes: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
    fanouts: tuple[int, ...] = (10, 10, 10)
    hidden: int = 256
    batch_size: int = 1024
    relabelling: tuple[Relabelling, ...] = ("sort",)

    def __post_init__(self):
        super().__post_init__()
        if self.graph not in DATA:
            raise bad_input("sampled_epoch", "--graph", f"one of {', '.join(DATA)}", self.graph)
        if min(self.hidden, self.batch_size) < 1:
            raise bad_input("sampled_epoch", "numbers", "positive", self)


@dataclass(frozen=True, eq=False)
class Training:
    """A network, what it is trained on, and how batches are sampled.

    Attributes:
      workload: the graph and the slots of a batch.
      arrays: training nodes [steps * batch], features [nodes, features] and labels [nodes].
      network: the static part of the layers.
      parameters: their parameters.
      relabelling: see ``sample_on_device``.
    """

    workload: Workload
    arrays: tuple[jax.Array, jax.Array, jax.Array]
    network: Any
    parameters: Any
    relabelling: Relabelling

    @property
    def steps(self) -> int:
        """Number of steps of an epoch."""
        return self.arrays[0].shape[0] // self.workload.nodes[0]

    def sample(self, graph: DeviceGraph, train: jax.Array, step: jax.Array) -> DeviceSample:
        """The sample of a step."""
        size = self.workload.nodes[0]
        seeds = lax.dynamic_slice(train, (step * size,), (size,))
        return sample_on_device(
            *graph, seeds, self.workload.fanouts, nodes=self.workload.nodes,
            edges=self.workload.edges, seed=1, epoch=0, step=step, relabelling=self.relabelling,
        )  # fmt: skip

    def loss(self, parameters: Any, sample: DeviceSample, features: Any, labels: Any) -> jax.Array:
        """The mean cross entropy of the seeds."""
        nodes = jnp.maximum(sample.n_id, 0)
        x = features.at[nodes].get(mode="promise_in_bounds")
        y = labels[nodes[sample.seed_ids]]
        layers = nnx.merge(self.network, parameters)
        return seed_loss(layers, sample.blocks(), x, y, sample.seed_ids, sample.seed_mask)

    def step(self, optimizer: optax.GradientTransformation) -> Step:
        """The training step, of a carry ``(parameters, state, number of the step)``."""

        def run(carry, graph, arrays):
            parameters, state, number = carry
            train, features, labels = arrays
            sample = self.sample(graph, train, number)
            loss, gradients = jax.value_and_grad(self.loss)(parameters, sample, features, labels)
            updates, state = optimizer.update(gradients, state)
            carry = optax.apply_updates(parameters, updates), state, number + 1
            return carry, loss, sample.overflow

        return run


def training(
    graph: DeviceGraph, workload: Workload, dtype: str, relabelling: Relabelling, options: Options
) -> Training:
    """Makes features, random labels and training nodes, and the layers."""
    data, size = DATA[options.graph], options.batch_size
    steps = -(-data.train // size)
    order = np.random.default_rng(0).permutation(graph.num_nodes)[: steps * size]
    key = jax.random.key(0)
    features = wave_features(graph.num_nodes, data.features, dtype)
    labels = jax.random.randint(key, (graph.num_nodes,), 0, data.classes)
    layers = sage_layers(data, options.hidden, len(options.fanouts), dtype)
    arrays = jnp.asarray(order, jnp.int32), features, labels
    return Training(workload, arrays, *nnx.split(layers), relabelling)


def sage_layers(data: Published, hidden: int, num_layers: int, dtype: str) -> nnx.List:
    """Layers of GraphSAGE from the features of a data set to its classes."""
    widths = [data.features, *[hidden] * (num_layers - 1), data.classes]
    return nnx.List(
        nn.SAGEConv(before, after, activation="relu" if i else None, dtype=dtype, rngs=nnx.Rngs(i))
        for i, (before, after) in enumerate(itertools.pairwise(widths))
    )


def seed_loss(layers: Any, blocks: Any, x: Any, y: Any, seed_ids: Any, seed_mask: Any) -> jax.Array:
    """The mean cross entropy of the seeds of a batch, with features ``x`` and their labels."""
    for layer, block in zip(layers, blocks, strict=True):
        x = layer(block, (x[: block.num_rows], x))
    losses = optax.softmax_cross_entropy_with_integer_labels(x[seed_ids].astype(jnp.float32), y)
    return masked_mean(losses, seed_mask)


@partial(jax.jit, static_argnums=(0, 1, 2))
def wave_features(nodes: int, width: int, dtype: str) -> jax.Array:
    """Numbers from -1 to 1, made without another array of their size."""
    node, column = (lax.broadcasted_iota(jnp.float32, (nodes, width), axis) for axis in (0, 1))
    return jnp.sin(node % 9973 * (column + 1)).astype(dtype)


def time_epoch(one: Training) -> Row:
    """Times an epoch; the fields of a row."""
    optimizer = optax.adam(1e-3)
    run, graph = jax.jit(one.step(optimizer), donate_argnums=0), one.workload.graph
    start = one.parameters, optimizer.init(one.parameters), jnp.int32(0)
    begin = time.perf_counter()
    compiled = run.lower(start, graph, one.arrays).compile()
    compile_s = time.perf_counter() - begin
    jax.block_until_ready(compiled(jax.tree.map(jnp.copy, start), graph, one.arrays))

    carry, losses, overflows = jax.block_until_ready(start), [], []
    begin = time.perf_counter()
    for _ in range(one.steps):
        carry, loss, overflow = compiled(carry, graph, one.arrays)
        losses.append(loss)
        overflows.append(overflow)
    jax.block_until_ready(carry)
    seconds = time.perf_counter() - begin
    ms = seconds * 1e3 / one.steps

    def another_step(graph, arrays):
        nonlocal carry
        carry, loss, _ = compiled(carry, graph, arrays)
        return loss

    kernels = kernel_time(Candidate(another_step, [(graph, one.arrays)], jit=False))
    statistics = jax.devices()[0].memory_stats() or {}
    return {
        "relabelling": one.relabelling,
        "steps": one.steps,
        "epoch_s": seconds,
        "ms_per_step": ms,
        "kernels_ms": kernels,
        "busy": None if kernels is None else kernels / ms,
        "peak_bytes": statistics.get("peak_bytes_in_use", 0),
        "overflows": int(sum(map(int, overflows))),
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
        "compile_s": compile_s,
    }


def main(options: Options) -> None:
    """Prints the table, and appends its rows to ``sampled_epoch.jsonl``."""
    device = device_description()
    graph = jax.block_until_ready(random_graph(options.graph))
    print(f"{device['device']}: {graph.num_nodes:,} nodes, {graph.indices.shape[0]:,} edges")
    workload = Workload.measured(graph, tuple(options.fanouts), options.batch_size)
    print(header(COLUMNS))
    for dtype in options.dtypes:
        for relabelling in options.relabelling:
            one = training(graph, workload, dtype, relabelling, options)
            row: Row = {"op": "sampled_epoch", "graph": options.graph, "dtype": dtype}
            row |= {"nodes": graph.num_nodes, "edges": graph.indices.shape[0]}
            row |= {"fanouts": options.fanouts, "hidden": options.hidden}
            row |= {"batch_size": options.batch_size, **device, **time_epoch(one)}
            print(line(row, COLUMNS), flush=True)
            append_rows(options.rows / "sampled_epoch.jsonl", [row])


if __name__ == "__main__":
    command(main, Options, __doc__)
