"""Times the training step of one graph that is spread over several devices of this host.

Run ``python -m experiments.benchmarks.many_gpus``. The network is MaxK-GraphSAGE, 4 layers of 256,
dense (ReLU) and with MaxK at every k; a step is forward, backward and Adam. The graphs are
synthetic ones of published sizes, built once and distributed over 1, 2, 4 and 8 devices, as far as
available. The steps of all numbers of devices take turns, in one process.

- ms: time of a whole step, median over batches of steps that are queued without a wait, as in
  training.
- x least: speedup over the least number of devices, in the same run.
- exchange: ms of all exchanges of rows of a step, forward and backward, when nothing else runs.
- MB predicted and counted: bytes of rows that a device receives in a step, by shapes and by the
  collectives of the compiled program. The all-reduces, which sum the gradients of the parameters,
  are listed separately.
- MiB: memory that XLA plans for a device: temporaries, arguments and results.
- loss and gradient: largest relative difference of the losses and gradients of the first steps from
  those on the least number of devices. Each step starts from the same parameters, and dropout draws
  the same on any number of devices. Parameters after a step are not compared, because Adam divides
  a gradient by its size, and so amplifies the rounding of the smallest ones. Biases start with
  small random numbers: Adam's first step would turn zeros into equal entries, and rounding decides
  which of several equal entries MaxK keeps.

``--overlap`` sums over the edges of a device's own nodes while the rows of others are received;
``--records`` sends values and columns of a row by one collective instead of two.
``--wire-dtype bfloat16`` halves the bytes of values, and rounds them, so that losses differ. A
compiler may widen them again, as XLA does for CPUs; the counted bytes show this.
``--times 8`` uses a graph of eight times the nodes and edges, and ``--weak`` one that grows with
the number of devices, so that 1 is the perfect ratio of times. Both keep one number of devices at a
time in memory, so that losses are not compared. A row that runs out of memory says so.

On CPUs only numbers and bytes are meaningful: virtual devices have no meaningful times.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments._options import limit_launches
from experiments.benchmarks._command import command
from experiments.benchmarks._many_graphs import Data, load
from experiments.benchmarks._ratios import (
    print_warnings,
    ratio_fields,
    ratio_text,
    timing_fields,
)
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._wire import counted_bytes, predicted_bytes
from jaxgnn import distributed
from jaxgnn._errors import bad_input
from jaxgnn.datasets import SCALES
from jaxgnn.graph import CBSR, column_dtype
from jaxgnn.models import MaxKGNN
from jaxgnn.testing.timing import (
    Candidate,
    Timing,
    device_description,
    is_out_of_memory,
    measure_in_turns,
)

_AXIS = "nodes"
_BATCH_MS = 300.0
# Fraction of its mean of gradients that Adam keeps in a step.
_MEAN_KEPT = 0.9
_MEMORY = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
_COLUMNS = (
    Column("graph", "workload", 9),
    Column("activation", "activation", 10),
    Column("k", "k", 3, "d"),
    Column("devices", "devices", 7, "d"),
    Column("overlap", "overlap", 7),
    Column("ms", "ms", 9, ".2f"),
    Column("25 %", "low_ms", 9, ".2f"),
    Column("75 %", "high_ms", 9, ".2f"),
    Column("x least", partial(ratio_text, baseline="least"), 10, "s"),
    Column("exchange", "exchange_ms", 8, ".2f"),
    Column("MB predicted", "predicted_mb", 12, ".1f"),
    Column("counted", "counted_mb", 9, ".1f"),
    Column("all-reduce", "all_reduce_mb", 10, ".1f"),
    Column("MiB", "memory_mib", 8, ".0f"),
    Column("loss", "loss_difference", 8, ".1e"),
    Column("gradient", "gradient_difference", 8, ".1e"),
)


@dataclass(frozen=True)
class ManyGPUsOptions(Output):
    """Settings of a run.

    Attributes:
      devices: numbers of devices; by default those of 1, 2, 4 and 8 that are available.
      only: synthetic graphs of ``jaxgnn.datasets``; by default ``reddit``, ``products`` and
        ``proteins``, and on a CPU ``tiny``.
      ks: entries that MaxK keeps of each row.
      dense: also time the dense network with ReLU.
      layers: number of convolutions.
      hidden: width of the hidden layers.
      partition: assignment of rows to devices: ``degree``, ``contiguous``, ``random`` or ``metis``.
      exchange: collective that exchanges rows: ``auto``, ``all_gather`` or ``all_to_all``.
      wire_dtype: dtype in which features are sent, such as ``bfloat16``; by default their own.
      records: send values and columns of MaxK's rows together, by one collective instead of two.
      overlap: sum over the edges of own nodes while the rows of others are received.
      times: number of copies of the nodes in the graph.
      weak: use a graph of as many copies as there are devices, times ``times``.
      cache: folder that stores partitions, because ``metis`` takes long.
      steps: number of first steps whose losses are compared.
      repeats: number of timed batches of each step.
      budget_s: seconds of all batches of a graph, after which three batches of each are enough.
    """

    devices: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    ks: tuple[int, ...] = (16, 32, 64)
    dense: bool = True
    layers: int = 4
    hidden: int = 256
    partition: str = "degree"
    exchange: distributed.Exchange = "auto"
    wire_dtype: str | None = None
    records: bool = False
    overlap: bool = False
    times: int = 1
    weak: bool = False
    cache: Path | None = None
    steps: int = 3
    repeats: int = 7
    budget_s: float = 10.0

    def check(self, command: str = "many_gpus") -> None:
        """Raises ValueError for the first invalid option, by the name that is typed.

        Args:
          command: the name of the command whose options these are.
        """
        there = jax.device_count()
        for count in self.devices:
            if not 1 <= count <= there:
                expected = f"in 1..{there}, the devices that there are"
                raise bad_input(command, "--devices", expected, count)
        for name in self.only:
            if name not in SCALES:
                raise bad_input(command, "--only", f"of {', '.join(SCALES)}", name)
        at_least_one = ("--layers", self.layers), ("--hidden", self.hidden), ("--steps", self.steps)
        for name, value in (*at_least_one, ("--repeats", self.repeats), ("--times", self.times)):
            if value < 1:
                raise bad_input(command, name, "at least 1", value)
        for k in self.ks:
            if not 1 <= k <= self.hidden:
                raise bad_input(command, "--ks", f"in 1..{self.hidden} (--hidden)", k)

    def counts(self) -> tuple[int, ...]:
        """The numbers of devices, ascending."""
        there = jax.device_count()
        return tuple(sorted(self.devices)) or tuple(n for n in (1, 2, 4, 8) if n <= there)

    def together(self) -> bool:
        """Whether all numbers of devices share one graph, and fit in memory together."""
        return self.times == 1 and not self.weak

    def graphs(self) -> tuple[str, ...]:
        """The names of the graphs."""
        on_cpu = jax.default_backend() == "cpu"
        return self.only or (("tiny",) if on_cpu else ("reddit", "products", "proteins"))

    def all_ks(self) -> tuple[int | None, ...]:
        """None for the dense network, and every k."""
        return (*((None,) if self.dense else ()), *self.ks)


@dataclass(frozen=True, eq=False)
class Spread:
    """The data, distributed over some devices."""

    graph: distributed.ShardedGraph
    features: jax.Array
    labels: jax.Array


@dataclass(frozen=True, eq=False)
class Step:
    """A compiled training step on some devices.

    Attributes:
      run: ``(graph, features, labels, state) -> (state, loss)``.
      arguments: its arguments, with the first state.
      k: entries kept of each row; None if dense.
    """

    run: jax.stages.Compiled
    arguments: tuple[Any, ...]
    k: int | None

    @property
    def graph(self) -> distributed.ShardedGraph:
        """The graph of the step."""
        return self.arguments[0]


class Key(NamedTuple):
    """A step of a graph.

    Attributes:
      k: entries kept of each row; None if dense.
      devices: number of devices.
    """

    k: int | None
    devices: int


class FirstSteps(NamedTuple):
    """First steps of a network, each from the parameters on the least number of devices.

    Attributes:
      losses: losses of the steps.
      gradients: gradients of the parameters in each step, on the host.
    """

    losses: list[float]
    gradients: list[list[np.ndarray]]

    def differences(self, other: FirstSteps) -> dict[str, float]:
        """The largest relative differences between two runs."""
        of_losses = (abs(a - b) / abs(b) for a, b in zip(self.losses, other.losses, strict=True))
        of_gradients = (
            np.abs(a - b).max() / max(np.abs(b).max(), np.finfo(np.float32).tiny)
            for ours, theirs in zip(self.gradients, other.gradients, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        )
        return {
            "loss_difference": max(of_losses),
            "gradient_difference": float(max(of_gradients)),
        }


def main(options: ManyGPUsOptions) -> list[Row]:
    """Times all steps, prints the times, and appends them to ``many_gpus.jsonl``.

    Raises:
      ValueError: if an option is invalid.
    """
    limit_launches()
    options.check()
    device = device_description()
    print(", ".join(f"{key} {value}" for key, value in device.items()))
    print(f"XLA_FLAGS {os.environ.get('XLA_FLAGS', 'not set')}", flush=True)
    rows: list[Row] = []
    for name in options.graphs():
        rows += _of_graph(options, name, device)
    print_warnings(row["others"] for row in rows)
    return rows


def _of_graph(options: ManyGPUsOptions, name: str, device: Row) -> list[Row]:
    """The rows of one graph, which is then freed on the devices."""
    counts = options.counts()
    groups = [counts] if options.together() else [(count,) for count in counts]
    rows: list[Row] = []
    alone: dict[int | None, Timing | None] = {}
    for group in groups:
        for key, (row, timing) in _of_counts(options, name, group).items():
            ratio = ratio_fields("least", alone.setdefault(key.k, timing), timing)
            rows.append({**row, **ratio, **device})
    print(header(_COLUMNS))
    for row in rows:
        print(line(row, _COLUMNS), flush=True)
    append_rows(options.rows / "many_gpus.jsonl", rows)
    return rows


def _of_counts(
    options: ManyGPUsOptions, name: str, counts: tuple[int, ...]
) -> dict[Key, tuple[Row, Timing | None]]:
    """Rows of one graph on some numbers of devices, which are in memory together."""
    times = options.times * (counts[0] if options.weak else 1)
    with told(f"{name}: making the graph" + f", {times} times" * (times > 1)):
        data = load(name, times)
    keys = [Key(k, count) for k in options.all_ks() for count in counts]
    try:
        measured = _measure(options, name, data, counts)
    except RuntimeError as error:
        if options.together() or not is_out_of_memory(error):
            raise
        print(f"{name}: no memory for it on {counts[0]} devices", flush=True)
        measured = {}
    made = {}
    for key in keys:
        row, timing = measured.get(key, ({}, None))
        made[key] = {**_labels(options, name, data, key), **row}, timing
    return made


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Prints what is being done, and afterwards its duration."""
    print(f"{what} ...", flush=True)
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", flush=True)


def spread_out(options: ManyGPUsOptions, data: Data, count: int) -> Spread:
    """Distributes the data over the first ``count`` devices."""
    mesh = Mesh(np.array(jax.devices()[:count]), (_AXIS,))
    partition: Any = options.partition
    graph = distributed.shard(
        data.graph,
        mesh,
        partition=distributed.partition(data.graph, count, partition, cache=options.cache),
        exchange=options.exchange,
        wire_dtype=options.wire_dtype,
        records=options.records,
        overlap=options.overlap,
        ops=("spmm", "maxk_spmm"),
    )
    return Spread(graph, graph.shard_rows(data.features), graph.shard_rows(data.labels))


def _compile(options: ManyGPUsOptions, data: Data, spread: dict[int, Spread]) -> dict[Key, Step]:
    """Compiles the steps of every k on every number of devices, concurrently."""
    arguments: dict[Key, tuple[Any, ...]] = {}
    lowered = {}
    for k in options.all_ks():
        state, step = make_step(options, data, k)
        for count, there in spread.items():
            mesh, key = there.graph.mesh, Key(k, count)
            everywhere = NamedSharding(mesh, PartitionSpec())
            placed = jax.device_put(state, everywhere)
            arguments[key] = there.graph, there.features, there.labels, placed
            run = distributed.sharded(step, mesh, rows=(1, 2), outputs="all")
            lowered[key] = jax.jit(run).lower(*arguments[key])
    with ThreadPoolExecutor() as pool:
        running = {key: pool.submit(one.compile) for key, one in lowered.items()}
    return {key: Step(run.result(), arguments[key], key.k) for key, run in running.items()}


def make_network(options: ManyGPUsOptions, data: Data, k: int | None) -> tuple[Any, Any, Any]:
    """The network with its first parameters: graphdef, parameters and the rest of its state."""
    model = MaxKGNN(
        data.features.shape[1],
        options.hidden,
        data.outputs,
        num_layers=options.layers,
        activation="relu" if k is None else "maxk",
        k=k,
        dropout=0.5,
        rngs=nnx.Rngs(0),
    )
    graphdef, params, other = nnx.split(model, nnx.Param, ...)
    return graphdef, _with_random_biases(params), other


def loss_of(
    network: nnx.Module, graph: Any, features: jax.Array, labels: jax.Array, count: jax.Array | int
) -> jax.Array:
    """The mean loss over the nodes of all devices, with the dropout of step ``count`` from 0."""
    key = jax.random.fold_in(jax.random.key(0), count)
    logits = network(graph, features, rngs=nnx.Rngs(dropout=key))
    if labels.ndim == 2:
        losses = jnp.mean(optax.sigmoid_binary_cross_entropy(logits, labels), axis=-1)
    else:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return distributed.mean_over_nodes(graph, losses)


def make_step(
    options: ManyGPUsOptions, data: Data, k: int | None
) -> tuple[tuple[Any, ...], Callable]:
    """The first state, and the step ``(graph, features, labels, state) -> (state, loss)``."""
    graphdef, params, other = make_network(options, data, k)
    optimizer = optax.adam(0.01, b1=_MEAN_KEPT)

    def of_params(params, other, *given):
        return loss_of(nnx.merge(graphdef, params, other), *given)

    def step(graph, features, labels, state):
        params, other, optimizer_state, count = state
        graph = graph.normalized("mean")
        loss, gradient = jax.value_and_grad(of_params)(
            params, other, graph, features, labels, count
        )
        # Optax mixes dtypes, which JAX refuses under strict promotion.
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            params = optax.apply_updates(params, updates)
        return (params, other, optimizer_state, count + 1), loss

    return (params, other, optimizer.init(params), jnp.zeros((), jnp.int32)), step


def _with_random_biases(params: nnx.State) -> nnx.State:
    """Replaces zero biases by random numbers with a standard deviation of 0.01."""
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(params))))

    def drawn(path, leaf):
        key = next(keys)
        is_bias = "bias" in jax.tree_util.keystr(path)
        return 0.01 * jax.random.normal(key, leaf.shape, leaf.dtype) if is_bias else leaf

    return jax.tree_util.tree_map_with_path(drawn, params)


def _first_steps(steps: dict[Key, Step], number: int) -> dict[Key, FirstSteps | None]:
    """First steps of every network on every number of devices; None if memory ran out.

    All numbers of devices begin each step with the parameters of the least number that did not run
    out of memory.
    """
    made: dict[Key, FirstSteps | None] = dict.fromkeys(steps)
    for k in dict.fromkeys(key.k for key in steps):
        same = {key: step for key, step in steps.items() if key.k == k}
        state = next(iter(same.values())).arguments[3]
        for turn in range(number):
            after = None
            for key, step in same.items():
                if turn and made[key] is None:
                    continue
                there = jax.device_put(state, NamedSharding(step.graph.mesh, PartitionSpec()))
                try:
                    new, loss = step.run(*step.arguments[:3], there)
                    loss = float(loss)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    made[key] = None
                    continue
                so_far = made[key] or FirstSteps([], [])
                gradient = _gradient(there, new)
                made[key] = FirstSteps([*so_far.losses, loss], [*so_far.gradients, gradient])
                after = new if after is None else after
            state = state if after is None else after
    return made


def _gradient(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[np.ndarray]:
    """Gradient of a step, from Adam's means of gradients before and after it."""
    means = (jax.tree.leaves(jax.device_get(state[2][0].mu)) for state in (before, after))
    return [(new - _MEAN_KEPT * old) / (1 - _MEAN_KEPT) for old, new in zip(*means, strict=True)]


def _time(options: ManyGPUsOptions, steps: dict[Key, Step]) -> dict[str, Timing | None]:
    """Times of all steps and of their exchanges, measured in turns."""
    candidates = {
        _name(key): Candidate(step.run, [step.arguments], jit=False) for key, step in steps.items()
    }
    for key, step in steps.items():
        if step.graph.devices > 1:
            candidates[_name(key, "exchange")] = _exchange(options, step)
    spent = {"batch_ms": _BATCH_MS, "budget_ms": 1e3 * options.budget_s}
    return measure_in_turns(candidates, repeats=options.repeats, **spent)


def _name(key: Key, what: str = "step") -> str:
    return f"{what} {key.k} {key.devices}"


def _exchange(options: ManyGPUsOptions, step: Step) -> Candidate:
    """The exchanges of rows of a step without the rest, forward and backward."""
    graph, width = step.graph, options.hidden
    rows = graph.devices * graph.rows
    x = jax.device_put(jnp.zeros((rows, width if step.k is None else step.k)), graph.row_sharding)

    def all_layers(graph, x):
        def one(values):
            if step.k is None:
                return distributed.halo_exchange(graph, values)
            columns = jnp.zeros(values.shape, column_dtype(width)) + values.astype(
                column_dtype(width)
            )
            made = distributed.halo_exchange(graph, CBSR(values, columns, width))
            return made.values + made.indices.astype(values.dtype)

        for _ in range(options.layers):
            table, back = jax.vjp(one, x)
            (x,) = back(table)
        return x

    return Candidate(distributed.sharded(all_layers, graph.mesh), [(graph, x)])


def _labels(options: ManyGPUsOptions, name: str, data: Data, key: Key) -> Row:
    """Fields that identify a row."""
    return {
        "op": "many_gpus",
        "workload": name,
        "times": data.graph.num_rows // SCALES[name].nodes,
        "weak": options.weak,
        "nodes": data.graph.num_rows,
        "edges": data.graph.num_edges,
        "layers": options.layers,
        "dim": options.hidden,
        "dtype": "float32",
        "activation": "relu" if key.k is None else "maxk",
        "k": key.k,
        "devices": key.devices,
        "partition": options.partition,
        "wire_dtype": options.wire_dtype,
        "records": options.records,
        "overlap": options.overlap,
        "xla_flags": os.environ.get("XLA_FLAGS"),
        **timing_fields(None),
    }


def _measure(
    options: ManyGPUsOptions, name: str, data: Data, counts: tuple[int, ...]
) -> dict[Key, tuple[Row, Timing | None]]:
    """The measured fields of each step's row, and the time of the step."""
    spread = {}
    for count in counts:
        with told(f"{name}: dealing it out to {count}"):
            spread[count] = spread_out(options, data, count)
            print(f"  {spread[count].graph.partition!r}")
    with told(f"{name}: compiling"):
        steps = _compile(options, data, spread)
    with told(f"{name}: first steps"):
        firsts = _first_steps(steps, options.steps)
    with told(f"{name}: timing"):
        timings = _time(options, steps)
    measured = {}
    for key, step in steps.items():
        first, least = firsts[key], firsts[Key(key.k, min(counts))]
        comparable = options.together() and first is not None and least is not None
        measured[key] = (
            {
                **_costs(options, key, step, timings),
                "losses": first and first.losses,
                **(first.differences(least) if comparable else {}),
            },
            timings[_name(key)],
        )
    return measured


def _costs(
    options: ManyGPUsOptions, key: Key, step: Step, timings: dict[str, Timing | None]
) -> Row:
    """Times, bytes and memory of a step."""
    graph, exchange = step.graph, timings.get(_name(key, "exchange"))
    counted = counted_bytes(step.run.as_text() or "", key.devices)
    all_reduce = counted.pop("all-reduce", 0)
    planned = step.run.memory_analysis()
    return {
        "exchange": graph.exchange,
        "rows_of_device": graph.rows,
        "rows_received": graph.rows_received,
        "imbalance": graph.partition.imbalance,
        "cut_edges": graph.partition.cut_edges,
        "parameter_mb": sum(leaf.nbytes for leaf in jax.tree.leaves(step.arguments[3][0])) / 1e6,
        **timing_fields(timings[_name(key)]),
        "exchange_ms": exchange and exchange.median_ms,
        "predicted_mb": predicted_bytes(graph, options.layers, options.hidden, key.k) / 1e6,
        "counted_mb": sum(counted.values()) / 1e6,
        "all_reduce_mb": all_reduce / 1e6,
        "memory_mib": planned and sum(getattr(planned, name) for name in _MEMORY) / 2**20,
    }


if __name__ == "__main__":
    command(main, ManyGPUsOptions, __doc__)
