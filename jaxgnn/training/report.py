"""A page about a run: its results, configuration, devices and cost."""

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._html import writer

from . import page
from ._table import Confusion, Table
from .files import write_text
from .run import DEVICE, HOST, Record, Start, read_record

_COMMIT_LETTERS = 10


def write_report(
    folder: str | os.PathLike[str],
    *,
    title: str,
    command: str,
    tables: Sequence[Table] = (),
    pictures: Sequence[str | os.PathLike[str]] = (),
    confusion: Confusion | None = None,
) -> Path:
    """Writes ``report.html`` about a run, one file that needs no network.

    The page has the command, the tables, the curves and pictures, the confusion matrix with the
    scores of each class, the metrics, time and memory, the configuration, and the versions and
    devices of each start. Parts that the folder lacks are omitted.

    Args:
      folder: The folder of the run, or another one to which the tables and pictures belong. Its
        ``config.json``, ``versions.json``, ``metrics.jsonl``, ``timing.jsonl``, ``summary.json``
        and ``curves.png`` are read.
      title: Title of the page: the model and its data.
      command: The command line that repeats the run.
      tables: Results, with baselines, in reading order.
      pictures: PNG, JPEG, GIF, SVG or WebP files, which are embedded in the page.
      confusion: The predictions of the model whose results are shown.

    Returns:
      The path of the page.

    Raises:
      ValueError: There is no such folder, a file of it is damaged, or a picture is missing or
        invalid.
    """
    record = read_record(folder)
    drawn = [Path(picture) for picture in pictures]
    curves = record.folder / "curves.png"
    if curves.exists() and curves.resolve() not in {picture.resolve() for picture in drawn}:
        drawn.insert(0, curves)
    parts = [
        writer.paragraph(_where_and_when(record)),
        writer.command(command),
        writer.section("Results", map(page.table, tables)),
        writer.section("Curves", map(page.picture, drawn)),
        writer.section("Classes", [] if confusion is None else [page.confusion(confusion)]),
        writer.section("Metrics", [page.table(_metrics_table(record))] if record.rows else []),
        writer.section("Time and memory", [writer.pairs(costs(record))]),
        writer.section("Configuration", configuration(record.config)),
        writer.section("Versions", [page.table(_starts_table(record))] if record.starts else []),
    ]
    path = record.folder / "report.html"
    write_text(path, writer.page(title, filter(None, parts)))
    return path


def _starts_table(record: Record) -> Table:
    packages = list({name: None for start in record.starts for name in start.packages})
    return Table(
        title="Starts of the run",
        columns=("time", "devices", "Python", *packages, "commit"),
        rows=tuple(
            (
                _time(start),
                _devices(start),
                start.python,
                *(str(start.packages.get(name) or "–") for name in packages),
                _commit(start),
            )
            for start in record.starts
        ),
    )


def _time(start: Start) -> str:
    return f"{start.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _devices(start: Start) -> str:
    """Kinds of devices with their numbers: "2 × NVIDIA H100"."""
    counts = Counter(start.devices)
    return ", ".join(kind if n == 1 else f"{n} × {kind}" for kind, n in counts.items()) or "–"


def _commit(start: Start) -> str:
    if start.commit is None:
        return "–"
    return start.commit[:_COMMIT_LETTERS] + (", with changes" if start.changed else "")


def _where_and_when(record: Record) -> str:
    """One line below the title: time, devices and commit."""
    if not record.starts:
        return ""
    first = record.starts[0]
    words = [_time(first), _devices(first)]
    if first.commit is not None:
        words.append(f"commit {_commit(first)}")
    if len(record.starts) > 1:
        words.append(f"started {len(record.starts)} times")
    return " · ".join(words)


def configuration(config: Mapping[str, Any]) -> list[str]:
    """The options that have a value, and the names of the others, as parts of a page."""
    given = {name: option_text(value) for name, value in config.items() if value is not None}
    others = ", ".join(name for name in config if name not in given)
    return [writer.pairs(given), writer.paragraph(f"Without a value: {others}." if others else "")]


def option_text(value: Any) -> str:
    """Text of an option's value, without quotes or brackets; a dash for None and empty lists."""
    if isinstance(value, list):
        return " ".join(map(option_text, value)) or "–"
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value)


def _metrics_table(record: Record) -> Table:
    """The metrics of the last step and, if the run has one, of the best evaluation."""
    shown = {f"last, step {int(record.rows[-1]['step'])}": record.rows[-1]}
    note = ""
    best = {int(row["step"]): row for row in record.rows}.get(record.best_step or 0)
    if best is not None:
        shown = {f"best, step {record.best_step}": best} | shown
        extremes = {"max": "largest", "min": "smallest"}
        extreme = extremes.get(str(record.summary.get("select_mode")), "best")
        note = f"The best step is that of the {extreme} {record.summary.get('select')}."
    names = {name: None for row in shown.values() for name in row if name != "step"}
    return Table(
        title="",
        columns=("metric", *shown),
        rows=tuple((name, *(row.get(name, math.nan) for row in shown.values())) for name in names),
        note=note,
    )


def costs(record: Record) -> dict[str, str]:
    """Time and memory of a run, as text; values that were not recorded are omitted."""
    found = {}
    times: list[float] = []  # of each step; those that were waited for together have their mean
    last = 0
    for row in record.timing:
        if "compile_seconds" in row:
            found.setdefault("first step, with compilation", f"{row['compile_seconds']:.2f} s")
        if "ms_per_step" in row:
            times += [row["ms_per_step"]] * max(1, int(row["step"]) - last)
        last = int(row["step"])
    if times:
        found["step, median"] = f"{statistics.median(times):.3g} ms"
        low, high = np.percentile(times, [10, 90])
        found["step, 10 % to 90 %"] = f"{low:.3g} to {high:.3g} ms"
        found["steps that were timed"] = str(len(times))
    for name, key in {"host": HOST, "device": DEVICE}.items():
        if isinstance(record.summary.get(key), int):
            found[f"peak memory, {name}"] = f"{record.summary[key] / 2**20:,.0f} MiB"
    return found
