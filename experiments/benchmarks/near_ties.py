"""Counts rows in which MaxK keeps other columns on several devices than on one, with the reason.

Run ``python -m experiments.benchmarks.near_ties``. It uses the graphs and the network of
``many_gpus``, MaxK-GraphSAGE of 4 layers of 256, and runs its first training step, forward and
backward, on one device and on several. Sums over nodes and edges have another order there, so that
entries differ by rounding. If the last kept entry of a row and the next one are as close
as that, another column is kept.

A line for each layer has these columns:

- rows: number of rows, and of those that keep other columns. Entries of such a row differ by more
  than rounding, so that rows of later layers differ for that reason too.
- by rounding: number of rows that keep other columns if all previous layers keep those of one
  device. Only rounding causes these differences.
- gap: largest difference between the last kept entry of these rows and the next one, relative to
  the layer's largest entry.
- gap / rounding: the gap as a multiple of the largest difference of an entry of that row between
  the two runs; at most 2 if near ties are the reason, as one entry decreased and one increased.
- rounding: largest such difference over all rows, relative to the layer's largest entry.

Then come the largest relative differences of loss and gradients from those of one device: where
each run keeps its own columns, where several devices keep the columns of one, and of the dense
network with ReLU, which selects nothing. If near ties are the only cause, the second line is as
small as the third.

Both kinds of rows are appended to ``near_ties.jsonl``. By default a GPU rounds the factors of
float32 products; ``JAX_DEFAULT_MATMUL_PRECISION=highest`` multiplies them without rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments._options import limit_launches
from experiments.benchmarks._command import command
from experiments.benchmarks._many_graphs import Data, load
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks.many_gpus import (
    FirstSteps,
    ManyGPUsOptions,
    Spread,
    loss_of,
    make_network,
    spread_out,
    told,
)
from jaxgnn import distributed, ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, column_dtype
from jaxgnn.testing.timing import device_description

_EVERYWHERE = PartitionSpec()
_LABELS = (
    Column("graph", "workload", 9),
    Column("k", "k", 3, "d"),
    Column("devices", "devices", 7, "d"),
)
_LAYERS = (
    *_LABELS,
    Column("layer", "layer", 5, "d"),
    Column("rows", "rows", 9, "d"),
    Column("differ", "rows_differ", 8, "d"),
    Column("by rounding", "rows_by_rounding", 11, "d"),
    Column("gap", "gap", 8, ".1e"),
    Column("gap / rounding", "gap_over_rounding", 14, ".2f"),
    Column("rounding", "rounding", 8, ".1e"),
)
_STEPS = (
    *_LABELS,
    Column("columns kept", "columns", 15),
    Column("loss", "loss_difference", 8, ".1e"),
    Column("gradient", "gradient_difference", 8, ".1e"),
)


@dataclass(frozen=True)
class NearTiesOptions(Output):
    """Settings of a run.

    Attributes:
      devices: numbers of devices to compare with one; by default those of 2, 4 and 8 that are
        available.
      only: synthetic graphs of ``jaxgnn.datasets``; by default ``reddit``, and on a CPU ``tiny``.
      ks: entries that MaxK keeps of each row.
      layers: number of convolutions.
      hidden: width of the hidden layers.
      partition: assignment of rows to devices: ``degree``, ``contiguous``, ``random`` or ``metis``.
      exchange: collective that exchanges rows: ``auto``, ``all_gather`` or ``all_to_all``.
      wire_dtype: dtype in which features are sent, such as ``bfloat16``; by default their own.
      cache: folder that stores partitions, because ``metis`` takes long.
    """

    devices: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    ks: tuple[int, ...] = (32,)
    layers: int = 4
    hidden: int = 256
    partition: str = "degree"
    exchange: distributed.Exchange = "auto"
    wire_dtype: str | None = None
    cache: Path | None = None

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        self.network().check("near_ties")
        if not self.ks:
            raise bad_input("near_ties", "--ks", "at least one number", "none")
        if not self.counts() or min(self.counts()) < 2:
            expected = f"at least 2, of {jax.device_count()} that there are"
            raise bad_input("near_ties", "--devices", expected, self.devices or "none")

    def counts(self) -> tuple[int, ...]:
        """The numbers of devices to compare with one."""
        there = jax.device_count()
        return self.devices or tuple(n for n in (2, 4, 8) if n <= there)

    def graphs(self) -> tuple[str, ...]:
        """The names of the graphs."""
        return self.only or (("tiny",) if jax.default_backend() == "cpu" else ("reddit",))

    def network(self) -> ManyGPUsOptions:
        """The options of ``many_gpus`` with this network and this partition."""
        return ManyGPUsOptions(
            devices=self.devices,
            only=self.only,
            ks=self.ks,
            layers=self.layers,
            hidden=self.hidden,
            partition=self.partition,
            exchange=self.exchange,
            wire_dtype=self.wire_dtype,
            cache=self.cache,
        )


class Layer(NamedTuple):
    """Input and selection of a layer's MaxK, for each row in the order of the nodes.

    Attributes:
      entries: the rows from which it selects, float32 [rows, width].
      columns: the columns that it selects, ascending, of an unsigned dtype [rows, k].
    """

    entries: Any
    columns: Any


class Run(NamedTuple):
    """The first step of a network on some devices.

    Attributes:
      step: its loss, and the gradients of the parameters on the host.
      layers: input and selection of each layer's MaxK; empty for the dense network.
    """

    step: FirstSteps
    layers: list[Layer]


class Case(NamedTuple):
    """A first step that is compared.

    Attributes:
      k: entries that MaxK keeps of each row; None for the dense network.
      devices: number of devices.
      instead: whether the columns to keep are an argument.
    """

    k: int | None
    devices: int
    instead: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled first step.

    Attributes:
      spread: the data on its devices.
      run: ``(graph, features, labels, columns, params, other) -> (loss, gradients, layers)``.
      state: its last two arguments.
    """

    spread: Spread
    run: jax.stages.Compiled
    state: tuple[Any, Any]

    def __call__(self, columns: Iterable[np.ndarray] = ()) -> Run:
        """Runs the step.

        Args:
          columns: for each layer the columns to keep, [nodes, k], if it takes them.
        """
        graph = self.spread.graph
        given = [graph.shard_rows(array) for array in columns]
        rows = self.spread.features, self.spread.labels, given
        loss, gradients, seen = self.run(graph, *rows, *self.state)
        step = FirstSteps([float(loss)], [jax.tree.leaves(jax.device_get(gradients))])
        return Run(step, [Layer(*map(graph.gather_rows, layer)) for layer in seen])


class WatchedMaxK(nnx.Module):
    """MaxK that records its rows and columns, and can be given other columns.

    Args:
      k: entries that it keeps of each row.
      columns: columns to keep instead of its own, [rows, k]; None for its own.
      seen: list to which it appends its record.
    """

    def __init__(self, k: int, columns: jax.Array | None, seen: list[Layer]):
        self.selected = lambda x: ops.maxk(x, k)
        self.instead = lambda: columns
        self.note = seen.append

    def __call__(self, x: jax.Array, k: int | None = None) -> CBSR:
        """Compresses the rows of ``x`` [rows, width]."""
        kept, columns = self.selected(x), self.instead()
        self.note(Layer(x, kept.indices))
        if columns is None:
            return kept
        # Padding rows repeat their first column k times; nobody reads them.
        values = jnp.take_along_axis(x, columns.astype(jnp.int32), axis=1)
        return CBSR(values, columns, x.shape[1], in_range=True)


def compiled(
    options: ManyGPUsOptions, data: Data, spread: dict[int, Spread], cases: Sequence[Case]
) -> dict[Case, Program]:
    """Compiles first steps concurrently."""
    states, lowered = {}, {}
    for case in cases:
        graphdef, *state = make_network(options, data, case.k)
        there = spread[case.devices]
        states[case] = jax.device_put(tuple(state), NamedSharding(there.graph.mesh, _EVERYWHERE))
        rows = there.features, there.labels, _columns_of(options, there, case)
        over = _first_step(graphdef, case.k, there.graph.mesh)
        lowered[case] = jax.jit(over).lower(there.graph, *rows, *states[case])
    with ThreadPoolExecutor() as pool:
        running = {case: pool.submit(one.compile) for case, one in lowered.items()}
    return {
        case: Program(spread[case.devices], run.result(), states[case])
        for case, run in running.items()
    }


def _columns_of(options: ManyGPUsOptions, spread: Spread, case: Case) -> list[Any]:
    """The shapes of the columns passed to a step."""
    if not case.instead:
        return []
    graph = spread.graph
    shape, dtype = (graph.devices * graph.rows, case.k), column_dtype(options.hidden)
    return [jax.ShapeDtypeStruct(shape, dtype, sharding=graph.row_sharding)] * options.layers


def _first_step(graphdef: nnx.GraphDef, k: int | None, mesh: Mesh) -> Callable[..., Any]:
    """The first step on all devices of a mesh, with the signature of ``Program.run``."""

    def of_params(params, other, graph, features, labels, columns):
        network, seen = nnx.merge(graphdef, params, other), []
        if k is not None:
            for at, convolution in enumerate(network.convolutions):
                convolution.maxk = WatchedMaxK(k, columns[at] if columns else None, seen)
        return loss_of(network, graph, features, labels, 0), seen

    def on_device(graph, features, labels, columns, params, other):
        graph = graph.local.normalized("mean")
        both = jax.value_and_grad(of_params, has_aux=True)
        (loss, seen), gradients = both(params, other, graph, features, labels, columns)
        return loss, gradients, seen

    own = PartitionSpec(*mesh.axis_names)
    in_specs = own, own, own, own, _EVERYWHERE, _EVERYWHERE
    out_specs = _EVERYWHERE, _EVERYWHERE, own
    return jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def compared(one: Layer, own: Layer, same: Layer) -> Row:
    """Differences between the selections of a layer on several devices and on one.

    Args:
      one: its record on one device.
      own: its record on several, where each layer keeps its own columns.
      same: its record on several, where the previous layers keep the columns of one device.
    """
    k = one.columns.shape[1]
    by_rounding = np.flatnonzero((one.columns != same.columns).any(axis=1))
    rounding = np.abs(one.entries - same.entries).max(axis=1)
    largest = float(np.abs(one.entries).max())
    row: Row = {
        "rows": len(one.columns),
        "rows_differ": int((one.columns != own.columns).any(axis=1).sum()),
        "rows_by_rounding": len(by_rounding),
        "gap": None,
        "gap_over_rounding": None,
        "rounding": float(rounding.max()) / largest,
    }
    if len(by_rounding):
        descending = -np.sort(-one.entries[by_rounding], axis=1)
        gap = descending[:, k - 1] - descending[:, k]
        least = np.finfo(np.float32).tiny
        row["gap"] = float(gap.max()) / largest
        row["gap_over_rounding"] = float((gap / np.maximum(rounding[by_rounding], least)).max())
    return row


def main(options: NearTiesOptions) -> list[Row]:
    """Runs all cases, prints the rows, and appends them to ``near_ties.jsonl``.

    Raises:
      ValueError: if an option is invalid.
    """
    limit_launches()
    options.check()
    about: Row = {
        **device_description(),
        "matmul_precision": jax.config.values["jax_default_matmul_precision"] or "default",
        "partition": options.partition,
        "wire_dtype": options.wire_dtype,
        "hidden": options.hidden,
        "xla_flags": os.environ.get("XLA_FLAGS"),
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    rows: list[Row] = []
    for name in options.graphs():
        rows += [{**row, **about} for row in _of_graph(options, name)]
    append_rows(options.rows / "near_ties.jsonl", rows)
    return rows


def _of_graph(options: NearTiesOptions, name: str) -> list[Row]:
    """The rows of one graph, printed as soon as they exist."""
    network, counts = options.network(), options.counts()
    with told(f"{name}: making the graph"):
        data = load(name)
    spread = {}
    for count in (1, *counts):
        with told(f"{name}: dealing it out to {count}"):
            spread[count] = spread_out(network, data, count)
    cases = [Case(k, count) for k in (None, *options.ks) for count in spread]
    cases += [Case(k, count, instead=True) for k in options.ks for count in counts]
    with told(f"{name}: compiling {len(cases)} steps"):
        programs = compiled(network, data, spread, cases)
    with told(f"{name}: the dense network"):
        dense = {count: programs[Case(None, count)]().step for count in spread}
    rows: list[Row] = []
    for k in options.ks:
        with told(f"{name}: k = {k} on 1"):
            one = programs[Case(k, 1)]()
        for count in counts:
            with told(f"{name}: k = {k} on {count}"):
                own = programs[Case(k, count)]()
            with told(f"{name}: k = {k} on {count}, with the columns of one"):
                same = programs[Case(k, count, instead=True)](kept for _, kept in one.layers)
            labels = {"op": "near_ties", "workload": name, "k": k, "devices": count}
            layers = [
                {**labels, "layer": at, **compared(*three)}
                for at, three in enumerate(zip(one.layers, own.layers, same.layers, strict=True))
            ]
            steps = [
                {**labels, "columns": "own", **own.step.differences(one.step)},
                {**labels, "columns": "of one device", **same.step.differences(one.step)},
                {**labels, "columns": "all, with ReLU", **dense[count].differences(dense[1])},
            ]
            _print(_LAYERS, layers)
            _print(_STEPS, steps)
            rows += [*layers, *steps]
    return rows


def _print(columns: tuple[Column, ...], rows: list[Row]) -> None:
    print(header(columns))
    for row in rows:
        print(line(row, columns), flush=True)


if __name__ == "__main__":
    command(main, NearTiesOptions, __doc__)
