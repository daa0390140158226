"""Tables of errors, of a network beside methods without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments._driver import methods_table
from experiments.physics.errors import Errors
from jaxgnn.training import Table


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      label: name of the network.
      test: errors of the network at the best step.
      validation: error of the rollout on validation at that step.
      step: the best step.
      ms_per_step: mean time of a training step; None if the run was already complete.
      history: a row for each step.
      trivial: errors of the methods without a network, by their names.
    """

    label: str
    test: Errors
    validation: float
    step: int
    ms_per_step: float | None
    history: list[dict[str, float]]
    trivial: dict[str, Errors]

    def methods(self) -> dict[str, Errors]:
        """The errors of all methods, those without a network first."""
        return {**self.trivial, self.label: self.test}


def errors_table(title: str, seeds: Sequence[Mapping[str, Errors]], note: str = "") -> Table:
    """Errors of each method: one step, distances at several times, energy.

    Args:
      title: title of the table.
      seeds: for each seed the errors of the methods, by their names.
      note: further information.
    """
    times = times_of(len(next(iter(seeds[0].values())).distances))
    columns = {
        "one step, %": 1,
        **{f"distance, {time} frames": 3 for time in times},
        "energy, %": 1,
    }
    numbers = {}
    for name in seeds[0]:
        runs = [errors[name] for errors in seeds]
        numbers[name] = [
            [100 * run.one_step for run in runs],
            *([run.distances[time - 1] for run in runs] for time in times),
            [100 * run.energy for run in runs],
        ]
    return methods_table(title, columns, numbers, note)


def times_of(horizon: int) -> list[int]:
    """A tenth, two fifths and all of a rollout, in frames."""
    return sorted({max(1, horizon // 10), max(1, 2 * horizon // 5), horizon})
