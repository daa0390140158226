"""The edges between near points, as found on the host and on a device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import (
    KeepsArrays,
    is_concrete,
    require_count,
    require_floats,
    require_integers,
    shown,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.edge_list import as_array
from jaxgnn.graph.points.lattice import product

# Larger coordinates leave too few digits of float64 for squared distances in a tree of clouds.
_LARGEST = 1e100
# The number of neighbours if it is unknown: images are missing, or a grid of cells does not fit.
UNKNOWN = np.iinfo(np.int32).max


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NeighbourEdges(KeepsArrays):
    """Edges from the neighbours of each point to the point.

    They are sorted by receiver. So edge ``e`` here is edge ``e`` of ``graph()``, and arrays of one
    value for each edge fit both. The edges of a receiver are sorted by distance, then by the lower
    sender; with ``images`` they are sorted by sender, then by image, or on a device by cells. Edges
    that were found under ``jit`` end in padding: slots with ``num_points`` for both ends.

    Of two points that coincide, each is a neighbour of the other, at distance zero.

    Attributes:
      senders: the neighbour, int32 [edges].
      receivers: the point, int32 [edges].
      shifts: in a periodic box given by its sides, whole sides that lead to the image of the sender
        nearest to the receiver, in the unit of the points, [edges, dimensions]; otherwise None.
        They are constants: no gradient flows to the sides.
      most_neighbours: the largest number of neighbours of any point, int32 scalar, even if it
        exceeds the capacity; the largest int32 if it is unknown, because a traced radius is more
        than half of a side of the box, or because the grid of cells does not fit.
      num_points: number of points.
      capacity: the most neighbours that can be stored for a point, or None if there is no limit.
      images: the image of the sender, as a number of cell vectors along each axis, int32 [edges,
        dimensions]; None unless all images were searched.
      box: the cell vectors as rows, [dimensions, dimensions]; None without images or a box.
      num_found: number of edges, int32 scalar, even if it exceeds the slots; None if all fit.
      num_not_finite: number of points that were not finite and have no edges, int32 scalar; None on
        the host, where they are errors.
    """

    senders: Int[Array, " edges"]
    receivers: Int[Array, " edges"]
    shifts: Float[Array, "edges dimensions"] | None
    most_neighbours: Int[Array, ""]
    num_points: int = dataclasses.field(metadata={"static": True})
    capacity: int | None = dataclasses.field(default=None, metadata={"static": True})
    images: Int[Array, "edges dimensions"] | None = None
    box: Float[Array, "dimensions dimensions"] | None = None
    num_found: Int[Array, ""] | None = None
    num_not_finite: Int[Array, ""] | None = None

    @property
    def mask(self) -> Bool[Array, " edges"]:
        """True for edges, False for padding."""
        return self.receivers < self.num_points

    @property
    def overflow(self) -> Bool[Array, ""]:
        """Whether neighbours are missing, because there is not enough room for them.

        Also True if a traced radius is more than half of a side of the box, or if the grid of cells
        does not fit. It can be read under ``jit``, where no error can be raised; ``checked`` raises
        one outside.
        """
        missing = jnp.zeros_like(self.most_neighbours, bool)
        if self.capacity is not None:
            missing |= self.most_neighbours > self.capacity
        if self.num_found is not None:
            missing |= self.num_found > self.senders.shape[-1]
        return missing

    @property
    def not_finite(self) -> Bool[Array, ""]:
        """Whether points were not finite; they have no edges. It can be read under ``jit``."""
        if self.num_not_finite is None:
            return jnp.zeros_like(self.most_neighbours, bool)
        return self.num_not_finite > 0

    def checked(self) -> NeighbourEdges:
        """Returns itself if no neighbour is missing; call it outside of ``jit``.

        Raises:
          ValueError: if there are more neighbours of a point, or more edges, than there is room
            for; the message has their number. If a traced radius is more than half of a side of
            the box. If the grid of cells does not fit. If points were not finite. If the edges are
            traced.
        """
        where = "NeighbourEdges.checked"
        self._require_one(where)
        if not is_concrete(self.most_neighbours):
            raise bad_input(where, "self", "concrete; call it outside jit", "a tracer")
        if self.num_not_finite is not None and self.num_not_finite > 0:
            raise bad_input(where, "points", "finite", f"{self.num_not_finite} that are not")
        most = int(self.most_neighbours)
        if most == UNKNOWN and self.images is not None:
            expected = "the one for such points, box and r; make it again by CellGrid.for_points"
            raise bad_input(where, "grid", expected, "cells that are too small or too full")
        if most == UNKNOWN:
            raise bad_input(where, "r", "at most half of the shortest side of the box", "more")
        if self.capacity is not None and most > self.capacity:
            expected = f"at least {most}, as many as a point has"
            raise bad_input(where, "max_neighbours", expected, self.capacity)
        if self.num_found is not None and self.num_found > len(self.senders):
            expected = f"at least {self.num_found}, the number of edges"
            raise bad_input(where, "max_edges", expected, len(self.senders))
        return self

    def graph(self, weights: npt.ArrayLike | None = None) -> CSRGraph:
        """Returns the graph whose row ``i`` receives from the neighbours of point ``i``.

        Args:
          weights: one for each edge slot, such as a function of ``distances``; None for none.

        Raises:
          ValueError: if the weights are not floating, or not as many as the edge slots.
        """
        self._require_one("NeighbourEdges.graph")
        # On the host if possible, so that no length is compiled.
        is_host = is_concrete(self.receivers)
        receivers: Any = np.asarray(self.receivers) if is_host else self.receivers
        mask = receivers < self.num_points
        return CSRGraph.from_edges(
            self.senders, self.receivers, self.num_points, weights, edge_mask=mask
        )

    def displacements(
        self,
        points: Float[Array, "points dimensions"],
        box: Float[Array, "dimensions dimensions"] | None = None,
    ) -> Float[Array, "edges dimensions"]:
        """Returns ``x_sender + shift - x_receiver`` of each edge, zero in padding; differentiable.

        With ``images`` the shift is ``images @ box``. Of arrays of numpy the difference is taken
        in float64, and then rounded to JAX's dtype. Put points that are far outside of the box
        into it before the search, as the shifts of the edges are rounded.

        Args:
          points: the points of the edges, or the same number of other points.
          box: cell vectors in place of those of the search, for derivatives by them, such as the
            stress; only for edges with ``images``.

        Raises:
          ValueError: if there are not ``num_points`` points, or on a box of another shape or for
            edges without images.
        """
        where = "NeighbourEdges.displacements"
        is_host = isinstance(points, np.ndarray) and is_concrete(self.senders, self.shifts, box)
        if not is_host:
            points = jnp.asarray(points)
        self._require_one(where)
        if points.ndim != 2 or points.shape[0] != self.num_points:
            expected = f"of shape ({self.num_points}, dimensions)"
            raise bad_input(where, "points", expected, f"shape {points.shape}")
        narrow = jax.dtypes.canonicalize_dtype(points.dtype)
        if self.num_points == 0:
            return jnp.zeros((len(self.senders), points.shape[1]), narrow)
        cell = self._box(where, box)
        if is_host:
            apart = _differences(np, self, points.astype(np.float64), cell)
            return jnp.asarray(apart.astype(narrow))
        return _differences(jnp, self, points, cell)

    def distances(
        self,
        points: Float[Array, "points dimensions"],
        box: Float[Array, "dimensions dimensions"] | None = None,
    ) -> Float[Array, " edges"]:
        """Length of the displacement of each edge, zero in padding; differentiable.

        Where two points coincide the distance has no derivative, and gradients get zero.

        Args:
          points: the points of the edges, or the same number of other points.
          box: cell vectors in place of those of the search; see ``displacements``.

        Raises:
          ValueError: as ``displacements``.
        """
        squares = jnp.sum(jnp.square(self.displacements(points, box)), axis=-1)
        apart = squares > 0
        return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1)), 0)

    def _box(self, where: str, box: Any) -> Any:
        """Returns the cell vectors to use, or None if there are none."""
        if box is None:
            return self.box
        if self.box is None:
            raise bad_input(where, "box", "None for edges without images in a box", shown(box))
        box = box if isinstance(box, np.ndarray) else jnp.asarray(box)
        if box.shape != self.box.shape:
            raise bad_input(where, "box", f"of shape {self.box.shape}", f"shape {box.shape}")
        return box

    def _require_one(self, where: str) -> None:
        """Raises ValueError for several, stacked along a leading axis by ``jax.vmap``."""
        if self.senders.ndim != 1:
            expected = "a single one, with senders of one axis (map over several by jax.vmap)"
            raise bad_input(where, "self", expected, shown(self.senders))


def _differences(xp: Any, edges: NeighbourEdges, points: Any, cell: Any) -> Any:
    """Returns ``x_sender + shift - x_receiver`` of each edge, zero in padding, in numpy or JAX."""
    dtype = points.dtype
    mask, senders, receivers = (
        xp.asarray(array) for array in (edges.mask, edges.senders, edges.receivers)
    )
    apart = points[xp.where(mask, senders, 0)] - points[xp.where(mask, receivers, 0)]
    if edges.shifts is not None:
        apart = apart + xp.asarray(edges.shifts).astype(dtype)
    if cell is not None and edges.images is not None:
        cell, images = (xp.asarray(array).astype(dtype) for array in (cell, edges.images))
        apart = apart + product(xp, images, cell)
    return xp.where(mask[:, None], apart, 0)


def check_points(where: str, points: Any, batch: Any) -> tuple[Any, Any]:
    """Checks the points, and the cloud of each or None; ValueError names the first bad entry."""
    points = as_array(points)
    if points.ndim != 2:
        raise bad_input(where, "points", "of shape (points, dimensions)", f"shape {points.shape}")
    require_floats(where, "points", points)
    if is_concrete(points):
        values = np.asarray(points).astype(np.float64)
        bad = np.argwhere(~(np.abs(values) < _LARGEST))
        if len(bad):
            at = int(bad[0][0])
            expected = f"finite, and below {_LARGEST:g} in size"
            raise bad_input(where, f"points[{at}]", expected, np.asarray(points)[at].tolist())
    if batch is None:
        return points, None
    batch = as_array(batch, np.int32)
    require_integers(where, "batch", batch)
    if batch.shape != points.shape[:1]:
        expected = f"of shape ({points.shape[0]},), the cloud of each point"
        raise bad_input(where, "batch", expected, f"shape {batch.shape}")
    return points, batch


def check_k(where: str, k: Any, num_points: int, batch: Any, *, loop: bool) -> int:
    """Returns ``k``; ValueError if a single cloud of points is too small for it."""
    k = require_count(where, "k", k, "a positive integer")
    others = num_points if loop else num_points - 1
    if batch is None and num_points and k > others:
        which = "points" if loop else "other points"
        raise bad_input(where, "k", f"at most the number of {which}, {others}", k)
    return k


def check_radius(where: str, r: Any, box: Any, dimensions: int, dtype: Any) -> tuple[Any, Any]:
    """Checks a radius and a box where they are concrete, and returns them in ``dtype``."""
    r = r if not is_concrete(r) else np.asarray(r)
    if r.ndim != 0 or not np.issubdtype(np.result_type(r.dtype, np.float32), np.floating):
        raise bad_input(where, "r", "a number", shown(r))
    r = r.astype(dtype)
    if is_concrete(r) and not 0 <= r < np.inf:
        raise bad_input(where, "r", "finite and not negative", float(r))
    if box is None:
        return r, None
    box = np.asarray(box) if is_concrete(*jax.tree.leaves(box)) else jnp.asarray(box)
    if box.shape != (dimensions,):
        expected = f"of shape ({dimensions},), one side for each dimension"
        raise bad_input(where, "box", expected, f"shape {box.shape}")
    box = box.astype(dtype)
    if is_concrete(box):
        bad = np.flatnonzero(~((box > 0) & (box < np.inf)))
        if bad.size:
            raise bad_input(where, f"box[{bad[0]}]", "finite and positive", float(box[bad[0]]))
        if is_concrete(r) and dimensions and 2 * r > box.min():
            expected = f"at most half of the shortest side of the box, {float(box.min()) / 2:g}"
            raise bad_input(where, "r", expected, f"{float(r):g}")
    return r, box


def has_cell_vectors(box: Any) -> bool:
    """Returns whether a box is given by the rows of a matrix, and not by its sides."""
    if isinstance(box, list | tuple):  # Its numbers may be traced.
        return any(isinstance(row, list | tuple) or getattr(row, "ndim", 0) for row in box)
    return box is not None and np.ndim(box) == 2


def to_nearest_image(apart: Any, box: Any) -> Any:
    """Returns the shifts of differences of points to the nearest images, in numpy or JAX."""
    return -box * (apart / box).round()


def distance_scale(xp: Any, dimensions: int, *arrays: Any) -> Any:
    """Returns a power of two, by which lengths are multiplied before they are squared.

    It makes the largest coordinate so large that squared distances just fit the dtype. So float32
    tells distances apart down to 1e-37 of the largest coordinate, and not down to 1e-19 alone.

    Args:
      xp: numpy or ``jax.numpy``.
      dimensions: number of squares that are added.
      *arrays: coordinates and sides in the dtype of the distances; what is not finite is ignored.
    """
    dtype = arrays[0].dtype
    largest = xp.zeros((), dtype)
    for array in arrays:
        sizes = xp.where(xp.isfinite(array), xp.abs(array), 0).astype(dtype)
        largest = xp.maximum(largest, xp.max(sizes, initial=0))
    limit = xp.finfo(dtype).maxexp
    # A difference is up to twice a coordinate.
    wanted = limit // 2 - 2 - (dimensions.bit_length() + 1) // 2
    exponent = xp.clip(wanted - xp.frexp(largest)[1], 4 - limit, limit - 2)
    return xp.ldexp(xp.ones((), dtype), exponent)


def distance_dtype(points: Any) -> Any:
    """Returns the dtype in which distances are compared on a device: float32 for half precision."""
    return np.promote_types(jax.dtypes.canonicalize_dtype(points.dtype), np.float32)
