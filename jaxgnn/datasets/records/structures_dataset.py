"""A data set of atomic structures, with the energies and forces that a potential learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._html.notebook import degrees_of
from jaxgnn.datasets.records.elements import NUMBERS, SYMBOLS, mass_of
from jaxgnn.datasets.records.record import Record


@dataclass(frozen=True, eq=False, repr=False)
class StructuresDataset(Record):
    """Molecules, clusters and crystals of known energies, as numpy arrays.

    The atoms of the first structure come first, then those of the second, and so on.
    ``models.atomic_sample(r=4.0, **dataset[i])`` is one structure as a graph, to be added to a
    ``GraphBatch``. Units are those of the source; electron volts and Å in generated data. Energies,
    forces and stresses are NaN where the source has none, and None if it has none at all.

    Attributes:
      name: name of the data set.
      elements: chemical symbol of each species.
      positions: float64 [atoms, 3].
      species: place of each atom's element in ``elements``, int32 [atoms].
      num_atoms_of_each: number of atoms of each structure, int32 [structures].
      cells: cell vectors as rows, float64 [structures, 3, 3]; zeros without a cell.
      periodic: whether each cell vector is periodic, bool [structures, 3].
      energies: energy of each structure, float64 [structures], or None.
      forces: force on each atom, float64 [atoms, 3], or None.
      stresses: derivative of the energy by a symmetric strain, over the volume, float64
        [structures, 3, 3], or None.
    """

    name: str
    elements: tuple[str, ...]
    positions: np.ndarray
    species: np.ndarray
    num_atoms_of_each: np.ndarray
    cells: np.ndarray
    periodic: np.ndarray
    energies: np.ndarray | None = None
    forces: np.ndarray | None = None
    stresses: np.ndarray | None = None

    @property
    def num_structures(self) -> int:
        """The number of structures of the data set."""
        return self.num_atoms_of_each.shape[0]

    @property
    def masses(self) -> np.ndarray:
        """Mass of each species in atomic mass units, float64 [species]."""
        return np.array([mass_of(symbol) for symbol in self.elements])

    def __len__(self) -> int:
        return self.num_structures

    def __getitem__(self, at: int) -> dict[str, Any]:
        """One structure, as the arguments of ``models.atomic_sample`` except for the radius.

        Arrays are views. ``cell`` and ``periodic`` are None if no cell vector is periodic. The
        energy, the forces or the stress are None unless all structures of the data set have it, so
        that all samples fit in one batch; ``unlabelled`` says which have not.

        Raises:
          ValueError: there is no such structure.
        """
        is_number = hasattr(at, "__index__")
        if not is_number or not -self.num_structures <= at < self.num_structures:
            expected = f"a number of one of {self.num_structures} structures"
            raise bad_input("StructuresDataset", "[structure]", expected, at)
        place = at % self.num_structures
        atoms = slice(*self._ends[place : place + 2])
        is_periodic = bool(self.periodic[place].any())
        energies, forces, stresses = self._labels
        return {
            "positions": self.positions[atoms],
            "species": self.species[atoms],
            "cell": self.cells[place] if is_periodic else None,
            "periodic": tuple(self.periodic[place].tolist()) if is_periodic else None,
            "energy": None if energies is None else float(energies[place]),
            "forces": None if forces is None else forces[atoms],
            "stress": None if stresses is None else stresses[place],
        }

    def unlabelled(self, label: str) -> np.ndarray:
        """Returns the numbers of the structures without a label, int [structures without it].

        Args:
          label: ``"energy"``, ``"forces"`` or ``"stress"``.

        Raises:
          ValueError: on any other label.
        """
        fields = {"energy": self.energies, "forces": self.forces, "stress": self.stresses}
        if label not in fields:
            raise bad_input("StructuresDataset", "label", f"one of {', '.join(fields)}", label)
        values = fields[label]
        if values is None:
            return np.arange(self.num_structures)
        is_nan = np.isnan(values).reshape(len(values), -1).any(1)
        if label == "forces":
            return np.unique(np.searchsorted(self._ends, np.flatnonzero(is_nan), "right") - 1)
        return np.flatnonzero(is_nan)

    def _facts(self) -> list[tuple[str, Any]]:
        return [
            ("structures", f"{self.num_structures:,}"),
            ("atoms of a structure", degrees_of(self.num_atoms_of_each)),
        ]

    @cached_property
    def _labels(self) -> list[np.ndarray | None]:
        """Energies, forces and stresses; None unless all structures have them."""
        values = self.energies, self.forces, self.stresses
        return [None if value is None or np.isnan(value).any() else value for value in values]

    @cached_property
    def _ends(self) -> np.ndarray:
        """Offsets of the atoms of each structure, with the end of the last one."""
        return np.append(0, np.cumsum(self.num_atoms_of_each, dtype=np.int64))


class Structure(NamedTuple):
    """One structure on its way into a ``StructuresDataset``.

    Attributes:
      numbers: atomic numbers, int [atoms].
      positions: float64 [atoms, 3].
      cell: cell vectors as rows, float64 [3, 3].
      periodic: whether each cell vector is periodic, bool [3].
      energy: the energy, or None.
      forces: float64 [atoms, 3], or None.
      stress: float64 [3, 3], or None.
      place: description of its place in a file, for errors.
    """

    numbers: np.ndarray
    positions: np.ndarray
    cell: np.ndarray
    periodic: np.ndarray
    energy: float | None = None
    forces: np.ndarray | None = None
    stress: np.ndarray | None = None
    place: str = ""


def join_structures(
    name: str, structures: Sequence[Structure], elements: Sequence[str] | None = None
) -> StructuresDataset:
    """Builds a data set from at least one structure.

    Args:
      name: name of the data set.
      structures: the structures.
      elements: symbol of each species, all elements of the structures among them; None for those
        that occur, by atomic number.
    """
    numbers = np.concatenate([structure.numbers for structure in structures])
    if elements is None:
        elements = [SYMBOLS[number] for number in np.unique(numbers)]
    place = np.zeros(len(SYMBOLS), np.int32)
    place[[NUMBERS[symbol] for symbol in elements]] = np.arange(len(elements))
    counts = np.array([len(structure.numbers) for structure in structures], np.int32)
    ones = np.ones_like(counts)
    return StructuresDataset(
        name=name,
        elements=tuple(elements),
        positions=np.concatenate([structure.positions for structure in structures]),
        species=place[numbers],
        num_atoms_of_each=counts,
        cells=np.stack([structure.cell for structure in structures]),
        periodic=np.stack([structure.periodic for structure in structures]),
        energies=_joined_or_none([_row(structure.energy) for structure in structures], (), ones),
        forces=_joined_or_none([structure.forces for structure in structures], (3,), counts),
        stresses=_joined_or_none(
            [_row(structure.stress) for structure in structures], (3, 3), ones
        ),
    )


def _row(value: Any) -> np.ndarray | None:
    """Returns a value of a structure with a leading axis of one; None if it is unknown."""
    return None if value is None else np.asarray(value, np.float64)[None]


def _joined_or_none(
    values: Sequence[np.ndarray | None], shape: tuple[int, ...], counts: np.ndarray
) -> np.ndarray | None:
    """Joins arrays of some rows each, NaN where they are unknown; None if all of them are."""
    if all(value is None for value in values):
        return None
    rows = [
        np.full((int(count), *shape), np.nan) if value is None else value
        for value, count in zip(values, counts, strict=True)
    ]
    return np.concatenate(rows)
