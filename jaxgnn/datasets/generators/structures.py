"""Perturbed crystals and clusters of silicon and argon, with exact energies and forces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.generators.potentials import LennardJones, Potential, StillingerWeber, label
from jaxgnn.datasets.records.elements import NUMBERS
from jaxgnn.datasets.records.splits import generator_of
from jaxgnn.datasets.records.structures_dataset import (
    Structure,
    StructuresDataset,
    join_structures,
)

_FCC = np.array([[0, 0, 0], [0, 2, 2], [2, 0, 2], [2, 2, 0]]) / 4
_DIAMOND = np.concatenate([_FCC, _FCC + 1 / 4])
# A cluster has at least this part of the atoms of a crystal.
_LEAST_OF_CRYSTAL = 1 / 3


@dataclass(frozen=True)
class _Material:
    """A crystal, and the potential of its atoms.

    Attributes:
      element: chemical symbol.
      basis: positions in the cubic cell, as fractions of its side, [atoms, 3].
      side: side of the cubic cell, in Å.
      potential: the potential, in electron volts and Å.
    """

    element: str
    basis: np.ndarray
    side: float
    potential: Potential


_SILICON = _Material("Si", _DIAMOND, 5.431, StillingerWeber())
_ARGON = _Material("Ar", _FCC, 5.26, LennardJones())


def silicon(
    *,
    num: int = 200,
    repeats: int = 2,
    clusters: float = 0.5,
    displacement: float = 0.1,
    strain: float = 0.03,
    seed: int = 0,
) -> StructuresDataset:
    """Generates strained and disordered crystals and clusters of silicon.

    Energies, forces and stresses are those of Stillinger and Weber's potential
    (https://doi.org/10.1103/PhysRevB.31.5262), whose energy of angles no pair potential can
    reproduce, in float64. It ends at 3.77 Å. The perfect crystal has -4.336 eV per atom.

    Args:
      num: number of structures.
      repeats: cubic cells of 8 atoms along each axis of a crystal.
      clusters: fraction of clusters, round pieces of the crystal in open space, of a third to all
        of its number of atoms.
      displacement: the largest standard deviation of a coordinate from its place in the crystal, in
        Å. That of each structure is between zero and this.
      strain: standard deviation of the components of the strain.
      seed: seed of all random numbers; equal seeds give equal data. A larger ``num`` adds
        structures.

    Returns:
      The structures, in electron volts and Å.

    Raises:
      ValueError: if a number is too small or not finite.

    Example:
      >>> from jaxgnn import datasets
      >>> data = datasets.silicon(num=2, repeats=1, clusters=0)
      >>> data.positions.shape, data.elements
      ((16, 3), ('Si',))
      >>> perfect = datasets.silicon(num=1, clusters=0, displacement=0, strain=0)
      >>> round(float(perfect.energies[0]) / 64, 3)
      -4.336
    """
    options = num, repeats, clusters, displacement, strain
    return _generate("silicon", _SILICON, *options, seed=seed)


def argon(
    *,
    num: int = 200,
    repeats: int = 2,
    clusters: float = 0.5,
    displacement: float = 0.2,
    strain: float = 0.03,
    seed: int = 0,
) -> StructuresDataset:
    """Generates strained and disordered face-centred cubic crystals and clusters of argon.

    Energies, forces and stresses are those of a Lennard-Jones potential with a depth of 10.4 meV
    and a σ of 3.40 Å, in float64. A polynomial turns it off between 5.2 and 6.5 Å.

    Args:
      num: number of structures.
      repeats: cubic cells of 4 atoms along each axis of a crystal.
      clusters: fraction of clusters; see ``silicon``.
      displacement: the largest standard deviation of a coordinate, in Å; see ``silicon``.
      strain: standard deviation of the components of the strain.
      seed: seed of all random numbers; equal seeds give equal data.

    Returns:
      The structures, in electron volts and Å.

    Raises:
      ValueError: if a number is too small or not finite.

    Example:
      >>> from jaxgnn import datasets
      >>> datasets.argon(num=2, clusters=0).forces.shape
      (64, 3)
    """
    options = num, repeats, clusters, displacement, strain
    return _generate("argon", _ARGON, *options, seed=seed)


def _generate(
    name: str,
    material: _Material,
    num: int,
    repeats: int,
    clusters: float,
    displacement: float,
    strain: float,
    *,
    seed: int,
) -> StructuresDataset:
    where = f"datasets.{name}"
    for option, number in {"num": num, "repeats": repeats}.items():
        is_count = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not is_count or number < 1:
            raise bad_input(where, option, "an int of at least 1", repr(number))
    for option, size in {"displacement": displacement, "strain": strain}.items():
        if not 0 <= size < np.inf:
            raise bad_input(where, option, "a finite number of at least 0", size)
    if not 0 <= clusters <= 1:
        raise bad_input(where, "clusters", "a fraction in [0, 1]", clusters)
    structures = [
        _structure(rng, material, repeats, clusters, displacement, strain)
        for rng in generator_of(where, seed).spawn(num)
    ]
    return join_structures(name, structures)


def _structure(
    rng: np.random.Generator,
    material: _Material,
    repeats: int,
    clusters: float,
    displacement: float,
    strain: float,
) -> Structure:
    """Returns a crystal or a cluster, strained and disordered, with its energy."""
    is_cluster = rng.random() < clusters
    positions = _crystal(material, repeats + is_cluster)
    if is_cluster:
        positions = _piece(rng, positions, len(material.basis) * repeats**3)
    strained = np.eye(3) + _symmetric(strain * rng.normal(size=(3, 3)))
    cell = None if is_cluster else repeats * material.side * strained
    amplitude = displacement * rng.random()
    positions = positions @ strained + amplitude * rng.normal(size=positions.shape)
    energy, forces, stress = label(material.potential, positions, cell)
    return Structure(
        numbers=np.full(len(positions), NUMBERS[material.element]),
        positions=positions,
        cell=np.zeros((3, 3)) if cell is None else cell,
        periodic=np.full(3, not is_cluster),
        energy=energy,
        forces=forces,
        stress=stress,
    )


def _crystal(material: _Material, repeats: int) -> np.ndarray:
    """Returns positions of a cube of some cells along each axis."""
    corners = np.stack(np.meshgrid(*[np.arange(repeats)] * 3, indexing="ij"), axis=-1)
    return material.side * (corners.reshape(-1, 1, 3) + material.basis).reshape(-1, 3)


def _piece(rng: np.random.Generator, positions: np.ndarray, most: int) -> np.ndarray:
    """The atoms of a crystal nearest to a random place about its centre, at most ``most``."""
    count = rng.integers(max(1, round(_LEAST_OF_CRYSTAL * most)), most, endpoint=True)
    centre = positions.mean(axis=0) + rng.normal(size=3)
    distances = np.linalg.norm(positions - centre, axis=1)
    return positions[np.sort(np.argsort(distances, kind="stable")[:count])] - centre


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    """A symmetric matrix whose components have the standard deviation of those of ``matrix``."""
    lower = np.tril(matrix)
    return lower + np.tril(matrix, -1).T
