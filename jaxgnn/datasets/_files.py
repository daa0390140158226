"""Files -> numpy arrays, with errors that name the file. Knows formats, but no data set."""

import gzip
import json
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_INT32 = np.iinfo(np.int32)
# What the standard library and numpy raise on truncated, corrupt or foreign content.
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


def require_folder(path: Path, contents: str) -> None:
    """Raises FileNotFoundError unless `path` is a folder; `contents` says what it should hold."""
    if not path.is_dir():
        raise FileNotFoundError(f"no folder {path}: expected a folder with {contents}")


def require_file(path: Path, contents: str) -> None:
    """Raises FileNotFoundError unless `path` is a file; `contents` says what it should hold."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: expected {contents}")


def read_npz(path: Path, keys: tuple[str, ...], contents: str) -> dict[str, np.ndarray]:
    """Reads the named arrays of an .npz archive; other arrays in it are not decompressed."""
    require_file(path, contents)
    with _naming(path, "an .npz archive"), open(path, "rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise ValueError(f"no array {missing[0]!r} among {sorted(archive.files)}")
            return {key: archive[key] for key in keys}


def npz_names(path: Path, contents: str) -> frozenset[str]:
    """Names of the arrays in an .npz archive."""
    require_file(path, contents)
    with _naming(path, "an .npz archive"), zipfile.ZipFile(path) as archive:
        return frozenset(name.removesuffix(".npy") for name in archive.namelist())


def read_npy(path: Path, contents: str) -> np.ndarray:
    """Reads the one array of an .npy file."""
    require_file(path, contents)
    with _naming(path, "an .npy array"), open(path, "rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def read_json(path: Path, contents: str) -> dict[str, Any]:
    """Reads a .json file whose top level is an object."""
    require_file(path, contents)
    with _naming(path, "a JSON object"), open(path, encoding="utf-8") as file:
        value = json.load(file)
        if not isinstance(value, dict):
            raise ValueError(f"its top level is a {type(value).__name__}")
        return value


def read_csv(path: Path, dtype: type, contents: str, columns: int | None = None) -> np.ndarray:
    """Reads a headerless comma-separated table, compressed or not.

    Args:
        path: the .csv.gz file; where it does not exist, the .csv file beside it is read.
        dtype: of the result; every cell must be written as one.
        contents: what the file should hold, for the message when it is missing.
        columns: how many columns there must be; None takes what the first line has.

    Returns:
        [lines, columns] array of `dtype`.

    Raises:
        FileNotFoundError: neither file exists.
        ValueError: file, line and cell of what cannot be read.
    """
    path = _csv_path(path, contents)
    try:
        table = _load_table(path, dtype)
    except _UNREADABLE as error:
        raise ValueError(_explain_csv(path, dtype, columns, error)) from error
    if columns is not None and table.shape[1] != columns:
        raise ValueError(f"{path}: line 1: expected {columns} columns, got {table.shape[1]}")
    return table


def read_lines(path: Path, contents: str) -> list[bytes]:
    """Reads lines of text, from a compressed file if its name ends in .gz.

    Empty lines at the end are left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file, if it is cut short or no .gz file.
    """
    require_file(path, contents)
    opener = gzip.open if path.suffix == ".gz" else open
    with _naming(path, "lines of text"), opener(path, "rb") as file:
        return file.read().rstrip().splitlines()


def csv_path(path: Path) -> Path:
    """The file that `read_csv` reads for `path`: the .csv.gz one if it exists, else the .csv."""
    return path if path.exists() else path.with_suffix("")


def to_int32(values: np.ndarray, path: Path, what: str) -> np.ndarray:
    """Converts integers, or floats that hold whole numbers, to int32.

    Raises:
        ValueError: file, `what`, and the first value that is no int32.
    """
    if values.dtype == np.int32:
        return values
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{path}: expected {what} as integers, got dtype {values.dtype}")
    # NaN compares false, so it is not good either.
    good = (values >= _INT32.min) & (values <= _INT32.max)
    if values.dtype.kind == "f":
        good &= values == np.floor(values)
    if not good.all():
        position = np.unravel_index(int(np.argmin(good)), good.shape)
        where = ", ".join(map(str, position))
        raise ValueError(
            f"{path}: expected {what} as integers, got {values[position]} at [{where}]"
        )
    return values.astype(np.int32)


def to_float32(values: np.ndarray, path: Path, what: str) -> np.ndarray:
    """Converts a [rows, columns] array of numbers to float32, or raises naming the file."""
    if values.dtype.kind not in "iufb" or values.ndim != 2:
        raise ValueError(
            f"{path}: expected {what} as a 2-d array of numbers, got {values.ndim}-d {values.dtype}"
        )
    with np.errstate(over="ignore"):  # what does not fit becomes inf, which validation reports
        return values.astype(np.float32)


@contextmanager
def _naming(path: Path, kind: str) -> Generator[None]:
    """Turns whatever reading may raise into one ValueError that starts with the file."""
    try:
        yield
    except _UNREADABLE as error:
        raise ValueError(f"{path}: cannot be read as {kind}: {error}") from error


def _csv_path(path: Path, contents: str) -> Path:
    found = csv_path(path)
    if not found.is_file():
        raise FileNotFoundError(f"no file {path} (nor {found.name}): expected {contents}")
    return found


def _load_table(path: Path, dtype: type) -> np.ndarray:
    with warnings.catch_warnings():
        # numpy only warns about a file without data and about integers written as floats.
        warnings.simplefilter("error")
        try:
            # The name, not an open file: numpy then tokenizes blocks instead of Python lines.
            return np.loadtxt(
                str(path), dtype=dtype, delimiter=",", comments=None, ndmin=2, encoding="utf-8"
            )
        except Warning as warning:
            raise ValueError(str(warning)) from warning


def _explain_csv(path: Path, dtype: type, columns: int | None, error: Exception) -> str:
    """Goes through the file again, line by line, for what the fast parser does not report."""
    try:
        found = _first_bad_line(path, dtype, columns)
    except _UNREADABLE as unreadable:
        return f"{path}: cannot be read as a csv table: {unreadable}"
    return f"{path}: {found or error}"


def _first_bad_line(path: Path, dtype: type, columns: int | None) -> str | None:
    is_number = _cell_test(dtype)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        number = 0
        for number, line in enumerate(lines, start=1):
            cells = line.rstrip("\r\n").split(",")
            if cells == [""]:
                continue
            columns = columns or len(cells)
            if len(cells) != columns:
                return f"line {number}: expected {columns} columns, got {len(cells)}"
            for column, cell in enumerate(cells, start=1):
                if not is_number(cell):
                    kind = np.dtype(dtype).name
                    return f"line {number}, column {column}: expected {kind}, got {cell!r}"
    return "the file is empty" if number == 0 else None


def _cell_test(dtype: type) -> Callable[[str], bool]:
    """Returns whether a text is written as a number of `dtype`; called for every cell."""
    if np.issubdtype(dtype, np.integer):
        parse, low, high = int, np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        parse, low, high = float, -np.inf, np.inf

    def is_number(cell: str) -> bool:
        try:
            value = parse(cell)
        except ValueError:
            return False
        return low <= value <= high or value != value  # NaN is written as a number, too

    return is_number
