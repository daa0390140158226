"""Draws the measurements, and prints them as a Markdown table.

Run ``python -m experiments.benchmarks.report`` (``make bench-report``), with ``--commit-results``
for the picture of the README, from the results that are stored with the code. Reads every JSONL
file of the folder; of equal measurements on one device the newest run counts. Writes
``speed_<platform>.png``, one for each platform, from the device that was measured last, and
``scaling_<platform>.png`` from the last run of ``experiments.benchmarks.scaling``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments._runs import shown as as_shown
from experiments.benchmarks import scaling
from experiments.benchmarks._bars import published
from experiments.benchmarks._command import command
from experiments.benchmarks._ratios import ratio_text
from experiments.benchmarks._report import Column, Output, Row, markdown, read_rows
from experiments.benchmarks._shades import shade
from experiments.benchmarks._workloads import HEADLINE
from jaxgnn._errors import bad_input
from jaxgnn.ops.core.registry import OPS

_K = 32
_SCALING = "scaling.jsonl"
_DTYPE = "float32"
_BAR = 0.8
_ORDER = [row for op in OPS for benchmark in op.benchmarks for row in benchmark.row_names]

_COLUMNS = (
    Column("op", "op", 0),
    Column("direction", "direction", 0),
    Column("k", "k", 0, "d"),
    Column("implementation", "implementation", 0),
    Column("ms", "ms", 0, ".3f"),
    Column("25 %", "low_ms", 0, ".3f"),
    Column("75 %", "high_ms", 0, ".3f"),
    Column("× XLA", partial(ratio_text, baseline="xla"), 0, "s"),
    Column("GB/s", "gb_per_s", 0, ".0f"),
    Column("of copy speed", "fraction_of_copy", 0, ".2f"),
)


@dataclass(frozen=True)
class ReportOptions(Output):
    """Settings of the report.

    Attributes:
      images: folder of the pictures; by default that of the rows, or that of the docs.
      workload: name of the workload to show; by default the headline of the platform, or the
        largest where that was not measured.
      k: entries a row, for ops that have k; by default 32, or the largest where that was not
        measured.
      dtype: dtype of the features.
      device: the device to show, such as "NVIDIA H200"; by default the one of each platform that
        was measured last.
    """

    images: Path | None = None
    workload: str | None = None
    k: int | None = None
    dtype: str = _DTYPE
    device: str | None = None


def main(options: ReportOptions) -> list[Path]:
    """Draws and prints the report; returns the paths of the pictures.

    Raises:
      ValueError: if there is nothing to draw, or an option names something that was not measured.
    """
    rows = newest(read_all(options.rows))
    if not rows:
        raise ValueError(f"report: no measurements in {options.rows}; run the benchmarks first")
    check(rows, options)
    rows = [row for row in rows if options.device in (None, row["device"])]
    pictures = []
    for platform in dict.fromkeys(row["platform"] for row in rows):
        shown = select([row for row in rows if row["platform"] == platform], options)
        if not shown:
            continue
        path = (options.images or options.pictures) / f"speed_{platform}.png"
        draw(shown, path)
        pictures.append(path)
        columns = [column for column in _COLUMNS if any(column.text(r) != "-" for r in shown)]
        print(
            f"{_caption(shown[0])}\n\n{markdown(shown, columns)}\n\n{as_shown(path.absolute())}\n"
        )
    for platform, run in last_scaling(options.rows).items():
        path = (options.images or options.pictures) / f"scaling_{platform}.png"
        scaling.draw(run, path)
        pictures.append(path)
        print(as_shown(path.absolute()))
    return pictures


def last_scaling(folder: Path) -> dict[str, list[Row]]:
    """The rows of the last run of ``experiments.benchmarks.scaling`` on each platform."""
    path = folder / _SCALING
    runs: dict[str, dict[str, list[Row]]] = {}
    for row in _by_date(read_rows(path) if path.exists() else []):
        runs.setdefault(row["platform"], {}).setdefault(row["date"], []).append(row)
    return {platform: list(of_dates.values())[-1] for platform, of_dates in runs.items()}


def read_all(folder: Path) -> list[Row]:
    """Rows of all ops, without scaling and break-even, which have other columns."""
    rows = (row for path in sorted(folder.glob("*.jsonl")) for row in read_rows(path))
    return [row for row in rows if "speedup_over_xla" in row]


def newest(rows: Iterable[Row]) -> list[Row]:
    """The newest row of each op, workload, direction and implementation on each device."""
    keys = ("platform", "device", "cpus", "op", "workload", "dim", "dtype", "direction", "k")
    latest = {tuple(row[key] for key in (*keys, "implementation")): row for row in _by_date(rows)}
    return list(latest.values())


def _by_date(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["date"])


def check(rows: Sequence[Row], options: ReportOptions) -> None:
    """Raises ValueError for an option that names something that no row has."""
    names = ("workload", "k", "dtype", "device")
    asked = ((name, getattr(options, name)) for name in names)
    for name, value in asked:
        measured = {row[name] for row in rows} - {None}
        if value is not None and value not in measured:
            expected = f"one that was measured: {', '.join(map(str, sorted(measured)))}"
            raise bad_input("report", f"--{name}", expected, value)


def select(rows: Sequence[Row], options: ReportOptions) -> list[Row]:
    """Rows of one platform's picture: its last device, one workload, one k, one dtype.

    If the default workload or k was not measured, the largest one is used instead; an option given
    by the user has no substitute. For linear ops both directions are shown separately, without
    their sum.
    """
    last = _by_date(rows)[-1]
    rows = [row for row in rows if (row["device"], row["cpus"]) == (last["device"], last["cpus"])]
    rows = [row for row in rows if row["dtype"] == options.dtype]
    by_size = [row["workload"] for row in sorted(rows, key=lambda row: row["edges"] or 0)]
    wished = options.workload or _or_largest(HEADLINE[last["platform"]], by_size)
    rows = [row for row in rows if row["workload"] == wished and row["ms"] is not None]
    k = options.k or _or_largest(_K, sorted({row["k"] for row in rows} - {None}))
    apart = {row["op"] for row in rows if row["direction"] == "backward"}
    shown = [
        row
        for row in rows
        if row["k"] in (k, None)
        and not (row["op"] in apart and row["direction"] == "forward+backward")
    ]
    return sorted(shown, key=lambda row: _ORDER.index(row["op"]))


def _or_largest(usual: Any, measured: Sequence[Any]) -> Any:
    """The usual value if it was measured, else the last measured one; None if there is none."""
    return usual if usual in measured else next(reversed(measured), None)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Two panels of bars for each op and direction: ms with quartiles, and fractions of a copy.

    All bars have the same thickness, so that the text beside each has its own line.
    """
    groups = list(dict.fromkeys((row["op"], row["direction"]) for row in rows))
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    of_groups = [[r for r in rows if (r["op"], r["direction"]) == group] for group in groups]
    peers = sum(_peer_of(bars) is not None for bars in of_groups)
    height = 1.6 + _INCHES * (len(rows) + peers + _GAP * len(groups))
    figure = Figure(figsize=(11, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    times, fractions = figure.subplots(1, 2, sharey=True)
    at, middles = 0.0, []
    for bars in of_groups:
        middles.append(at + (len(bars) - 1) / 2)
        for place, row in enumerate(bars):
            _draw_bar(times, fractions, at + place, row)
        at += len(bars)
        peer = _peer_of(bars)
        if peer is not None:
            _draw_peer(times, at, *peer)
            at += 1
        at += _GAP
    times.set_yticks(middles, [f"{op}\n{direction}" for op, direction in groups])
    times.set_ylim(at - _GAP, -1)
    times.set_xscale("log")
    times.set_xlabel("time of a call (ms); in brackets the speed-up over xla")
    times.margins(x=0.22)
    fractions.axvline(1, color="0.3", linestyle="--", linewidth=1)
    fractions.set_xlabel("speed in bytes, as a fraction of an element-wise pass")
    _finish(figure, (times, fractions), names, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


# Inches that a bar and its text need, and the space between groups, in bars.
_INCHES, _GAP = 0.19, 1.0
_TEXT = {"textcoords": "offset points", "va": "center", "fontsize": 7}


def _draw_bar(times: Axes, fractions: Axes, at: float, row: Row) -> None:
    """Draws one implementation of one op and direction in both panels."""
    color = shade(row["implementation"])
    times.barh(at, row["ms"], 1, color=color, edgecolor="white", linewidth=0.5)
    fractions.barh(at, row["fraction_of_copy"], 1, color=color, edgecolor="white", linewidth=0.5)
    low, high = row.get("low_ms") or row["ms"], row.get("high_ms") or row["ms"]
    if low < high:
        error = [[row["ms"] - low], [high - row["ms"]]]
        times.errorbar(row["ms"], at, xerr=error, color="0.2", elinewidth=0.8, capsize=1.5)
    times.annotate(_bar_text(row), (high, at), (4, 0), **_TEXT)


def _peer_of(rows: Sequence[Row]) -> tuple[str, float] | None:
    """The library that was measured once for the first row for which there is one, and its ms."""
    return next((peer for row in rows if (peer := published(row)) is not None), None)


def _draw_peer(times: Axes, at: float, name: str, ms: float) -> None:
    """Draws a library that was measured once, in another run: a mark instead of a bar."""
    times.plot(ms, at, "D", color="0.2", markerfacecolor="white", markersize=5)
    times.annotate(f"{name} {ms:.4g}, once measured", (ms, at), (7, 0), **_TEXT)


def _bar_text(row: Row) -> str:
    text = None if row["implementation"] == "xla" else ratio_text(row, "xla")
    if text is None:
        return f"{row['ms']:.3g}"
    return f"{row['ms']:.3g}  ({text if text[-1].isalpha() else _short(text)})"


def _short(text: str) -> str:
    """Formats a ratio with two significant digits: ``27×``, ``3.3×``, ``0.09×``."""
    return f"{float(text):.2g}×"


def _finish(
    figure: Figure, panels: Sequence[Axes], names: Sequence[str], rows: Sequence[Row]
) -> None:
    """Adds title, grid, and one legend for both panels below them."""
    for axes in panels:
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    of_shades: dict[str, list[str]] = {}
    for name in names:
        of_shades.setdefault(shade(name), []).append(name)
    patches = [Patch(color=color, label=", ".join(same)) for color, same in of_shades.items()]
    dashes = Line2D([], [], color="0.3", linestyle="--", linewidth=1, label="element-wise pass")
    once: dict[str, Any] = {"marker": "D", "markerfacecolor": "white", "markersize": 5}
    marks = Line2D([], [], color="0.2", linestyle="", label="once measured, in another run", **once)
    has_peers = _peer_of(rows) is not None
    handles: list[Artist] = [*patches, dashes, *([marks] if has_peers else [])]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize="small"
    )
    figure.suptitle(_caption(rows[0]), fontsize="medium")


def _caption(row: Row) -> str:
    cores = f", {row['cpus']} cores" if row["platform"] == "cpu" else ""
    return (
        f"Ops on {row['workload']}: {row['nodes']:,} nodes, width {row['dim']}, {row['dtype']}; "
        f"{row['device']}{cores}, jax {row['jax']}, {row['date'][:10]}"
    )


if __name__ == "__main__":
    command(main, ReportOptions, __doc__)
