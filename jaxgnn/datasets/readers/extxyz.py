"""Structures in extended XYZ files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxgnn.datasets.formats.file_errors import BadFileError, bad_file
from jaxgnn.datasets.formats.files import read_text, real_number, whole_number
from jaxgnn.datasets.readers.extxyz_pairs import Pairs, similar_names, words_of
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
from jaxgnn.datasets.records.elements import NUMBERS
from jaxgnn.datasets.records.structures_dataset import (
    Structure,
    StructuresDataset,
    join_structures,
)

_TRUTH = dict.fromkeys(("t", "true", "1"), True) | dict.fromkeys(("f", "false", "0"), False)
# Names of columns, in any case: those of the format and those of ASE.
_POSITIONS, _SYMBOLS, _NUMBERS = ("pos", "positions"), ("species", "symbols"), ("z", "numbers")
# Keys in small letters that other programs use for what is Lattice here.
_CELLS = ("cell", "box", "unit_cell", "unitcell", "cell_vectors", "lattice_vectors")
_NO_PROPERTIES = "species:S:1:pos:R:3"


@dataclass(frozen=True)
class _Names:
    """Keys and properties of an extxyz file that hold energies, forces and stresses."""

    energy: str
    forces: str
    stress: str
    virial: str


class _Ignored:
    """Names in a file that were probably meant to be read, with the numbers of their lines."""

    def __init__(self):
        self._lines: dict[tuple[str, str, str], list[int]] = {}

    def note(self, at: int, wanted: str, name: str, remedy: str) -> None:
        self._lines.setdefault((wanted, name, remedy), []).append(at)

    def warn(self, path: Path) -> None:
        """Warns of each name once."""
        for (wanted, name, remedy), lines in self._lines.items():
            others = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
            text = f"line {lines[0]}{others}: no {wanted}, and {name!r} is ignored; {remedy}"
            warnings.warn(f"{path}: {text}", stacklevel=3)


class _Column(NamedTuple):
    """A property of atoms: its name, its kind, its first column, and the number of columns."""

    name: str
    kind: str
    start: int
    width: int


@dataclass(frozen=True)
class _Source:
    """The lines of a file, with errors that name one of them, counted from 1."""

    path: Path
    lines: Sequence[bytes]
    ignored: _Ignored = field(default_factory=_Ignored)

    def text(self, number: int) -> str:
        return self.lines[number - 1].decode("utf-8", "replace")

    def bad(self, number: int, message: str, column: int | None = None) -> BadFileError:
        where = f"line {number}" if column is None else f"line {number}, column {column}"
        return bad_file(self.path, f"{where}: {message}")


def read_extxyz(
    path: str | PathLike[str],
    *,
    elements: Sequence[str] | None = None,
    energy: str = "energy",
    forces: str = "forces",
    stress: str = "stress",
    virial: str = "virial",
    missing: Missing = "error",
) -> StructuresDataset:
    """Reads structures from a file in the extended XYZ format, packed if it ends in ``.gz``.

    Of each structure the file has a line with the number of atoms, a line of pairs ``key=value``,
    and a line for each atom. ``Properties`` gives the columns of atoms: symbols ``species`` or
    atomic numbers ``Z``, ``pos``, and forces. ``Lattice`` has the three cell vectors, and ``pbc``
    whether each is periodic; by default all are if there is a ``Lattice``. These names may be in
    any case. Other pairs and columns are ignored.

    Energies, forces and stresses are optional, but those that one structure has are expected of
    all: stresses of all that are periodic in three directions. They are read by their exact names;
    a warning says where a structure has a similar name instead, such as ``Energy`` or ``force``.

    Args:
      path: the file.
      elements: symbol of each species; None for the elements that occur, by atomic number. Give
        those of the first file for further files of one model.
      energy: key of the energy, such as ``"REF_energy"``.
      forces: property of the forces on atoms.
      stress: key of the stress: 9 numbers, or 6 in the order xx, yy, zz, yz, xz, xy.
      virial: key of the virial, 9 or 6 numbers, read where there is no stress: minus the stress
        times the volume of the cell.
      missing: treatment of structures without a label that others have: ``"error"``; ``"skip"`` to
        leave them out; or ``"nan"`` to read NaN, whereupon ``dataset[i]`` has None for this label
        of all structures.

    Returns:
      The structures, in the units of the file.

    Raises:
      ValueError: the file, the line and the fault; or the structures without a label.

    Example:
      >>> import pathlib, tempfile
      >>> from jaxgnn import datasets
      >>> text = '''2
      ... Lattice="4 0 0 0 4 0 0 0 4" Properties=species:S:1:pos:R:3:forces:R:3 energy=-1.5
      ... H 0 0 0 0 0 0.1
      ... O 0 0 1 0 0 -0.1
      ... '''
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "water.extxyz")
      ...     _ = path.write_text(text)
      ...     data = datasets.read_extxyz(path)
      >>> data.elements, data.species.tolist(), data.energies.tolist()
      (('H', 'O'), [0, 1], [-1.5])
    """
    path = Path(path)
    allowed = check_elements("read_extxyz", elements)
    check_missing("read_extxyz", missing)
    lines = read_text(path, "structures in extended XYZ format").splitlines()
    source = _Source(path, lines)
    structures = list(_structures(source, _Names(energy, forces, stress, virial), allowed))
    if not structures:
        raise bad_file(path, "expected at least one structure, got an empty file")
    source.ignored.warn(path)
    structures = settle_missing(path, structures, missing)
    return join_structures(path.name, structures, elements)


def _structures(source: _Source, names: _Names, allowed: frozenset[str]) -> Iterator[Structure]:
    at, end = 1, len(source.lines)
    while at <= end:
        text = source.text(at).strip()
        if text:
            count = _count(source, at, text)
            yield _structure(source, at, count, names, allowed)
            at += count + 2
        else:  # The line is between structures, or at the end.
            at += 1


def _count(source: _Source, at: int, text: str) -> int:
    """Returns the number of atoms of a structure whose lines are all there."""
    try:
        count = whole_number(text)
    except ValueError:
        count = 0
    if count < 1:
        raise source.bad(at, f"expected a number of atoms, got {text[:80]!r}")
    there = len(source.lines) - at - 1
    if there < count:
        raise source.bad(
            at, f"expected a line of pairs and {count} atoms, got {max(there, 0)} atoms"
        )
    return count


def _structure(
    source: _Source, at: int, count: int, names: _Names, allowed: frozenset[str]
) -> Structure:
    line = _Line(source, at + 1)
    columns = _columns(line)
    rows = _rows(source, at + 2, count, sum(column.width for column in columns))
    cell, periodic = _cell(line)
    energy = line.label("energy", names)
    forces = _column(columns, lambda column: column.name == names.forces)
    if forces is None:
        line.note_near([column.name for column in columns], "forces", names)
    positions = _column(columns, lambda column: column.name.lower() in _POSITIONS)
    assert positions is not None  # See _columns.
    return Structure(
        numbers=_atomic_numbers(source, at + 2, rows, columns, allowed),
        positions=_vectors(source, at + 2, rows, positions),
        cell=cell,
        periodic=periodic,
        energy=None if energy is None else float(line.numbers(names.energy, energy, (1,))[0]),
        forces=None if forces is None else _vectors(source, at + 2, rows, forces),
        stress=_stress(line, names, cell),
        place=f"line {at}",
    )


# -- the line of pairs ---------------------------------------------------------------------------


class _Line:
    """The line of pairs of a structure, with errors that name it.

    Attributes:
      keys: the keys in their order.
    """

    def __init__(self, source: _Source, at: int):
        self._source, self._at = source, at
        try:
            self._pairs = Pairs.parse(source.text(at))
        except ValueError as error:
            raise self.bad(str(error)) from None
        self.keys = self._pairs.keys

    def bad(self, message: str) -> BadFileError:
        return self._source.bad(self._at, message)

    def value(self, key: str, *, any_case: bool = False) -> str | None:
        """Returns the value of a key, or None."""
        try:
            return self._pairs.value(key, any_case=any_case)
        except ValueError as error:
            raise self.bad(str(error)) from None

    def label(self, option: str, names: _Names) -> str | None:
        """The value of the key of an option; None, with a note of similar keys, without it."""
        value = self.value(getattr(names, option))
        if value is None:
            self.note_near(self.keys, option, names)
        return value

    def note_near(self, candidates: Sequence[str], option: str, names: _Names) -> None:
        """Notes names that are similar to the one of an option."""
        wanted = getattr(names, option)
        for name in similar_names(candidates, wanted):
            remedy = f"read_extxyz(..., {option}={name!r}) reads it"
            self._source.ignored.note(self._at, wanted, name, remedy)

    def note_cells(self) -> None:
        """Notes keys that other programs use for the cell vectors."""
        for key in self.keys:
            if key.lower() in _CELLS:
                self._source.ignored.note(self._at, "Lattice", key, "name it Lattice")

    def numbers(self, key: str, text: str, lengths: tuple[int, ...]) -> np.ndarray:
        """Finite numbers, as many as one of ``lengths``, between spaces, commas or brackets."""
        expected = " or ".join(map(str, lengths)) + f" finite number{'s' * (lengths != (1,))}"
        try:
            numbers = np.array([real_number(word) for word in words_of(text)])
        except ValueError:
            numbers = np.array([])
        if len(numbers) not in lengths or not np.isfinite(numbers).all():
            raise self.bad(f"{key}: expected {expected}, got {text[:80]!r}")
        return numbers


def _cell(line: _Line) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cell vectors as rows, and whether each is periodic."""
    lattice, flags = (line.value(key, any_case=True) for key in ("Lattice", "pbc"))
    cell = np.zeros((3, 3))
    if lattice is None:
        line.note_cells()
    else:
        cell = line.numbers("Lattice", lattice, (9,)).reshape(3, 3)
    words = [str(lattice is not None)] if flags is None else words_of(flags)
    words = [word.lower() for word in words] * (3 if len(words) == 1 else 1)
    if len(words) != 3 or not all(word in _TRUTH for word in words):
        raise line.bad(f"pbc: expected T or F, or 3 of them, got {(flags or '')[:80]!r}")
    periodic = np.array([_TRUTH[word] for word in words])
    if not spans(cell, periodic):
        raise line.bad(f"Lattice: expected {SPANNING}, got {cell.tolist()}")
    return cell, periodic


def _stress(line: _Line, names: _Names, cell: np.ndarray) -> np.ndarray | None:
    stress, virial = line.value(names.stress), line.value(names.virial)
    if stress is not None:
        return full_stress(line.numbers(names.stress, stress, (9, 6)))
    if virial is None:
        for option in ("stress", "virial"):
            line.note_near(line.keys, option, names)
        return None
    of_cell = full_stress(line.numbers(names.virial, virial, (9, 6)))
    volume = abs(np.linalg.det(cell))
    if volume == 0:
        expected = "a Lattice whose volume the virial is of"
        raise line.bad(f"{names.virial}: expected {expected}, got none")
    return -of_cell / volume


# -- the lines of atoms --------------------------------------------------------------------------


def _columns(line: _Line) -> list[_Column]:
    """Returns the columns of each property of atoms: ``species:S:1:pos:R:3``."""
    text = line.value("Properties", any_case=True)
    text = _NO_PROPERTIES if text is None else text

    def bad(expected: str) -> BadFileError:
        return line.bad(f"Properties: expected {expected}, got {text[:80]!r}")

    words, columns, start = text.split(":"), list[_Column](), 0
    for name, kind, width in zip(words[::3], words[1::3], words[2::3], strict=False):
        if kind not in ("S", "R", "I", "L") or not re.fullmatch(r"[1-9][0-9]{0,5}", width):
            break
        columns.append(_Column(name, kind, start, int(width)))
        start += int(width)
    names = [column.name.lower() for column in columns]
    if 3 * len({column.name for column in columns}) != len(words):
        raise bad(f"different names with kinds and widths, such as {_NO_PROPERTIES}")
    if not any(name in _POSITIONS for name in names) or _elements(columns) is None:
        raise bad("pos, and species or Z")
    for synonyms in (_POSITIONS, _SYMBOLS):
        if sum(name in synonyms for name in names) > 1:
            raise bad(f"one property {synonyms[0]}")
    return columns


def _column(columns: Sequence[_Column], is_wanted: Callable[[_Column], bool]) -> _Column | None:
    return next((column for column in columns if is_wanted(column)), None)


def _elements(columns: Sequence[_Column]) -> _Column | None:
    """Returns the property of symbols, otherwise that of atomic numbers; None without any."""
    symbols = _column(columns, lambda column: column.name.lower() in _SYMBOLS)
    if symbols is not None:
        return symbols
    return _column(columns, lambda column: column.kind == "I" and column.name.lower() in _NUMBERS)


def _rows(source: _Source, start: int, count: int, width: int) -> list[list[str]]:
    """Returns the words of each atom's line."""
    rows = [source.text(at).split() for at in range(start, start + count)]
    for at, row in enumerate(rows, start):
        if len(row) != width:
            raise source.bad(at, f"expected {width} columns, got {len(row)}")
    return rows


def _atomic_numbers(
    source: _Source,
    start: int,
    rows: list[list[str]],
    columns: Sequence[_Column],
    allowed: frozenset[str],
) -> np.ndarray:
    elements = _elements(columns)
    assert elements is not None  # See _columns.
    is_symbol, column = elements.name.lower() in _SYMBOLS, elements.start
    symbols = [row[column] for row in rows]
    if not is_symbol:
        of_numbers = {str(number): symbol for symbol, number in NUMBERS.items()}
        symbols = [of_numbers.get(word, word) for word in symbols]
    for at, symbol in enumerate(symbols, start):
        if symbol not in allowed:
            any_element = "a chemical symbol" if is_symbol else "an atomic number"
            expected = expected_element(allowed, any_element)
            raise source.bad(at, f"expected {expected}, got {symbol[:80]!r}", column + 1)
    return np.array([NUMBERS[symbol] for symbol in symbols])


def _vectors(source: _Source, start: int, rows: list[list[str]], column: _Column) -> np.ndarray:
    """Returns a property of three finite numbers for each atom, float64 [atoms, 3]."""
    name, _, first, width = column
    if width != 3:
        raise source.bad(start - 1, f"Properties: expected 3 columns of {name}, got {width}")
    vectors = np.empty((len(rows), 3))
    for atom, row in enumerate(rows):
        for axis in range(3):
            word = row[first + axis]
            try:
                vectors[atom, axis] = real_number(word)
            except ValueError:
                vectors[atom, axis] = np.nan
            if not np.isfinite(vectors[atom, axis]):
                message = f"expected a finite number, got {word[:80]!r}"
                raise source.bad(start + atom, message, first + axis + 1)
    return vectors
