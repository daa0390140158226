"""Neighbours in all images of a periodic box on the host, by cells, in numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxgnn.graph.points.cell_grid import WORD, Ranges, choose_grid, sorted_offsets
from jaxgnn.graph.points.lattice import Lattice
from jaxgnn.graph.points.neighbour_edges import distance_scale

# Number of candidates in memory at a time; their arrays fit a cache.
_MOST_CANDIDATES = 2**18
# Distances of wrapped points that differ from the radius by less are computed again, relative.
_ROUNDING = 1e-10


@dataclasses.dataclass(frozen=True)
class ImageSearch:
    """A search for neighbours in all images of a periodic box.

    Attributes:
      points: finite, float64 [points, dimensions].
      batch: the cloud of each point, integers [points]; negative ones have no neighbours.
      r: the radius.
      lattice: periodic vectors in float64.
      periodic: whether each axis of the box is periodic.
      loop: whether each point is a neighbour of itself.
      half: whether only one edge of each pair is found.
    """

    points: np.ndarray
    batch: np.ndarray
    r: float
    lattice: Lattice
    periodic: tuple[bool, ...]
    loop: bool
    half: bool

    def edges(self, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Senders and receivers int32 [edges], and images int32 [edges, periodic].

        They are sorted by receiver, then sender, then image.
        """
        ids = np.flatnonzero(self.batch >= 0).astype(np.int32)
        points = self.points[ids]
        grid = choose_grid(where, points, self.r, self.lattice, self.periodic, finer=2)
        alive = np.ones(len(ids), bool)
        wrapped, turns, cells = grid.place(np, points, self.lattice, alive)
        cell_ids = grid.ids(cells)
        order = np.argsort(cell_ids, kind="stable")
        offsets = sorted_offsets(cell_ids, grid.num_cells)
        senders = _SortedPoints(ids[order], wrapped[order].T.copy(), turns[order])
        columns = grid.columns()
        step = max(1, _MOST_CANDIDATES // (len(columns) * grid.words * WORD))
        nothing = np.zeros(0, np.int32)
        found = [(nothing, nothing, np.zeros((0, len(self.lattice.axes)), np.int32))]
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            receivers = _Receivers(ids[part], wrapped[part], turns[part])
            ranges = grid.ranges(np, offsets, cells[part, None], columns)
            found.append(self._near(senders, receivers, _pieces(ranges)))
        first, second, images = map(np.concatenate, zip(*found, strict=True))
        return first, second, images

    def _near(self, points: _SortedPoints, receivers: _Receivers, pieces: _Pieces):
        """Sorted senders, receivers and images of the edges of some receivers."""
        number = np.repeat(np.arange(len(pieces.rows), dtype=np.int32), pieces.lengths)
        at = np.arange(len(number), dtype=np.int32)
        at += (pieces.first - (np.cumsum(pieces.lengths) - pieces.lengths))[number]
        moved = pieces.turns @ self.lattice.vectors - receivers.coordinates[pieces.rows]
        squares = np.zeros(len(at))
        for axis, coordinates in enumerate(points.coordinates):
            apart = coordinates[at]
            apart += np.ascontiguousarray(moved[:, axis])[number]
            apart *= apart
            squares += apart
        near = np.flatnonzero(squares <= self._limit(1))
        at, number, squares = at[near], number[near], squares[near]
        rows = pieces.rows[number]
        # Candidates of a pair come in the order of their images, and a stable sort keeps it.
        keys = rows * np.int64(len(self.points)) + points.ids[at]
        order = np.argsort(keys, kind="stable")
        at, rows, number, squares = at[order], rows[order], number[order], squares[order]
        turns = pieces.turns[number]
        senders, receiving = points.ids[at], receivers.ids[rows]
        images = turns + receivers.turns[rows] - points.turns[at]
        is_itself = (senders == receiving) & ~turns.any(1)
        kept = self._kept(senders, receiving, images, is_itself, squares)
        if not kept.all():
            senders, receiving, images = senders[kept], receiving[kept], images[kept]
        return senders, receiving, images

    def _limit(self, sign: int) -> float:
        """Squares of wrapped distances up to here may, or below here must, be within the radius."""
        scale = self.r + np.abs(self.lattice.vectors).sum()
        return max(self.r + sign * _ROUNDING * scale, 0) ** 2

    def _kept(self, senders, receivers, images, is_itself, squares) -> Any:
        kept = self.batch[senders] == self.batch[receivers]
        if not self.loop:
            kept &= ~is_itself
        if self.half:
            kept &= one_of_two(np, senders, receivers, images)
        unsure = np.flatnonzero(squares >= self._limit(-1))
        apart = self.points[senders[unsure]] - self.points[receivers[unsure]]
        apart += images[unsure] @ self.lattice.vectors
        scale = distance_scale(np, apart.shape[1], apart, np.asarray(self.r))
        kept[unsure] &= np.square(apart * scale).sum(-1) <= np.square(self.r * scale)
        return kept


@dataclasses.dataclass(frozen=True)
class _SortedPoints:
    """Points in the order of cells: ids, coordinates [dimensions, points] and turns."""

    ids: np.ndarray
    coordinates: np.ndarray
    turns: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Receivers:
    """Some of the points in the order of ids: ids, coordinates [points, dimensions] and turns."""

    ids: np.ndarray
    coordinates: np.ndarray
    turns: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """Runs of points that are all in one image, one after the other for each receiver.

    Attributes:
      rows: the receiver of each.
      first: the first point, in the order of cells.
      lengths: number of points.
      turns: images along the periodic axes, [pieces, periodic].
    """

    rows: np.ndarray
    first: np.ndarray
    lengths: np.ndarray
    turns: np.ndarray


def _pieces(ranges: Ranges) -> _Pieces:
    """Cuts ranges [receivers, columns] at the ends of their columns, and omits empty ones."""
    places = np.flatnonzero(ranges.end > ranges.begin)
    rows = (places // ranges.begin.shape[1]).astype(np.int32)
    begin, end, first, length, *turns = (
        np.broadcast_to(a, ranges.begin.shape).ravel()[places]
        for a in (ranges.begin, ranges.end, ranges.first, ranges.length, *ranges.turns)
    )
    if not ranges.repeats:
        lengths = end - begin
        return _Pieces(rows, first + begin, lengths, _stacked(turns, len(rows)))
    last_turn = (end - 1) // length
    counts = last_turn - begin // length + 1
    number = np.repeat(np.arange(len(rows)), counts)
    turn = last_turn[number] - (np.cumsum(counts)[number] - 1 - np.arange(len(number)))
    begin, end, first, length = begin[number], end[number], first[number], length[number]
    start = np.maximum(begin - turn * length, 0)
    lengths = np.minimum(end - turn * length, length) - start
    turns = [*(a[number] for a in turns), turn]
    first, lengths = (first + start).astype(np.int32), lengths.astype(np.int32)
    return _Pieces(rows[number], first, lengths, _stacked(turns, len(number)))


def _stacked(turns: list[np.ndarray], length: int) -> np.ndarray:
    return np.stack(turns, -1).astype(np.int32) if turns else np.zeros((length, 0), np.int32)


def one_of_two(xp: Any, senders: Any, receivers: Any, images: Any) -> Any:
    """Chooses one of the edges of each pair: the higher sender, or the higher image of a point."""
    is_first = xp.ones(senders.shape, bool)  # an edge to itself in no image
    for axis in reversed(range(images.shape[-1])):
        image = images[..., axis]
        is_first = (image > 0) | ((image == 0) & is_first)
    return (senders > receivers) | ((senders == receivers) & is_first)
