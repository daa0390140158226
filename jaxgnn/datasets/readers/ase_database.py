"""Structures in databases of ASE, files of SQLite."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import BadFileError, bad_file, naming, require_file
from jaxgnn.datasets.readers.structure_checks import (
    SPANNING,
    Missing,
    check_elements,
    check_missing,
    expected_element,
    full_stress,
    settle_missing,
    spans,
)
from jaxgnn.datasets.records.elements import SYMBOLS
from jaxgnn.datasets.records.structures_dataset import (
    Structure,
    StructuresDataset,
    join_structures,
)

# Versions of the format with these columns.
_VERSIONS = range(5, 10)
_COLUMNS = ("id", "numbers", "positions", "cell", "pbc", "energy", "forces", "stress")
_HEADER = b"SQLite format 3\x00"
_TABLES = ("systems", "information")
_LARGEST_VALUE = 10**9  # The limit of SQLite itself.


def read_ase(
    path: str | PathLike[str],
    *,
    elements: Sequence[str] | None = None,
    missing: Missing = "error",
) -> StructuresDataset:
    """Reads structures from a database of ASE, ``.db``, by the sqlite3 module of Python.

    The package ``ase`` is not needed. Energies, forces and stresses are those of the calculator
    that was stored; key-value pairs and other data are ignored. JSON databases are not supported.

    Args:
      path: the file, of version 5 to 9 of the format.
      elements: symbol of each species; None for the elements that occur, by atomic number.
      missing: treatment of structures without an energy, forces or a stress that others have; see
        ``read_extxyz``.

    Returns:
      The structures in the order of their ids: in electron volts and Å, the units of ASE.

    Raises:
      ValueError: the file, the id of the row and the fault; the structures without a label; or an
        unknown version.

    Example:
      >>> from jaxgnn import datasets
      >>> datasets.read_ase("missing.db")
      Traceback (most recent call last):
      ...
      FileNotFoundError: no file missing.db: expected a database of ASE
    """
    path = Path(path)
    allowed = check_elements("read_ase", elements)
    check_missing("read_ase", missing)
    require_file(path, "a database of ASE")
    with path.open("rb") as file:
        if file.read(len(_HEADER)) != _HEADER:
            raise bad_file(path, "expected a database of SQLite, got another file")
    with naming(path, "a database of ASE"), closing(_open(path)) as connection:
        _check_schema(path, connection)
        _check_version(path, connection)
        rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM systems ORDER BY id")
        structures = list(_structures(path, rows, allowed))
    if not structures:
        raise bad_file(path, "expected at least one structure, got none")
    structures = settle_missing(path, structures, missing)
    return join_structures(path.name, structures, elements)


def _open(path: Path) -> sqlite3.Connection:
    """Returns the database, which is not written, and no value of which is larger than its file."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(path.stat().st_size, _LARGEST_VALUE))
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    """Raises unless the schema has plain tables alone, whose columns are stored.

    Views, virtual tables and generated columns are computed when they are read, by functions with
    arguments of the file.
    """
    tables = []
    for kind, name, page in connection.execute("SELECT type, name, rootpage FROM sqlite_master"):
        if kind not in ("table", "index") or not isinstance(page, int) or page < 1:
            what = "virtual table" if kind == "table" else str(kind)
            got = f"the {what} {str(name)[:80]!r}"
            raise bad_file(path, f"expected tables and indices alone, got {got}")
        tables += [name] if kind == "table" else []
    for table in _TABLES:
        if tables.count(table) != 1:
            raise bad_file(path, "expected the tables systems and information, got others")
        # Columns: cid, name, type, notnull, dflt_value, pk, hidden.
        for _, name, *_, hidden in connection.execute(f"PRAGMA table_xinfo({table})"):
            if hidden:
                got = f"the generated column {str(name)[:80]!r}"
                raise bad_file(path, f"expected stored columns in {table}, got {got}")


def _check_version(path: Path, connection: sqlite3.Connection) -> None:
    row = connection.execute("SELECT value FROM information WHERE name = 'version'").fetchone()
    version = str(row[0]) if row else "none"
    if version not in map(str, _VERSIONS):
        first, last = _VERSIONS[0], _VERSIONS[-1]
        raise bad_file(path, f"expected version {first} to {last} of the format, got {version}")


def _structures(
    path: Path, rows: Iterator[tuple[Any, ...]], allowed: frozenset[str]
) -> Iterator[Structure]:
    seen = -math.inf
    for values in rows:
        row = dict(zip(_COLUMNS, values, strict=True))
        # A forged tree may lead to the same page many times.
        if not isinstance(row["id"], int) or row["id"] <= seen:
            raise bad_file(path, f"expected a whole number as id, each once, got {row['id']!s:.80}")
        seen = row["id"]
        yield _Row(path, row).structure(allowed)


class _Row:
    """A row of the table of structures, with errors that name its id."""

    def __init__(self, path: Path, values: dict[str, Any]):
        self._path, self._values = path, values

    def structure(self, allowed: frozenset[str]) -> Structure:
        """Checks and converts the columns."""
        numbers = self._numbers(allowed)
        atoms = (len(numbers), 3)
        cell, periodic = self._cell()
        stress = self._array("stress", (6,), (9,))
        return Structure(
            numbers=numbers,
            positions=self._required("positions", atoms),
            cell=cell,
            periodic=periodic,
            energy=self._energy(),
            forces=self._array("forces", atoms),
            stress=None if stress is None else full_stress(stress),
            place=f"row {self._values['id']}",
        )

    def _bad(self, message: str) -> BadFileError:
        return bad_file(self._path, f"row {self._values['id']}: {message}")

    def _blob(self, column: str, dtype: str) -> np.ndarray | None:
        """The numbers of a column in the order of bytes of the files; None if it is empty."""
        value = self._values[column]
        if value is None:
            return None
        size = np.dtype(dtype).itemsize
        if not isinstance(value, bytes) or len(value) % size:
            got = f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)[:80]
            raise self._bad(f"expected {column} as numbers of {size} bytes, got {got}")
        return np.frombuffer(value, dtype)

    def _array(self, column: str, *shapes: tuple[int, ...]) -> np.ndarray | None:
        """Finite numbers of one of some shapes."""
        array = self._blob(column, "<f8")
        if array is None:
            return None
        fitting = [shape for shape in shapes if np.prod(shape) == array.size]
        if not fitting:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise self._bad(f"expected {column} of shape {expected}, got {array.size} numbers")
        if not np.isfinite(array).all():
            raise self._bad(f"expected finite {column}, got {array[~np.isfinite(array)][0]}")
        return array.astype(np.float64).reshape(fitting[0])

    def _required(self, column: str, shape: tuple[int, ...]) -> np.ndarray:
        array = self._array(column, shape)
        if array is None:
            raise self._bad(f"expected {column}, got none")
        return array

    def _numbers(self, allowed: frozenset[str]) -> np.ndarray:
        numbers = self._blob("numbers", "<i4")
        if numbers is None or not numbers.size:
            raise self._bad("expected at least one atom, got none")
        for number in np.unique(numbers).tolist():
            if not 0 < number < len(SYMBOLS):
                raise self._bad(f"expected atomic numbers in 1..{len(SYMBOLS) - 1}, got {number}")
            if SYMBOLS[number] not in allowed:
                expected = expected_element(allowed, "an element")
                raise self._bad(f"expected {expected}, got {SYMBOLS[number]}")
        return numbers.astype(np.int64)

    def _cell(self) -> tuple[np.ndarray, np.ndarray]:
        bits = self._values["pbc"] or 0
        if not isinstance(bits, int) or not 0 <= bits < 8:
            raise self._bad(f"expected pbc in 0..7, a bit for each axis, got {bits!r}")
        periodic = np.array([bits & bit for bit in (1, 2, 4)]).astype(bool)
        cell = self._array("cell", (3, 3))
        cell = np.zeros((3, 3)) if cell is None else cell
        if not spans(cell, periodic):
            raise self._bad(f"expected a cell with {SPANNING}, got {cell.tolist()}")
        return cell, periodic

    def _energy(self) -> float | None:
        energy = self._values["energy"]
        if energy is None or (isinstance(energy, float | int) and np.isfinite(energy)):
            return None if energy is None else float(energy)
        raise self._bad(f"expected a finite energy, got {str(energy)[:80]!r}")
