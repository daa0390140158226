"""Errors of predicted energies and forces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxgnn.graph import GraphSample

# Units of errors: thousandths of electron volts, and of those per Å.
_MILLI = 1e3


class Prediction(NamedTuple):
    """Predicted and true values of one structure.

    Attributes:
      energy: the predicted energy.
      forces: the predicted forces, [atoms, 3].
      true_energy: the energy of the data.
      true_forces: the forces of the data, [atoms, 3].
    """

    energy: float
    forces: np.ndarray
    true_energy: float
    true_forces: np.ndarray

    @classmethod
    def of(cls, sample: GraphSample, energy: float, forces: np.ndarray) -> Prediction:
        """A prediction beside the targets of a structure."""
        forces_of_data = np.asarray(sample.nodes["forces"], np.float64)
        return cls(energy, forces, float(sample.globals["energy"]), forces_of_data)


@dataclass(frozen=True)
class Errors:
    """Errors of one method on some structures.

    Attributes:
      energy: root mean square error of the energy per atom, in meV.
      energy_mean: mean absolute error of it.
      forces: root mean square error of the components of forces, in meV/Å.
      forces_mean: mean absolute error of them.
    """

    energy: float
    energy_mean: float
    forces: float
    forces_mean: float

    @classmethod
    def of(cls, predictions: Iterable[Prediction]) -> Errors:
        """The errors of predictions of several structures."""
        energies, forces = [], []
        for one in predictions:
            energies.append((one.energy - one.true_energy) / len(one.forces))
            forces.append((one.forces - one.true_forces).ravel())
        return cls(*_errors(np.array(energies)), *_errors(np.concatenate(forces)))


def _errors(differences: np.ndarray) -> tuple[float, float]:
    """Root mean square and mean absolute value."""
    wide = _MILLI * differences.astype(np.float64)
    return float(np.sqrt(np.mean(wide**2))), float(np.mean(np.abs(wide)))
