"""Times epochs of GraphSAGE with ``NeighborLoader``: who draws, and where features are.

``python -m experiments.benchmarks.loader_epoch`` makes a graph of the size of ogbn-products, and
trains three layers of 256 in a jitted step, on batches of a loader that draws on the device or on
the host, with features on the device, on the host, or in a file behind a cache of a tenth of the
rows. Before the first step of the last case, the file is dropped from the memory of the system; run
the command in a control group of less memory than the file needs to read all of the epoch from the
disk.

A row has the seconds of an epoch, the part of it in which the device computes or copies, the part
of features that the cache held, and the bytes that were read from the disk. ``disk GB/s`` are
those of pages at random places of the file, read by 32 threads that do nothing else.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import optax
from flax import nnx

from experiments.benchmarks._command import command
from experiments.benchmarks._random_graph import random_graph
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks.sampled_epoch import DATA, sage_layers, seed_loss, wave_features
from jaxgnn import CSRGraph
from jaxgnn._errors import bad_input
from jaxgnn.sampling import NeighborLoader, features
from jaxgnn.testing.timing import Candidate, device_description, kernel_time

_SECTOR = 512
_KERNEL_CALLS = 20

COLUMNS = (
    Column("case", "candidate", 16),
    Column("steps", "steps", 6, "d"),
    Column("epoch s", "epoch_s", 8, ".3f"),
    Column("ms/step", "ms_per_step", 8, ".3f"),
    Column("busy", "busy", 5, ".2f"),
    Column("hits", "hit_rate", 5, ".3f"),
    Column("read GB", "read_gb", 8, ".2f"),
    Column("GB/s", "read_gb_per_s", 6, ".2f"),
    Column("disk busy", "disk_busy", 9, ".2f"),
)


@dataclass(frozen=True)
class Case:
    """A way to make batches.

    Attributes:
      on: who draws: "device" or "host".
      store: where features are: "device", "host", or "file" for a file behind a cache.
    """

    on: str
    store: str


CASES = {
    "device": Case("device", "device"),
    "host": Case("host", "device"),
    "host-features": Case("device", "host"),
    "cached-file": Case("host", "file"),
}


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      graph: "products", "papers" or "small".
      cases: which cases: "device", "host", "host-features", "cached-file".
      dtype: of features and layers.
      fanouts: neighbours that each hop draws; there is a layer for each.
      hidden: width of the layers.
      batch_size: seeds of a batch.
      steps: most steps of an epoch that are timed; its seconds are computed from them.
      cached: part of the rows that the cache of "cached-file" holds.
    """

    graph: str = "products"
    cases: tuple[str, ...] = tuple(CASES)
    dtype: str = "float32"
    fanouts: tuple[int, ...] = (10, 10, 10)
    hidden: int = 256
    batch_size: int = 1024
    steps: int = 1 << 30
    cached: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        for name, values, known in (
            ("--graph", [self.graph], DATA),
            ("--cases", self.cases, CASES),
        ):
            for value in values:
                if value not in known:
                    raise bad_input("loader_epoch", name, f"one of {', '.join(known)}", value)
        if min(self.hidden, self.batch_size, self.steps) < 1:
            raise bad_input("loader_epoch", "numbers", "positive", self)


class FeatureFile(NamedTuple):
    """A file of features, and its mapped array."""

    path: Path
    array: np.memmap

    def drop_from_memory(self) -> None:
        """Has the system forget the content of the file, and this process its pages."""
        cast(mmap.mmap, self.array.base).madvise(mmap.MADV_DONTNEED)
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Trainer:
    """A jitted training step of GraphSAGE on the batches of a loader."""

    def __init__(self, options: Options):
        layers = sage_layers(
            DATA[options.graph], options.hidden, len(options.fanouts), options.dtype
        )
        network, parameters = nnx.split(layers)
        optimizer = optax.adam(1e-3)

        def step(carry: Any, batch: Any) -> Any:
            parameters, state = carry

            def loss(parameters):
                layers = nnx.merge(network, parameters)
                of_seeds = batch.y, batch.seed_ids, batch.seed_mask
                return seed_loss(layers, batch.blocks, batch.x, *of_seeds)

            value, gradients = jax.value_and_grad(loss)(parameters)
            updates, state = optimizer.update(gradients, state)
            return (optax.apply_updates(parameters, updates), state), value

        self._step = jax.jit(step, donate_argnums=0)
        self._carry = parameters, optimizer.init(parameters)

    def step(self, batch: Any) -> jax.Array:
        """Trains on a batch, and returns its loss."""
        self._carry, loss = self._step(self._carry, batch)
        return loss


def time_epoch(loader: NeighborLoader, options: Options, file: FeatureFile | None) -> Row:
    """Times an epoch, after a first step that compiles; the fields of a row."""
    trainer = Trainer(options)
    jax.block_until_ready(trainer.step(loader.batch(0, 0)))
    store = loader.features
    cache = store if isinstance(store, features.CachedFeatures) else None
    if cache is not None:
        cache.hits = cache.misses = 0
    if file is not None:
        file.drop_from_memory()
    path = Path() if file is None else file.path
    losses, disk = [], DiskUse.of(path)
    begin = time.perf_counter()
    for _, batch in zip(range(options.steps), loader.epoch(1), strict=False):
        losses.append(trainer.step(batch))
    jax.block_until_ready(losses)
    seconds = time.perf_counter() - begin
    read_gb, busy_s = np.subtract(DiskUse.of(path), disk).tolist()
    ms = seconds * 1e3 / len(losses)
    hit_rate = None if cache is None else cache.hit_rate
    # Twenty more batches from a disk would take longer than all the rest.
    kernels = _kernels_ms(loader, trainer) if file is None else None
    return {
        "steps": len(loader),
        "timed_steps": len(losses),
        "seconds": seconds,
        "epoch_s": ms * len(loader) / 1e3,
        "ms_per_step": ms,
        "kernels_ms": kernels,
        "busy": None if kernels is None else kernels / ms,
        "hit_rate": hit_rate,
        "read_gb": read_gb,
        "read_gb_per_s": read_gb / seconds,
        "disk_busy": busy_s / seconds,
        "capacity": [*loader.capacity.nodes],
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
    }


def _kernels_ms(loader: NeighborLoader, trainer: Trainer) -> float | None:
    """Milliseconds of the kernels and copies of a step, those that make its batch included."""
    if len(loader) < 2 * _KERNEL_CALLS:
        return None
    batches = loader.epoch(2)

    def step() -> jax.Array:
        return trainer.step(next(batches))

    try:
        return kernel_time(Candidate(step, [()], jit=False), calls=_KERNEL_CALLS)
    finally:
        batches.close()


@contextmanager
def make_loader(case: Case, graph: CSRGraph, rows: jax.Array, options: Options) -> Iterator[Any]:
    """The loader of a case, and the file that it reads, if any."""
    data = DATA[options.graph]
    seeds = np.random.default_rng(0).permutation(graph.num_rows)[: data.train]
    labels = np.random.default_rng(1).integers(0, data.classes, graph.num_rows)
    shared: dict[str, Any] = {"labels": labels, "edge_ids": False, "on": case.on}

    def loader(store: Any, **more: Any) -> NeighborLoader:
        return NeighborLoader(
            graph, seeds, options.fanouts, options.batch_size, store, **shared, **more
        )

    if case.store != "file":
        yield loader(rows if case.store == "device" else np.asarray(rows)), None
        return
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "features.npy"
        np.save(path, np.asarray(rows))
        plain = loader(None)
        mapped = np.load(path, mmap_mode="r")
        rows_of_file = mapped.view(rows.dtype)  # NumPy stores bfloat16 without a name
        store = features.CachedFeatures.hottest(rows_of_file, plain.read_counts(), options.cached)
        yield loader(store, capacity=plain.capacity), FeatureFile(path, mapped)


class DiskUse(NamedTuple):
    """Work of the disk of a file since the start of the system.

    Attributes:
      read_gb: bytes that were read from it, in GB.
      busy_s: seconds in which it served requests.
    """

    read_gb: float
    busy_s: float

    @classmethod
    def of(cls, path: Path) -> DiskUse:
        """Reads the counters of Linux; zeros where it has none for this disk."""
        device = path.stat().st_dev
        numbers = [str(os.major(device)), str(os.minor(device))]
        for text in Path("/proc/diskstats").read_text().splitlines():
            if (fields := text.split())[:2] == numbers:
                return cls(int(fields[5]) * _SECTOR / 1e9, int(fields[12]) / 1e3)
        return cls(0.0, 0.0)


def main(options: Options) -> None:
    """Prints the table, and appends its rows to ``loader_epoch.jsonl``."""
    device, data = device_description(), DATA[options.graph]
    arrays = random_graph(options.graph)
    graph = CSRGraph(*arrays, num_cols=arrays.num_nodes, in_range=True)
    rows = wave_features(arrays.num_nodes, data.features, options.dtype)
    print(f"{device['device']}: {graph.num_rows:,} nodes, {graph.num_edges:,} edges")
    print(header(COLUMNS))
    for name in options.cases:
        with make_loader(CASES[name], graph, rows, options) as (loader, file):
            row: Row = {"op": "loader_epoch", "candidate": name, "graph": options.graph}
            row |= {"nodes": graph.num_rows, "edges": graph.num_edges, "dtype": options.dtype}
            row |= {"fanouts": options.fanouts, "hidden": options.hidden, "cached": options.cached}
            row |= {"batch_size": options.batch_size, **device}
            row |= time_epoch(loader, options, file)
            print(line(row, COLUMNS), flush=True)
            append_rows(options.rows / "loader_epoch.jsonl", [row])


if __name__ == "__main__":
    command(main, Options, __doc__)
