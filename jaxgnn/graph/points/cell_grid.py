"""A grid of cells over points, and where the points near a cell are in the order of cells.

Points are sorted by cell, and the last axis of the grid varies fastest. So the points of a *column*
of cells along that axis are neighbours in memory, and points near a cell are one range of each
column around it. Along a periodic axis a column repeats without end: position ``p`` of a column of
``n`` points is its point ``p % n`` in the image ``p // n``. A range may contain several images, so
a radius may have any size.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.graph.points.lattice import Lattice, check_cell, check_periodic, product
from jaxgnn.graph.points.neighbour_edges import check_points

# Candidates that one word of bits marks.
WORD = 32
# Cells are this much wider than the radius needs, relative to coordinates, because of rounding.
SLACK = 2e-5
# Columns of cells around a cell.
_MOST_COLUMNS = 2**16
_MOST_CELLS_OF_AN_AXIS = 2**12
# Cells for each point, at most.
_CELLS_PER_POINT = 2


@dataclass(frozen=True)
class CellGrid:
    """Sizes of a grid of cells: static, hashable, made on the host from typical points.

    The axes of the grid are the periodic axes of the box, then Cartesian axes that cover the rest.

    Attributes:
      periodic: whether each axis of the box is periodic.
      open_axes: Cartesian axes of the grid that are not periodic.
      counts: number of cells along each axis of the grid.
      widths: width of the cells along each open axis, in the unit of the points.
      reach: number of cells on either side in which neighbours can be.
      words: room in the range of a column, in multiples of 32 points.
    """

    periodic: tuple[bool, ...]
    open_axes: tuple[int, ...]
    counts: tuple[int, ...]
    widths: tuple[float, ...]
    reach: tuple[int, ...]
    words: int = 1

    @classmethod
    def for_points(
        cls,
        points: npt.ArrayLike,
        r: float,
        *,
        box: npt.ArrayLike | None = None,
        periodic: bool | tuple[bool, ...] | None = None,
        headroom: float = 1.5,
    ) -> CellGrid:
        """Chooses the grid for a search within ``r``, on the host and outside of ``jit``.

        The grid stays correct for other points, radii up to ``r`` and boxes that are not narrower.
        Where it does not fit, a search reports an overflow.

        Args:
          points: typical points, floating [points, dimensions].
          r: the largest distance of a neighbour, in the unit of the points. Add the skin to it.
          box: cell vectors as rows, [dimensions, dimensions], or None.
          periodic: whether each axis is periodic; None for all axes of a box.
          headroom: how many times more points than now a column has room for.

        Raises:
          ValueError: if the radius is negative or spans too many images; on a degenerate box; on
            wrong shapes or dtypes; on arguments that are traced or not finite.

        Example:
          >>> import numpy as np
          >>> points = np.random.default_rng(0).random((100, 3)) * 10
          >>> grid = CellGrid.for_points(points, 2.5, box=np.eye(3) * 10)
          >>> hash(grid) == hash(CellGrid.for_points(points, 2.5, box=np.eye(3) * 10))
          True
        """
        where = "CellGrid.for_points"
        if not is_concrete(points, r, box):
            raise bad_input(where, "points, r and box", "concrete", "a tracer")
        array = np.asarray(check_points(where, points, None)[0]).astype(np.float64)
        flags = check_periodic(where, periodic, box, array.shape[1])
        cell = check_cell(where, box, flags)
        if not headroom >= 1:
            raise bad_input(where, "headroom", "at least 1", headroom)
        lattice = Lattice.of_box(cell, flags, np.float64)
        # Cells of half the radius have fewer candidates, in more columns.
        choices = [
            choose_grid(where, array, float(r), lattice, flags, finer, headroom) for finer in (1, 2)
        ]
        return min(choices, key=lambda grid: (len(grid.columns()) * grid.words, grid.num_cells))

    @property
    def num_cells(self) -> int:
        """Number of cells of the grid, along all axes together."""
        return math.prod(self.counts)

    def nbytes(self, num_points: int, num_slots: int) -> int:
        """Estimate of the bytes that a search on a device needs at its peak, in float32.

        Args:
          num_points: number of points.
          num_slots: number of edges there is room for.
        """
        dimensions = len(self.counts)
        by_point = 4 * (8 + 6 * dimensions) + 8 * len(self.columns()) * self.words
        by_edge = 4 * (10 + 3 * dimensions)
        return num_points * by_point + num_slots * by_edge + 8 * self.num_cells

    def columns(self) -> np.ndarray:
        """Returns offsets of the columns around a cell, [columns, dimensions - 1]."""
        sides = [range(-reach, reach + 1) for reach in self.reach[:-1]]
        offsets = list(itertools.product(*sides))
        return np.array(offsets, np.int32).reshape(len(offsets), len(sides))

    def place(self, xp: Any, points: Any, lattice: Lattice, alive: Any) -> tuple[Any, Any, Any]:
        """Moves points into the box and finds their cells.

        Returns:
          ``(wrapped, turns, cells)``: points inside of the box along periodic axes [points,
          dimensions], the number of cell vectors that were subtracted [points, periodic], and
          coordinates of cells [points, dimensions], both int32. Points that are not ``alive`` are
          in the first cell.
        """
        points = xp.where(alive[:, None], points, 0)
        along = product(xp, points, lattice.dual)
        turns = xp.floor(along)
        wrapped = points - product(xp, turns, lattice.vectors)
        places = (along - turns) * xp.asarray(self.counts[: len(lattice.axes)], points.dtype)
        if self.open_axes:
            open_axes = np.array(self.open_axes)
            across = (points - product(xp, along, lattice.vectors))[:, open_axes]
            least = xp.min(xp.where(alive[:, None], across, xp.inf), axis=0, initial=xp.inf)
            least = xp.where(xp.isfinite(least), least, 0)
            open_places = (across - least) / xp.asarray(self.widths, points.dtype)
            places = xp.concatenate([places, open_places], axis=1)
        last = xp.asarray(self.counts, points.dtype) - 1
        cells = xp.clip(xp.floor(places), 0, last).astype(np.int32)
        return wrapped, turns.astype(np.int32), cells

    def ids(self, cells: Any) -> Any:
        """Returns the number of each cell [...] from its coordinates [..., dimensions]."""
        return _raveled([cells[..., a] for a in range(len(self.counts))], self.counts)

    def ranges(self, xp: Any, offsets: Any, cells: Any, columns: Any) -> Ranges:
        """Returns the range of each column near each cell.

        Args:
          xp: numpy or ``jax.numpy``.
          offsets: where each cell begins in the order of cells, [cells + 1].
          cells: coordinates of cells, [..., dimensions].
          columns: offsets of columns, [..., dimensions - 1], of a shape that broadcasts.
        """
        *leading, last = self.counts
        num_periodic = sum(self.periodic)
        places, turns, is_inside = [], [], True
        for axis, count in enumerate(leading):
            place = cells[..., axis] + columns[..., axis]
            if axis < num_periodic:
                turn = place // count
                turns.append(turn)
                place = place - turn * count
            else:
                is_inside = is_inside & (place >= 0) & (place < count)
                place = xp.clip(place, 0, count - 1)
            places.append(place)
        shape = np.broadcast_shapes(cells.shape[:-1], columns.shape[:-1])
        first_cell = _raveled(places, leading) * last if places else xp.zeros(shape, np.int32)
        first = offsets[first_cell]
        length = offsets[first_cell + last] - first
        reach, repeats = self.reach[-1], num_periodic == len(self.counts)

        def position(place: Any) -> Any:
            """Returns the position in the column where a cell begins."""
            if not repeats:
                return offsets[first_cell + xp.clip(place, 0, last)] - first
            turn = place // last
            return offsets[first_cell + place - turn * last] - first + turn * length

        along = cells[..., -1]
        begin, end = position(along - reach), position(along + (reach + 1))
        if is_inside is not True:
            end = xp.where(is_inside, end, begin)
        return Ranges(begin, end, first, length, tuple(turns), repeats)

    def covers(self, xp: Any, r: Any, lattice: Lattice) -> Any:
        """Returns whether neighbours within ``r`` are at most ``reach`` cells away."""
        count = len(lattice.axes)
        widths = lattice.heights(xp) / xp.asarray(self.counts[:count], lattice.dual.dtype)
        widths = xp.concatenate([widths, xp.asarray(self.widths, lattice.dual.dtype)])
        return (r <= widths * xp.asarray(self.reach, lattice.dual.dtype)).all()


@dataclass(frozen=True)
class Ranges:
    """Positions in columns, from ``begin`` to ``end``, for pairs of a cell and a column.

    Attributes:
      begin: the first position.
      end: the position after the last.
      first: where the column begins in the order of cells.
      length: number of points in the column.
      turns: images of the column along each leading periodic axis.
      repeats: whether the column itself is periodic.
    """

    begin: Any
    end: Any
    first: Any
    length: Any
    turns: tuple[Any, ...]
    repeats: bool

    def at(self, xp: Any, position: Any, along: Any = lambda array: array) -> tuple[Any, list[Any]]:
        """The point at a position, in the order of cells, and its images along periodic axes.

        ``along`` brings an array of ranges to the shape of the positions.
        """
        turns = [along(turn) for turn in self.turns]
        if self.repeats:
            length = xp.maximum(along(self.length), 1)
            turn = position // length
            position = position - turn * length
            turns.append(turn)
        return along(self.first) + position, turns


def choose_grid(
    where: str,
    points: np.ndarray,
    r: float,
    lattice: Lattice,
    periodic: tuple[bool, ...],
    finer: int,
    headroom: float = 1.0,
) -> CellGrid:
    """The grid whose cells have about the width ``r / finer``, for concrete points in float64."""
    if not 0 <= r < np.inf:
        raise bad_input(where, "r", "finite and not negative", r)
    if not points.shape[1]:
        raise bad_input(where, "points", "of at least one dimension", f"shape {points.shape}")
    heights = lattice.heights(np)
    across = points - (points @ lattice.dual) @ lattice.vectors
    open_axes = _open_axes(lattice)
    spread = np.ptp(across[:, list(open_axes)], axis=0) if len(points) else np.zeros(len(open_axes))
    sides = np.concatenate([heights, spread])
    wide = r + SLACK * (r + sides) + np.finfo(np.float64).tiny
    wanted = np.clip(np.floor(finer * sides / wide), 1, _MOST_CELLS_OF_AN_AXIS)
    most = max(8, _CELLS_PER_POINT * len(points))
    while wanted.prod() > most:
        wanted[wanted.argmax()] = np.ceil(wanted.max() / 2)
    counts = wanted.astype(int)
    # An axis without extent has one cell, of any width.
    spread = np.maximum(spread * (1 + SLACK), wide[len(heights) :])
    widths = np.concatenate([heights, spread]) / counts
    reach = np.maximum(np.ceil(wide / widths), 1)
    if (2 * reach[:-1] + 1).prod() > _MOST_COLUMNS or reach[-1] > _MOST_COLUMNS:
        expected = "smaller, at most a hundred times the height of the box"
        raise bad_input(where, "r", expected, f"{r:g} for heights {heights.tolist()}")
    grid = CellGrid(
        periodic,
        open_axes,
        tuple(counts.tolist()),
        tuple(widths[len(heights) :].tolist()),
        tuple(reach.astype(int).tolist()),
    )
    longest = _longest_range(grid, points, lattice)
    words = max(1, math.ceil(longest * headroom / WORD))
    return dataclasses.replace(grid, words=words)


def sorted_offsets(ids: np.ndarray, num_cells: int) -> np.ndarray:
    """Returns the begin of each cell in the order of cells, [cells + 1], from the ids of points."""
    counts = np.bincount(ids, minlength=num_cells)[:num_cells]
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _longest_range(grid: CellGrid, points: np.ndarray, lattice: Lattice) -> int:
    """Returns the largest number of points in the range of a column near any point."""
    alive = np.ones(len(points), bool)
    ids = grid.ids(grid.place(np, points, lattice, alive)[2])
    offsets = sorted_offsets(ids, grid.num_cells)
    cells = np.stack(np.unravel_index(np.unique(ids), grid.counts), -1).astype(np.int32)
    longest = 0
    for column in grid.columns():
        ranges = grid.ranges(np, offsets, cells, column)
        longest = max(longest, int((ranges.end - ranges.begin).max(initial=0)))
    return longest


def _open_axes(lattice: Lattice) -> tuple[int, ...]:
    """Cartesian axes that cover the directions without periods: each time the longest that is left.

    Any axes give correct neighbours; these give cells with few points.
    """
    num_periodic, dimensions = lattice.vectors.shape
    left = np.eye(dimensions) - lattice.dual @ lattice.vectors
    chosen: list[int] = []
    for _ in range(dimensions - num_periodic):
        lengths = np.square(left).sum(1)
        lengths[chosen] = -1
        axis = int(lengths.argmax())
        chosen.append(axis)
        direction = left[axis] / max(np.sqrt(max(lengths[axis], 0)), np.finfo(float).tiny)
        left = left - np.outer(left @ direction, direction)
    return tuple(chosen)


def _raveled(places: list[Any], counts: Any) -> Any:
    total = places[0]
    for place, count in zip(places[1:], counts[1:], strict=True):
        total = total * count + place
    return total
