"""Shows that the sparse products cost the same for each edge at any size of the graph.

Run ``python -m experiments.benchmarks.scaling``, with ``--max-edges 1e8`` where memory allows.
Times ``spmm`` and ``maxk_spmm``, as ``implementation=None`` selects them, in turns, on uniformly
random graphs of one average degree, and draws ``scaling_<platform>.png``, in the folder of the rows
or of the docs. ``python -m experiments.benchmarks.report`` draws it again from the rows.

Two limits are reported with each time, and drawn: every array once at the speed of an element-wise
pass over memory; and the requests of all edges, a row of features or k values and columns each, at
the speed of the last cache. Neither includes launches, which dominate on small graphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.benchmarks import _products, maxk_spmm, spmm
from experiments.benchmarks._cases import DIRECTIONS, Candidate
from experiments.benchmarks._command import command
from experiments.benchmarks._ratios import print_warnings, timing_fields
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._session import Session
from experiments.benchmarks._shades import shade
from experiments.benchmarks._workloads import Workload, forget_graphs
from jaxgnn._errors import bad_input
from jaxgnn.testing.timing import Timing

_DEGREE = 50
_POINTS_PER_DECADE = 2
_DTYPE = "float32"
_WAYS = ("forward", "forward+backward")

_COLUMNS = (
    Column("op", "op", 10),
    Column("direction", "direction", 16),
    Column("edges", "edges", 11, "d"),
    Column("ms", "ms", 10, ".3f"),
    Column("25 %", "low_ms", 10, ".3f"),
    Column("75 %", "high_ms", 10, ".3f"),
    Column("ns/edge", "ns_per_edge", 8, ".3f"),
    Column("at copy speed", "limit_ms", 13, ".3f"),
    Column("at cache speed", "cache_limit_ms", 14, ".3f"),
)


class _Limit(NamedTuple):
    """A line of the picture: the keys of its milliseconds and of its speed, and its style."""

    key: str
    speed: str
    style: str
    label: str


_LIMITS = (
    _Limit("limit_ms", "copy_gb_per_s", "--", "every array once at copy speed"),
    _Limit("cache_limit_ms", "cache_gb_per_s", ":", "all requests at last-cache speed"),
)


@dataclass(frozen=True)
class ScalingOptions(Output):
    """Settings of a run.

    Attributes:
      min_edges: edges of the smallest graph.
      max_edges: edges of the largest graph.
      dim: width of the features.
      k: entries that MaxK keeps of each row.
    """

    min_edges: float = 1e4
    max_edges: float = 1e7
    dim: int = 256
    k: int = 32

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        if not self.min_edges >= 1:
            raise bad_input("scaling", "--min-edges", "at least 1", f"{self.min_edges:.0f}")
        if not self.max_edges >= self.min_edges:
            expected = f"at least --min-edges, {self.min_edges:.0f}"
            raise bad_input("scaling", "--max-edges", expected, f"{self.max_edges:.0f}")
        if self.dim < 1:
            raise bad_input("scaling", "--dim", "at least 1", self.dim)
        if not 1 <= self.k <= self.dim:
            raise bad_input("scaling", "--k", f"in 1..{self.dim} (--dim)", self.k)


def main(options: ScalingOptions, session: Session | None = None) -> list[Row]:
    """Times all sizes, prints the times, appends them to ``scaling.jsonl`` and draws them.

    Raises:
      ValueError: if an option is invalid.
    """
    options.check()
    session = session or Session((), options.rows)
    rows: list[Row] = []
    print(f"memory {session.copy_gb_per_s:.1f} GB/s, last cache {session.cache_gb_per_s:.1f} GB/s")
    print(header(_COLUMNS), flush=True)
    for edges in edge_counts(options.min_edges, options.max_edges):
        workload = Workload("uniform", max(1, edges // _DEGREE), edges, options.dim, (options.k,))
        rows += _measure(session, workload)
        forget_graphs()
    path = options.pictures / f"scaling_{session.device['platform']}.png"
    draw(rows, path)
    print(path)
    print_warnings(row["others"] for row in rows)
    return rows


def _measure(session: Session, workload: Workload) -> list[Row]:
    """The rows of one size, whose ops take turns; its arrays on the device are then freed."""
    cases = {f"{case.op} {case.direction}": case for case in _cases(workload)}
    timings = session.time_in_turns({name: case.candidate for name, case in cases.items()})
    rows = [_row(session, workload, cases[name], timing) for name, timing in timings.items()]
    for row in rows:
        print(line(row, _COLUMNS), flush=True)
    append_rows(session.out / "scaling.jsonl", rows)
    return rows


def edge_counts(least: float, most: float) -> list[int]:
    """Numbers of edges, equally spaced on a logarithmic axis, both ends included."""
    steps = math.ceil(math.log10(most / least) * _POINTS_PER_DECADE)
    between = [least * (most / least) ** (step / steps) for step in range(steps)]
    return [round(edges) for edges in (*between, most)]


@dataclass(frozen=True)
class _Case:
    """One op in one direction.

    Attributes:
      op: name of the op.
      direction: a key of ``DIRECTIONS``.
      requested: bytes, with a row of features for every edge.
      once: bytes, with every array once.
      candidate: the op as ``implementation=None`` selects it.
    """

    op: str
    direction: str
    requested: int
    once: int
    candidate: Candidate


def _cases(workload: Workload) -> Iterator[_Case]:
    graph, dim, (k,) = workload.graph(), workload.dim, workload.ks
    size = jnp.dtype(_DTYPE).itemsize
    function, inputs = _products.spmm(None), _products.dense_inputs(workload, _DTYPE)
    for way in _WAYS:
        requested = spmm.bytes_moved(graph, dim, size, way)
        once = spmm.bytes_once(graph, dim, size, way)
        yield _Case("spmm", way, requested, once, Candidate(DIRECTIONS[way](function), inputs))
    function, inputs = _products.maxk_spmm(None), _products.kept_inputs(workload, _DTYPE, k)
    for way in _WAYS:
        requested = maxk_spmm.bytes_moved(graph, dim, k, size, way)
        once = maxk_spmm.bytes_once(graph, dim, k, size, way)
        yield _Case("maxk_spmm", way, requested, once, Candidate(DIRECTIONS[way](function), inputs))


def _row(session: Session, workload: Workload, case: _Case, timing: Timing | None) -> Row:
    """One line of the JSONL file; times are None after running out of memory."""
    edges = workload.graph().num_edges
    ms = None if timing is None else timing.median_ms
    return {
        "op": case.op,
        "direction": case.direction,
        "workload": workload.name,
        "nodes": workload.nodes,
        "edges": edges,
        "dim": workload.dim,
        "dtype": _DTYPE,
        "k": workload.ks[0] if case.op == "maxk_spmm" else None,
        **timing_fields(timing),
        "ns_per_edge": None if ms is None else 1e6 * ms / edges,
        "bytes": case.requested,
        "bytes_once": case.once,
        "limit_ms": case.once / session.copy_gb_per_s / 1e6,
        "cache_limit_ms": case.requested / session.cache_gb_per_s / 1e6,
        "copy_gb_per_s": session.copy_gb_per_s,
        "cache_gb_per_s": session.cache_gb_per_s,
        **session.device,
    }


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws a panel for each direction: time against edges on logarithmic axes, with the limits.

    Bands are the quartiles. Old rows, without both counts of bytes, have no limits.
    """
    figure = Figure(figsize=(9, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(_WAYS), sharey=True, sharex=True)
    ops = list(dict.fromkeys(row["op"] for row in rows))
    limits = _LIMITS if all("bytes_once" in row for row in rows) else ()
    for axes, direction in zip(panels, _WAYS, strict=True):
        for op in ops:
            same = [row for row in rows if (row["op"], row["direction"]) == (op, direction)]
            _draw_series(axes, [row for row in same if row["ms"]], shade(op), limits)
        axes.set_title(direction, fontsize="medium")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("edges of the graph")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time of a call (ms)")
    lines = [Line2D([], [], color=shade(op), marker="o", markersize=3, label=op) for op in ops]
    for limit in limits:
        label = f"{limit.label}, {rows[0][limit.speed]:,.0f} GB/s"
        lines.append(Line2D([], [], color="0.4", label=label, ls=limit.style))  # pyrefly: ignore
    figure.legend(
        handles=lines, loc="outside lower center", ncols=2, frameon=False, fontsize="small"
    )
    figure.suptitle(_title(rows), fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _title(rows: Sequence[Row]) -> str:
    """Text with ops, sizes and device of one run."""
    row = rows[0]
    k = next((row["k"] for row in rows if row["k"] is not None), None)
    cores = f", {row['cpus']} cores" if row["platform"] == "cpu" else ""
    return (
        f"Sparse products on random graphs: width {row['dim']}, k = {k}, {row['dtype']}; "
        f"{row['device']}{cores}, jax {row['jax']}, {row['date'][:10]}"
    )


def _draw_series(axes: Axes, rows: Sequence[Row], color: str, limits: Sequence[_Limit]) -> None:
    """Draws the times and the limits of one op, in the op's colour."""
    edges = [row["edges"] for row in rows]
    axes.plot(edges, [row["ms"] for row in rows], "o-", color=color, markersize=3)
    if all(row.get("low_ms") for row in rows):
        low, high = ([row[key] for row in rows] for key in ("low_ms", "high_ms"))
        axes.fill_between(edges, low, high, color=color, alpha=0.2, linewidth=0)
    for limit in limits:
        least = [row[limit.key] for row in rows]
        axes.plot(edges, least, limit.style, color=color, linewidth=0.9, alpha=0.8)


if __name__ == "__main__":
    command(main, ScalingOptions, __doc__)
