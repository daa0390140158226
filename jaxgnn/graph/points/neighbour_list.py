"""Neighbours of moving points: found with a skin, and found again when points have moved."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float

from jaxgnn._arrays.arrays import KeepsArrays, as_jax, is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.graph.points.cell_grid import CellGrid
from jaxgnn.graph.points.lattice import Lattice, product
from jaxgnn.graph.points.neighbour_edges import NeighbourEdges
from jaxgnn.graph.points.neighbours import radius_graph
from jaxgnn.graph.points.neighbours_on_device import check_grid_and_box, radius_graph_on_device


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NeighbourList(KeepsArrays):
    """Neighbours of moving points in a fixed number of slots, for loops under ``jit``.

    It is allocated on the host, and has all edges of length ``r + skin`` at the time of the search.
    Until a point has moved by more than half of the skin, these contain all pairs within ``r``;
    ``updated`` searches again when that is no longer certain.

    Attributes:
      edges: the edges, ``max_edges`` slots, with ``images``. Some may be longer than ``r``.
      points: where the points were at the search, [points, dimensions].
      r: the radius, scalar.
      skin: additional distance in which edges are stored, scalar.
      grid: sizes of the cells.
      half: whether only one edge of each pair is found.
    """

    edges: NeighbourEdges
    points: Float[Array, "points dimensions"]
    r: Float[Array, ""]
    skin: Float[Array, ""]
    grid: CellGrid = dataclasses.field(metadata={"static": True})
    half: bool = dataclasses.field(default=False, metadata={"static": True})

    @classmethod
    def allocate(
        cls,
        points: npt.ArrayLike,
        r: float,
        *,
        skin: float,
        box: npt.ArrayLike | None = None,
        periodic: bool | tuple[bool, ...] | None = None,
        half: bool = False,
        max_edges: int | None = None,
        headroom: float = 1.25,
    ) -> NeighbourList:
        """Chooses the cells and the number of slots, and finds the first edges; outside of ``jit``.

        Args:
          points: floating [points, dimensions].
          r: the largest distance of a neighbour, in the unit of the points.
          skin: additional distance in which edges are stored. With more of it there are more edges,
            and fewer searches.
          box: cell vectors as rows, [dimensions, dimensions], or None.
          periodic: whether each axis is periodic; None for all axes of a box.
          half: whether only one of the two edges of each pair is found, as in ``radius_graph``.
          max_edges: number of edge slots; None for the number of edges now, times ``headroom``.
          headroom: how many times more edges than now there is room for, at least 1.

        Raises:
          ValueError: as ``radius_graph`` and ``CellGrid.for_points``; if the skin is negative or
            not finite; if there are more edges than ``max_edges``.

        Example:
          >>> import numpy as np
          >>> box = 4 * np.eye(3, dtype=np.float32)
          >>> points = np.zeros((1, 3), np.float32)
          >>> near = NeighbourList.allocate(points, 4.0, skin=0.5, box=box)
          >>> int(near.edges.num_found)
          6
          >>> bool(near.needs_rebuild(points + 0.1)), bool(near.needs_rebuild(points + 0.2))
          (False, True)
          >>> near = jax.jit(NeighbourList.updated)(near, points + 0.2)
          >>> bool(near.edges.overflow)
          False
        """
        where = "NeighbourList.allocate"
        if not is_concrete(points, r, skin, box):
            raise bad_input(where, "points, r, skin and box", "concrete", "a tracer")
        if not 0 <= skin < np.inf:
            raise bad_input(where, "skin", "finite and not negative", skin)
        axes = (box is not None) if periodic is None else periodic
        grid = CellGrid.for_points(points, r + skin, box=box, periodic=axes, headroom=headroom)
        if max_edges is None:
            now = radius_graph(points, r + skin, box=box, periodic=axes, half=half)
            max_edges = max(1, int(np.ceil(len(now.senders) * headroom)))
        edges = _search(points, r + skin, box, grid, max_edges, half).checked()
        placed = as_jax(where, "points", points)
        radius, more = (jnp.asarray(length, placed.dtype) for length in (r, skin))
        return cls(edges, placed, radius, more, grid, half)

    def needs_rebuild(
        self,
        points: Float[Array, "points dimensions"],
        box: Float[Array, "dimensions dimensions"] | None = None,
    ) -> Bool[Array, ""]:
        """Returns whether pairs within ``r`` may be missing in the edges; works under ``jit``.

        Two points approach by at most twice the largest move, and by what a change of the box
        shrinks their distance. Also True if points are not finite.

        Args:
          points: where the points are now; not wrapped into the box, unless at each search too.
          box: cell vectors now; None if they are those of the search.

        Raises:
          ValueError: if there are not as many points, or on a box of another shape.
        """
        where = "NeighbourList.needs_rebuild"
        points = as_jax(where, "points", points)
        if points.shape != self.points.shape:
            raise bad_input(
                where, "points", f"of shape {self.points.shape}", f"shape {points.shape}"
            )
        stretch = jnp.zeros((), points.dtype)
        if box is not None:
            box = check_grid_and_box(where, self.grid, box, points.shape[1])
            now, before = (
                Lattice.of_box(b, self.grid.periodic, points.dtype) for b in (box, self.edges.box)
            )
            # The map from the box of now to that of the search, less the identity.
            change = product(jnp, jnp.asarray(now.dual), before.vectors - now.vectors)
            points = points + product(jnp, points, change)
            stretch = jnp.sqrt(jnp.sum(jnp.square(change)))
        moves = jnp.sum(jnp.square(points - self.points), axis=-1)
        nearer = 2 * jnp.sqrt(jnp.max(moves, initial=0)) + self.r * stretch
        return ~(nearer <= self.skin)

    def rebuilt(
        self,
        points: Float[Array, "points dimensions"],
        box: Float[Array, "dimensions dimensions"] | None = None,
    ) -> NeighbourList:
        """Returns the list of a new search for these points; works under ``jit``.

        ``edges.overflow`` and ``edges.not_finite`` tell whether it succeeded; after an overflow
        allocate again.

        Args:
          points: where the points are now, [points, dimensions].
          box: cell vectors now; None if they are those of the last search.
        """
        where = "NeighbourList.rebuilt"
        box = self.edges.box if box is None else as_jax(where, "box", box)
        points = as_jax(where, "points", points).astype(self.points.dtype)
        slots = len(self.edges.senders)
        edges = _search(points, self.r + self.skin, box, self.grid, slots, self.half)
        return NeighbourList(edges, points, self.r, self.skin, self.grid, self.half)

    def updated(
        self,
        points: Float[Array, "points dimensions"],
        box: Float[Array, "dimensions dimensions"] | None = None,
    ) -> NeighbourList:
        """This list, or a new one if it ``needs_rebuild``; works under ``jit``.

        Args:
          points: where the points are now, [points, dimensions].
          box: cell vectors now; None if they are those of the last search.

        Raises:
          ValueError: as ``needs_rebuild``.
        """
        where = "NeighbourList.updated"
        points = as_jax(where, "points", points).astype(self.points.dtype)
        if box is not None:
            box = as_jax(where, "box", box).astype(self.points.dtype)
        return jax.lax.cond(
            self.needs_rebuild(points, box),
            lambda: self.rebuilt(points, box),
            lambda: self,
        )


def _search(
    points: Any, reach: Any, box: Any, grid: CellGrid, max_edges: int, half: bool
) -> NeighbourEdges:
    where = "NeighbourList"
    points = as_jax(where, "points", points)
    box = None if box is None else as_jax(where, "box", box).astype(points.dtype)
    return radius_graph_on_device(points, reach, grid=grid, box=box, max_edges=max_edges, half=half)
