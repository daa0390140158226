"""Solutions of boards, how many there are, and how hard they are to find."""

import itertools
import warnings
from typing import NamedTuple

import numpy as np

from jaxgnn._ffi import sudoku as native
from jaxgnn.datasets.sudoku._boards import CELLS, as_boards, conflicts
from jaxgnn.datasets.sudoku._templates import iterate_solutions


class Difficulty(NamedTuple):
    """How hard boards are for two solvers; each [count].

    Attributes:
      rounds: int32, rounds in which every cell with one candidate, and every cell that is the
        only place of a digit in a unit, is filled at once, until there are no more.
      open: int32, cells still empty then; 0 means that singles solve the puzzle.
      guesses: int64, guesses of a search that also knows what rows, columns and boxes that share
        a digit rule out, until it has found the solution and that there is no other. It guesses
        at the first of the cells with two candidates, or else three, or else more.
    """

    rounds: np.ndarray
    open: np.ndarray
    guesses: np.ndarray


def solve(
    boards: np.ndarray, *, limit: int = 2, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Looks for solutions of boards.

    Args:
      boards: [count, 81] integers, 0 where a cell is empty.
      limit: how many solutions of a board to look for, at least 1.
      threads: number of threads; None for all CPUs that the process may use.

    Returns:
      How many solutions each board has, [count] int32, at most ``limit``; and the solutions,
      [count, limit, 81] int8, zeros where there is none.

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
    """Solves a board that has to have exactly one solution.

    Args:
      board: [81] integers, 0 where a cell is empty.

    Returns:
      The solution, [81] int8.

    Raises:
      ValueError: digits stand more than once in a unit, and where; or there is no solution, or
        more than one, and a cell in which they differ.
    """
    where = "datasets.sudoku.check_unique: board"
    clashes = conflicts(board)
    if clashes:
        more = f" (and {len(clashes) - 1} more conflicts)" if len(clashes) > 1 else ""
        raise ValueError(f"{where}: {clashes[0]}{more}")
    found, solutions = solve(np.asarray(board)[None])
    problem = describe_count(int(found[0]), solutions[0])
    if problem is not None:
        raise ValueError(f"{where}: {problem}")
    return solutions[0, 0]


def describe_count(found: int, solutions: np.ndarray) -> str | None:
    """What is wrong if a board has ``found`` of two solutions, [2, 81]; None if it has just one."""
    if found == 0:
        return "it has no solution"
    if found == 1:
        return None
    cell = int(np.argmax(solutions[0] != solutions[1]))
    one, other = sorted(solutions[:, cell].tolist())
    place = f"r{cell // 9 + 1}c{cell % 9 + 1}"
    return f"it has more than one solution: {place} can be {one} or {other}, for one"


def difficulty(boards: np.ndarray, *, threads: int | None = None) -> Difficulty:
    """Rates boards by how they are solved.

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
