"""A page about a run: its results, pictures, configuration, devices and cost."""

import base64
import json
import math
import mimetypes
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._html import writer
from jaxgnn._html.writer import Html, cell, element, joined, paragraph

from ._table import Confusion, Table
from .files import write_text
from .run import DEVICE, HOST, Record, Start, read_record

_COMMIT_LETTERS = 10
# A larger matrix is unreadable, and takes megabytes. The most frequent confusions over all classes
# are always listed.
_LARGEST_MATRIX = 64
_MOST_CONFUSED = 10


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
        paragraph(_where_and_when(record)),
        writer.command(command),
        writer.section("Results", map(table_part, tables)),
        writer.section("Curves", map(picture_part, drawn)),
        writer.section("Classes", [] if confusion is None else [_confusion_part(confusion)]),
        writer.section("Metrics", [table_part(_metrics_table(record))] if record.rows else []),
        writer.section("Time and memory", [writer.pairs(costs(record))]),
        writer.section("Configuration", configuration(record.config)),
        writer.section("Versions", [table_part(_starts_table(record))] if record.starts else []),
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
    return [writer.pairs(given), paragraph(f"Without a value: {others}." if others else "")]


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


def table_part(content: Table) -> Html:
    """Returns a table with its title and note, which scrolls on narrow pages."""
    kinds = ["number" if numeric else "text" for numeric in content.is_numeric()]
    head = [
        cell(name, kind=kind, scope="col")
        for name, kind in zip(content.columns, kinds, strict=True)
    ]
    rows = [
        [
            cell(text, kind=kind, scope=None if place else "row")
            for place, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        ]
        for texts in content.cells()
    ]
    return joined([writer.table(rows, head, title=content.title), paragraph(content.note)])


def _confusion_part(content: Confusion) -> Html:
    """Returns the matrix of a classifier with shaded cells, its scores, and its top confusions."""
    names, matrix = list(content.class_names), content.matrix
    parts = [table_part(content.table()), table_part(_most_confused(names, matrix))]
    if len(names) > _LARGEST_MATRIX:
        parts.append(paragraph(f"The matrix of {len(names)} classes is too large to be shown."))
        return joined(parts, "\n")
    head = [element("th", name, scope="col") for name in ("class \\ prediction", *names)]
    rows = [
        [element("th", name, scope="row"), *_shaded(index, row)]
        for index, (name, row) in enumerate(zip(names, matrix, strict=True))
    ]
    title = "Confusion matrix: examples of the row's class that were given the column's"
    return joined([writer.table(rows, head, title=title, class_="matrix"), *parts], "\n")


def _shaded(index: int, row: np.ndarray) -> list[Html]:
    """Returns the cells of a row: right predictions in one colour, wrong ones in another."""
    cells = []
    for place, count in enumerate(row.tolist()):
        # The square root of the share of the row keeps small counts visible.
        part = 0.55 * (count / max(int(row.sum()), 1)) ** 0.5
        kind = "shade" if place == index else "wrong"
        style = f"background: rgba(var(--{kind}), {part:.3f})" if count else None
        cells.append(element("td", str(count), style=style, class_=None if count else "zero"))
    return cells


def _most_confused(names: list[str], matrix: np.ndarray) -> Table:
    wrong = matrix - np.diag(np.diag(matrix))
    rows = []
    for place in np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSED]:
        true, predicted = divmod(int(place), len(names))
        count = int(wrong[true, predicted])
        if count > 0:
            share = f"{100 * count / matrix[true].sum():.1f}"
            rows.append((names[true], names[predicted], count, share))
    return Table(
        title="What is confused most",
        columns=("class", "taken for", "examples", "% of the class"),
        rows=tuple(rows),
        note="" if rows else "Nothing: every prediction is right.",
    )


def picture_part(path: Path) -> Html:
    """Returns a picture, embedded in the page; raises ValueError unless browsers support it."""
    kind, _ = mimetypes.guess_type(path.name)
    if kind not in ("image/png", "image/jpeg", "image/gif", "image/svg+xml", "image/webp"):
        raise bad_input("write_report", "pictures", "PNG, JPEG, GIF, SVG or WebP files", path)
    if not path.is_file():
        raise bad_input("write_report", "pictures", "files that exist", path)
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return writer.figure(element("img", alt=path.stem, src=f"data:{kind};base64,{data}"))
