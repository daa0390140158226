"""Reads published files of puzzles, with errors that name the file and the line."""

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn._sudoku import CELLS, as_boards, conflicts, have_conflicts
from jaxgnn.datasets.formats import files as _files
from jaxgnn.datasets.sudoku._generate import Puzzles
from jaxgnn.datasets.sudoku.solving import describe_count, search

_PAIR = 2 * CELLS + 1
_KAGGLE_HEADER = b"quizzes,solutions"

# Lines that are processed together: some tens of megabytes.
_LINES = 1 << 16
# Puzzles that are solved before the first of them that has no solution ends the work.
_SOLVED_AT_ONCE = 1 << 10


def read_palm(path: str | PathLike[str]) -> Puzzles:
    """Reads lines of a quiz and its solution, as published by Palm et al. (2018).

    Args:
      path: a file of lines "quiz,solution", 81 digits each, 0 where a cell is empty; compressed
        if its name ends in .gz.

    Returns:
      The puzzles. The uniqueness of the solutions is not checked.

    Raises:
      ValueError: the file and the number of the first invalid line: of another length, with other
        characters, with a digit twice in a unit, or with an invalid solution, or the solution of
        another puzzle.
    """
    file = Path(path)
    lines = _files.read_lines(file, "lines 'quiz,solution' of 81 digits each")
    return _read_pairs(file, lines, first=1)


def read_kaggle(path: str | PathLike[str]) -> Puzzles:
    """Reads Kaggle's million puzzles: the lines of ``read_palm`` after "quizzes,solutions".

    Args:
      path: the csv file; compressed if its name ends in .gz.

    Returns:
      The puzzles. The uniqueness of the solutions is not checked.

    Raises:
      ValueError: as ``read_palm``; the header is line 1.
    """
    file, header = Path(path), _KAGGLE_HEADER.decode()
    lines = _files.read_lines(file, f"a line {header!r} and lines of two times 81 digits")
    if not lines or lines[0].strip() != _KAGGLE_HEADER:
        got = _quote(lines[0]) if lines else "nothing"
        raise ValueError(f"{file}: line 1: expected {header!r}, got {got}")
    return _read_pairs(file, lines[1:], first=2)


def read_lines(path: str | PathLike[str]) -> Puzzles:
    """Reads and solves lines of 81 characters, such as Royle's list of puzzles with 17 givens.

    Args:
      path: a file of lines of 81 digits, '.' or 0 where a cell is empty; compressed if its name
        ends in .gz.

    Returns:
      The puzzles and their solutions.

    Raises:
      ValueError: the file and the number of the first invalid line: of another length, with other
        characters, with a digit twice in a unit, with no solution or several, or one that is
        neither solved nor refuted after a million guesses.
    """
    file = Path(path)
    lines = _files.read_lines(file, f"lines of {CELLS} digits")
    data = Puzzles(*np.empty((2, len(lines), CELLS), np.int8))
    for part, puzzles in _blocks(file, lines, CELLS, first=1):
        data.puzzles[part] = puzzles
        clashes = have_conflicts(puzzles)
        # Nothing behind the first line that breaks the rules is solved.
        end = int(np.argmax(clashes)) if clashes.any() else len(puzzles)
        for start in range(0, end, _SOLVED_AT_ONCE):
            some = puzzles[start : min(start + _SOLVED_AT_ONCE, end)]
            line = part.start + start
            data.solutions[line : line + len(some)] = _only_solutions(file, 1 + line, some)
        _check(file, 1 + part.start, [_conflict_check(puzzles)])
    return data


def _only_solutions(file: Path, first: int, puzzles: np.ndarray) -> np.ndarray:
    """The solutions of the puzzles in lines from number ``first`` on, if each has exactly one."""
    count, solutions = search(puzzles)

    def describe(i: int) -> str:
        return str(describe_count(int(count[i]), solutions[i]))

    _check(file, first, [(count != 1, describe)])
    return solutions[:, 0]


def write_palm(path: str | PathLike[str], data: Puzzles) -> None:
    """Writes lines "quiz,solution" that ``read_palm`` reads.

    Raises:
      ValueError: the puzzles or the solutions are not digits.
    """
    text = np.full((len(data), _PAIR + 1), ord("\n"), np.uint8)
    text[:, :CELLS] = as_boards(data.puzzles, "write_palm", "puzzles") + ord("0")
    text[:, CELLS] = ord(",")
    text[:, CELLS + 1 : _PAIR] = as_boards(data.solutions, "write_palm", "solutions") + ord("0")
    Path(path).write_bytes(text.tobytes())


def _read_pairs(file: Path, lines: list[bytes], first: int) -> Puzzles:
    data = Puzzles(*np.empty((2, len(lines), CELLS), np.int8))
    for part, digits in _blocks(file, lines, _PAIR, first):
        data.puzzles[part], data.solutions[part] = digits[:, :CELLS], digits[:, CELLS + 1 :]
        _check(file, first + part.start, _pair_checks(data[part]))
    return data


# A mask of invalid lines, and a function that describes the fault of one of them.
_Check = tuple[np.ndarray, Callable[[int], str]]


def _pair_checks(data: Puzzles) -> list[_Check]:
    puzzles, solutions = data.puzzles, data.solutions
    differs = (puzzles > 0) & (puzzles != solutions)

    def missing(i: int) -> str:
        return f"the solution is empty at {_place(solutions[i] == 0)}"

    def other(i: int) -> str:
        cell = int(np.argmax(differs[i]))
        clue, solved = puzzles[i, cell], solutions[i, cell]
        return f"the solution has {solved} at {_place(differs[i])}, where the puzzle has {clue}"

    return [
        _conflict_check(puzzles),
        ((solutions == 0).any(axis=1), missing),
        _conflict_check(solutions, "the solution breaks the rules: "),
        (differs.any(axis=1), other),
    ]


def _conflict_check(boards: np.ndarray, prefix: str = "") -> _Check:
    return have_conflicts(boards), lambda i: f"{prefix}{conflicts(boards[i])[0]}"


def _check(file: Path, first: int, checks: list[_Check]) -> None:
    """Raises for the first line that any check marks as invalid, with that check's description."""
    bad = np.any([flags for flags, _ in checks], axis=0)
    if bad.any():
        i = int(np.argmax(bad))
        describe = next(describe for flags, describe in checks if flags[i])
        raise ValueError(f"{file}: line {first + i}: {describe(i)}")


def _blocks(
    file: Path, lines: list[bytes], width: int, first: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields positions and digits, [lines, width], of the lines up to the first invalid one.

    An error about that line follows after all lines before it.

    Args:
      file: name of the file in errors.
      lines: its lines, from line number ``first`` on.
      width: characters of a line; the middle one of a pair is a comma, and 0 in the digits.
      first: number of the first line.
    """
    if not lines:
        raise ValueError(f"{file}: it holds no puzzles")
    for start in range(0, len(lines), _LINES):
        block = [line.strip() for line in lines[start : start + _LINES]]
        good, problem = len(block), None
        for i in np.flatnonzero([len(line) != width for line in block])[:1].tolist():
            second = f", a comma and {CELLS} digits" if width == _PAIR else ""
            got = f"{len(block[i])} characters: {_quote(block[i])}"
            good, problem = i, f"expected {CELLS} digits{second}, got {got}"
        digits, fits = _read_digits(block[:good], width)
        for flat in np.flatnonzero(~fits.ravel())[:1].tolist():
            good, column = divmod(flat, width)
            expected = "','" if column == CELLS else "a digit or '.'"
            got = repr(chr(block[good][column]))
            problem = f"expected {expected} at column {column + 1}, got {got}"
        yield slice(start, start + good), digits[:good]
        if problem is not None:
            raise ValueError(f"{file}: line {first + start + good}: {problem}")


def _read_digits(lines: list[bytes], width: int) -> tuple[np.ndarray, np.ndarray]:
    """The digits of lines of ``width`` characters, and whether each is one, both [lines, width]."""
    codes = np.frombuffer(b"".join(lines), np.uint8).reshape(len(lines), width)
    digits = np.where(codes == ord("."), ord("0"), codes) - np.int16(ord("0"))
    fits = (digits >= 0) & (digits <= 9)
    if width == _PAIR:
        fits[:, CELLS] = codes[:, CELLS] == ord(",")
        digits[:, CELLS] = 0
    return digits.astype(np.int8), fits


def _quote(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _place(flags: np.ndarray) -> str:
    cell = int(np.argmax(flags))
    return f"r{cell // 9 + 1}c{cell % 9 + 1}"
