"""JSON lines: one object a row, append-only, readable after a kill during a write."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ._files import parse_json, write_text

Row = dict[str, float]


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Reads the rows of a JSONL file, such as a run's ``metrics.jsonl``.

    Args:
      path: The file. A missing file has no rows.

    Returns:
      One dict a row, in order. ``null`` is read as NaN, ``1e999`` as infinity. A last line without
      a newline is ignored: the process died while it wrote the line.

    Raises:
      ValueError: A complete line is not a JSON object.
    """
    path = Path(path)
    if not path.exists():
        return []
    # The text after the last newline is empty, or an incomplete line.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    return [_parse(path, number, line) for number, line in enumerate(lines, start=1)]


def read_steps(path: str | os.PathLike[str]) -> list[Row]:
    """Reads the rows of a run with ``read_rows``; each must have a step, and only numbers.

    Raises:
      ValueError: A row has no step, or a value that is not a number.
    """
    rows = read_rows(path)
    for number, row in enumerate(rows, start=1):
        _check(Path(path), number, row)
    return rows


class RowLog:
    """An append-only list of rows, kept in memory and, if it has a path, in a JSONL file.

    Args:
      path: The file, or None to keep the rows only in memory. Existing rows are read.
      writes: Whether changes are written to the file; False in a process that trains together
        with another one, which writes it.

    Raises:
      ValueError: An existing row has no step, or a value that is not a number.
    """

    def __init__(self, path: Path | None, *, writes: bool = True):
        self.path = path
        self._file = path if writes else None
        self.rows: list[Row] = [] if path is None else read_steps(path)

    def append(self, rows: Iterable[Row]) -> None:
        """Adds rows and writes them to the operating system, so that a kill loses none of them."""
        rows = list(rows)
        self.rows += rows
        if self._file is not None and rows:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("".join(map(format_row, rows)))

    def truncate(self, last_step: int) -> None:
        """Drops the rows after ``last_step``, and any incomplete line, in one atomic step."""
        self.rows = [row for row in self.rows if row["step"] <= last_step]
        if self._file is not None and self._file.exists():
            write_text(self._file, "".join(map(format_row, self.rows)))


def format_row(row: Mapping[str, float]) -> str:
    """Formats a row as a line."""
    members = (f"{json.dumps(name)}: {_number(value)}" for name, value in row.items())
    return "{" + ", ".join(members) + "}\n"


def _number(value: float) -> str:
    # JSON has no NaN or infinity, but readers round too large numbers to infinity.
    if math.isnan(value):
        return "null"
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return json.dumps(value)


def _parse(path: Path, number: int, line: str) -> Row:
    row = parse_json(line, f"{path}, line {number}", dict, "an object")
    return {name: math.nan if value is None else value for name, value in row.items()}


def _check(path: Path, number: int, row: Mapping[str, object]) -> None:
    """Raises unless a row has only numbers, and a step among them."""
    where = f"{path}, line {number}: expected"
    for name, value in row.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{where} a number for {name!r}, got {value!r:.80}")
    step = row.get("step")
    if not isinstance(step, int) or step < 1:
        raise ValueError(f"{where} a 'step' of at least 1, got {step!r:.80}")
