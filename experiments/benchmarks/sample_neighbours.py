"""Times neighbour samplers on the host, in sampled edges per second.

Run ``python -m experiments.benchmarks.sample_neighbours``. The graph is as large as ogbn-products,
with its power law of degrees, and is the same for all; it needs 1 GB. A batch has 1,024 random
seeds, and 15, 10 and 5 neighbours are drawn for each node of the hops. Times include the numbering
of nodes and the ids of edges. All candidates sample the same seeds, in turns:

- ``neighbour``, ``replace``, ``weighted`` and ``labor``: ``sampling.sample_hops``, on all threads;
- ``at once``: ``neighbour`` for as many batches as there are threads, one thread for each; its
  times, edges and nodes are those of all these batches;
- ``dgl``: its ``NeighborSampler``; ``graphbolt``: DGL's newer sampler, here without ids of edges;
- ``torch-sparse``: the sampler of torch-geometric, on one thread. It draws only for the new nodes
  of each hop, so its batches are smaller.

Those of other libraries need ``--peers`` with the path of a Python in which they are installed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks._command import command
from experiments.benchmarks._ratios import print_warnings
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._sampling_peers import NAMES, Peer
from jaxgnn._errors import bad_input
from jaxgnn.sampling import sample_hops
from jaxgnn.testing.machine import read_cpu, share_of_others
from jaxgnn.testing.timing import device_description

_COLUMNS = (
    Column("candidate", "candidate", 14),
    Column("threads", "threads", 7, "d"),
    Column("edges", "sampled_edges", 9, ".0f"),
    Column("nodes", "sampled_nodes", 9, ".0f"),
    Column("ms", "median_ms", 8, ".1f"),
    Column("M edges/s", "edges_per_us", 9, ".2f"),
    Column("a core", "edges_per_us_core", 6, ".2f"),
    Column("of ours", "of_ours", 7, ".2f"),
)
_OURS = ("neighbour", "at once", "replace", "weighted", "labor")

# Rank r has a degree in proportion to the slope of r^(1 / _POWER), as in ogbn-products: then one of
# 2.45 million nodes with 50.5 neighbours on average has at most some 12,000.
_POWER = 1.6
_CHUNK = 4_000_000

Sample = Callable[[np.ndarray, int], tuple[float, int, int]]
"""Samples seeds of a step; gives seconds, edges and nodes."""


@dataclass(frozen=True)
class SampleOptions(Output):
    """Settings of a run.

    Attributes:
      nodes: number of nodes.
      edges: number of edges, each direction counted.
      fanouts: numbers of neighbours, next to the seeds first.
      batch_size: number of seeds.
      batches: number of batches that are timed.
      threads: numbers of threads; by default one, and as many as the process may use.
      only: names of candidates; by default all that run here.
      peers: a Python with dgl or torch-sparse.
    """

    nodes: float = 2.45e6
    edges: float = 123e6
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    batches: int = 10
    threads: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    peers: str | None = None

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        for name in ("nodes", "edges", "batch_size", "batches"):
            value = getattr(self, name)
            if not 1 <= value < 2**31:
                raise bad_input("sample_neighbours", f"--{name}", "in [1, 2^31)", f"{value:.0f}")
        known = (*_OURS, *NAMES)
        for name in self.only:
            if name not in known:
                expected = f"among {', '.join(known)}"
                raise bad_input("sample_neighbours", "--only", expected, repr(name))


def main(options: SampleOptions) -> list[Row]:
    """Times all candidates, prints the rates, and appends them to ``sample_neighbours.jsonl``.

    Raises:
      ValueError: if an option is invalid.
    """
    options.check()
    indptr, indices = power_law(int(options.nodes), int(options.edges))
    rng = np.random.default_rng(1)
    seeds = [rng.integers(0, len(indptr) - 1, options.batch_size) for _ in range(options.batches)]
    before = read_cpu()
    rows = []
    print(header(_COLUMNS))
    for threads in options.threads or sorted({1, len(os.sched_getaffinity(0))}):
        with _candidates(options, indptr, indices, threads) as candidates:
            rows += _take_turns(candidates, seeds, threads, options)
    others = share_of_others(before, read_cpu())
    for row in rows:
        row |= {"others": others} | device_description()
    append_rows(options.rows / "sample_neighbours.jsonl", rows)
    print_warnings([others])
    return rows


def power_law(nodes: int, edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes offsets, int64, and senders, int32, of a graph whose degrees have a power law.

    A node has about as many edges as sender as it has as receiver.
    """
    rng = np.random.default_rng(0)
    node_of_rank = rng.permutation(nodes).astype(np.int32)
    ends = np.round(edges * (np.arange(nodes + 1) / nodes) ** (1 / _POWER)).astype(np.int64)
    degrees = np.empty(nodes, np.int64)
    degrees[node_of_rank] = np.diff(ends)
    indices = np.empty(edges, np.int32)
    for begin in range(0, edges, _CHUNK):
        part = indices[begin : begin + _CHUNK]
        ranks = (nodes * rng.random(len(part)) ** _POWER).astype(np.int32)
        part[:] = node_of_rank[ranks]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(degrees)]), indices


def _take_turns(
    candidates: dict[str, tuple[Sample, dict[str, Any]]],
    seeds: list[np.ndarray],
    threads: int,
    options: SampleOptions,
) -> list[Row]:
    taken: dict[str, list] = {name: [] for name in candidates}
    for sample, _ in candidates.values():
        sample(seeds[0], 0)  # allocates memory
    order = list(candidates)
    for step, batch in enumerate(seeds):
        for name in order:
            taken[name].append(candidates[name][0](batch, step))
        order.reverse()
    rows: list[Row] = []
    for name, (_, about) in candidates.items():
        seconds, edges, found = np.array(taken[name]).T
        row: Row = {"candidate": name, "threads": threads, "nodes": int(options.nodes)}
        row |= {"edges": int(options.edges), "fanouts": list(options.fanouts)}
        row |= {"batch_size": options.batch_size, "batches": options.batches} | about
        row |= {"sampled_edges": edges.mean(), "sampled_nodes": found.mean()}
        row |= {"median_ms": 1e3 * float(np.median(seconds))}
        row["edges_per_us"] = 1e-6 * float(np.median(edges / seconds))
        row["edges_per_us_core"] = row["edges_per_us"] / threads
        ours = rows[0]["edges_per_us"] if rows and rows[0]["candidate"] == "neighbour" else None
        row["of_ours"] = ours and row["edges_per_us"] / ours
        print(line(row, _COLUMNS), flush=True)
        rows.append(row)
    return rows


@contextlib.contextmanager
def _candidates(
    options: SampleOptions, indptr: np.ndarray, indices: np.ndarray, threads: int
) -> Iterator[dict[str, tuple[Sample, dict[str, Any]]]]:
    names = options.only or (*_OURS, *(NAMES if options.peers else ()))
    found: dict[str, tuple[Sample, dict[str, Any]]] = {
        name: (_ours(name, indptr, indices, options, threads), {})
        for name in names
        if name in _OURS
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wanted = [name for name in names if name in NAMES and options.peers is not None]
        if wanted:
            np.save(folder / "indptr.npy", indptr)
            np.save(folder / "indices.npy", indices)
        for name in wanted:
            try:
                peer = Peer(str(options.peers), name, folder, options.fanouts, threads)
            except NotImplementedError as error:
                print(f"not timed: {error}", flush=True)
                continue
            stack.callback(peer.close)
            found[name] = _theirs(peer), peer.versions
        yield found


def _ours(
    name: str, indptr: np.ndarray, indices: np.ndarray, options: SampleOptions, threads: int
) -> Sample:
    how: dict[str, Any] = {"replace": {"replace": True}, "labor": {"method": "labor"}}.get(name, {})
    if name == "weighted":
        how = {"weights": np.random.default_rng(2).random(len(indices), np.float32) + 1e-3}
    how |= {"seed": 0, "epoch": 0, "num_threads": 1 if name == "at once" else threads}

    def counted(seeds, step):
        hops = sample_hops(indptr, indices, seeds, options.fanouts, step=step, **how)
        return sum(len(hop.e_id) for hop in hops.hops), len(hops.n_id)

    def sample(seeds, step):
        start = time.perf_counter()
        edges, nodes = counted(seeds, step)
        return time.perf_counter() - start, edges, nodes

    def sample_at_once(seeds, step):
        with ThreadPoolExecutor(threads) as pool:
            steps = range(step * threads, (step + 1) * threads)
            start = time.perf_counter()
            counts = list(pool.map(counted, threads * [seeds], steps))
            seconds = time.perf_counter() - start
        edges, nodes = zip(*counts, strict=True)
        return seconds, sum(edges), sum(nodes)

    return sample_at_once if name == "at once" else sample


def _theirs(peer: Peer) -> Sample:
    def sample(seeds, step):
        del step
        found = peer.sample(seeds.tolist())
        return found["seconds"], int(found["edges"]), int(found["nodes"])

    return sample


if __name__ == "__main__":
    command(main, SampleOptions, __doc__)
