"""Evaluation of a network's answers to puzzles, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from experiments.sudoku.networks import counted_cells, logits_of
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.models import sudoku_digits
from jaxgnn.training import jit_apply


@dataclass(frozen=True)
class Measurement:
    """Answers to puzzles; each [count].

    Counted cells are blank and have a digit in the solution. The fractions of puzzles and cells
    are NaN if the logits of a counted cell are not finite at some step, or if its solution is not
    a digit of a Sudoku.

    Attributes:
      solved: bool, whether the answer after some step is the solution. This can be decided without
        the solution, too: an answer without conflicts is the solution.
      wrong: int32, counted cells whose digit is wrong after the last step.
      blank: int32, counted cells.
      lost: bool, whether some counted cell has no valid answer or solution.
    """

    solved: np.ndarray
    wrong: np.ndarray
    blank: np.ndarray
    lost: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> Measurement:
        """The answers to some of the puzzles."""
        return Measurement(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @property
    def cells(self) -> float:
        """The share of all counted cells that is right."""
        return self._known(1 - self.wrong.sum() / max(1, self.blank.sum()))

    @property
    def solved_part(self) -> float:
        """The share of all puzzles that is solved after some step."""
        return self._known(self.solved.mean())

    def _known(self, part: float) -> float:
        return math.nan if self.lost.any() else float(part)


def measure(model: nnx.Module, puzzles: Puzzles, num_steps: int, batch_size: int) -> Measurement:
    """Runs a network for some steps and compares its answers with the solutions.

    Args:
      model: one of the networks of ``networks.py``.
      puzzles: puzzles with their solutions.
      num_steps: number of steps of message passing.
      batch_size: largest number of puzzles at a time.
    """
    parts = []
    batches = math.ceil(len(puzzles) / batch_size)
    size = math.ceil(len(puzzles) / batches)
    for start in range(0, len(puzzles), size):
        part = puzzles[start : start + size]
        rows = len(part)
        # One shape, one program: the last batch is padded with its own first puzzles.
        filled = part[np.resize(np.arange(rows), size)]
        boards = jnp.asarray(filled.puzzles), jnp.asarray(filled.solutions)
        parts.append([a[:rows] for a in jax.device_get(_measured(model, *boards, steps=num_steps))])
    return Measurement(*map(np.concatenate, zip(*parts, strict=True)))


def _answers(
    model: nnx.Module,
    puzzles: Int[Array, "batch cells"],
    solutions: Int[Array, "batch cells"],
    *,
    steps: int,
) -> tuple[Array, ...]:
    """The fields of ``Measurement``, in order."""
    logits = logits_of(model, puzzles.astype(jnp.int32), steps)
    answers = sudoku_digits(logits)
    counted, lost = counted_cells(answers, puzzles, solutions)
    wrong = jnp.sum((answers != solutions.astype(jnp.int32)) & counted, axis=-1)
    right = wrong == 0
    blank = jnp.sum(counted, axis=-1)
    columns = right.any(axis=0), wrong[-1], blank, lost.any(axis=0)
    return tuple(c if c.dtype == bool else c.astype(jnp.int32) for c in columns)


_measured = jit_apply(_answers)
