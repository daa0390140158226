"""Boards as text and as arrays, conflicts between digits, and limits of a network's work.

Command lines use these before JAX is imported.
"""

import os
from dataclasses import dataclass
from typing import TextIO

import numpy as np

from jaxgnn._errors import bad_input

CELLS = 81

# Most characters that are read: more than a drawn board has, but finite for devices such as pipes.
_MAX_CHARACTERS = 1 << 20

_EMPTY = ".0"
# Characters of drawn grids.
_DECORATION = str.maketrans("", "", " \t\r\n|+-=")


_ROWS = np.arange(CELLS).reshape(9, 9)
_BOXES = _ROWS.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)
UNITS = np.concatenate([_ROWS, _ROWS.T, _BOXES])
"""Cells of rows, columns and boxes, [27, 9]."""
UNIT_NAMES = [f"{kind} {i}" for kind in ("row", "column", "box") for i in range(1, 10)]


@dataclass(frozen=True)
class Conflict:
    """A digit that occurs more than once in a row, column or box.

    Attributes:
      unit: name such as "row 3"; boxes are counted row by row. All numbers count from 1.
      digit: the digit.
      cells: cells of the digit, as (row, column).
    """

    unit: str
    digit: int
    cells: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        """One line that names the unit, the digit and the cells."""
        times = {2: "twice", 3: "three times"}.get(len(self.cells), f"{len(self.cells)} times")
        places = ", ".join(f"r{row}c{column}" for row, column in self.cells)
        return f"{self.digit} stands {times} in {self.unit}, at {places}"


def parse(text: str) -> np.ndarray:
    """Reads a board from text.

    Args:
      text: 81 cells, row by row: digits, and '.' or '0' where empty. White space and the lines
        of a drawn grid ('|', '-', '+', '=') are ignored.

    Returns:
      [81] int8.

    Raises:
      ValueError: the number of cells is wrong, or a character is invalid; the message gives its
        place.

    Example:
      >>> parse("53..7...." + "." * 72)[:5].tolist()
      [5, 3, 0, 0, 7]
    """
    return board_of_text("datasets.sudoku.parse", "text", text)


def board_of_text(where: str, argument: str, text: str) -> np.ndarray:
    """The board [81] of a text; ``where`` and ``argument`` begin an error's message."""
    cells = text.translate(_DECORATION)
    for i, character in enumerate(cells):
        if character not in "123456789" + _EMPTY:
            place = f"at cell {i + 1} (row {i // 9 + 1}, column {i % 9 + 1})"
            raise bad_input(where, argument, "digits, '.' or '0'", f"{character!r} {place}")
    if len(cells) != CELLS:
        raise bad_input(where, argument, f"{CELLS} cells", len(cells))
    return np.array([0 if cell in _EMPTY else int(cell) for cell in cells], np.int8)


def load(source: str | os.PathLike[str]) -> np.ndarray:
    """Reads a board from a file that contains nothing else, or from the text itself.

    Args:
      source: name of a file, which may be a pipe or a device such as ``/dev/stdin``; or the text of
        a board, 81 cells row by row with '.' or '0' where empty.

    Returns:
      [81] int8.

    Raises:
      FileNotFoundError: ``source`` is a path, and there is no such file.
      ValueError: the text is not a board, or the file can not be read; the message names the file,
        if there is one.
    """
    return board_of("datasets.sudoku.load", "source", source)


def board_of(where: str, argument: str, source: str | os.PathLike[str]) -> np.ndarray:
    """The board [81] of a file or a text; ``where`` and ``argument`` begin an error's message."""
    if os.path.exists(source) and not os.path.isdir(source):
        named = f"{argument} {os.fspath(source)}"
        try:
            with open(source, encoding="utf-8") as file:
                return board_of_file(where, named, file)
        except OSError as error:
            raise bad_input(where, named, "readable", f"{error.strerror or error}") from error
    if not isinstance(source, str):
        raise FileNotFoundError(f"no file {os.fspath(source)}: expected a Sudoku of {CELLS} cells")
    try:
        return board_of_text(where, argument, source)
    except ValueError as error:
        raise ValueError(f"{error} (and no file has that name)") from error


def board_of_file(where: str, argument: str, file: TextIO) -> np.ndarray:
    """The board [81] of an open file, of which no more is read than a board may have."""
    try:
        text = file.read(_MAX_CHARACTERS)
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start : error.end]!r}"
        raise bad_input(where, argument, f"text in {error.encoding}", byte) from error
    return board_of_text(where, argument, text)


def to_line(board: np.ndarray) -> str:
    """Writes a [81] board as 81 characters, '.' where a cell is empty."""
    return "".join(
        str(digit) if digit else "." for digit in _checked_board(board, "to_line").tolist()
    )


def to_grid(board: np.ndarray) -> str:
    """Draws a [81] board, a line for each row and lines between the boxes."""
    cells = to_line(board)
    rows = []
    for row in range(9):
        boxes = (cells[9 * row + column : 9 * row + column + 3] for column in (0, 3, 6))
        rows.append(" | ".join(" ".join(box) for box in boxes))
    bands = ("\n".join(rows[i : i + 3]) for i in (0, 3, 6))
    return "\n------+-------+------\n".join(bands)


def conflicts(board: np.ndarray) -> list[Conflict]:
    """Finds every digit that occurs more than once in a unit: rows, then columns, then boxes.

    Args:
      board: [81].

    Returns:
      The conflicts; empty if the board obeys the rules so far.

    Example:
      >>> for conflict in conflicts(parse("5...5...." + "." * 72)):
      ...     print(conflict)
      5 stands twice in row 1, at r1c1, r1c5
    """
    board = _checked_board(board, "conflicts")
    all_conflicts = []
    for name, unit in zip(UNIT_NAMES, UNITS, strict=True):
        for digit in range(1, 10):
            cells = np.sort(unit[board[unit] == digit]).tolist()
            if len(cells) > 1:
                places = tuple((cell // 9 + 1, cell % 9 + 1) for cell in cells)
                all_conflicts.append(Conflict(name, digit, places))
    return all_conflicts


def have_conflicts(boards: np.ndarray) -> np.ndarray:
    """Mask of the boards [boards, 81] that have a conflict, [boards] bool."""
    digits = np.where(boards > 0, np.int16(1) << boards.astype(np.int16), np.int16(0))
    bad = np.zeros(boards.shape[0], bool)
    for unit in UNITS:
        of_unit = digits[:, unit]
        bad |= of_unit.sum(axis=1, dtype=np.int32) != np.bitwise_or.reduce(of_unit, axis=1)
    return bad


def as_boards(boards: np.ndarray, where: str, argument: str = "boards") -> np.ndarray:
    """Checks that ``boards`` are [count, 81] digits, and returns them as int8."""
    boards, begin = np.asarray(boards), f"datasets.sudoku.{where}: {argument}"
    if boards.ndim != 2 or boards.shape[1] != CELLS or boards.dtype.kind not in "iu":
        shape, kind = list(boards.shape), boards.dtype
        raise ValueError(f"{begin}: expected integers [count, {CELLS}], got {kind} {shape}")
    bad = (boards < 0) | (boards > 9)
    if bad.any():
        row, cell = np.unravel_index(int(np.argmax(bad)), bad.shape)
        raise ValueError(f"{begin}: expected 0 to 9, got {boards[row, cell]} at [{row}, {cell}]")
    return boards.astype(np.int8)


def _checked_board(board: np.ndarray, where: str) -> np.ndarray:
    """Checks that ``board`` is [81] digits, and returns it as int8."""
    return as_boards(np.asarray(board)[None], where, "board")[0]


@dataclass(frozen=True)
class SudokuEffort:
    """Limits of a network's work on a puzzle.

    Attributes:
      steps: largest number of message passing steps for a puzzle, of all attempts together.
      attempt_steps: largest number of steps of one attempt.
      attempts: number of new attempts made at the same time.
      seed: seed of the noise in new attempts.

    Raises:
      ValueError: if one of the first three is not at least 1, or the seed is negative.
    """

    steps: int = 2048
    attempt_steps: int = 128
    attempts: int = 8
    seed: int = 0

    def __post_init__(self):
        for name, least in {"steps": 1, "attempt_steps": 1, "attempts": 1, "seed": 0}.items():
            value = getattr(self, name)
            if value < least:
                raise bad_input("SudokuEffort", name, f"at least {least}", value)
