"""A structure whose atoms move: its batch keeps its shape, and its edges for some steps."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._arrays.arrays import to_device
from jaxgnn.graph import GraphBatch
from jaxgnn.models import atomic_sample
from jaxgnn.models.atomic_origin import Origin

# More edge slots than edges, at a search that needs new ones.
_HEADROOM = 1.1


class Placed(NamedTuple):
    """A structure of atoms on the host.

    Attributes:
      positions: float64 [atoms, 3]; not wrapped into the cell between two steps.
      species: rows in the tables of a model, integers [atoms].
      cell: cell vectors as rows, float64 [3, 3], or None.
      periodic: whether each cell vector is periodic.
    """

    positions: np.ndarray
    species: np.ndarray
    cell: np.ndarray | None
    periodic: tuple[bool, bool, bool]


class MovingAtoms:
    """Makes batches of one structure of the same shape, as long as its edges fit.

    Edges are found on the host within ``r + skin``. Until an atom has moved by more than half of
    the skin, they contain all pairs within ``r`` and are used again. Positions are taken from an
    origin near to the atoms, by whole cells for each atom, before they are rounded.

    Attributes:
      num_searches: how many times edges were found.
    """

    def __init__(self, r: float, skin: float):
        self.r, self.skin = r, skin
        self.num_searches = 0
        self._last_search: tuple[Placed, Origin, GraphBatch] | None = None

    def batch(self, now: Placed) -> GraphBatch:
        """Returns the batch of a structure; ValueError names a position that is not finite."""
        if self._last_search is None or self._needs_search(self._last_search[0], now):
            self._last_search = now, *self._searched(now)
        _, origin, batch = self._last_search
        nodes, of_graphs = dict(batch.nodes), dict(batch.globals)
        positions = origin.subtracted(now.positions, now.cell)
        nodes["positions"] = _padded(positions, nodes["positions"])
        if now.cell is not None:
            of_graphs["cell"] = _padded(now.cell[None], of_graphs["cell"])
        return dataclasses.replace(batch, nodes=nodes, globals=of_graphs)

    def _needs_search(self, before: Placed, now: Placed) -> bool:
        """Returns whether it is another structure, or pairs within ``r`` may be missing."""
        if before.periodic != now.periodic or not np.array_equal(before.species, now.species):
            return True
        positions, stretch = now.positions, 0.0
        if now.cell is not None and before.cell is not None and any(now.periodic):
            rows = np.array(now.periodic)
            # The map from the cell of now to that of the search, less the identity.
            change = np.linalg.pinv(now.cell[rows]) @ (before.cell[rows] - now.cell[rows])
            positions = positions + positions @ change
            stretch = float(np.linalg.norm(change))
        moves = np.linalg.norm(positions - before.positions, axis=1)
        nearer = 2 * moves.max(initial=0) + self.r * stretch
        return not nearer <= self.skin  # It is true for NaN.

    def _searched(self, now: Placed) -> tuple[Origin, GraphBatch]:
        """Returns a new search. The number of slots stays if the edges fit and use half of it."""
        self.num_searches += 1
        origin, positions = _origin(now), now.positions
        if origin is not None:
            positions = origin.subtracted(positions, now.cell)
        box = {"cell": now.cell, "periodic": now.periodic}
        sample = atomic_sample(positions, now.species, self.r + self.skin, **box)
        assert origin is not None  # The sample is finite.
        slots = 0 if self._last_search is None else self._last_search[2].graph.num_edges
        if not slots / 2 <= sample.num_edges <= slots:
            slots = bucket(int(sample.num_edges * _HEADROOM) + 1)
        batch = GraphBatch.from_graphs([sample], pad_to=(sample.num_nodes + 1, slots, 2))
        return origin, to_device("interop.ase_calculator", batch)


def _origin(now: Placed) -> Origin | None:
    """Returns the origin of a structure, or None if it is not finite."""
    cell = np.zeros(0) if now.cell is None else now.cell
    if not (np.isfinite(now.positions).all() and np.isfinite(cell).all()):
        return None
    return Origin.of(now.positions, now.cell, now.periodic, near=0.0)


def bucket(count: int) -> int:
    """The least of few sizes that is at least ``count``: eight between two powers of two."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step


def _padded(values: np.ndarray, like: Any) -> np.ndarray:
    """Values in the shape and dtype of an array, zero at its end."""
    padded = np.zeros(like.shape, like.dtype)
    padded[: len(values)] = values
    return padded
