"""Times the preparation of a graph, from an edge list to the first training step.

Run ``python -m experiments.benchmarks.preparation``, on a GPU with ``--edges 111e6 --nodes 233e3``
for a graph of the size of Reddit. Everything is built from random edges, in turns. The first time,
which alone compiles, is reported separately:

- ``numpy``: ``CSRGraph.from_edges`` of numpy arrays, and the preparation for ``spmm`` and its
  gradients;
- ``device``: the same from arrays on the device;
- ``maxk_spmm``: from numpy arrays, prepared for ``maxk_spmm``, on a GPU with the edges by block;
- ``scipy``: ``coo_array.tocsr``, and the transpose of the result, on the host;
- ``torch``: where torch is installed, its stable sort of the receivers on the same device, senders
  in that order and row offsets, and the same again by sender. PyTorch Geometric sorts this way.

Bytes are those of all arrays of the graph, relative to those of ``indptr`` and ``indices``.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from experiments.benchmarks._command import command
from experiments.benchmarks._ratios import print_warnings
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.testing.machine import read_cpu, share_of_others
from jaxgnn.testing.timing import device_description

_COLUMNS = (
    Column("what", "candidate", 10),
    Column("edges", "edges", 11, "d"),
    Column("first s", "first_s", 8, ".3f"),
    Column("s", "median_s", 8, ".3f"),
    Column("least", "min_s", 8, ".3f"),
    Column("most", "max_s", 8, ".3f"),
    Column("of scipy", "of_scipy", 8, ".2f"),
    Column("bytes", "of_edges", 6, ".2f"),
)


@dataclass(frozen=True)
class PreparationOptions(Output):
    """Settings of a run.

    Attributes:
      edges: number of edges.
      nodes: number of nodes.
      repeats: number of timings of each after the first.
      only: names of candidates; by default all that run here.
    """

    edges: float = 1e7
    nodes: float = 1e5
    repeats: int = 5
    only: tuple[str, ...] = ()

    def check(self, names: Mapping[str, Any]) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        for name in ("edges", "nodes", "repeats"):
            value = getattr(self, name)
            if not 1 <= value < 2**31:
                raise bad_input("preparation", f"--{name}", "in [1, 2^31)", f"{value:.0f}")
        for name in self.only:
            if name not in names:
                raise bad_input("preparation", "--only", f"among {', '.join(names)}", repr(name))


@dataclass(frozen=True)
class _Edges:
    """Senders and receivers of edges on the host, int32 [edges] each, and the number of nodes."""

    senders: np.ndarray
    receivers: np.ndarray
    nodes: int

    @classmethod
    def random(cls, edges: int, nodes: int) -> _Edges:
        """Edges whose ends are uniformly random."""
        rng = np.random.default_rng(0)
        senders, receivers = rng.integers(0, nodes, (2, edges), dtype=np.int32)
        return cls(senders, receivers, nodes)


def main(options: PreparationOptions) -> list[Row]:
    """Times all candidates, prints the times, and appends them to ``preparation.jsonl``.

    Raises:
      ValueError: if an option is invalid.
    """
    candidates = _candidates()
    options.check(candidates)
    if options.only:
        candidates = {name: candidates[name] for name in options.only}
    edges = _Edges.random(int(options.edges), int(options.nodes))
    before = read_cpu()
    rows = [_first(name, edges, make) for name, make in candidates.items()]
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    for _ in range(options.repeats):
        for name in order:
            times[name].append(_seconds(edges, candidates[name])[0])
        order.reverse()
    others = share_of_others(before, read_cpu())
    scipy_s = float(np.median(times["scipy"])) if "scipy" in times else None
    for row in rows:
        taken = times[row["candidate"]]
        row |= {"median_s": float(np.median(taken)), "min_s": min(taken), "max_s": max(taken)}
        row |= {"of_scipy": scipy_s and row["median_s"] / scipy_s, "others": others}
        row |= device_description()
    print(header(_COLUMNS))
    for row in rows:
        print(line(row, _COLUMNS), flush=True)
    append_rows(options.rows / "preparation.jsonl", rows)
    print_warnings([others])
    return rows


def _first(name: str, edges: _Edges, make: Callable[[_Edges], Callable[[], Any]]) -> Row:
    seconds, made = _seconds(edges, make)
    row: Row = {"candidate": name, "edges": len(edges.senders), "nodes": edges.nodes}
    row |= {"first_s": seconds, "of_edges": None}
    if isinstance(made, CSRGraph):
        row["of_edges"] = made.nbytes / (made.indptr.nbytes + made.indices.nbytes)
    return row


def _seconds(edges: _Edges, make: Callable[[_Edges], Callable[[], Any]]) -> tuple[float, Any]:
    """The time of one preparation; its input is placed beforehand."""
    run = make(edges)
    start = time.perf_counter()
    made = run()
    return time.perf_counter() - start, made


def _candidates() -> dict[str, Callable[[_Edges], Callable[[], Any]]]:
    """Functions by name; each takes edges and returns a call that prepares the graph once."""
    candidates: dict[str, Callable[[_Edges], Callable[[], Any]]] = {
        "numpy": lambda e: lambda: _graph(e.senders, e.receivers, e.nodes, "spmm"),
        "device": _of_device_arrays,
        "maxk_spmm": lambda e: lambda: _graph(e.senders, e.receivers, e.nodes, "maxk_spmm"),
        "scipy": _scipy,
    }
    if importlib.util.find_spec("torch") is not None:
        candidates["torch"] = _torch
    return candidates


def _graph(senders: Any, receivers: Any, nodes: int, op: str) -> CSRGraph:
    graph = CSRGraph.from_edges(senders, receivers, nodes).prepared(op)
    return jax.block_until_ready(graph)


def _of_device_arrays(edges: _Edges) -> Callable[[], CSRGraph]:
    senders, receivers = jax.block_until_ready(
        (jnp.array(edges.senders), jnp.array(edges.receivers))
    )
    return lambda: _graph(senders, receivers, edges.nodes, "spmm")


def _scipy(edges: _Edges) -> Callable[[], Any]:
    ones = np.ones(len(edges.senders), np.float32)
    ends, shape = (edges.receivers, edges.senders), (edges.nodes, edges.nodes)

    def run():
        by_receiver = scipy.sparse.coo_array((ones, ends), shape=shape).tocsr()
        return by_receiver, by_receiver.T.tocsr()

    return run


def _torch(edges: _Edges) -> Callable[[], Any]:
    torch: Any = importlib.import_module("torch")
    on_gpu = jax.default_backend() == "gpu" and torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    senders, receivers = (
        torch.from_numpy(ids).to(device) for ids in (edges.senders, edges.receivers)
    )

    def compressed(rows, columns):
        rows, order = torch.sort(rows, stable=True)
        counts = torch.bincount(rows, minlength=edges.nodes)
        return torch.cumsum(counts, 0), columns[order], rows

    def run():
        offsets, columns, rows = compressed(receivers, senders)
        made = offsets, columns, *compressed(columns, rows)
        if on_gpu:
            torch.cuda.synchronize()
        return made

    return run


if __name__ == "__main__":
    command(main, PreparationOptions, __doc__)
