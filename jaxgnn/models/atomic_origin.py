"""Whole cells and a vector that positions lose before they are rounded to the dtype of a device.

Energies do not change when a structure is moved, or an atom by whole cells. A float32 number has 7
digits: positions that are 10,000 times a bond length keep too few of them for a difference of two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Structures within this many radii of the origin keep their positions as they are.
_NEAR = 32
# Atoms further than this from the median, in cells, are turned back; less would not be idempotent.
_FAR = 1 + 1e-6


class Origin(NamedTuple):
    """Offset that is subtracted from the positions of the atoms of a structure, in float64.

    Attributes:
      turns: whole cells along each cell vector, float64 [atoms, 3]; zero along open directions.
      centre: vector of all atoms, float64 [3].
    """

    turns: np.ndarray
    centre: np.ndarray

    @classmethod
    def of(
        cls,
        positions: np.ndarray,
        cell: np.ndarray | None,
        periodic: tuple[bool, ...],
        near: float,
    ) -> Origin:
        """Chooses the origin of a structure, the median of its atoms.

        An atom that has left the others in an open direction hardly moves a median.

        Args:
          positions: finite, [atoms, 3].
          cell: finite cell vectors as rows, [3, 3], or None.
          periodic: whether each cell vector is periodic.
          near: the largest distance from the origin at which positions stay as they are; zero to
            always choose the median, and the image of each atom that is nearest to it.
        """
        positions = positions.astype(np.float64)
        turns = np.zeros_like(positions)
        if cell is not None and any(periodic):
            vectors = cell.astype(np.float64)[list(periodic)]
            along = positions @ np.linalg.pinv(vectors)
            along = along - np.median(along, axis=0)
            distances = np.abs(along) * np.linalg.norm(vectors, axis=1)
            if near == 0 or ((np.abs(along) > _FAR) & (distances > near)).any():
                turns[:, list(periodic)] = np.rint(along)
                positions = positions - turns[:, list(periodic)] @ vectors
        centre = np.median(positions, axis=0)
        return cls(turns, centre if np.abs(centre).max() > near else np.zeros(3))

    def subtracted(self, positions: np.ndarray, cell: np.ndarray | None) -> np.ndarray:
        """The positions from this origin, in a cell that may have changed; float64 [atoms, 3]."""
        positions = positions.astype(np.float64)
        if cell is not None and self.turns.any():
            positions = positions - self.turns @ cell.astype(np.float64)
        return positions - self.centre


def kept_distance(r: float) -> float:
    """Returns the distance from the origin up to which a sample of radius ``r`` is not moved."""
    return _NEAR * r
