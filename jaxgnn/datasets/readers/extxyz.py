"""Structures in extended XYZ files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxgnn.datasets.formats.file_errors import BadFileError, bad_file
from jaxgnn.datasets.formats.files import read_text, real_number, whole_number
from jaxgnn.datasets.readers.structure_checks import (
    SPANNING,
    check_elements,
    expected_element,
    full_stress,
    spans,
)
from jaxgnn.datasets.records.elements import NUMBERS
from jaxgnn.datasets.records.structures_dataset import (
    Structure,
    StructuresDataset,
    join_structures,
)

# A pair is key=value or a key alone; values with spaces are in quotes, braces or brackets.
_PAIR = re.compile(
    r"""\s* ("(?:[^"\\]|\\.)*" | [^\s="]+)
        (?: \s*=\s* ( "(?:[^"\\]|\\.)*" | '[^']*' | \{[^}]*\} | \[[^=]*\] | [^\s"'{\[]\S* ) )?
        (?= \s | $ )""",
    re.VERBOSE,
)
_TRUTH = {
    **dict.fromkeys(("T", "True", "true", "TRUE", "1"), True),
    **dict.fromkeys(("F", "False", "false", "FALSE", "0"), False),
}
_NO_PROPERTIES = "species:S:1:pos:R:3"


@dataclass(frozen=True)
class Names:
    """Keys and properties of an extxyz file that hold energies, forces and stresses."""

    energy: str
    forces: str
    stress: str
    virial: str


class _Column(NamedTuple):
    """A property of atoms: its first column, and their number."""

    start: int
    width: int


@dataclass(frozen=True)
class _Source:
    """The lines of a file, with errors that name one of them, counted from 1."""

    path: Path
    lines: Sequence[bytes]

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
) -> StructuresDataset:
    """Reads structures from a file in the extended XYZ format, packed if it ends in ``.gz``.

    Of each structure the file has a line with the number of atoms, a line of pairs ``key=value``,
    and a line for each atom. ``Properties`` gives the columns of atoms: symbols ``species`` or
    atomic numbers ``Z``, ``pos``, and forces. ``Lattice`` has the three cell vectors, and ``pbc``
    whether each is periodic; by default all are if there is a ``Lattice``. Other pairs and columns
    are ignored. Energies, forces and stresses are optional.

    Args:
      path: the file.
      elements: symbol of each species; None for the elements that occur, by atomic number. Give
        those of the first file for further files of one model.
      energy: key of the energy, such as ``"REF_energy"``.
      forces: property of the forces on atoms.
      stress: key of the stress: 9 numbers, or 6 in the order xx, yy, zz, yz, xz, xy.
      virial: key of the virial, 9 or 6 numbers, read where there is no stress: minus the stress
        times the volume of the cell.

    Returns:
      The structures, in the units of the file.

    Raises:
      ValueError: the file, the line and the fault.

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
    known = check_elements("read_extxyz", elements)
    lines = read_text(path, "structures in extended XYZ format").splitlines()
    names = Names(energy, forces, stress, virial)
    structures = list(_structures(_Source(path, lines), names, known))
    if not structures:
        raise bad_file(path, "expected at least one structure, got an empty file")
    return join_structures(path.name, structures, elements)


def _structures(source: _Source, names: Names, known: frozenset[str]) -> Iterator[Structure]:
    at, end = 1, len(source.lines)
    while at <= end:
        text = source.text(at).strip()
        if text:
            count = _count(source, at, text)
            yield _structure(source, at, count, names, known)
            at += count + 2
        else:  # between structures, or at the end
            at += 1


def _count(source: _Source, at: int, text: str) -> int:
    """The number of atoms of a structure whose lines are all there."""
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
    source: _Source, at: int, count: int, names: Names, known: frozenset[str]
) -> Structure:
    pairs = _pairs(source, at + 1)
    columns = _columns(source, at + 1, pairs.get("Properties", _NO_PROPERTIES))
    rows = _rows(source, at + 2, count, sum(column.width for column in columns.values()))
    cell, periodic = _cell(source, at + 1, pairs)
    energy = None
    if names.energy in pairs:
        energy = float(_numbers(source, at + 1, names.energy, pairs[names.energy], (1,))[0])
    has_forces = names.forces in columns
    return Structure(
        numbers=_atomic_numbers(source, at + 2, rows, columns, known),
        positions=_vectors(source, at + 2, rows, columns, "pos"),
        cell=cell,
        periodic=periodic,
        energy=energy,
        forces=_vectors(source, at + 2, rows, columns, names.forces) if has_forces else None,
        stress=_stress(source, at + 1, pairs, names, cell),
    )


# -- the line of pairs ---------------------------------------------------------------------------


def _pairs(source: _Source, at: int) -> dict[str, str]:
    """The pairs of a line, without quotes; a key alone is true."""
    text, place, found = source.text(at).rstrip(), 0, {}
    while place < len(text):
        match = _PAIR.match(text, place)
        if match is None:
            raise source.bad(at, f"expected pairs key=value, got {text[place : place + 80]!r}")
        key, value = match.groups()
        found[_unquoted(key)] = "T" if value is None else _unquoted(value)
        place = match.end()
    return found


def _unquoted(word: str) -> str:
    if len(word) > 1 and word[0] + word[-1] in ('""', "''", "{}", "[]"):
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return word


def _numbers(source: _Source, at: int, key: str, text: str, lengths: tuple[int, ...]) -> np.ndarray:
    """Finite numbers, as many as one of ``lengths``, between spaces, commas or brackets."""
    words = re.split(r"[\s,\[\]]+", text.strip(" \t,[]"))
    expected = " or ".join(map(str, lengths)) + f" finite number{'s' * (lengths != (1,))}"
    try:
        numbers = np.array([real_number(word) for word in words])
    except ValueError:
        numbers = np.array([])
    if len(numbers) not in lengths or not np.isfinite(numbers).all():
        raise source.bad(at, f"{key}: expected {expected}, got {text[:80]!r}")
    return numbers


def _cell(source: _Source, at: int, pairs: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """The cell vectors as rows, and whether each is periodic."""
    cell, has_cell = np.zeros((3, 3)), "Lattice" in pairs
    if has_cell:
        cell = _numbers(source, at, "Lattice", pairs["Lattice"], (9,)).reshape(3, 3)
    words = [str(has_cell)] * 3
    if "pbc" in pairs:
        words = re.split(r"[\s,\[\]]+", pairs["pbc"].strip(" \t,[]"))
    if len(words) != 3 or not all(word in _TRUTH for word in words):
        raise source.bad(at, f"pbc: expected 3 of T and F, got {pairs['pbc'][:80]!r}")
    periodic = np.array([_TRUTH[word] for word in words])
    if not spans(cell, periodic):
        raise source.bad(at, f"Lattice: expected {SPANNING}, got {cell.tolist()}")
    return cell, periodic


def _stress(
    source: _Source, at: int, pairs: Mapping[str, str], names: Names, cell: np.ndarray
) -> np.ndarray | None:
    key = names.stress if names.stress in pairs else names.virial
    if key not in pairs:
        return None
    numbers = _numbers(source, at, key, pairs[key], (9, 6))
    stress = full_stress(numbers)
    if key == names.stress:
        return stress
    volume = abs(np.linalg.det(cell))
    if volume == 0:
        raise source.bad(at, f"{key}: expected a Lattice whose volume the virial is of, got none")
    return -stress / volume


# -- the lines of atoms --------------------------------------------------------------------------


def _columns(source: _Source, at: int, text: str) -> dict[str, _Column]:
    """The columns of each property of atoms: ``species:S:1:pos:R:3``."""
    words, found, start = text.split(":"), {}, 0
    for name, kind, width in zip(words[::3], words[1::3], words[2::3], strict=False):
        if kind not in ("S", "R", "I", "L") or not re.fullmatch(r"[1-9][0-9]{0,5}", width):
            break
        found[name] = _Column(start, int(width))
        start += int(width)
    if 3 * len(found) != len(words):
        expected = f"different names with kinds and widths, such as {_NO_PROPERTIES}"
        raise source.bad(at, f"Properties: expected {expected}, got {text[:80]!r}")
    if "pos" not in found or not found.keys() & {"species", "Z"}:
        expected = "pos, and species or Z"
        raise source.bad(at, f"Properties: expected {expected}, got {text[:80]!r}")
    return found


def _rows(source: _Source, start: int, count: int, width: int) -> list[list[str]]:
    """The words of each atom's line."""
    rows = [source.text(at).split() for at in range(start, start + count)]
    for at, row in enumerate(rows, start):
        if len(row) != width:
            raise source.bad(at, f"expected {width} columns, got {len(row)}")
    return rows


def _atomic_numbers(
    source: _Source,
    start: int,
    rows: list[list[str]],
    columns: Mapping[str, _Column],
    known: frozenset[str],
) -> np.ndarray:
    is_symbol = "species" in columns
    column = columns["species" if is_symbol else "Z"].start
    symbols = [row[column] for row in rows]
    if not is_symbol:
        of_numbers = {str(number): symbol for symbol, number in NUMBERS.items()}
        symbols = [of_numbers.get(word, word) for word in symbols]
    for at, symbol in enumerate(symbols, start):
        if symbol not in known:
            any_element = "a chemical symbol" if is_symbol else "an atomic number"
            expected = expected_element(known, any_element)
            raise source.bad(at, f"expected {expected}, got {symbol[:80]!r}", column + 1)
    return np.array([NUMBERS[symbol] for symbol in symbols])


def _vectors(
    source: _Source, start: int, rows: list[list[str]], columns: Mapping[str, _Column], name: str
) -> np.ndarray:
    """A property of three finite numbers for each atom, float64 [atoms, 3]."""
    first, width = columns[name]
    if width != 3:
        raise source.bad(start - 1, f"Properties: expected 3 columns of {name}, got {width}")
    found = np.empty((len(rows), 3))
    for atom, row in enumerate(rows):
        for axis in range(3):
            word = row[first + axis]
            try:
                found[atom, axis] = real_number(word)
            except ValueError:
                found[atom, axis] = np.nan
            if not np.isfinite(found[atom, axis]):
                message = f"expected a finite number, got {word[:80]!r}"
                raise source.bad(start + atom, message, first + axis + 1)
    return found
