"""Tables of errors, of a network beside methods without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments._seeds import summarize
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
    horizon = len(next(iter(seeds[0].values())).distances)
    times = times_of(horizon)
    return Table(
        title=title,
        columns=(
            "method",
            "one step, %",
            *(f"distance, {time} frames" for time in times),
            "energy, %",
        ),
        rows=tuple(
            (
                name,
                _cell([100 * errors[name].one_step for errors in seeds], 1),
                *(
                    _cell([errors[name].distances[time - 1] for errors in seeds], 3)
                    for time in times
                ),
                _cell([100 * errors[name].energy for errors in seeds], 1),
            )
            for name in seeds[0]
        ),
        note=note,
    )


def times_of(horizon: int) -> list[int]:
    """A tenth, two fifths and all of a rollout, in frames."""
    return sorted({max(1, horizon // 10), max(1, 2 * horizon // 5), horizon})


def _cell(values: Sequence[float], digits: int) -> str:
    summary = summarize(values, digits=digits)
    if summary.count > 1:
        return str(summary)
    return f"{summary.mean:,.{digits}f}"
