"""What a network makes of puzzles, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from experiments.sudoku.networks import logits_of
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.models import sudoku_digits
from jaxgnn.training import jit_apply


@dataclass(frozen=True)
class Measurement:
    """Answers to puzzles; each [count].

    Attributes:
      solved: bool, whether the answer behind the last step is the solution.
      ever_solved: bool, whether that of some step is. Who has no solution can tell, too: an answer
        without conflicts is one.
      settled: int32, the first step from which on the answer is the solution; 0 where ``solved`` is
        False.
      wrong: int32, blank cells whose digit is wrong behind the last step.
      blank: int32, blank cells.
    """

    solved: np.ndarray
    ever_solved: np.ndarray
    settled: np.ndarray
    wrong: np.ndarray
    blank: np.ndarray

    @property
    def cells(self) -> float:
        """The part of all blank cells that is right."""
        return float(1 - self.wrong.sum() / max(1, self.blank.sum()))


def measure(model: nnx.Module, puzzles: Puzzles, num_steps: int, batch_size: int) -> Measurement:
    """Runs a network for some steps and compares its answers with the solutions.

    Args:
      model: one of the networks of ``networks.py``.
      puzzles: with their solutions.
      num_steps: of message passing.
      batch_size: puzzles at a time, at most.
    """
    parts = []
    batches = math.ceil(len(puzzles) / batch_size)
    size = math.ceil(len(puzzles) / batches)
    for start in range(0, len(puzzles), size):
        part = puzzles[start : start + size]
        rows = len(part)
        # One shape, one program: the last batch is filled up with its own first puzzles.
        filled = part[np.resize(np.arange(rows), size)]
        boards = jnp.asarray(filled.puzzles), jnp.asarray(filled.solutions)
        parts.append([a[:rows] for a in jax.device_get(_measured(model, *boards, steps=num_steps))])
    solved, ever_solved, settled, wrong = map(np.concatenate, zip(*parts, strict=True))
    blank = np.count_nonzero(puzzles.puzzles == 0, axis=1).astype(np.int32)
    return Measurement(solved, ever_solved, settled, wrong, blank)


def _answers(
    model: nnx.Module,
    puzzles: Int[Array, "batch cells"],
    solutions: Int[Array, "batch cells"],
    *,
    steps: int,
) -> tuple[Array, Array, Array, Array]:
    answers = sudoku_digits(logits_of(model, puzzles.astype(jnp.int32), steps))
    wrong = jnp.sum((answers != solutions.astype(jnp.int32)) & (puzzles == 0), axis=-1)
    right = wrong == 0
    # Steps at the end all of which are right.
    held = jnp.sum(jnp.cumprod(right[::-1].astype(jnp.int32), axis=0), axis=0)
    settled = jnp.where(right[-1], steps - held + 1, 0)
    return right[-1], right.any(axis=0), settled.astype(jnp.int32), wrong[-1].astype(jnp.int32)


_measured = jit_apply(_answers)
