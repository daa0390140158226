"""Rows of a benchmark: printed as a table, stored as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks._origin import origin
from jaxgnn._errors import bad_input, require_regular_file
from jaxgnn.training.files import parse_json

Row = dict[str, Any]

# Results stored with the code: rows of published tables, and pictures drawn from them.
RESULTS = Path(__file__).parent / "results"
PICTURES = Path(__file__).parents[2] / "docs" / "images"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Folders to which a run writes its measurements.

    Attributes:
      out: folder of the JSONL files and pictures; by default ``runs/benchmarks``.
      commit_results: add to the results that are stored with the code, in
        ``experiments/benchmarks/results``, and redraw the pictures of the docs.
    """

    out: Path | None = None
    commit_results: bool = False

    def __post_init__(self):
        if self.commit_results and self.out is not None:
            raise bad_input("benchmarks", "--commit-results", "left out where --out is", self.out)

    @property
    def rows(self) -> Path:
        """The folder of the JSONL files."""
        return RESULTS if self.commit_results else self.out or Path("runs/benchmarks")

    @property
    def pictures(self) -> Path:
        """The folder of the pictures."""
        return PICTURES if self.commit_results else self.rows


@dataclass(frozen=True)
class Column:
    """One column of a printed table.

    Attributes:
      title: heading of the column.
      key: key of the value in a row, or a function that computes it from the row.
      width: characters; the first columns are left-aligned.
      format: format specification of a number, for Python's ``format``.
    """

    title: str
    key: str | Callable[[Row], Any]
    width: int
    format: str = ""

    def text(self, row: Row) -> str:
        """The text of the column for a row; a dash if the row lacks the value."""
        value = self.key(row) if callable(self.key) else row.get(self.key)
        return "-" if value is None else format(value, self.format)


def header(columns: Sequence[Column]) -> str:
    """The first line of a table."""
    return _line((column.title for column in columns), columns)


def line(row: Row, columns: Sequence[Column]) -> str:
    """One row of a table; missing values are dashes."""
    return _line((column.text(row) for column in columns), columns)


def _line(texts: Iterable[str], columns: Sequence[Column]) -> str:
    cells = (
        text.rjust(column.width) if column.format else text.ljust(column.width)
        for text, column in zip(texts, columns, strict=True)
    )
    return "  ".join(cells).rstrip()


def markdown(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    """The rows as a Markdown table, with the titles of the columns above."""
    lines = [
        [column.title for column in columns],
        ["---:" if column.format else "---" for column in columns],
        *([column.text(row) for column in columns] for row in rows),
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Appends one JSON object a line, with its ``origin``; creates the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(origin() | row, allow_nan=False) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Reads the rows that ``append_rows`` wrote.

    Raises:
      ValueError: naming an invalid line.
    """
    require_regular_file(path, "rows of measurements")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [
        parse_json(text, f"{path}, line {number}", dict, "an object")
        for number, text in enumerate(lines, start=1)
    ]
