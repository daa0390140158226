"""Trained networks that solve Sudokus step by step, with new attempts after failures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Int

from jaxgnn._errors import bad_input
from jaxgnn._modes import in_evaluation_mode
from jaxgnn._sudoku import CELLS, SudokuEffort
from jaxgnn.datasets import sudoku
from jaxgnn.models import sudoku_digits
from jaxgnn.models.sudoku_boards import fulfils_rules
from jaxgnn.models.sudoku_states import perturbed
from jaxgnn.pretrained._model_file import load_weights

# Standard deviation of noise added to the memory before a new attempt: of 0.5, 0.7, 1 and 2 the one
# with which most attempts at five hard puzzles succeeded, with the weights of the library.
_NOISE = 1.0


@dataclass(frozen=True)
class SudokuSolutions:
    """A network's answers to puzzles.

    Attributes:
      digits: [count, 81] int8, the solution if one was found, otherwise the answer of the first
        attempt after its last step. It includes the givens, and is 0 where the network's output
        is NaN or infinite.
      solved: [count] bool, whether ``digits`` has every digit once in each row, column and box.
      steps: [count] int32, the step of its attempt after which the answer was the solution, counted
        from 1; 0 where not solved.
      restarts: [count] int32, number of attempts after the first.
      seconds: time of the call, without compilation.
      compile_seconds: time of compilation, which a later call of the same shapes does not need.
    """

    digits: np.ndarray
    solved: np.ndarray
    steps: np.ndarray
    restarts: np.ndarray
    seconds: float
    compile_seconds: float = 0.0


def solve_sudokus(
    model: nnx.Module,
    puzzles: np.ndarray,
    effort: SudokuEffort | None = None,
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> SudokuSolutions:
    """Runs a network on puzzles until each grid is complete and free of conflicts.

    All puzzles have a first attempt, which ends at the solution or after
    ``effort.attempt_steps``. Puzzles without a solution then have new attempts, several at a time,
    until one of them succeeds or ``effort.steps`` are used up. A new attempt starts with random
    numbers in the memory of the network. Every second one adds a guess as a given: a digit drawn
    from the probabilities of the first attempt, in a cell where they are uncertain. Transforming
    the puzzle by a symmetry would change nothing for ``CandidateNetwork`` and
    ``EquivariantRelationalNetwork``, whose answers transform with it.

    An answer always comes from the network, never from a search. A grid that keeps the givens and
    obeys the rules is the solution, if the puzzle has only one.

    Args:
      model: one of the Sudoku networks of ``jaxgnn.models``; it is run in evaluation mode, and not
        changed.
      puzzles: [count, 81] integers, 0 where a cell is empty.
      effort: limits of the work on each puzzle; None for the default, up to 2,048 steps.
      batch_size: number of puzzles with simultaneous first attempts.
      progress: called at intervals with the number of finished puzzles.

    Returns:
      The solutions. A first attempt does not depend on other puzzles in the batch, except for
      rounding; the noise of new attempts depends only on ``effort.seed`` and their number.

    Raises:
      ValueError: if ``puzzles`` are not digits of that shape, or ``batch_size`` is not positive.
    """
    begin = time.perf_counter()
    effort = SudokuEffort() if effort is None else effort
    if batch_size < 1:
        raise bad_input("solve_sudokus", "batch_size", "at least 1", batch_size)
    puzzles = _checked(puzzles)
    run, report = _Run(model, effort), progress or (lambda done: None)
    result = SudokuSolutions(
        digits=puzzles.copy(),
        solved=np.zeros(len(puzzles), bool),
        steps=np.zeros(len(puzzles), np.int32),
        restarts=np.zeros(len(puzzles), np.int32),
        seconds=0.0,
    )
    done = 0
    for start in range(0, len(puzzles), batch_size):
        part = np.arange(start, min(start + batch_size, len(puzzles)))
        # One shape, one program: the last batch is padded with its own first puzzles.
        filled = np.resize(part, min(batch_size, len(puzzles)))
        first = run.first_attempts(puzzles[filled])
        result.digits[part] = first.digits[: len(part), 0]
        result.steps[part] = first.solved_at[: len(part), 0]
        left = part[result.steps[part] == 0]
        done += len(part) - len(left)
        report(done)
        for i in left:
            chances = first.chances[i - start, 0]
            solution, result.steps[i], result.restarts[i] = run.new_attempts(puzzles[i], chances)
            if solution is not None:
                result.digits[i] = solution
            done += 1
            report(done)
    result.solved[:] = result.steps > 0
    seconds = time.perf_counter() - begin - run.compile_seconds
    return replace(result, seconds=seconds, compile_seconds=run.compile_seconds)


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
        result = solve_sudokus(model, board[None], effort)
        answer = result.digits[0]
        conflicts = tuple(sudoku.conflicts(answer))
        return SudokuAnswer(
            puzzle=board,
            board=answer,
            solved=bool(answer.all()) and not conflicts,
            steps=int(result.steps[0]),
            restarts=int(result.restarts[0]),
            seconds=time.perf_counter() - begin - result.compile_seconds,
            conflicts=conflicts,
            compile_seconds=result.compile_seconds,
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


class _Run:
    """A network in use, in evaluation mode, and the seconds that compilation took."""

    def __init__(self, model: nnx.Module, effort: SudokuEffort):
        self._graphdef, self._state = nnx.split(in_evaluation_mode(model))
        self._effort = effort
        self._key = jax.random.key(effort.seed)
        self._compiled: set[tuple[int, ...]] = set()
        self.compile_seconds = 0.0

    def first_attempts(self, puzzles: np.ndarray) -> _Progress:
        """One attempt at each puzzle [count, 81], without noise or guesses."""
        limit = min(self._effort.attempt_steps, self._effort.steps)
        return self._attempt(puzzles[:, None], 0, 0.0, limit)

    def new_attempts(
        self, puzzle: np.ndarray, chances: np.ndarray
    ) -> tuple[np.ndarray | None, int, int]:
        """The solution [81] or None, the step at which it was found, and the number of attempts."""
        effort, restarts = self._effort, 0
        left = effort.steps - effort.attempt_steps
        while left >= effort.attempts:
            limit = min(effort.attempt_steps, left // effort.attempts)
            boards = self._guessed_boards(puzzle, chances, restarts)
            progress = self._attempt(boards[None], restarts + 1, _NOISE, limit)
            restarts += effort.attempts
            left -= limit * effort.attempts
            steps = progress.solved_at[0]
            if steps.any():
                first = int(np.argmax(steps > 0))
                return progress.digits[0, first], int(steps[first]), restarts
        return None, 0, restarts

    def _guessed_boards(self, puzzle: np.ndarray, chances: np.ndarray, number: int) -> np.ndarray:
        """Makes boards of attempts from ``number`` on, [attempts, 81]; every second has a guess.

        Cells are chosen with a probability that grows with the network's uncertainty. The digit is
        drawn with the network's own probabilities.
        """
        boards = np.repeat(puzzle[None], self._effort.attempts, axis=0)
        doubt = np.where(puzzle == 0, 1 - chances.max(axis=-1), 0).astype(np.float64)
        if not np.isfinite(chances).all() or not doubt.any():  # Nothing can be drawn.
            return boards
        draw = np.random.default_rng([self._effort.seed, number])
        for board in boards[1::2]:
            cell = draw.choice(CELLS, p=doubt / doubt.sum())
            digits = chances[cell].astype(np.float64)
            board[cell] = 1 + draw.choice(len(digits), p=digits / digits.sum())
        return boards

    def _attempt(self, puzzles: np.ndarray, number: int, noise: float, limit: int) -> _Progress:
        """Runs attempts [count, attempts, 81] at puzzles until each puzzle has a solution."""
        begin = time.perf_counter()
        program = partial(_attempts, self._graphdef, self._state, jnp.asarray(puzzles, jnp.int32))
        key = jax.random.fold_in(self._key, number)
        if puzzles.shape not in self._compiled:
            jax.block_until_ready(program(key, noise, 0))
            self._compiled.add(puzzles.shape)
            self.compile_seconds += time.perf_counter() - begin
        return jax.device_get(program(key, noise, limit))


class _Progress(NamedTuple):
    """State of attempts, on the device or, when they are done, as NumPy arrays."""

    step: Any  # int32 scalar: number of steps so far.
    state: Any  # State of the network; None after the attempts.
    digits: Any  # int32 [count, attempts, 81]: solutions, or the last answers.
    solved_at: Any  # int32 [count, attempts]: step that gave the solution, 0 for none.
    chances: Any  # float32 [count, attempts, 81, 9]: mean probabilities over all steps.


@partial(jax.jit, static_argnames="graphdef")
def _attempts(
    graphdef: nnx.GraphDef,
    parameters: Any,
    puzzles: Int[Array, "count attempts 81"],
    key: Array,
    noise: float,
    limit: int,
) -> _Progress:
    """Runs until every puzzle has a solved attempt, or for ``limit`` steps."""
    model: Any = nnx.merge(graphdef, parameters)
    recurrence = model.recurrence(puzzles)

    def goes_on(progress: _Progress) -> Bool[Array, ""]:
        every_puzzle = (progress.solved_at > 0).any(axis=1).all()
        return (progress.step < limit) & ~every_puzzle

    def step(progress: _Progress) -> _Progress:
        state, logits = recurrence.step(progress.state)
        open_before = progress.solved_at == 0
        answers = jnp.where(puzzles > 0, puzzles, sudoku_digits(logits))
        digits = jnp.where(open_before[..., None], answers, progress.digits)
        number = progress.step + 1
        solved_now = open_before & fulfils_rules(answers)
        solved_at = jnp.where(solved_now, number, progress.solved_at)
        now = jax.nn.softmax(logits[..., -9:].astype(jnp.float32))
        chances = progress.chances + (now - progress.chances) / number.astype(jnp.float32)
        return _Progress(number, state, digits, solved_at, chances)

    begin = _Progress(
        step=jnp.int32(0),
        state=perturbed(recurrence.start(), key, noise),
        digits=jnp.zeros_like(puzzles),
        solved_at=jnp.zeros(puzzles.shape[:2], jnp.int32),
        chances=jnp.zeros((*puzzles.shape, 9), jnp.float32),
    )
    return lax.while_loop(goes_on, step, begin)._replace(state=None)


def _checked(puzzles: np.ndarray) -> np.ndarray:
    """Copies the puzzles to int8; raises ValueError if they are not digits [count, 81]."""
    puzzles = np.asarray(puzzles)
    if puzzles.ndim != 2 or puzzles.shape[1] != CELLS or puzzles.dtype.kind not in "iu":
        got = f"{puzzles.dtype} {list(puzzles.shape)}"
        raise bad_input("solve_sudokus", "puzzles", f"integers [count, {CELLS}]", got)
    bad = np.argwhere((puzzles < 0) | (puzzles > 9))
    if len(bad):
        row, cell = bad[0].tolist()
        got = f"{puzzles[row, cell]} at [{row}, {cell}]"
        raise bad_input("solve_sudokus", "puzzles", "digits from 0 to 9", got)
    return puzzles.astype(np.int8)
