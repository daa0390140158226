"""Solutions of boards, their number, and their difficulty."""

import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxgnn._ffi import sudoku as native
from jaxgnn._sudoku import CELLS, as_boards, conflicts

# Guesses without a solution after which a board is given up: seconds. Published puzzles need a few
# dozen. Those of the plain search, which are counted, can be more.
MOST_GUESSES = 1_000_000
MOST_COUNTED_GUESSES = 10_000_000
# Those of the search without the compiled library, which places all of a digit at once: a minute.
MOST_PLACEMENTS = 5_000

_UNDECIDED = -1

_EVERY = np.array([2**64 - 1, 2**17 - 1], np.uint64)


class Difficulty(NamedTuple):
    """Difficulty of boards for two solvers; each [count].

    Attributes:
      rounds: int32, number of rounds that fill at once every cell with one candidate, and every
        cell that is the only place of a digit in a unit, until there are no more.
      open: int32, cells that are then still empty; 0 means that singles solve the puzzle.
      guesses: int64, guesses of a search until it has found the solution and proved it unique. It
        also uses eliminations by units that share a digit, and guesses at the first of the cells
        with two candidates, or else three, or else more.
    """

    rounds: np.ndarray
    open: np.ndarray
    guesses: np.ndarray


def solve(
    boards: np.ndarray, *, limit: int = 2, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Searches for solutions of boards.

    Args:
      boards: [count, 81] integers, 0 where a cell is empty.
      limit: largest number of solutions to find for a board, at least 1.
      threads: number of threads; None for all CPUs that the process may use.

    Returns:
      The number of solutions of each board, [count] int32, at most ``limit``; and the solutions,
      [count, limit, 81] int8, zeros for missing ones.

    Raises:
      ValueError: ``boards`` are not digits of that shape, ``limit`` is less than 1, or a board is
        neither solved nor refuted after a million guesses (5,000 of larger steps without the
        compiled library); no published puzzle takes so many.
    """
    boards = as_boards(boards, "solve")
    if limit < 1:
        raise ValueError(f"datasets.sudoku.solve: limit: expected at least 1, got {limit}")
    count, solutions = search(boards, limit=limit, threads=threads)
    _require_decided("solve", count == _UNDECIDED, _most_guesses())
    return count, solutions


def search(
    boards: np.ndarray, *, limit: int = 2, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Searches as ``solve`` does boards [count, 81] int8; the count is -1 where it gives up."""
    reason = native.why_missing()
    if reason is None:
        options = {"limit": limit, "most": MOST_GUESSES, "threads": threads}
        count, solutions, _ = native.solve(boards, **options)
        return count, solutions
    warnings.warn(f"jaxgnn: datasets.sudoku.solve takes the slow path: {reason}", stacklevel=3)
    count = np.zeros(len(boards), np.int32)
    solutions = np.zeros((len(boards), limit, CELLS), np.int8)
    for i, board in enumerate(boards):
        try:
            for solution in itertools.islice(iterate_solutions(board), limit):
                solutions[i, count[i]] = solution
                count[i] += 1
        except _UndecidedError:
            count[i] = _UNDECIDED
    return count, solutions


def _most_guesses() -> int:
    """Guesses after which ``search`` gives a board up."""
    return MOST_GUESSES if native.why_missing() is None else MOST_PLACEMENTS


class _UndecidedError(Exception):
    """A board is given up."""


def _require_decided(where: str, undecided: np.ndarray, most: int) -> None:
    if undecided.any():
        begin = f"datasets.sudoku.{where}: boards: expected boards that take at most"
        raise ValueError(f"{begin} {most} guesses, got more for board {int(np.argmax(undecided))}")


def check_unique(board: np.ndarray) -> np.ndarray:
    """Solves a board that must have exactly one solution.

    Args:
      board: [81] integers, 0 where a cell is empty.

    Returns:
      The solution, [81] int8.

    Raises:
      ValueError: digits occur more than once in a unit, with their places; or there is no solution,
        or more than one, with a cell in which they differ; or it takes too many guesses to decide
        this.
    """
    return unique_solution("datasets.sudoku.check_unique", "board", board)


def unique_solution(where: str, argument: str, board: np.ndarray) -> np.ndarray:
    """Returns the only solution; ``where`` and ``argument`` begin the message of an error."""
    begin = f"{where}: {argument} must have exactly one solution, but"
    clashes = conflicts(board)
    if clashes:
        more = f" (and {len(clashes) - 1} more conflicts)" if len(clashes) > 1 else ""
        raise ValueError(f"{begin} {clashes[0]}{more}")
    count, solutions = search(as_boards(np.asarray(board)[None], "check_unique", "board"))
    problem = describe_count(int(count[0]), solutions[0])
    if problem is not None:
        raise ValueError(f"{begin} {problem}")
    return solutions[0, 0]


def describe_count(count: int, solutions: np.ndarray) -> str | None:
    """The error if a board has ``count`` of two solutions, [2, 81]; None if it has exactly one."""
    if count == _UNDECIDED:
        return f"it is neither solved nor refuted after {_most_guesses()} guesses"
    if count == 0:
        return "it has no solution"
    if count == 1:
        return None
    cell = int(np.argmax(solutions[0] != solutions[1]))
    one, other = sorted(solutions[:, cell].tolist())
    place = f"r{cell // 9 + 1}c{cell % 9 + 1}"
    return f"it has more than one solution: {place} can be {one} or {other}, for one"


def difficulty(boards: np.ndarray, *, threads: int | None = None) -> Difficulty:
    """Rates the difficulty of boards for two solvers.

    Args:
      boards: [count, 81] integers, 0 where a cell is empty.
      threads: number of threads; None for all CPUs that the process may use.

    Returns:
      Counts that rank boards from easy to hard.

    Raises:
      ValueError: ``boards`` are not digits of that shape, or one takes more than ten million
        guesses, as some boards do that have no solution or many.
      NotImplementedError: the compiled library is missing.
    """
    boards = as_boards(boards, "difficulty")
    reason = native.why_missing()
    if reason is not None:
        raise NotImplementedError(f"datasets.sudoku.difficulty: {reason}")
    plain = {"most": MOST_COUNTED_GUESSES, "patience": native.PLAIN}
    count, _, guesses = native.solve(boards, limit=2, threads=threads, **plain)
    _require_decided("difficulty", count == _UNDECIDED, MOST_COUNTED_GUESSES)
    return Difficulty(*native.singles(boards, threads=threads), guesses)


def iterate_solutions(board: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the solutions of a [81] board, for installs without the compiled solver; [81] int8.

    Raises:
      _UndecidedError: too many placements of a digit lead to no solution.
    """
    if conflicts(board):
        return
    clues = [_pack_cells(np.flatnonzero(board == digit)[None])[0] for digit in range(1, 10)]
    taken = np.bitwise_or.reduce(clues)
    ways = {}
    for digit, cells in enumerate(clues, start=1):
        ways[digit] = _templates()[((_templates() & taken) == cells).all(axis=1)]
    yield from _place(ways, np.zeros(81, np.int8), np.zeros(2, np.uint64), [0])


def _place(
    ways: dict[int, np.ndarray], board: np.ndarray, filled: np.ndarray, vain: list[int]
) -> Iterator[np.ndarray]:
    """Places the digit with the fewest remaining ways, in each of them, and then the other digits.

    Args:
      ways: for each remaining digit, the sets of nine cells that can hold it, [ways, 2].
      board: [81], without those digits.
      filled: its cells, [2].
      vain: number of placements since the last solution, the only entry of a list.
    """
    if not ways:
        vain[0] = 0
        yield board
        return
    reached = [np.bitwise_or.reduce(way, axis=0) for way in ways.values()]
    if (np.bitwise_or.reduce([filled, *reached]) != _EVERY).any():
        return
    digit = min(ways, key=lambda d: len(ways[d]))
    for way in ways[digit]:
        vain[0] += 1
        if vain[0] > MOST_PLACEMENTS:
            raise _UndecidedError
        others = {d: w[((w & way) == 0).all(axis=1)] for d, w in ways.items() if d != digit}
        yield from _place(
            others, np.where(_unpack_cells(way), np.int8(digit), board), filled | way, vain
        )


@functools.cache
def _templates() -> np.ndarray:
    """Returns the 46,656 ways to place a digit once in every row, column and box, [46656, 2]."""
    columns = np.array(list(itertools.permutations(range(9))))
    boxes_of_bands = np.sort(columns.reshape(-1, 3, 3) // 3, axis=2)
    columns = columns[(boxes_of_bands == np.arange(3)).all(axis=(1, 2))]
    return _pack_cells(np.arange(9) * 9 + columns)


def _pack_cells(cells: np.ndarray) -> np.ndarray:
    """Returns cells, [sets, size], as bits of two words, [sets, 2] uint64."""
    flags = np.zeros((cells.shape[0], 128), bool)
    np.put_along_axis(flags, cells, True, axis=1)
    return np.packbits(flags, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def _unpack_cells(bits: np.ndarray) -> np.ndarray:
    """Returns one set of cells, [2] uint64, as flags, [81] bool."""
    flags = np.unpackbits(bits.astype("<u8").view(np.uint8), bitorder="little")
    return flags[:81].astype(bool)
