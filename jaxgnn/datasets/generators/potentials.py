"""Classical potentials, written out: their energies, forces and stresses in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class Neighbours(NamedTuple):
    """Directed pairs of atoms within a cutoff, sorted by receiver; images are pairs of their own.

    Attributes:
      receivers: [pairs].
      senders: [pairs].
      vectors: from the receiver to the image of the sender, float64 [pairs, 3].
      num_atoms: number of atoms.
    """

    receivers: np.ndarray
    senders: np.ndarray
    vectors: np.ndarray
    num_atoms: int


class Potential(Protocol):
    """An energy of vectors between neighbours."""

    @property
    def cutoff(self) -> float:
        """Distance from which atoms do not interact."""
        ...

    def energy(self, near: Neighbours) -> tuple[float, np.ndarray]:
        """Returns the energy, and its derivatives by the vectors, [pairs, 3]."""
        ...


class Labels(NamedTuple):
    """Energy of a structure, and its derivatives.

    Attributes:
      energy: the energy.
      forces: [atoms, 3].
      stress: derivative by a symmetric strain over the volume, [3, 3]; None without a cell.
    """

    energy: float
    forces: np.ndarray
    stress: np.ndarray | None


def label(potential: Potential, positions: np.ndarray, cell: np.ndarray | None) -> Labels:
    """Energy, forces and stress of atoms in a periodic cell, or in open space for None."""
    near = find_neighbours(positions, cell, potential.cutoff)
    energy, slopes = potential.energy(near)
    forces = np.zeros((near.num_atoms, 3))
    np.add.at(forces, near.receivers, slopes)
    np.subtract.at(forces, near.senders, slopes)
    if cell is None:
        return Labels(energy, forces, None)
    by_strain = slopes.T @ near.vectors
    return Labels(energy, forces, (by_strain + by_strain.T) / 2 / abs(np.linalg.det(cell)))


def find_neighbours(positions: np.ndarray, cell: np.ndarray | None, cutoff: float) -> Neighbours:
    """Compares all pairs of atoms, in all images within the cutoff."""
    apart = positions[None] - positions[:, None]  # Vectors from the first to the second.
    images = np.zeros((1, 3))
    if cell is not None:
        inverse = np.linalg.inv(cell)
        apart -= np.round(apart @ inverse) @ cell
        # Wrapped atoms are at most half a cell apart along each vector.
        heights = 1 / np.linalg.norm(inverse, axis=0)
        reach = np.floor(cutoff / heights + 0.5).astype(int)
        images = np.array(list(itertools.product(*(range(-n, n + 1) for n in reach)))) @ cell
    vectors = apart[:, :, None] + images  # [receivers, senders, images, 3]
    squares = np.sum(vectors**2, axis=-1)
    atoms = np.arange(len(positions))
    squares[atoms, atoms, len(images) // 2] = np.inf  # This excludes an atom and itself.
    receivers, senders, image = np.nonzero(squares < cutoff**2)
    return Neighbours(receivers, senders, vectors[receivers, senders, image], len(positions))


@dataclass(frozen=True)
class LennardJones:
    """``4 ε ((σ/r)¹² - (σ/r)⁶)`` of each pair, which a polynomial turns off before the cutoff.

    The polynomial falls from one at 0.8 of the cutoff to zero at the cutoff, where two derivatives
    vanish. The defaults are argon's, in electron volts and Å.

    Attributes:
      epsilon: depth of the well.
      sigma: distance at which the energy changes its sign.
      cutoff: distance from which atoms do not interact.
    """

    epsilon: float = 0.0104
    sigma: float = 3.40
    cutoff: float = 6.5

    def energy(self, near: Neighbours) -> tuple[float, np.ndarray]:
        """Returns the energy, and its derivatives by the vectors, [pairs, 3]."""
        r = np.linalg.norm(near.vectors, axis=-1)
        sixth = (self.sigma / r) ** 6
        pair = 4 * self.epsilon * (sixth**2 - sixth)
        slope = 4 * self.epsilon * (6 * sixth - 12 * sixth**2) / r
        start = 0.8 * self.cutoff
        t = np.clip((r - start) / (self.cutoff - start), 0, 1)
        switch = 1 - t**3 * (10 - 15 * t + 6 * t**2)
        switch_slope = -30 * t**2 * (1 - t) ** 2 / (self.cutoff - start)
        slope = slope * switch + pair * switch_slope
        # Each pair is there in both directions.
        return float(np.sum(pair * switch) / 2), (slope / r / 2)[:, None] * near.vectors


@dataclass(frozen=True)
class StillingerWeber:
    """Stillinger and Weber's potential of silicon, of pairs and of angles.

    Phys. Rev. B 31, 5262 (1985), https://doi.org/10.1103/PhysRevB.31.5262::

        E = ½ Σ_ij f(r_ij) + ½ Σ_i Σ_{j≠k} ε λ (cos θ_jik + 1/3)² g(r_ij) g(r_ik)
        f(r) = A ε (B (σ/r)⁴ - 1) exp(σ / (r - a σ)),    g(r) = exp(γ σ / (r - a σ))

    and zero from ``a σ`` on. The defaults are the paper's, in electron volts and Å.
    """

    epsilon: float = 2.1682
    sigma: float = 2.0951
    pair_strength: float = 7.049556277
    repulsion: float = 0.6022245584
    range: float = 1.80
    angle_strength: float = 21.0
    angle_decay: float = 1.20

    @property
    def cutoff(self) -> float:
        """Distance from which atoms do not interact."""
        return self.range * self.sigma

    def energy(self, near: Neighbours) -> tuple[float, np.ndarray]:
        """Returns the energy, and its derivatives by the vectors, [pairs, 3]."""
        of_pairs, slopes = self._pairs(near)
        of_angles, more_slopes = self._angles(near)
        return of_pairs + of_angles, slopes + more_slopes

    def _pairs(self, near: Neighbours) -> tuple[float, np.ndarray]:
        r = np.linalg.norm(near.vectors, axis=-1)
        fourth = self.repulsion * (self.sigma / r) ** 4
        decay = self.pair_strength * self.epsilon * np.exp(self.sigma / (r - self.cutoff))
        slope = -decay * (4 * fourth / r + (fourth - 1) * self.sigma / (r - self.cutoff) ** 2)
        # Each pair is there in both directions.
        energy = np.sum(decay * (fourth - 1)) / 2
        return float(energy), (slope / r / 2)[:, None] * near.vectors

    def _angles(self, near: Neighbours) -> tuple[float, np.ndarray]:
        """Returns the same of all angles at each atom, by a table of its neighbours."""
        counts = np.bincount(near.receivers, minlength=near.num_atoms)
        place = np.arange(len(near.receivers)) - np.repeat(np.cumsum(counts) - counts, counts)
        slots = near.receivers, place
        vectors = np.zeros((near.num_atoms, counts.max(initial=0), 3))
        vectors[slots] = near.vectors
        g = np.zeros(vectors.shape[:2])  # Empty slots keep zero.
        r = np.ones(vectors.shape[:2])
        r[slots] = np.linalg.norm(near.vectors, axis=-1)
        g[slots] = np.exp(self.angle_decay * self.sigma / (r[slots] - self.cutoff))
        g_slope = -g * self.angle_decay * self.sigma / (r - self.cutoff) ** 2
        units = vectors / r[..., None]
        cosines = units @ units.swapaxes(1, 2)  # [atoms, slots, slots]
        beside = g[:, None, :] * (1 - np.eye(g.shape[1]))  # factors of the other neighbour
        excess = cosines + 1 / 3
        strength = self.epsilon * self.angle_strength
        around = np.sum(excess**2 * beside, axis=-1)
        turned = excess * beside
        across = turned @ units - np.sum(turned * cosines, axis=-1)[..., None] * units
        slopes = (g_slope * around)[..., None] * units + (2 * g / r)[..., None] * across
        return float(strength * np.sum(g * around) / 2), strength * slopes[slots]
