"""Tables of text in common forms: with or without a header, comments and quotes."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxgnn.datasets.formats.file_errors import BadFileError, bad_file, naming
from jaxgnn.datasets.formats.files import read_text

_COMMENTS = ("#", "%")
_SEPARATORS = (",", "\t", ";")
_SEPARATED = (".csv", ".tsv")
_LONGEST_QUOTE = 80


@dataclass(frozen=True)
class TextTable:
    """The cells of a file, all rows of equal length."""

    path: Path
    header: tuple[str, ...]  # names of the columns, in lower case; empty if the first row is data
    rows: list[list[str]]  # without blanks around cells
    numbers: list[int]  # line of each row, counted from 1
    blank: int | None  # number of the first empty line between rows

    @property
    def columns(self) -> int:
        """Number of cells in each row."""
        return len(self.rows[0])

    def fault(self, row: int, column: int, expected: str) -> BadFileError:
        """Creates the error about a cell: file, line, column, expected and actual content."""
        cell = self.rows[row][column][:_LONGEST_QUOTE]
        where = f"line {self.numbers[row]}, column {column + 1}"
        return bad_file(self.path, f"{where}: expected {expected}, got {cell!r}")


def text_suffix(path: Path) -> str:
    """Returns the suffix of a file's name, without that of a compressed file."""
    return Path(path.name.removesuffix(".gz")).suffix


def read_table(
    path: Path,
    contents: str,
    is_header: Callable[[list[str], list[list[str]]], bool],
    *,
    columns: tuple[int, ...] | None = None,
) -> TextTable:
    """Reads a table of text, compressed if its name ends in .gz.

    Cells are separated by the first of commas, tabs or semicolons that the first row contains; by
    blanks if it has none of them, unless the file is named .csv or .tsv, or there is only one
    column. Cells may be quoted. Empty lines, and lines that begin with # or %, are ignored.

    Args:
      path: the file.
      contents: expected content of a row, for messages.
      is_header: whether the first row, given the others, names the columns.
      columns: the allowed numbers of columns; None for any.
    """
    with naming(path, "a table of text"):
        texts = [line.decode("utf-8") for line in read_text(path, contents).splitlines()]
    if texts:
        texts[0] = texts[0].removeprefix("\ufeff")  # Some programs write this mark.
    lines = [
        (number, text)
        for number, text in enumerate(texts, start=1)
        if text.strip() and not text.lstrip().startswith(_COMMENTS)
    ]
    if not lines:
        raise bad_file(path, f"expected {contents}, but the file has none: it is empty")
    # None stands for blanks, and an empty text for none, where a line is a cell.
    separator = next((candidate for candidate in _SEPARATORS if candidate in lines[0][1]), None)
    if separator is None and columns == (1,):
        separator = ""
    elif separator is None and text_suffix(path) in _SEPARATED:
        separator = ","
    rows = [_cells(path, number, text, separator) for number, text in lines]
    numbers = [number for number, _ in lines]
    expected = columns or (len(rows[0]),)
    for number, row in zip(numbers, rows, strict=True):
        if len(row) not in expected or len(row) != len(rows[0]):
            wanted = expected if len(rows[0]) not in expected else (len(rows[0]),)
            count = " or ".join(map(str, wanted)) + (" column" if wanted == (1,) else " columns")
            raise bad_file(path, f"line {number}: expected {count} ({contents}), got {len(row)}")
    header: tuple[str, ...] = ()
    if is_header(rows[0], rows[1:]):
        header, rows, numbers = tuple(cell.lower() for cell in rows[0]), rows[1:], numbers[1:]
    if not rows:
        raise bad_file(path, f"expected {contents}, but the file has only the names of columns")
    between = range(numbers[0], numbers[-1])
    blank = next((number for number in between if not texts[number - 1].strip()), None)
    return TextTable(path, header, rows, numbers, blank)


def _cells(path: Path, number: int, text: str, separator: str | None) -> list[str]:
    if separator is None:
        return text.split()
    if '"' not in text:
        cells = text.split(separator) if separator else [text]
        return [cell.strip() for cell in cells]
    try:
        (row,) = csv.reader([text], delimiter=separator or ",", skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise bad_file(path, f"line {number}: cannot be read as quoted cells: {error}") from None
    return [cell.strip() for cell in row]
