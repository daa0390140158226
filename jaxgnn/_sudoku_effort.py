"""Limits of a Sudoku network's work, which command lines read before JAX is imported."""

from __future__ import annotations

from dataclasses import dataclass

from jaxgnn._errors import bad_input


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
