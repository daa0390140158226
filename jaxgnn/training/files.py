"""Files of a run: small ones, replaced in one step, and rows in JSON lines.

Errors name the broken file. Rows are one JSON object a line, appended, and readable after a kill
during a write.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxgnn._errors import require_regular_file

Row = dict[str, float]


def printable(text: str) -> str:
    r"""Writes what UTF-8 can not encode as escapes, such as ``\xff``.

    Python holds bytes of a command line or a file's name that are no UTF-8 as lone surrogates.
    """
    escaped = re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", text)
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def write_text(path: Path, text: str) -> None:
    """Replaces the file at ``path`` by ``text`` in UTF-8, if ``printable``, in one step."""
    write_bytes(path, printable(text).encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces the file at ``path`` by ``data``, in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with _naming(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Names a file in errors of the system that do not, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def write_json(path: Path, value: Any) -> None:
    """Replaces the file at ``path`` by ``value`` as indented JSON, in one step."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def parse_json[T](text: str, where: str, kind: type[T], what: str) -> T:
    """Parses ``text`` as JSON; ``what`` describes the type, ``where`` names the file for errors.

    Raises:
      ValueError: The text is not JSON, or its value is not of type ``kind``.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise ValueError(f"{where}: not JSON: {_start(text)}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{where}: expected {what}, got {_start(text)}")
    return value


def read_json[T](path: Path, kind: type[T], what: str) -> T:
    """Reads the JSON file at ``path``; raises ValueError unless its value is of type ``kind``."""
    require_regular_file(path, what)
    return parse_json(path.read_text(encoding="utf-8", errors="replace"), str(path), kind, what)


def read_if_there[T](path: Path, kind: type[T], what: str) -> T:
    """Reads the JSON file at ``path`` like ``read_json``; an empty value if there is no file."""
    return read_json(path, kind, what) if path.exists() else kind()


def _start(text: str) -> str:
    return repr(text[:80]) if text.strip() else "an empty file"


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
    require_regular_file(path, "a JSON object on each line")
    # The text after the last newline is empty, or an incomplete line.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    rows = [
        parse_json(line, f"{path}, line {number}", dict, "an object")
        for number, line in enumerate(lines, start=1)
    ]
    return [{n: math.nan if value is None else value for n, value in row.items()} for row in rows]


def read_steps(path: str | os.PathLike[str]) -> list[Row]:
    """Reads the rows of a run with ``read_rows``; each must have a step, and only numbers.

    Raises:
      ValueError: A row has no step, or a value that is not a number.
    """
    rows = read_rows(path)
    for number, row in enumerate(rows, start=1):
        where = f"{path}, line {number}: expected"
        for name, value in row.items():
            if not isinstance(value, int | float):
                raise ValueError(f"{where} a number for {name!r}, got {value!r:.80}")
        step = row.get("step")
        if not isinstance(step, int) or step < 1:
            raise ValueError(f"{where} a 'step' of at least 1, got {step!r:.80}")
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
            with _naming(self._file), self._file.open("a", encoding="utf-8") as file:
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
