"""Reads files of common formats into numpy arrays, with errors that name the file."""

import codecs
import gzip
import io
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Never

import numpy as np

from jaxgnn.datasets.formats.file_errors import (
    BadFileError,
    bad_file,
    is_there,
    naming,
    require_file,
    require_room,
)

_INT32 = np.iinfo(np.int32)
_BLOCK = 1 << 20
# Bytes of a line in a list, besides its characters; and the characters that may end one.
_LINE = 48
_LINE_ENDS = (b"\n", b"\r", b"\v", b"\f", b"\x1c", b"\x1d", b"\x1e")
# Longest line of a table of numbers, a million columns: parsers take ten times its size.
_LONGEST_LINE = 4 << 20
# Python's own parsers also accept underscores (``1_0`` is 10) and the digits of other scripts.
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}", re.ASCII)
_REAL = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE
)


def whole_number(text: str) -> int:
    """Parses an integer; raises ValueError if the text is not one."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"expected a whole number, got {text[:80]!r}")
    return int(text)


def real_number(text: str) -> float:
    """Parses a number, including ``nan`` and ``inf``; raises ValueError if the text is not one."""
    if _REAL.fullmatch(text) is None:
        raise ValueError(f"expected a number, got {text[:80]!r}")
    return float(text)


def read_json(path: Path, contents: str) -> dict[str, Any]:
    """Reads a .json file whose top level is an object."""
    require_file(path, contents)
    with naming(path, "a JSON object"):
        value = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"its top level is a {type(value).__name__}")
        return value


def parse_json(text: str) -> Any:
    """Reads strictly standard JSON, without repeated keys or NaN.

    Raises:
      ValueError: the text is not standard JSON.
      RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"an object has the key {repeated[:80]!r} twice")
    return result


def _no_constant(text: str) -> Never:
    raise ValueError(f"{text} is no JSON")


def read_csv(
    path: Path,
    dtype: type,
    contents: str,
    columns: int | None = None,
    *,
    may_be_empty: bool = False,
) -> np.ndarray:
    """Reads a headerless comma-separated table, compressed or not: [lines, columns].

    Args:
      path: the .csv.gz file; if it does not exist, the .csv file beside it is read.
      dtype: dtype of the result; every cell must be a number of this dtype.
      contents: expected content, for the message if the file is missing.
      columns: number of columns; None takes that of the first line.
      may_be_empty: whether a file without lines is read too; it has one column, or ``columns``.

    Raises:
      FileNotFoundError: neither file exists.
      ValueError: file, line and cell that cannot be read; or the size of the table, if it is more
        than a file of this size may unpack to.
    """
    path = existing_csv(path, contents)
    with naming(path, "a csv table"):
        try:
            table = _load_table(path, dtype)
        except _NoDataError as error:
            if not may_be_empty:
                raise bad_file(path, "the file is empty") from error
            return np.zeros((0, columns or 1), dtype)
        except BadFileError:
            raise
        except Exception as error:
            fault = _first_bad_line(path, dtype, columns)
            raise bad_file(path, fault or str(error) or repr(error)) from error
    if columns is not None and table.shape[1] != columns:
        raise bad_file(path, f"line 1: expected {columns} columns, got {table.shape[1]}")
    return table


def read_text(path: Path, contents: str) -> bytes:
    """Reads a file of text, unpacked if its name ends in .gz.

    Its lines, in a list, are within the limit of a file of this size too.
    """
    require_file(path, contents)
    with naming(path, "lines of text"):
        blocks, size = [], 0
        for block in _text_blocks(path):
            size += len(block) + _LINE * sum(map(block.count, _LINE_ENDS))
            require_room(path, size, "its lines")
            blocks.append(block)
        return b"".join(blocks)


def read_lines(path: Path, contents: str) -> list[bytes]:
    """Reads lines of text as ``read_text`` does, without the empty lines at the end."""
    return read_text(path, contents).rstrip().splitlines()


def csv_path(path: Path) -> Path:
    """The file that ``read_csv`` reads for ``path``: the .csv.gz if it exists, else the .csv."""
    return path if is_there(path) else path.with_suffix("")


def existing_csv(path: Path, contents: str) -> Path:
    """Returns the file of ``csv_path``; raises FileNotFoundError if there is none."""
    file = csv_path(path)
    if not is_there(file):
        raise FileNotFoundError(f"no file {path} (nor {file.name}): expected {contents}")
    require_file(file, contents)
    return file


def require_cells(path: Path, values: np.ndarray, good: np.ndarray, expected: str) -> None:
    """Raises for the first cell of a table that is not good: its line, its column, its content.

    Args:
      path: the file of the table.
      values: [lines], or [lines, columns].
      good: mask of the valid values.
      expected: description of a valid value.
    """
    if not good.all():
        line, *column = position = np.unravel_index(int(np.argmin(good)), good.shape)
        where = "".join([f"line {line + 1}", *(f", column {at + 1}" for at in column)])
        raise bad_file(csv_path(path), f"{where}: expected {expected}, got {values[position]}")


def require_below(path: Path, values: np.ndarray, limit: Any, what: str) -> None:
    """Raises for the first cell of a table that is not in [0, its limit)."""
    good = (values >= 0) & (values < limit)
    if not good.all():
        first = np.broadcast_to(limit, values.shape).flat[int(np.argmin(good))]
        require_cells(path, values, good, f"{what} in [0, {first})")


def to_int32(values: np.ndarray, path: Path, what: str) -> np.ndarray:
    """Converts integers, or floats that hold whole numbers, to int32, or raises naming the file."""
    if values.dtype == np.int32:
        return values
    if values.dtype.kind not in "iuf":
        raise bad_file(path, f"expected {what} as integers, got dtype {values.dtype}")
    # NaN compares false, so it is rejected too.
    good = (values >= _INT32.min) & (values <= _INT32.max)
    if values.dtype.kind == "f":
        good &= values == np.floor(values)
    if not good.all():
        position = np.unravel_index(int(np.argmin(good)), good.shape)
        where = ", ".join(map(str, position))
        raise bad_file(path, f"expected {what} as integers, got {values[position]} at [{where}]")
    return values.astype(np.int32)


def numbers_to_int32(values: list[Any] | tuple[Any, ...], path: Path, what: str) -> np.ndarray:
    """Converts a list of Python's numbers to [n] int32, or raises; a bool is not a number."""
    if not set(map(type, values)) <= {int, float}:
        _complain_of_kinds(values, path, what)
    if set(map(type, values)) == {int} and _INT32.min <= min(values) <= max(values) <= _INT32.max:
        return np.fromiter(values, np.int32, len(values))
    # With a dtype, because numpy converts a list with integers of more than 64 bits to objects.
    return to_int32(np.fromiter(values, np.float64, len(values)), path, what)


def _complain_of_kinds(values: list[Any] | tuple[Any, ...], path: Path, what: str) -> Never:
    sizes = {len(value) if isinstance(value, list | tuple) else None for value in values}
    if None not in sizes and len(sizes) == 1:
        shape = (len(values), *sizes)
        raise bad_file(path, f"expected {what} as plain integers, got shape {shape}")
    position = next(i for i, value in enumerate(values) if type(value) not in (int, float))
    got, plain = values[position], "plain " * any(size is not None for size in sizes)
    text = repr(got) if isinstance(got, str | bool) else f"a {type(got).__name__}"
    raise bad_file(path, f"expected {what} as {plain}integers, got {text[:80]} at [{position}]")


def to_float32(values: np.ndarray, path: Path, what: str) -> np.ndarray:
    """Converts a [rows, columns] array of numbers to float32, or raises naming the file."""
    if values.dtype.kind not in "iufb" or values.ndim != 2:
        got = f"{values.ndim}-d {values.dtype}"
        raise bad_file(path, f"expected {what} as a 2-d array of numbers, got {got}")
    with np.errstate(over="ignore"):  # Validation reports inf.
        return values.astype(np.float32)


def is_finite_float32(values: np.ndarray | float) -> bool:
    """Returns whether all numbers are finite in float32, whose largest one is 3.4e38."""
    return bool((np.abs(values) <= np.finfo(np.float32).max).all())  # NaN compares false


def _opened(path: Path) -> Any:
    """Returns a file of bytes, unpacked if its name ends in .gz."""
    return (gzip.open if path.suffix == ".gz" else open)(path, "rb")


def _text_blocks(path: Path) -> Iterator[bytes]:
    """Yields a file's text in blocks, unpacked; raises for a NUL byte, or where it is too large."""
    size = line = 0
    with _opened(path) as file:
        while block := file.read(_BLOCK):
            size += len(block)
            require_room(path, size, "what it holds")
            if b"\0" in block:
                line += 1 + _count_lines(block[: block.index(b"\0")])
                raise bad_file(path, f"line {line}: expected text, got a NUL byte")
            line += _count_lines(block)
            yield block


def _count_lines(text: bytes) -> int:
    """Returns the number of ends of lines: of Unix or Windows, or of old Macs."""
    return max(text.count(b"\n"), text.count(b"\r"))


def _table_blocks(path: Path, itemsize: int) -> Iterator[bytes]:
    """Yields a table's text in blocks; raises for too many cells, each of ``itemsize`` bytes."""
    cells, line, length = 1, 1, 0
    for block in _text_blocks(path):
        ends = _count_lines(block)
        cells += ends + block.count(b",")
        require_room(path, cells * itemsize, "its table")
        line += ends
        last = max(block.rfind(b"\n"), block.rfind(b"\r"))
        length = len(block) - last - 1 if ends else length + len(block)
        if length > _LONGEST_LINE:
            expected = f"a line of at most {_LONGEST_LINE} characters"
            raise bad_file(path, f"line {line}: expected {expected}, got a longer one")
        yield block


@contextmanager
def _piped(blocks: Iterator[bytes]) -> Generator[str]:
    """The name of a pipe with the text of ``blocks``, which a thread reads ahead.

    An error of ``blocks`` ends the text, and is raised at the end.
    """
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(_feed, writing, blocks)
        try:
            yield f"/dev/fd/{reading}"
        finally:
            os.close(reading)
            fed.result()


def _feed(writing: int, blocks: Iterator[bytes]) -> None:
    with suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:  # A bad cell breaks it.
        pipe.writelines(blocks)


class _NoDataError(ValueError):
    """A table without lines, or with empty ones alone."""


def _load_table(path: Path, dtype: type) -> np.ndarray:
    blocks = _table_blocks(path, np.dtype(dtype).itemsize)
    with _piped(blocks) as name, warnings.catch_warnings():
        # numpy only warns about a file without data and about integers written as floats.
        warnings.simplefilter("error")
        try:
            # Passes a name, not an open file: numpy then reads blocks instead of Python lines.
            return np.loadtxt(
                name, dtype=dtype, delimiter=",", comments=None, ndmin=2, encoding="utf-8"
            )
        except Warning as warning:
            kind = _NoDataError if "no data" in str(warning) else ValueError
            raise kind(str(warning)) from warning


def _first_bad_line(path: Path, dtype: type, columns: int | None) -> str | None:
    """Reads the file again line by line to find a fault that the fast parser does not report."""
    limits = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else None
    number = 0
    for number, line in enumerate(_table_lines(path, np.dtype(dtype).itemsize), start=1):
        cells = line.split(",")
        if cells == [""]:
            continue
        columns = columns or len(cells)
        if len(cells) != columns:
            return f"line {number}: expected {columns} columns, got {len(cells)}"
        for column, cell in enumerate(cells, start=1):
            if not _is_number(cell.strip(), limits):
                kind = np.dtype(dtype).name
                return f"line {number}, column {column}: expected {kind}, got {cell[:80]!r}"
    return "the file is empty" if number == 0 else None


def _table_lines(path: Path, itemsize: int) -> Iterator[str]:
    """Yields the lines of a table, without the characters that end them."""
    utf_8 = codecs.getincrementaldecoder("utf-8")()
    decoder, rest = io.IncrementalNewlineDecoder(utf_8, translate=True), ""
    for block in _table_blocks(path, itemsize):
        *lines, rest = (rest + decoder.decode(block)).split("\n")
        yield from lines
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest.removesuffix("\n")


def _is_number(cell: str, limits: np.iinfo | None) -> bool:
    """Returns whether a text is a number: an integer within limits, or any number without them."""
    try:
        if limits is not None:
            return limits.min <= whole_number(cell) <= limits.max
        real_number(cell)
    except ValueError:
        return False
    return True
