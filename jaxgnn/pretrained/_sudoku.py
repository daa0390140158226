"""A trained network that solves Sudokus, step by step."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flax import nnx

from jaxgnn._sudoku import SudokuEffort
from jaxgnn.datasets import sudoku
from jaxgnn.pretrained._solving import solve_sudokus
from jaxgnn.pretrained._weights import load_weights


def sudoku_weights() -> Path:
    """Returns the path of the library's weights, which ``sudoku_solver`` loads by default."""
    return Path(__file__).parent / "sudoku.npz"


@dataclass(frozen=True)
class SudokuAnswer:
    """The network's answer to a puzzle.

    Attributes:
      puzzle: [81] int8, 0 where a cell is empty.
      board: [81] int8, the solution, or the final answer of the first attempt, with the givens; 0
        where the network's output is NaN or infinite.
      solved: whether ``board`` is full and breaks no rule, so that it is the solution.
      steps: the step of its attempt after which the answer was the solution, counted from 1; 0 if
        there is none.
      restarts: number of attempts after the first.
      seconds: time of the call, without compilation.
      conflicts: the conflicts of ``board`` with the rules.
      compile_seconds: time of compilation, which a later call in this process does not need.
    """

    puzzle: np.ndarray
    board: np.ndarray
    solved: bool
    steps: int
    restarts: int
    seconds: float
    conflicts: tuple[sudoku.Conflict, ...]
    compile_seconds: float = 0.0

    def __str__(self) -> str:
        """The grid, and a line below it."""
        restarts = "1 restart" if self.restarts == 1 else f"{self.restarts} restarts"
        effort = f"{restarts}, {self.seconds:.2f} s"
        if self.compile_seconds:
            effort += f" and {self.compile_seconds:.2f} s of compilation"
        if self.solved:
            return f"{sudoku.to_grid(self.board)}\nsolved at step {self.steps} ({effort})"
        if self.conflicts:
            wrong = f"{len(self.conflicts)} conflicts, the first: {self.conflicts[0]}"
        else:
            wrong = f"{np.count_nonzero(self.board == 0)} cells without a digit"
        return (
            f"{sudoku.to_grid(self.board)}\n"
            f"not solved ({effort}): the answer of the first attempt has {wrong}"
        )


class SudokuSolver:
    """A trained network that answers one puzzle at a time.

    Args:
      model: one of the Sudoku networks of ``jaxgnn.models``.
    """

    def __init__(self, model: nnx.Module):
        self._graphdef, self._state = nnx.split(model)

    def solve(
        self, puzzle: str | os.PathLike[str] | np.ndarray, effort: SudokuEffort | None = None
    ) -> SudokuAnswer:
        """The network's answer to a puzzle that has exactly one solution.

        A search, separate from the network, first verifies this. Then ``solve_sudokus`` runs the
        network until its answer is the solution.

        Args:
          puzzle: 81 cells, row by row, with '.' or '0' where empty; or the name of a file with
            them; or an array [81] with 0 where empty.
          effort: limits of the network's work on it; None for the default, up to 2,048 steps.

        Raises:
          ValueError: if ``puzzle`` has another number of cells, or invalid digits; if a digit
            occurs twice in a row, a column or a box, with the place; if there is no solution, or
            more than one, with a cell in which two differ.
          FileNotFoundError: if ``puzzle`` is a path, and there is no such file.
        """
        begin = time.perf_counter()
        board = puzzle if isinstance(puzzle, np.ndarray) else sudoku.load(puzzle)
        sudoku.check_unique(board)
        board = np.array(board, np.int8)  # a copy, because the answer keeps it
        model = nnx.merge(self._graphdef, self._state)
        found = solve_sudokus(model, board[None], effort)
        answer = found.digits[0]
        conflicts = tuple(sudoku.conflicts(answer))
        return SudokuAnswer(
            puzzle=board,
            board=answer,
            solved=bool(answer.all()) and not conflicts,
            steps=int(found.steps[0]),
            restarts=int(found.restarts[0]),
            seconds=time.perf_counter() - begin - found.compile_seconds,
            conflicts=conflicts,
            compile_seconds=found.compile_seconds,
        )


def sudoku_solver(weights: str | os.PathLike[str] | None = None) -> SudokuSolver:
    """Loads a trained network.

    Args:
      weights: a file written by ``save_weights``; None for the file that comes with the library.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not such a file.
    """
    if weights is None and not sudoku_weights().is_file():
        raise FileNotFoundError(
            f"no weights in {sudoku_weights()}: name a file of them, or train and export some with "
            "experiments.sudoku"
        )
    return SudokuSolver(load_weights(sudoku_weights() if weights is None else weights))
