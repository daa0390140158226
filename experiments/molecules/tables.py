"""Tables of errors, of a potential beside methods without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments._driver import methods_table
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
    numbers = {
        name: [[getattr(errors[name], field) for errors in seeds] for field in _COLUMNS]
        for name in seeds[0]
    }
    return methods_table(title, dict.fromkeys(_COLUMNS.values(), 1), numbers, note)
