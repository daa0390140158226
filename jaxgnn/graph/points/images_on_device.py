"""Neighbours in all images of a periodic box on a device, by cells, under ``jax.jit`` too.

Points are sorted by cell. For each point, the candidates of a column of cells are a range of that
order (see ``cell_grid``). One pass compares all candidates and packs the results in words of 32
bits. The second finds for each edge slot its bit, by counts of bits. So nothing of the size of the
candidates is stored but the bits, and no pass scatters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.graph.points.cell_grid import SLACK, WORD, CellGrid
from jaxgnn.graph.points.images import one_of_two
from jaxgnn.graph.points.lattice import Lattice
from jaxgnn.graph.points.neighbour_edges import distance_scale


class Found(NamedTuple):
    """Edges [slots] and their counts, as ``NeighbourEdges`` has them."""

    senders: Any
    receivers: Any
    images: Any
    most_neighbours: Any
    num_found: Any
    num_not_finite: Any


class _Sorted(NamedTuple):
    """The points in the order of cells."""

    ids: Any  # int32 [points]
    places: Any  # of each point in this order, int32 [points]
    wrapped: Any  # inside of the box [points, dimensions]
    turns: Any  # cell vectors that were subtracted, int32 [points, periodic]
    cells: Any  # int32 [points, dimensions]
    batch: Any  # int32 [points] or None
    alive: Any  # bool [points]
    offsets: Any  # where each cell begins, int32 [cells + 1]


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
) -> Found:
    """Edges sorted by receiver, and padding after them.

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
      half: whether only one edge of each pair is found.
    """
    num_points, dimensions = points.shape
    lattice = Lattice.of_box(box, grid.periodic, points.dtype)
    lattice = Lattice(jnp.asarray(lattice.vectors), jnp.asarray(lattice.dual), lattice.axes)
    if num_points == 0:
        empty, zero = jnp.zeros(slots, jnp.int32), jnp.int32(0)
        return Found(empty, empty, jnp.zeros((slots, dimensions), jnp.int32), zero, zero, zero)
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
    place, turns = _at_rank(order, grid, words, sums, order.places[receivers], rank)
    images = turns - order.turns[place] + order.turns[order.places[receivers]]
    images = jnp.where(is_edge[:, None], images, 0)
    all_axes = jnp.zeros((slots, dimensions), jnp.int32)
    if lattice.axes:
        all_axes = all_axes.at[:, np.array(lattice.axes)].set(images)
    return Found(
        senders=jnp.where(is_edge, order.ids[place], num_points),
        receivers=jnp.where(is_edge, receivers, num_points),
        images=all_axes.at[:, np.array(lattice.axes, int)].set(images)
        if lattice.axes
        else all_axes,
        most_neighbours=most,
        num_found=jnp.where(fits, jnp.sum(counts, dtype=jnp.int32), unknown),
        num_not_finite=count_not_finite(points, batch),
    )


def count_not_finite(points: Any, batch: Any) -> Any:
    """Number of points that are not finite, and no padding, int32 scalar."""
    is_bad = ~jnp.isfinite(points).all(-1)
    if batch is not None:
        is_bad &= batch >= 0
    return jnp.sum(is_bad, dtype=jnp.int32)


def _sort(points: Any, batch: Any, alive: Any, grid: CellGrid, lattice: Lattice) -> _Sorted:
    wrapped, turns, cells = grid.place(jnp, points, lattice, alive)
    cell_ids = jnp.where(alive, grid.ids(cells), grid.num_cells)
    ids = jnp.arange(len(points), dtype=jnp.int32)
    sorted_cells, order = jax.lax.sort((cell_ids, ids), num_keys=1, is_stable=True)
    places = jnp.zeros_like(ids).at[order].set(ids, unique_indices=True)
    bounds = jnp.arange(grid.num_cells + 1, dtype=jnp.int32)
    return _Sorted(
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
    points: _Sorted, r: Any, grid: CellGrid, lattice: Lattice, *, loop: bool, half: bool
) -> tuple[Any, Any]:
    """Bits of the near candidates, uint32 [points, columns * words], and the longest range."""
    columns = jnp.asarray(grid.columns())
    ranges = grid.ranges(jnp, points.offsets, points.cells[:, None], columns)
    lengths = jnp.where(points.alive[:, None], ranges.end - ranges.begin, 0)
    bits = jnp.arange(WORD, dtype=jnp.int32)
    number = jnp.arange(grid.words, dtype=jnp.int32)[:, None] * WORD + bits

    def expanded(array: Any) -> Any:  # to [points, columns, words, bits]
        return jnp.broadcast_to(array, lengths.shape)[:, :, None, None]

    place, turns = ranges.at(jnp, expanded(ranges.begin) + number, expanded)
    is_near = number < expanded(lengths)
    place = jnp.where(is_near, place, 0)
    wrapped = jnp.where(points.alive[:, None], points.wrapped, 0)
    scale = distance_scale(jnp, wrapped.shape[1], wrapped, lattice.vectors, jnp.asarray(r))
    wrapped, vectors, r = wrapped * scale, lattice.vectors * scale, r * scale
    rows = jnp.arange(len(points.ids), dtype=jnp.int32)[:, None, None, None]
    squares = jnp.zeros((), wrapped.dtype)
    for axis in range(wrapped.shape[1]):
        coordinates = wrapped[:, axis]
        apart = coordinates[place] - coordinates[rows]
        for turn, vector in zip(turns, vectors, strict=True):
            apart = apart + turn.astype(vector.dtype) * vector[axis]
        squares = squares + apart * apart
    is_near &= (squares <= r * r) & (r >= 0)
    if points.batch is not None:
        is_near &= points.batch[place] == points.batch[rows]
    if not loop:
        is_home = place == rows
        for turn in turns:
            is_home &= turn == 0
        is_near &= ~is_home
    if half:
        is_near &= _one_of_two(points, place, rows, turns)
    masks = jnp.where(is_near, jnp.uint32(1) << bits.astype(jnp.uint32), jnp.uint32(0))
    words = jnp.sum(masks, axis=-1, dtype=jnp.uint32)
    return words.reshape(len(points.ids), -1), jnp.max(lengths)


def _one_of_two(points: _Sorted, place: Any, rows: Any, turns: list[Any]) -> Any:
    # The turns of the two ends differ only where these are two points.
    senders, receivers = points.ids[place], points.ids[rows]
    shape = jnp.broadcast_shapes(place.shape, rows.shape)
    images = [jnp.broadcast_to(turn, shape) for turn in turns]
    stacked = jnp.stack(images, -1) if images else jnp.zeros((*shape, 0), jnp.int32)
    return one_of_two(jnp, jnp.broadcast_to(senders, shape), receivers, stacked)


def _at_rank(
    points: _Sorted, grid: CellGrid, words: Any, sums: Any, rows: Any, rank: Any
) -> tuple[Any, Any]:
    """The candidate of the ``rank``-th bit of each row: its place in the order, and its images."""
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
    """The first entry of each row of ascending ``sums`` that is more than ``rank``."""
    size = sums.shape[1]
    low = jnp.zeros_like(rank)
    step = 1 << max(size - 1, 0).bit_length()
    while step > 1:
        step //= 2
        middle = jnp.minimum(low + step, size) - 1
        low = jnp.where(sums[rows, middle] <= rank, middle + 1, low)
    return jnp.minimum(low, size - 1)


def _position_of_bit(word: Any, rank: Any) -> Any:
    """The position of the ``rank``-th set bit of each word."""
    position = jnp.zeros_like(rank)
    for width in (16, 8, 4, 2, 1):
        part = (word >> position.astype(jnp.uint32)) & jnp.uint32((1 << width) - 1)
        count = jax.lax.population_count(part).astype(jnp.int32)
        is_above = rank >= count
        rank = jnp.where(is_above, rank - count, rank)
        position = position + jnp.where(is_above, width, 0)
    return position
