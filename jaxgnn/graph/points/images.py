"""Neighbours in all images of a periodic box, by cells: in numpy on the host, in JAX on a device.

Points are sorted by cell. For each point, the candidates of a column of cells are a range of that
order (see ``cell_grid``). Both searches choose among candidates by the functions at the top.

The host lists the candidates of some receivers one after the other. A device, whose shapes are
fixed, compares all candidates in one pass and packs the results in words of 32 bits; a second pass
finds for each edge slot its bit, by counts of bits. So nothing of the size of the candidates is
stored but the bits, and no pass scatters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.graph.points.cell_grid import (
    SLACK,
    WORD,
    CellGrid,
    Ranges,
    choose_grid,
    sorted_offsets,
)
from jaxgnn.graph.points.lattice import Lattice
from jaxgnn.graph.points.neighbour_edges import distance_scale

# Number of candidates in memory at a time on the host; their arrays fit a cache.
_MOST_CANDIDATES = 2**18
# Distances of wrapped points that differ from the radius by less are computed again, relative.
_ROUNDING = 1e-10


def _squared_distances(coordinates: Any, places: Any, moves: Iterable[Iterable[Any]]) -> Any:
    """Sums the squares of the differences along each axis.

    Args:
      coordinates: those of the points along each axis, [axes] of [points].
      places: the point of each candidate, [...].
      moves: numbers to add to its coordinates along each axis: minus those of the receiver, and the
        cell vectors of the image.
    """
    squares: Any = 0
    for axis, moves_along in zip(coordinates, moves, strict=True):
        apart = axis[places]
        for move in moves_along:
            apart += move
        apart *= apart
        squares += apart
    return squares


def _is_wanted(
    senders: Any, receivers: Any, turns: list[Any], batch: Any, ids: Any, *, loop: bool, half: bool
) -> Any:
    """Returns whether candidates are edges by the options of a search, whatever their distance.

    Args:
      senders: numbers of points.
      receivers: numbers of points, of a shape that broadcasts.
      turns: cell vectors between the two, along each periodic axis.
      batch: the cloud of each point, by its number, or None.
      ids: the id of each point, by its number; None where the numbers are ids.
      loop: whether each point is a neighbour of itself.
      half: whether only one edge of each pair is wanted: from the point of higher id, or, of images
        of one point, from the higher image.
    """
    wanted: Any = True
    is_same_point = senders == receivers
    if batch is not None:
        wanted = batch[senders] == batch[receivers]
    if not loop:
        is_itself = is_same_point
        for turn in turns:
            is_itself = is_itself & (turn == 0)
        wanted = wanted & ~is_itself
    if half:
        is_higher: Any = True
        for turn in reversed(turns):
            is_higher = (turn > 0) | ((turn == 0) & is_higher)
        first, second = (senders, receivers) if ids is None else (ids[senders], ids[receivers])
        wanted = wanted & ((first > second) | (is_same_point & is_higher))
    return wanted


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
      half: whether only one edge of each pair is wanted.
    """

    points: np.ndarray
    batch: np.ndarray
    r: float
    lattice: Lattice
    periodic: tuple[bool, ...]
    loop: bool
    half: bool

    def edges(self, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns senders and receivers int32 [edges], and images int32 [edges, periodic].

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
        parts = [(nothing, nothing, np.zeros((0, len(self.lattice.axes)), np.int32))]
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            receivers = _Receivers(ids[part], wrapped[part], turns[part])
            ranges = grid.ranges(np, offsets, cells[part, None], columns)
            parts.append(self._near(senders, receivers, _pieces(ranges)))
        first, second, images = map(np.concatenate, zip(*parts, strict=True))
        return first, second, images

    def _near(self, points: _SortedPoints, receivers: _Receivers, pieces: _Pieces):
        """Returns sorted senders, receivers and images of the edges of some receivers."""
        number = np.repeat(np.arange(len(pieces.rows), dtype=np.int32), pieces.lengths)
        at = np.arange(len(number), dtype=np.int32)
        at += (pieces.first - (np.cumsum(pieces.lengths) - pieces.lengths))[number]
        moved = pieces.turns @ self.lattice.vectors - receivers.coordinates[pieces.rows]
        moves = ([np.ascontiguousarray(axis)[number]] for axis in moved.T)
        squares = _squared_distances(points.coordinates, at, moves)
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
        kept = _is_wanted(
            senders, receiving, list(turns.T), self.batch, None, loop=self.loop, half=self.half
        )
        kept &= self._is_within(senders, receiving, images, squares)
        if not kept.all():
            senders, receiving, images = senders[kept], receiving[kept], images[kept]
        return senders, receiving, images

    def _limit(self, sign: int) -> float:
        """Bounds squares of wrapped distances: to here they may, or below it must, be near."""
        scale = self.r + np.abs(self.lattice.vectors).sum()
        return max(self.r + sign * _ROUNDING * scale, 0) ** 2

    def _is_within(self, senders, receivers, images, squares) -> np.ndarray:
        """Returns whether pairs are within the radius, exactly, where their squares may be."""
        within = np.ones(len(senders), bool)
        unsure = np.flatnonzero(squares >= self._limit(-1))
        apart = self.points[senders[unsure]] - self.points[receivers[unsure]]
        apart += images[unsure] @ self.lattice.vectors
        scale = distance_scale(np, apart.shape[1], apart, np.asarray(self.r))
        within[unsure] = np.square(apart * scale).sum(-1) <= np.square(self.r * scale)
        return within


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
    """Joins the images along the periodic axes, [length, periodic]."""
    return np.stack(turns, -1).astype(np.int32) if turns else np.zeros((length, 0), np.int32)


class DeviceEdges(NamedTuple):
    """Edges [slots] and their counts, as ``NeighbourEdges`` has them."""

    senders: Any
    receivers: Any
    images: Any
    most_neighbours: Any
    num_found: Any
    num_not_finite: Any


class _SortedOnDevice(NamedTuple):
    """The points in the order of cells, with places in this order.

    Attributes:
      ids: int32 [points].
      places: the place of each point, by its id, int32 [points].
      wrapped: coordinates inside of the box [points, dimensions].
      turns: cell vectors that were subtracted, int32 [points, periodic].
      cells: coordinates of cells, int32 [points, dimensions].
      batch: the cloud of each point, int32 [points], or None.
      alive: whether points can have neighbours, bool [points].
      offsets: the place where each cell begins, int32 [cells + 1].
    """

    ids: Any
    places: Any
    wrapped: Any
    turns: Any
    cells: Any
    batch: Any
    alive: Any
    offsets: Any


def find_on_device(
    points: Any,
    batch: Any,
    r: Any,
    box: Any,
    grid: CellGrid,
    *,
    slots: int,
    capacity: int | None,
    unknown: int,
    loop: bool,
    half: bool,
) -> DeviceEdges:
    """Returns edges sorted by receiver, and padding after them.

    Args:
      points: floating [points, dimensions], in the dtype in which distances are compared.
      batch: the cloud of each point, or None.
      r: the radius.
      box: the checked cell vectors, or None.
      grid: the grid.
      slots: number of edge slots.
      capacity: most edges of a receiver, or None.
      unknown: value of ``most_neighbours`` if the grid does not fit.
      loop: whether each point is a neighbour of itself.
      half: whether only one edge of each pair is wanted.
    """
    num_points, dimensions = points.shape
    lattice = Lattice.of_box(box, grid.periodic, points.dtype)
    lattice = Lattice(jnp.asarray(lattice.vectors), jnp.asarray(lattice.dual), lattice.axes)
    if num_points == 0:
        empty, zero = jnp.zeros(slots, jnp.int32), jnp.int32(0)
        return DeviceEdges(
            empty, empty, jnp.zeros((slots, dimensions), jnp.int32), zero, zero, zero
        )
    alive = jnp.isfinite(points).all(-1)
    if batch is not None:
        alive &= batch >= 0
    order = _sort(points, batch, alive, grid, lattice)
    words, longest = _near_bits(order, r, grid, lattice, loop=loop, half=half)
    sums = jnp.cumsum(jax.lax.population_count(words).astype(jnp.int32), axis=1)
    counts = sums[order.places, -1]
    fits = (longest <= WORD * grid.words) & grid.covers(jnp, r * (1 + SLACK / 4), lattice)
    most = jnp.where(fits, jnp.max(counts), unknown)
    stored = counts if capacity is None else jnp.minimum(counts, capacity)
    ends = jnp.cumsum(stored)
    ids = jnp.arange(num_points, dtype=jnp.int32)
    receivers = jnp.repeat(ids, stored, total_repeat_length=slots)
    is_edge = jnp.arange(slots, dtype=jnp.int32) < ends[-1]
    receivers = jnp.where(is_edge, receivers, 0)
    rank = jnp.arange(slots, dtype=jnp.int32) - (ends - stored)[receivers]
    place, turns = _candidates_at_rank(order, grid, words, sums, order.places[receivers], rank)
    images = turns - order.turns[place] + order.turns[order.places[receivers]]
    images = jnp.where(is_edge[:, None], images, 0)
    all_axes = jnp.zeros((slots, dimensions), jnp.int32)
    if lattice.axes:
        all_axes = all_axes.at[:, np.array(lattice.axes)].set(images)
    return DeviceEdges(
        senders=jnp.where(is_edge, order.ids[place], num_points),
        receivers=jnp.where(is_edge, receivers, num_points),
        images=all_axes,
        most_neighbours=most,
        num_found=jnp.where(fits, jnp.sum(counts, dtype=jnp.int32), unknown),
        num_not_finite=count_not_finite(points, batch),
    )


def count_not_finite(points: Any, batch: Any) -> Any:
    """Counts the points that are neither finite nor padding, int32 scalar."""
    is_bad = ~jnp.isfinite(points).all(-1)
    if batch is not None:
        is_bad &= batch >= 0
    return jnp.sum(is_bad, dtype=jnp.int32)


def _sort(points: Any, batch: Any, alive: Any, grid: CellGrid, lattice: Lattice) -> _SortedOnDevice:
    """Sorts points by cell; those that are not alive come last."""
    wrapped, turns, cells = grid.place(jnp, points, lattice, alive)
    cell_ids = jnp.where(alive, grid.ids(cells), grid.num_cells)
    ids = jnp.arange(len(points), dtype=jnp.int32)
    sorted_cells, order = jax.lax.sort((cell_ids, ids), num_keys=1, is_stable=True)
    places = jnp.zeros_like(ids).at[order].set(ids, unique_indices=True)
    bounds = jnp.arange(grid.num_cells + 1, dtype=jnp.int32)
    return _SortedOnDevice(
        ids=order,
        places=places,
        wrapped=wrapped[order],
        turns=turns[order],
        cells=cells[order],
        batch=None if batch is None else batch[order],
        alive=alive[order],
        offsets=jnp.searchsorted(sorted_cells, bounds).astype(jnp.int32),
    )


def _near_bits(
    points: _SortedOnDevice, r: Any, grid: CellGrid, lattice: Lattice, *, loop: bool, half: bool
) -> tuple[Any, Any]:
    """Returns bits of near candidates, uint32 [points, columns * words], and the longest range."""
    columns = jnp.asarray(grid.columns())
    ranges = grid.ranges(jnp, points.offsets, points.cells[:, None], columns)
    lengths = jnp.where(points.alive[:, None], ranges.end - ranges.begin, 0)
    bits = jnp.arange(WORD, dtype=jnp.int32)
    number = jnp.arange(grid.words, dtype=jnp.int32)[:, None] * WORD + bits

    def expanded(array: Any) -> Any:
        """Broadcasts to [points, columns, words, bits]."""
        return jnp.broadcast_to(array, lengths.shape)[:, :, None, None]

    place, turns = ranges.at(jnp, expanded(ranges.begin) + number, expanded)
    is_near = number < expanded(lengths)
    place = jnp.where(is_near, place, 0)
    wrapped = jnp.where(points.alive[:, None], points.wrapped, 0)
    scale = distance_scale(jnp, wrapped.shape[1], wrapped, lattice.vectors, jnp.asarray(r))
    wrapped, vectors, r = wrapped * scale, lattice.vectors * scale, r * scale
    rows = jnp.arange(len(points.ids), dtype=jnp.int32)[:, None, None, None]
    moves = (
        [-axis[rows], *(turn.astype(v.dtype) * v for turn, v in zip(turns, along, strict=True))]
        for axis, along in zip(wrapped.T, vectors.T, strict=True)
    )
    squares = _squared_distances(wrapped.T, place, moves)
    is_near &= (squares <= r * r) & (r >= 0)
    is_near &= _is_wanted(place, rows, turns, points.batch, points.ids, loop=loop, half=half)
    masks = jnp.where(is_near, jnp.uint32(1) << bits.astype(jnp.uint32), jnp.uint32(0))
    words = jnp.sum(masks, axis=-1, dtype=jnp.uint32)
    return words.reshape(len(points.ids), -1), jnp.max(lengths)


def _candidates_at_rank(
    points: _SortedOnDevice, grid: CellGrid, words: Any, sums: Any, rows: Any, rank: Any
) -> tuple[Any, Any]:
    """Returns the place and the images of the candidate of the ``rank``-th bit of each row."""
    number = _first_above(sums, rows, rank)
    rank = rank - jnp.where(number > 0, sums[rows, jnp.maximum(number - 1, 0)], 0)
    bit = _position_of_bit(words[rows, number], rank)
    column, word = number // grid.words, number % grid.words
    columns = jnp.asarray(grid.columns())
    ranges = grid.ranges(jnp, points.offsets, points.cells[rows], columns[column])
    place, turns = ranges.at(jnp, ranges.begin + word * WORD + bit)
    # Slots without an edge have any place.
    place = jnp.clip(place, 0, len(points.ids) - 1)
    shape = (len(rows), 0)
    return place, jnp.stack(turns, -1) if turns else jnp.zeros(shape, jnp.int32)


def _first_above(sums: Any, rows: Any, rank: Any) -> Any:
    """Returns the first entry of each row of ascending ``sums`` that is more than ``rank``."""
    size = sums.shape[1]
    low = jnp.zeros_like(rank)
    step = 1 << max(size - 1, 0).bit_length()
    while step > 1:
        step //= 2
        middle = jnp.minimum(low + step, size) - 1
        low = jnp.where(sums[rows, middle] <= rank, middle + 1, low)
    return jnp.minimum(low, size - 1)


def _position_of_bit(word: Any, rank: Any) -> Any:
    """Returns the position of the ``rank``-th set bit of each word."""
    position = jnp.zeros_like(rank)
    for width in (16, 8, 4, 2, 1):
        part = (word >> position.astype(jnp.uint32)) & jnp.uint32((1 << width) - 1)
        count = jax.lax.population_count(part).astype(jnp.int32)
        is_above = rank >= count
        rank = jnp.where(is_above, rank - count, rank)
        position = position + jnp.where(is_above, width, 0)
    return position
