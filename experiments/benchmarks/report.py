"""Draws a picture of what was measured, and prints it as a Markdown table.

Run ``python -m experiments.benchmarks.report`` (``make bench-report``), with ``--commit-results``
for the picture of the README, from the results that are kept with the code. Reads every JSONL file
of the folder; of equal measurements on one device the newest run counts. Writes
``speed_<platform>.png``, one a platform, from the device that was measured last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, markdown, read_rows
from experiments.benchmarks._workloads import HEADLINE
from jaxgnn.ops._core.registry import OPS

_K = 32
_DTYPE = "float32"
_BAR = 0.8
_ORDER = [row for op in OPS for benchmark in op.benchmarks for row in benchmark.row_names]

_COLUMNS = (
    Column("op", "op", 0),
    Column("direction", "direction", 0),
    Column("k", "k", 0, "d"),
    Column("implementation", "implementation", 0),
    Column("ms", "ms", 0, ".3f"),
    Column("× XLA", "speedup_over_xla", 0, ".1f"),
    Column("GB/s", "gb_per_s", 0, ".0f"),
    Column("of copy speed", "fraction_of_copy", 0, ".2f"),
)


@dataclass(frozen=True)
class ReportOptions(Output):
    """Settings.

    Attributes:
      images: folder of the pictures; left out, beside the rows, or that of the docs.
      workload: name of the workload to show; the headline of the platform if None.
      k: entries a row of the ops that have it.
      dtype: of the features.
    """

    images: Path | None = None
    workload: str | None = None
    k: int = _K
    dtype: str = _DTYPE


def main(options: ReportOptions) -> list[Path]:
    """Draws and prints; returns the pictures.

    Raises:
      ValueError: if there is nothing to draw.
    """
    rows = newest(read_all(options.rows))
    if not rows:
        raise ValueError(f"report: no measurements in {options.rows}; run the benchmarks first")
    pictures = []
    for platform in dict.fromkeys(row["platform"] for row in rows):
        shown = select([row for row in rows if row["platform"] == platform], options)
        if not shown:
            continue
        path = (options.images or options.pictures) / f"speed_{platform}.png"
        draw(shown, path)
        pictures.append(path)
        print(f"{_caption(shown[0])}\n\n{markdown(shown, _COLUMNS)}\n\n{path}\n")
    return pictures


def read_all(folder: Path) -> list[Row]:
    """The rows of all ops; scaling and break-even have other columns and are left out."""
    rows = (row for path in sorted(folder.glob("*.jsonl")) for row in read_rows(path))
    return [row for row in rows if "speedup_over_xla" in row]


def newest(rows: Iterable[Row]) -> list[Row]:
    """The newest row of each op, workload, direction and implementation on each device."""
    keys = ("platform", "device", "cpus", "op", "workload", "dim", "dtype", "direction", "k")
    latest = {tuple(row[key] for key in (*keys, "implementation")): row for row in _by_date(rows)}
    return list(latest.values())


def _by_date(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["date"])


def select(rows: Sequence[Row], options: ReportOptions) -> list[Row]:
    """What the picture shows of one platform: its last device, one workload, one k, one dtype.

    Where the wished workload or k was not measured, the largest workload or k takes its place.
    Of the linear ops both directions are shown apart, so not their sum.
    """
    last = _by_date(rows)[-1]
    rows = [row for row in rows if (row["device"], row["cpus"]) == (last["device"], last["cpus"])]
    rows = [row for row in rows if row["dtype"] == options.dtype]
    if not rows:
        return []
    wished = options.workload or HEADLINE[last["platform"]]
    if wished not in {row["workload"] for row in rows}:
        wished = max(rows, key=lambda row: row["edges"] or 0)["workload"]
    rows = [row for row in rows if row["workload"] == wished and row["ms"] is not None]
    ks = {row["k"] for row in rows} - {None}
    k = options.k if options.k in ks else max(ks, default=None)
    apart = {row["op"] for row in rows if row["direction"] == "backward"}
    shown = [
        row
        for row in rows
        if row["k"] in (k, None)
        and not (row["op"] in apart and row["direction"] == "forward+backward")
    ]
    return sorted(shown, key=lambda row: _ORDER.index(row["op"]))


def draw(rows: Sequence[Row], path: Path) -> None:
    """Two panels of bars for each op and direction: ms, and the fraction of copy speed."""
    groups = list(dict.fromkeys((row["op"], row["direction"]) for row in rows))
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    figure = Figure(figsize=(11, 1.4 + 0.62 * len(groups)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    times, fractions = figure.subplots(1, 2, sharey=True)
    for place, group in enumerate(groups):
        bars = [row for row in rows if (row["op"], row["direction"]) == group]
        thickness = _BAR / len(bars)
        for number, row in enumerate(bars):
            at = place - _BAR / 2 + (number + 0.5) * thickness
            color = f"C{names.index(row['implementation']) % 10}"
            times.barh(at, row["ms"], thickness, color=color)
            fractions.barh(at, row["fraction_of_copy"], thickness, color=color)
            times.annotate(_bar_text(row), (row["ms"], at), (3, 0), **_TEXT)
    times.set_yticks(range(len(groups)), [f"{op}\n{direction}" for op, direction in groups])
    times.set_xscale("log")
    times.set_xlabel("ms (and speed-up over XLA)")
    times.margins(x=0.15)
    times.invert_yaxis()
    fractions.axvline(1, color="0.3", linestyle="--", linewidth=1)
    fractions.set_xlabel("bytes of the op / time, as a fraction of an element-wise pass")
    _finish(figure, (times, fractions), names, rows[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


_TEXT = {"textcoords": "offset points", "va": "center", "fontsize": 7}


def _bar_text(row: Row) -> str:
    speedup = row["speedup_over_xla"]
    is_baseline = speedup is None or row["implementation"] == "xla"
    return f"{row['ms']:.3g}" + ("" if is_baseline else f"  ({speedup:.1f}×)")


def _finish(figure: Figure, panels: Sequence[Axes], names: Sequence[str], row: Row) -> None:
    for axes in panels:
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    patches = [Patch(color=f"C{number % 10}", label=name) for number, name in enumerate(names)]
    panels[1].legend(handles=patches, frameon=False, fontsize="small")
    figure.suptitle(_caption(row), fontsize="medium")


def _caption(row: Row) -> str:
    cpus = f", {row['cpus']} cores" if row["platform"] == "cpu" else ""
    return (
        f"{row['device']}{cpus}, {row['workload']}: {row['nodes']:,} nodes, width {row['dim']}, "
        f"{row['dtype']}; jax {row['jax']}, {row['date'][:10]}"
    )


if __name__ == "__main__":
    command(main, ReportOptions, __doc__)
