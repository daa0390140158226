"""Potentials without a network: energies of species, and the pair potential that fits best.

The energy of a pair is a sum of radial functions with a coefficient for each pair of species, so
that energies and forces are linear in the coefficients. Least squares find them in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxgnn.datasets import StructuresDataset
from jaxgnn.graph import GraphSample

# Number of radial functions of a pair of species.
_FUNCTIONS = 24
# Weight of squared coefficients, as a fraction of the mean square of the features. With a hundred
# times as much, errors of forces grow, on validation structures of silicon and on argon.
_RIDGE = 1e-8


def species_energies(data: StructuresDataset, structures: np.ndarray) -> np.ndarray:
    """The energy of each species that fits the energies of some structures best, [species]."""
    assert data.energies is not None
    counts = np.stack([_counts(data, at) for at in structures])
    sizes = counts.sum(axis=1)
    target = data.energies[structures] / sizes
    return np.linalg.lstsq(counts / sizes[:, None], target, rcond=None)[0]


def _counts(data: StructuresDataset, at: int) -> np.ndarray:
    """Number of atoms of each species of a structure."""
    return np.bincount(data[at]["species"], minlength=len(data.elements))


class PairPotential:
    """Energies of species and of pairs, fitted to energies and forces.

    The fit minimises the mean square error of forces plus ``energy_weight`` times that of energies
    per atom, which is what networks are trained by.

    Args:
      samples: structures as graphs, with their energies and forces.
      num_species: number of species.
      cutoff: distance from which pairs have no energy.
      energy_weight: weight of energies per atom.
    """

    def __init__(
        self, samples: Sequence[GraphSample], num_species: int, cutoff: float, energy_weight: float
    ):
        self._cutoff = cutoff
        first, second = np.triu_indices(num_species)
        self._kinds = np.zeros((num_species, num_species), int)
        self._kinds[first, second] = self._kinds[second, first] = np.arange(len(first))
        num_forces = sum(3 * sample.num_nodes for sample in samples)
        weight = energy_weight * num_forces / len(samples)
        products, targets = np.zeros(()), np.zeros(())
        for sample in samples:
            energy, forces = self._features(sample)
            energy, target = (e / sample.num_nodes for e in (energy, sample.globals["energy"]))
            rows, wanted = forces.reshape(-1, len(energy)), _forces_of(sample).ravel()
            products = products + weight * np.outer(energy, energy) + rows.T @ rows
            targets = targets + weight * energy * target + rows.T @ wanted
        # Keeps functions of distances that hardly occur small, so that shorter ones are not wild.
        ridge = _RIDGE * np.trace(products) / len(products)
        regular = products + ridge * np.eye(len(products))
        self._coefficients = np.linalg.solve(regular, targets)

    def __call__(self, sample: GraphSample) -> tuple[float, np.ndarray]:
        """Energy and forces [atoms, 3] of a structure."""
        energy, forces = self._features(sample)
        return float(energy @ self._coefficients), forces @ self._coefficients

    def _features(self, sample: GraphSample) -> tuple[np.ndarray, np.ndarray]:
        """Slopes by the coefficients: of the energy [features], of forces [atoms, 3, features]."""
        species, atoms = sample.nodes["species"], sample.num_nodes
        vectors = _vectors(sample)
        r = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        values, slopes = self._radial(r)
        kind = self._kinds[species[sample.senders], species[sample.receivers]]
        num_species, shape = len(self._kinds), (self._kinds.max() + 1, _FUNCTIONS)
        of_pairs = np.zeros(shape)
        np.add.at(of_pairs, kind, values / 2)  # each pair is there in both directions
        forces = np.zeros((atoms, *shape, 3))
        pulls = slopes[:, :, None] * (vectors / r[:, None])[:, None]
        np.add.at(forces, (sample.receivers, kind), pulls)
        energy = np.append(np.bincount(species, minlength=num_species), of_pairs.ravel())
        by_axis = np.moveaxis(forces.reshape(atoms, -1, 3), 2, 1)
        return energy, np.pad(by_axis, ((0, 0), (0, 0), (num_species, 0)))

    def _radial(self, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bells of equal width that vanish at the cutoff, and their derivatives, [pairs, bells]."""
        centres, width = np.linspace(0, self._cutoff, _FUNCTIONS, retstep=True)
        apart = (r[:, None] - centres) / width
        bells = np.exp(-0.5 * apart**2)
        t = np.minimum(r / self._cutoff, 1)[:, None]
        envelope, slope = (1 - t**2) ** 3, -6 * t * (1 - t**2) ** 2 / self._cutoff
        return bells * envelope, bells * (slope - apart / width * envelope)


def _vectors(sample: GraphSample) -> np.ndarray:
    """From the receiver to the sender of each edge, float64 [edges, 3]."""
    positions = sample.nodes["positions"].astype(np.float64)
    cell = sample.globals["cell"].astype(np.float64)
    shifts = sample.edges["images"] @ cell
    return positions[sample.senders] + shifts - positions[sample.receivers]


def _forces_of(sample: GraphSample) -> np.ndarray:
    return np.asarray(sample.nodes["forces"], np.float64)
