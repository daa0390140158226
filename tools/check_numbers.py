"""Checks that the numbers in tables of the docs are in committed result rows; see `make lint`.

A comment beside a table names the files of rows and a filter for each cell::

    <!-- measured
    rows: spmm.jsonl device="NVIDIA H200" workload=reddit
    column: implementation=xla value=ms
    column: implementation=ffi value=ms
    line: direction=forward
    line: direction=backward
    -->

    | op | XLA | jaxgnn |
    |---|---:|---:|
    | forward | 22.2 ms | 12.4 ms |
    | backward | 69.0 ms | 12.4 ms |

There is a `column:` for each column after the first (`column: -` for one of words) and a `line:`
for each line of the table (or none). A cell is checked by the rows that fit its line, its column
and `rows:`. Text has `number:` lines instead, one for each number with a unit in the paragraph.

In a filter `a|b` stands for either, `null` for a missing value, and a date for its beginning.
`value` names fields, one for each number in the cell: `ms`, `peak_mib/1024`, `mean(test)*100`,
`std(test)*100`; a number may be missing, as `–`. A number must be one of the selected rows'
values, rounded to the digits that are shown. With filters that begin with `over.`, such as
`over.implementation=xla`, it is a ratio: the value of a row that fits these instead, over the value
of the row.

Files are those of `experiments/benchmarks/results`, or paths from the root. A row must have a
`device`; one with a `source` (once measured, or published) needs that word in its line or column.
In the README and in pages named `benchmarks.md` each table of numbers needs such a comment. Rows
since `FIRST_WITH_ORIGIN` must also have a commit, versions and flags. ::

    python tools/check_numbers.py             # README.md and docs/
    python tools/check_numbers.py docs/x.md   # or these pages

Each finding is a line `path:line: text`. The exit status is 1 if there are any.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "benchmarks" / "results"
FIRST_WITH_ORIGIN = "2026-11-28"
ORIGIN = ("device", "commit", "jax", "jaxlib", "jaxgnn", "xla_flags")
# Pages on which each table of numbers needs a comment.
STRICT = ("README.md", "benchmarks.md")

Row = Mapping[str, Any]
Filter = dict[str, str]

_NUMBER = re.compile(r"(?<![\w.,^])\d[\d,]*+(?:\.\d++)?(?!\w)")
_DASH = "–"
_NUMBER_OR_DASH = re.compile(f"{_DASH}|{_NUMBER.pattern}")
_WITH_UNIT = re.compile(r"(?<![\w.,^])(\d[\d,]*+(?:\.\d++)?) (?:ms|ns|s|GiB|MiB|%|points)(?!\w)")
_CODE = re.compile(r"`[^`]*`")
_OVER = "over."
_VALUE = re.compile(r"(?:(mean|std)\(([\w@-]+)\)|([\w@-]+))(?:([*/])(-?[\d.]+))?")


@dataclass
class Marker:
    """A comment `<!-- measured … -->`.

    Attributes:
      line: number of its first line.
      files: files of rows.
      common: filter of all cells.
      columns: filter of each column after the first; None for one that is not checked.
      lines: filter of each line of the table.
      numbers: filter of each number of a paragraph.
    """

    line: int
    files: list[str] = field(default_factory=list)
    common: Filter = field(default_factory=dict)
    columns: list[Filter | None] = field(default_factory=list)
    lines: list[Filter] = field(default_factory=list)
    numbers: list[Filter] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Prints all findings; returns the exit status."""
    pages = [Path(a).resolve() for a in arguments]
    lines = [] if pages else list(origin_findings())
    pages = pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        text = page.read_text(encoding="utf-8")
        lines += [f"{shown}:{n}: {t}" for n, t in findings(text, strict=page.name in STRICT)]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


def origin_findings(root: Path = ROOT) -> Iterator[str]:
    """Yields a finding for each new row that does not name its card, commit, versions and flags."""
    for path in sorted(root.glob("experiments/*/results/*.jsonl")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            row = json.loads(text)
            is_new = row.get("date", "") >= FIRST_WITH_ORIGIN and "source" not in row
            lacking = [key for key in ORIGIN if key not in row]
            if is_new and lacking:
                yield f"{path.name}:{number}: the row has no {', '.join(lacking)}"


def findings(text: str, *, strict: bool) -> Iterator[tuple[int, str]]:
    """Yields line and text of each finding of a page.

    Args:
      text: Markdown.
      strict: whether a table of numbers without a comment is a finding.
    """
    lines = text.splitlines()
    marker: Marker | None = None
    at = 0
    while at < len(lines):
        start = at
        if lines[at].startswith("```"):
            at = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("```")), at) + 1
        elif lines[at].startswith("<!-- measured"):
            at = next((i for i in range(at, len(lines)) if "-->" in lines[i]), at) + 1
            try:
                marker = parse_marker(lines[start + 1 : at - 1], start + 1)
            except ValueError as error:
                yield start + 1, str(error)
        elif not lines[at].strip():
            at += 1
        else:
            at = next((i for i in range(at, len(lines)) if not lines[i].strip()), len(lines))
            yield from _block_findings(lines[start:at], start + 1, marker, strict)
            marker = None


def parse_marker(lines: Sequence[str], number: int) -> Marker:
    """Reads the lines between the first and the last one of a comment.

    Raises:
      ValueError: if a line has another form.
    """
    marker = Marker(number)
    for line in lines:
        kind, _, rest = line.partition(":")
        words = shlex.split(rest)
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        for name in settings.get("value", "ms").split(","):
            if not _VALUE.fullmatch(name):
                raise ValueError(f"value: expected field, mean(field) or std(field), got {name!r}")
        if kind == "rows":
            marker.files += [word for word in words if "=" not in word]
            marker.common |= settings
        elif kind == "column":
            marker.columns.append(None if words == ["-"] else settings)
        elif kind == "line":
            marker.lines.append(settings)
        elif kind == "number":
            marker.numbers.append(settings)
        else:
            raise ValueError(f"expected rows:, column:, line: or number:, got {line!r}")
    return marker


def _block_findings(
    block: Sequence[str], number: int, marker: Marker | None, strict: bool
) -> Iterator[tuple[int, str]]:
    """Yields the findings of a table or a paragraph."""
    is_table = len(block) > 2 and all(line.startswith("|") for line in block)
    if is_table:
        cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block]
        if marker is not None:
            yield from _table_findings(cells, number, marker)
        elif strict and any(_NUMBER.match(cell) for line in cells[2:] for cell in line):
            yield number, "a table of numbers needs a comment <!-- measured … --> before it"
    elif marker is not None:
        yield from _text_findings(" ".join(block), number, marker)


def _table_findings(
    cells: Sequence[Sequence[str]], number: int, marker: Marker
) -> Iterator[tuple[int, str]]:
    header, body = cells[0], cells[2:]
    if len(marker.columns) != len(header) - 1:
        yield number, f"{len(header) - 1} columns need as many column:, got {len(marker.columns)}"
        return
    if len(marker.lines) not in (0, len(body)):
        yield number, f"{len(body)} lines need as many line:, or none, got {len(marker.lines)}"
        return
    for at, line in enumerate(body):
        of_line = marker.lines[at] if marker.lines else {}
        for title, cell, column in zip(header[1:], line[1:], marker.columns, strict=True):
            shown = [] if column is None else _NUMBER_OR_DASH.findall(_CODE.sub("", cell))
            if any(text != _DASH for text in shown):
                conditions = (marker.common, column or {}, of_line)
                words = " ".join((title, cell, line[0]))
                for text in _mismatches(shown, marker.files, conditions, words):
                    yield number + 2 + at, f"{line[0]}, {title}: {text}"


def _text_findings(text: str, number: int, marker: Marker) -> Iterator[tuple[int, str]]:
    shown = _WITH_UNIT.findall(text)
    if len(shown) != len(marker.numbers):
        yield number, f"{len(shown)} numbers with a unit need as many number:, got {shown}"
        return
    for one, of_number in zip(shown, marker.numbers, strict=True):
        for finding in _mismatches([one], marker.files, (marker.common, of_number), text):
            yield number, finding


def _mismatches(
    shown: Sequence[str], files: Sequence[str], conditions: Sequence[Filter], words: str
) -> Iterator[str]:
    """Yields what is wrong with the numbers of one cell.

    Args:
      shown: the numbers, as they are written.
      files: files of rows.
      conditions: filters that a row must fit; the last ``value`` counts.
      words: text of the cell, its column and its line.
    """
    values = next((c["value"] for c in reversed(conditions) if "value" in c), "ms").split(",")
    if len(shown) != len(values):
        yield f"expected {len(values)} numbers ({', '.join(values)}), got {' '.join(shown)}"
        return
    rows = _selected(files, conditions)
    if not rows:
        yield f"no row of {' '.join(files)} has {_text(conditions)}"
        return
    others = _others(files, conditions)
    for number, name in zip(shown, values, strict=True):
        if number == _DASH:
            continue
        matches = [(row, value) for row in rows for value in _values(row, name, others)]
        equal = [row for row, value in matches if _rounds_to(value, number)]
        if not equal:
            measured = ", ".join(sorted({f"{value:.6g}" for _, value in matches}))
            yield f"{number} is in no row: {name} is {measured or 'missing'} ({_text(conditions)})"
        elif not any(row.get("device") for row in equal):
            yield f"{number} is in rows without a device"
        else:
            sources = {row["source"] for row in [*equal, *(others or ())] if "source" in row}
            for source in sorted(source for source in sources if source not in words):
                yield f"{number} is {source}: the line or the column must say so"


def _selected(files: Sequence[str], conditions: Sequence[Filter]) -> list[Row]:
    rows = (row for name in files for row in _read(name))
    return [row for row in rows if all(_fits(row, filter_) for filter_ in conditions)]


def _others(files: Sequence[str], conditions: Sequence[Filter]) -> list[Row] | None:
    """The rows whose values are divided by those of a row; None for a number that is no ratio."""
    theirs = {
        key.removeprefix(_OVER): wanted
        for filter_ in conditions
        for key, wanted in filter_.items()
        if key.startswith(_OVER)
    }
    kept = [{k: v for k, v in filter_.items() if k not in theirs} for filter_ in conditions]
    return _selected(files, [*kept, theirs]) if theirs else None


def _values(row: Row, name: str, others: Sequence[Row] | None) -> Iterator[float]:
    """Yields the value of a field of a row, or its ratios to those of other rows."""
    value = _value(row, name)
    if value is None:
        return
    if others is None:
        yield value
        return
    for other in others:
        theirs = _value(other, name)
        if theirs is not None:
            yield theirs / value


@functools.cache
def _read(name: str) -> list[Row]:
    path = ROOT / name if "/" in name else RESULTS / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _fits(row: Row, filter_: Filter) -> bool:
    for key, wanted in filter_.items():
        if key == "value" or key.startswith(_OVER):
            continue
        value = row.get(key)
        text = "null" if value is None else str(value)
        if not any(text == w or (key == "date" and text.startswith(w)) for w in wanted.split("|")):
            return False
    return True


def _value(row: Row, name: str) -> float | None:
    """The value of a field of a row, or of a statistic of a list; None if it is missing."""
    match = _VALUE.fullmatch(name)
    assert match is not None  # parse_marker has checked it
    of_list, listed, key, operator, factor = match.groups()
    value = row.get(listed or key)
    if value is None:
        return None
    if of_list:
        value = statistics.fmean(value) if of_list == "mean" else statistics.stdev(value)
    scale = 1.0 if factor is None else float(factor)
    return float(value) / scale if operator == "/" else float(value) * scale


def _rounds_to(value: float, shown: str) -> bool:
    """Returns whether a number is a value, rounded to the digits that are shown."""
    text = shown.replace(",", "")
    decimals = len(text.partition(".")[2])
    return abs(value - float(text)) <= 0.5 * 10**-decimals * (1 + 1e-6)


def _text(conditions: Sequence[Filter]) -> str:
    pairs = (pair for filter_ in conditions for pair in filter_.items() if pair[0] != "value")
    return " ".join(f"{key}={wanted}" for key, wanted in pairs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
