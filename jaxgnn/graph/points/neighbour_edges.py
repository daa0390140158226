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

# Larger coordinates leave too few digits of float64 for squared distances in a tree of clouds.
_LARGEST = 1e100
# The number of neighbours that marks a radius for which images in a periodic box are missing.
BEYOND_HALF_OF_THE_BOX = np.iinfo(np.int32).max


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NeighbourEdges(KeepsArrays):
    """Edges from the neighbours of each point to the point.

    They are sorted by receiver, then by distance, then by the lower sender. So edge ``e`` here is
    edge ``e`` of ``graph()``, and arrays of one value for each edge fit both. Edges that were
    found under ``jit`` end in padding: slots with ``num_points`` for both ends.

    Attributes:
      senders: the neighbour, int32 [edges].
      receivers: the point, int32 [edges].
      shifts: in a periodic box, whole sides of the box that lead to the image of the sender nearest
        to the receiver, in the unit of the points, [edges, dimensions]; None without a box. They
        are constants: no gradient flows to the sides.
      most_neighbours: the largest number of neighbours of any point, int32 scalar, even if it
        exceeds the capacity; the largest int32 if a traced radius is more than half of a side of
        the box.
      num_points: number of points.
      capacity: the most neighbours that can be stored for a point, or None if there is no limit.
    """

    senders: Int[Array, " edges"]
    receivers: Int[Array, " edges"]
    shifts: Float[Array, "edges dimensions"] | None
    most_neighbours: Int[Array, ""]
    num_points: int = dataclasses.field(metadata={"static": True})
    capacity: int | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def mask(self) -> Bool[Array, " edges"]:
        """True for edges, False for padding."""
        return self.receivers < self.num_points

    @property
    def overflow(self) -> Bool[Array, ""]:
        """Whether neighbours are missing, because a point has more than the capacity.

        Also True if a traced radius is more than half of a side of the box. It can be read under
        ``jit``, where no error can be raised; ``checked`` raises one outside.
        """
        if self.capacity is None:
            return jnp.zeros_like(self.most_neighbours, bool)
        return self.most_neighbours > self.capacity

    def checked(self) -> NeighbourEdges:
        """Returns itself if no neighbour is missing; call it outside of ``jit``.

        Raises:
          ValueError: if a point has more neighbours than the capacity; the message has their
            number. If a traced radius is more than half of a side of the box. If the edges are
            traced.
        """
        where = "NeighbourEdges.checked"
        self._require_one(where)
        if not is_concrete(self.most_neighbours):
            raise bad_input(where, "self", "concrete; call it outside jit", "a tracer")
        most = int(self.most_neighbours)
        if most == BEYOND_HALF_OF_THE_BOX:
            raise bad_input(where, "r", "at most half of the shortest side of the box", "more")
        if self.capacity is not None and most > self.capacity:
            expected = f"at least {most}, as many as a point has"
            raise bad_input(where, "max_neighbours", expected, self.capacity)
        return self

    def graph(self, weights: npt.ArrayLike | None = None) -> CSRGraph:
        """The graph whose row ``i`` receives from the neighbours of point ``i``.

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
        self, points: Float[Array, "points dimensions"]
    ) -> Float[Array, "edges dimensions"]:
        """``x_sender + shift - x_receiver`` of each edge, zero in padding; differentiable.

        Args:
          points: the points of the edges, or the same number of other points.

        Raises:
          ValueError: if there are not ``num_points`` points.
        """
        where, points = "NeighbourEdges.displacements", jnp.asarray(points)
        self._require_one(where)
        if points.ndim != 2 or points.shape[0] != self.num_points:
            expected = f"of shape ({self.num_points}, dimensions)"
            raise bad_input(where, "points", expected, f"shape {points.shape}")
        senders, receivers = (jnp.where(self.mask, i, 0) for i in (self.senders, self.receivers))
        if self.num_points == 0:
            return jnp.zeros((len(self.senders), points.shape[1]), points.dtype)
        apart = points[senders] - points[receivers]
        if self.shifts is not None:
            apart = apart + self.shifts.astype(points.dtype)
        return jnp.where(self.mask[:, None], apart, 0)

    def distances(self, points: Float[Array, "points dimensions"]) -> Float[Array, " edges"]:
        """Length of the displacement of each edge, zero in padding; differentiable.

        Where two points coincide the distance has no derivative, and gradients get zero.

        Args:
          points: the points of the edges, or the same number of other points.

        Raises:
          ValueError: if there are not ``num_points`` points.
        """
        squares = jnp.sum(jnp.square(self.displacements(points)), axis=-1)
        apart = squares > 0
        return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1)), 0)

    def _require_one(self, where: str) -> None:
        """Raises ValueError for several, stacked along a leading axis by ``jax.vmap``."""
        if self.senders.ndim != 1:
            expected = "a single one, with senders of one axis (map over several by jax.vmap)"
            raise bad_input(where, "self", expected, shown(self.senders))


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


def to_nearest_image(apart: Any, box: Any) -> Any:
    """Returns the shifts of differences of points to the nearest images, in numpy or JAX."""
    return -box * (apart / box).round()


def distance_dtype(points: Any) -> Any:
    """The dtype in which distances are compared on a device: float32 for half precision."""
    return np.promote_types(jax.dtypes.canonicalize_dtype(points.dtype), np.float32)
