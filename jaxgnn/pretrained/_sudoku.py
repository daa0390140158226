"""A trained network that solves Sudokus, step by step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn._errors import bad_input
from jaxgnn.datasets import sudoku
from jaxgnn.models import SudokuGNN, sudoku_digits
from jaxgnn.pretrained._weights import load_weights


def sudoku_weights() -> Path:
    """Returns the path of the weights in the library, which ``sudoku_solver`` loads by default."""
    return Path(__file__).parent / "sudoku.npz"


@dataclass(frozen=True)
class SudokuAnswer:
    """The network's answer to a puzzle.

    Attributes:
      puzzle: [81] int8, 0 where a cell is empty.
      board: [81] int8, the likeliest digits behind the last step, and the givens; 0 where what the
        network says is NaN or infinite.
      settled: the first step from which on the answer is ``board``, counted from 1; None if
        ``board`` breaks the rules or is not full, so that it is no solution.
      steps: number of steps of message passing.
      conflicts: the conflicts of ``board`` with the rules.
    """

    puzzle: np.ndarray
    board: np.ndarray
    settled: int | None
    steps: int
    conflicts: tuple[sudoku.Conflict, ...]

    def __str__(self) -> str:
        """The grid, and a line below it."""
        if self.settled is not None:
            return f"{sudoku.to_grid(self.board)}\nsettled at step {self.settled} of {self.steps}"
        if self.conflicts:
            wrong = f"{len(self.conflicts)} conflicts, the first: {self.conflicts[0]}"
        else:
            wrong = f"{np.count_nonzero(self.board == 0)} cells without a digit"
        return (
            f"{sudoku.to_grid(self.board)}\n"
            f"not solved: behind step {self.steps} the answer still has {wrong}"
        )


class SudokuSolver:
    """A trained network, asked for one puzzle at a time.

    Args:
      model: one of the Sudoku networks of ``jaxgnn.models``.
    """

    def __init__(self, model: nnx.Module):
        self._graphdef, self._state = nnx.split(model)

    def solve(
        self, puzzle: str | os.PathLike[str] | np.ndarray, *, steps: int = 64
    ) -> SudokuAnswer:
        """The network's answer to a puzzle that has exactly one solution.

        A search, which is no part of the network, sees to that first.

        Args:
          puzzle: 81 cells, row by row, with '.' or '0' where empty; or the name of a file with
            them; or an array [81] with 0 where empty.
          steps: number of steps of message passing.

        Raises:
          ValueError: if ``puzzle`` has another number of cells, or something else than digits in
            them; if a digit stands twice in a row, a column or a box, and where; if there is no
            solution, or more than one, and a cell in which two differ; if ``steps`` is not
            positive.
          FileNotFoundError: if ``puzzle`` is a path, and there is no such file.
        """
        if steps < 1:
            raise bad_input("SudokuSolver.solve", "steps", "at least 1", steps)
        board = puzzle if isinstance(puzzle, np.ndarray) else sudoku.load(puzzle)
        sudoku.check_unique(board)
        board = np.array(board, np.int8)  # kept in the answer, so not the caller's
        boards = _answers(self._graphdef, self._state, jnp.asarray(board), steps=steps)
        boards = np.asarray(boards, np.int8)
        conflicts = tuple(sudoku.conflicts(boards[-1]))
        differs = np.flatnonzero((boards != boards[-1]).any(axis=-1))
        settled = int(differs[-1]) + 2 if differs.size else 1
        solved = not conflicts and boards[-1].all()
        return SudokuAnswer(board, boards[-1], settled if solved else None, steps, conflicts)


def sudoku_solver(weights: str | os.PathLike[str] | None = None) -> SudokuSolver:
    """Loads a trained network.

    Args:
      weights: a file written by ``save_weights``; None for the file that comes with the library.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is no such file.
    """
    if weights is None and not sudoku_weights().is_file():
        raise FileNotFoundError(
            f"no weights in {sudoku_weights()}: name a file of them, or train and export some with "
            "experiments.sudoku"
        )
    return SudokuSolver(load_weights(sudoku_weights() if weights is None else weights))


# Of the module: an attribute that is compiled could not be pickled.
@partial(jax.jit, static_argnames=("graphdef", "steps"))
def _answers(graphdef: nnx.GraphDef, state: Any, puzzle: jax.Array, *, steps: int) -> jax.Array:
    """Digits behind every step, [steps, 81], with the givens in their places."""
    model: Any = nnx.merge(graphdef, state)
    every = {"every_step": True} if isinstance(model, SudokuGNN) else {}
    digits = sudoku_digits(model(puzzle.astype(jnp.int32), num_steps=steps, **every))
    return jnp.where(puzzle > 0, puzzle.astype(digits.dtype), digits)
