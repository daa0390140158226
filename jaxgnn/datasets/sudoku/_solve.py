"""Solutions of boards, their number, and their difficulty."""

import itertools
import warnings
from typing import NamedTuple

import numpy as np

from jaxgnn._ffi import sudoku as native
from jaxgnn._sudoku_boards import CELLS, as_boards, conflicts
from jaxgnn.datasets.sudoku._templates import iterate_solutions


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
      ValueError: ``boards`` are not digits of that shape, or ``limit`` is less than 1.
    """
    boards = as_boards(boards, "solve")
    if limit < 1:
        raise ValueError(f"datasets.sudoku.solve: limit: expected at least 1, got {limit}")
    reason = native.why_missing()
    if reason is None:
        found, solutions, _ = native.solve(boards, limit=limit, threads=threads)
        return found, solutions
    warnings.warn(f"jaxgnn: datasets.sudoku.solve takes the slow path: {reason}", stacklevel=2)
    found = np.zeros(len(boards), np.int32)
    solutions = np.zeros((len(boards), limit, CELLS), np.int8)
    for i, board in enumerate(boards):
        for solution in itertools.islice(iterate_solutions(board), limit):
            solutions[i, found[i]] = solution
            found[i] += 1
    return found, solutions


def check_unique(board: np.ndarray) -> np.ndarray:
    """Solves a board that must have exactly one solution.

    Args:
      board: [81] integers, 0 where a cell is empty.

    Returns:
      The solution, [81] int8.

    Raises:
      ValueError: digits occur more than once in a unit, with their places; or there is no solution,
        or more than one, with a cell in which they differ.
    """
    return unique_solution("datasets.sudoku.check_unique", "board", board)


def unique_solution(where: str, argument: str, board: np.ndarray) -> np.ndarray:
    """The only solution; ``where`` and ``argument`` begin the message of an error."""
    begin = f"{where}: {argument} must have exactly one solution, but"
    clashes = conflicts(board)
    if clashes:
        more = f" (and {len(clashes) - 1} more conflicts)" if len(clashes) > 1 else ""
        raise ValueError(f"{begin} {clashes[0]}{more}")
    found, solutions = solve(np.asarray(board)[None])
    problem = describe_count(int(found[0]), solutions[0])
    if problem is not None:
        raise ValueError(f"{begin} {problem}")
    return solutions[0, 0]


def describe_count(found: int, solutions: np.ndarray) -> str | None:
    """The error if a board has ``found`` of two solutions, [2, 81]; None if it has exactly one."""
    if found == 0:
        return "it has no solution"
    if found == 1:
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
      ValueError: ``boards`` are not digits of that shape.
      NotImplementedError: the compiled library is missing.
    """
    boards = as_boards(boards, "difficulty")
    reason = native.why_missing()
    if reason is not None:
        raise NotImplementedError(f"datasets.sudoku.difficulty: {reason}")
    *_, guesses = native.solve(boards, limit=2, threads=threads)
    return Difficulty(*native.singles(boards, threads=threads), guesses)
