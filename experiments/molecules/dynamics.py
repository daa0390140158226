"""Dynamics of atoms at constant energy, with the forces of a potential."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxgnn import models
from jaxgnn.datasets import StructuresDataset
from jaxgnn.graph import GraphBatch
from jaxgnn.training import jit_apply

# Electron volts per kelvin, and Å per fs² of one electron volt per Å and atomic mass unit.
_BOLTZMANN = 8.617333e-5
_ACCELERATION = 9.648533e-3
_STEP_FS = 1.0
# Neighbours are found up to this much beyond the cutoff, in Å, and again when an atom has moved by
# half of it.
_SKIN = 0.5
# Space for more edges than the first list of neighbours has.
_SPARE = 1.2


@dataclass(frozen=True)
class Trajectory:
    """Energies of a run of dynamics.

    Attributes:
      times: time of each step, in fs, [steps + 1].
      potential: potential energy per atom, in eV, [steps + 1].
      kinetic: kinetic energy per atom, in eV, [steps + 1].
      num_atoms: number of atoms.
      rebuilds: how often neighbours were found again.
    """

    times: np.ndarray
    potential: np.ndarray
    kinetic: np.ndarray
    num_atoms: int
    rebuilds: int

    @property
    def total(self) -> np.ndarray:
        """Total energy per atom, in eV, [steps + 1]."""
        return self.potential + self.kinetic

    @property
    def drift(self) -> float:
        """Change of the total energy per atom over the run by a linear fit, in meV."""
        slope = np.polyfit(self.times, self.total, 1)[0]
        return float(1e3 * slope * (self.times[-1] - self.times[0]))

    @property
    def spread(self) -> float:
        """Standard deviation of the total energy per atom, in meV."""
        return float(1e3 * self.total.std())

    @property
    def exchanged(self) -> float:
        """Standard deviation of the potential energy per atom, in meV."""
        return float(1e3 * self.potential.std())

    @property
    def temperature(self) -> float:
        """Mean temperature of the second half of the run, in kelvin."""
        half = self.kinetic[len(self.kinetic) // 2 :]
        freedom = max(1 - 1 / self.num_atoms, 1 / self.num_atoms)  # the centre of mass is at rest
        return float(half.mean() / (1.5 * _BOLTZMANN * freedom))


def calmest(data: StructuresDataset, structures: np.ndarray) -> int:
    """The structure with the smallest forces, of the crystals if there are some."""
    crystals = [at for at in structures if data.periodic[at].all()]
    return int(min(crystals or structures, key=lambda at: np.mean(data[at]["forces"] ** 2)))


def run_dynamics(
    model: nnx.Module,
    data: StructuresDataset,
    at: int,
    *,
    cutoff: float,
    steps: int,
    temperature: float,
    seed: int,
) -> Trajectory:
    """Moves the atoms of a structure by the velocity Verlet method, in steps of 1 fs.

    Args:
      model: the potential, in electron volts and Å.
      data: the structures.
      at: the structure to start from.
      cutoff: cutoff of the potential.
      steps: number of steps, at least 1.
      temperature: temperature of the initial velocities, in kelvin.
      seed: seed of the initial velocities.

    Raises:
      FloatingPointError: if an energy is not finite.
    """
    structure = data[at]
    masses = data.masses[structure["species"]][:, None]
    x, v = structure["positions"].copy(), _velocities(masses, temperature, seed)
    forces_at = _Forces(model, structure, cutoff + _SKIN)
    energy, forces = forces_at(x)
    found = [(energy, _kinetic(masses, v))]
    for step in range(1, steps + 1):
        v = v + 0.5 * _STEP_FS * _ACCELERATION * forces / masses
        x = x + _STEP_FS * v
        energy, forces = forces_at(x)
        v = v + 0.5 * _STEP_FS * _ACCELERATION * forces / masses
        found.append((energy, _kinetic(masses, v)))
        if not np.isfinite(found[-1]).all():
            raise FloatingPointError(f"train: the dynamics has no finite energy at step {step}")
    potential, kinetic = np.array(found).T / len(masses)
    times = _STEP_FS * np.arange(steps + 1)
    return Trajectory(times, potential, kinetic, len(masses), forces_at.rebuilds)


def _velocities(masses: np.ndarray, temperature: float, seed: int) -> np.ndarray:
    """Velocities of a temperature in Å per fs, with the centre of mass at rest, [atoms, 3]."""
    rng = np.random.default_rng(seed)
    deviations = np.sqrt(_BOLTZMANN * temperature * _ACCELERATION / masses)
    v = deviations * rng.normal(size=(len(masses), 3))
    return v - np.sum(masses * v, axis=0) / masses.sum()


def _kinetic(masses: np.ndarray, v: np.ndarray) -> float:
    return float(np.sum(masses * v**2) / 2 / _ACCELERATION)


class _Forces:
    """Energy and forces of moving atoms, with a list of neighbours that is used for many steps."""

    def __init__(self, model: nnx.Module, structure: dict[str, Any], radius: float):
        unlabelled = structure | {"energy": None, "forces": None, "stress": None}
        self._structure: dict[str, Any] = unlabelled
        self._model, self._radius = model, radius
        self._predict = jit_apply(_at_positions)
        self._shape: tuple[int, int] | None = None
        self.rebuilds = -1
        self._find(structure["positions"])

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Energy, and forces [atoms, 3], at positions [atoms, 3]."""
        moved = np.sqrt(np.max(np.sum((x - self._origin) ** 2, axis=1)))
        if not moved < _SKIN / 2:
            self._find(x)
        # Differences in float64, as atoms may have drifted far from the origin.
        placed = self._placed + (x - self._origin)
        found = self._predict(self._model, self._batch, placed.astype(np.float32))
        return float(found.energy[0]), np.asarray(found.forces[: len(x)], np.float64)

    def _find(self, x: np.ndarray) -> None:
        """Finds neighbours at positions; compiles again only without space for them."""
        sample = models.atomic_sample(r=self._radius, **self._structure | {"positions": x})
        if self._shape is None or sample.num_edges > self._shape[1]:
            self._shape = len(x) + 1, int(_SPARE * sample.num_edges)
        self._batch = jax.device_put(GraphBatch.from_graphs([sample], pad_to=self._shape))
        self._origin, self._placed = x, sample.nodes["positions"].astype(np.float64)
        self.rebuilds += 1


def _at_positions(model: nnx.Module, batch: GraphBatch, x: jax.Array) -> models.Potential:
    nodes = {**batch.nodes, "positions": batch.nodes["positions"].at[: len(x)].set(x)}
    return models.energy_forces_stress(model, dataclasses.replace(batch, nodes=nodes))
