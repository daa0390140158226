"""Runs ``NeighborLoader`` for minutes, and watches the memory of the process.

``python -m experiments.benchmarks.loader_soak`` draws batches of a random graph, epoch after epoch,
on threads that make batches ahead, and prints the batches and the memory of the process (resident
and not of files) at equal intervals. A row has all of these. The run fails if memory in the second
half of the time exceeds that at half time by more than a twentieth.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn import CSRGraph
from jaxgnn._errors import bad_input
from jaxgnn.sampling import NeighborLoader
from jaxgnn.testing.timing import device_description

_MOST_GROWTH = 1.05

COLUMNS = (
    Column("seconds", "seconds", 8, ".0f"),
    Column("batches", "batches", 9, "d"),
    Column("MiB", "mib", 8, ".1f"),
)


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      minutes: length of the run.
      readings: how often memory is read.
      nodes: number of nodes of the graph.
      edges: number of edges.
      threads: threads that draw.
    """

    minutes: float = 10.0
    readings: int = 20
    nodes: int = 200_000
    edges: int = 4_000_000
    threads: int = 2

    def __post_init__(self):
        super().__post_init__()
        if not (math.isfinite(self.minutes) and self.minutes > 0):
            raise bad_input("loader_soak", "--minutes", "above 0", self.minutes)
        if self.readings < 4:
            raise bad_input("loader_soak", "--readings", "at least 4", self.readings)


def own_mib() -> float:
    """Resident memory of this process that belongs to no file, in MiB."""
    for entry in Path("/proc/self/status").read_text().splitlines():
        if entry.startswith("RssAnon:"):
            return int(entry.split()[1]) / 1024
    raise RuntimeError("loader_soak: /proc/self/status has no RssAnon; run it on Linux")


def make_loader(options: Options, folder: str) -> NeighborLoader:
    """Batches of a random graph, with labels, and features of a file in a folder."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, options.nodes, (2, options.edges), dtype=np.int32)
    graph = CSRGraph.from_edges(senders, receivers, options.nodes)
    seeds = rng.permutation(options.nodes)[: options.nodes // 10]
    file = Path(folder) / "x.npy"
    np.save(file, rng.standard_normal((options.nodes, 32)).astype(np.float32))
    x, labels = np.load(file, mmap_mode="r"), rng.integers(0, 10, options.nodes)
    threads = {"num_threads": options.threads}
    return NeighborLoader(graph, seeds, (10, 5), 256, x, labels=labels, **threads)


def check_flat(mib: list[float]) -> None:
    """Raises RuntimeError if memory has grown in the second half of the readings."""
    half = mib[len(mib) // 2]
    if max(mib[len(mib) // 2 :]) > _MOST_GROWTH * half:
        found = f"{half:.1f} MiB at half time, then up to {max(mib):.1f}"
        raise RuntimeError(f"loader_soak: memory grows: {found}")


def main(options: Options) -> list[Row]:
    """Prints the readings, and appends a row to ``loader_soak.jsonl``."""
    with tempfile.TemporaryDirectory() as folder:
        readings = read_memory(options, make_loader(options, folder))
    columns = {name: [reading[name] for reading in readings] for name in readings[0]}
    sizes = {"nodes": options.nodes, "edges": options.edges, "threads": options.threads}
    row: Row = {"op": "loader_soak", **device_description(), **sizes, **columns}
    append_rows(options.rows / "loader_soak.jsonl", [row])
    check_flat(columns["mib"])
    return [row]


def read_memory(options: Options, loader: NeighborLoader) -> list[Row]:
    """Draws batches, and prints and returns the readings."""
    readings, batches = list[Row](), 0
    start, interval = time.monotonic(), 60 * options.minutes / options.readings
    print(header(COLUMNS))
    epoch = 0
    while len(readings) < options.readings:
        for _ in loader.epoch(epoch):
            batches += 1
            seconds = time.monotonic() - start
            if seconds >= interval * (len(readings) + 1):
                readings.append({"seconds": seconds, "batches": batches, "mib": own_mib()})
                print(line(readings[-1], COLUMNS), flush=True)
                if len(readings) == options.readings:
                    break
        epoch += 1
    return readings


if __name__ == "__main__":
    command(main, Options, __doc__)
