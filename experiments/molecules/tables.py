"""Tables of errors, of a potential beside methods without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments._seeds import summarize
from experiments.molecules.dynamics import Trajectory
from experiments.molecules.errors import Errors
from jaxgnn.training import Table

_COLUMNS = {
    "energy": "energy, meV/atom",
    "energy_mean": "mean absolute",
    "forces": "forces, meV/Å",
    "forces_mean": "mean absolute of forces",
}


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      label: name of the potential.
      errors: errors on the test structures of each method, those without a network first.
      step: the best step.
      ms_per_step: mean time of a training step; None if the run was already complete.
      history: a row for each step.
      trajectory: energies of the dynamics; None without.
    """

    label: str
    errors: dict[str, Errors]
    step: int
    ms_per_step: float | None
    history: list[dict[str, float]]
    trajectory: Trajectory | None

    @property
    def test(self) -> Errors:
        """Errors of the potential."""
        return self.errors[self.label]


def errors_table(title: str, seeds: Sequence[Mapping[str, Errors]], note: str = "") -> Table:
    """Errors of each method.

    Args:
      title: title of the table.
      seeds: for each seed the errors of the methods, by their names.
      note: further information.
    """
    return Table(
        title=title,
        columns=("method", *_COLUMNS.values()),
        rows=tuple(
            (
                name,
                *(_cell([getattr(errors[name], field) for errors in seeds]) for field in _COLUMNS),
            )
            for name in seeds[0]
        ),
        note=note,
    )


def _cell(values: Sequence[float]) -> str:
    summary = summarize(values, digits=1)
    return f"{summary.mean:,.1f}" if summary.count == 1 else str(summary)
