"""Neighbours of points on a device, of fixed capacity, exact, under ``jax.jit`` too."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import as_jax, require_count
from jaxgnn.graph.points.neighbour_edges import (
    BEYOND_HALF_OF_THE_BOX,
    NeighbourEdges,
    check_k,
    check_points,
    check_radius,
    distance_dtype,
    to_nearest_image,
)

# Number of distances in memory at a time, from a tile of receivers to all points: 16 MB of float32.
_TILE_ENTRIES = 2**22


def knn_graph_on_device(
    points: Float[Array, "points dimensions"],
    k: int,
    batch: Int[Array, " points"] | None = None,
    *,
    loop: bool = False,
) -> NeighbourEdges:
    """Finds the ``k`` nearest neighbours of each point; works under ``jit`` and ``vmap``.

    All pairs of points are compared, ``points² * dimensions`` operations, a tile of receivers at a
    time: memory grows with the number of points and of edges only. Distances are sums of squared
    differences in the dtype of the points (float32 for half precision), and of equal distances the
    lower id comes first. No gradient flows through the choice; ``NeighbourEdges.distances`` gives
    differentiable distances.

    Args:
      points: floating [points, dimensions]. Traced points that are not finite have no edges, and
        two points have none whose squared distance is too large for the dtype.
      k: number of neighbours of each point, static.
      batch: the cloud of each point, in any order; only points of one cloud are neighbours, and
        points with a negative cloud, such as padding, have no edges. None for a single cloud.
      loop: whether a point is among its own ``k`` neighbours, at distance zero.

    Returns:
      The edges, ``points * k`` slots. A point whose cloud has fewer than ``k`` others gets an edge
      from each of them, and the other slots are padding, after all edges.

    Raises:
      ValueError: if ``k`` is not positive, or too large for a single cloud; on wrong shapes or
        dtypes; on concrete points that are not finite.

    Example:
      >>> import jax.numpy as jnp
      >>> points = jnp.array([[0.0], [1.0], [3.0]])
      >>> edges = jax.jit(knn_graph_on_device, static_argnums=1)(points, 1)
      >>> edges.senders.tolist(), edges.receivers.tolist()
      ([1, 0, 1], [0, 1, 2])
      >>> edges.distances(points).tolist()
      [1.0, 1.0, 2.0]
    """
    where = "knn_graph_on_device"
    points, batch = check_points(where, points, batch)
    k = check_k(where, k, points.shape[0], batch, loop=loop)
    return _nearest(jnp.asarray(points), _batch(where, batch), None, None, k, loop, _TILE_ENTRIES)


def radius_graph_on_device(
    points: Float[Array, "points dimensions"],
    r: Float[Array, ""] | float,
    batch: Int[Array, " points"] | None = None,
    *,
    max_neighbours: int,
    loop: bool = False,
    box: Float[Array, " dimensions"] | None = None,
) -> NeighbourEdges:
    """Finds the neighbours at most ``r`` away from each point; works under ``jit`` and ``vmap``.

    Operations, memory, precision and gradients are those of ``knn_graph_on_device``; ``r`` is
    rounded to the dtype of the distances.

    Args:
      points: floating [points, dimensions]; see ``knn_graph_on_device``.
      r: the largest distance of a neighbour, inclusive, in the unit of the points; may be traced.
        With a negative traced radius there are no edges.
      batch: the cloud of each point, or None; see ``knn_graph_on_device``.
      max_neighbours: the most neighbours that can be stored for a point, static. If there are more,
        the nearest are kept, and ``overflow`` of the result is True; ``checked`` then raises.
      loop: whether each point is a neighbour of itself.
      box: sides of a periodic box, floating [dimensions], as in ``radius_graph``; may be traced. If
        a traced radius is more than half of a side, ``overflow`` is set.

    Returns:
      The edges, ``points * max_neighbours`` slots, padding after all edges.

    Raises:
      ValueError: on a concrete radius that is negative or more than half of a side, or a side that
        is not positive; if ``max_neighbours`` is not positive; on wrong shapes or dtypes; on
        concrete points that are not finite.

    Example:
      >>> import jax.numpy as jnp
      >>> points = jnp.array([[0.5], [1.0], [3.5]])
      >>> edges = radius_graph_on_device(points, 1.0, max_neighbours=2, box=jnp.array([4.0]))
      >>> edges.senders.tolist(), edges.mask.tolist()
      ([1, 2, 0, 0, 3, 3], [True, True, True, True, False, False])
      >>> edges.displacements(points)[:4, 0].tolist()
      [0.5, -1.0, -0.5, 1.0]
      >>> bool(edges.checked().overflow)
      False
    """
    where = "radius_graph_on_device"
    points, batch = check_points(where, points, batch)
    expected = "a positive integer"
    max_neighbours = require_count(where, "max_neighbours", max_neighbours, expected)
    r, box = check_radius(where, r, box, points.shape[1], distance_dtype(points))
    points, batch = jnp.asarray(points), _batch(where, batch)
    return _nearest(points, batch, r, box, max_neighbours, loop, _TILE_ENTRIES)


def _batch(where: str, batch: Any) -> Any:
    return None if batch is None else as_jax(where, "batch", batch)


@partial(jax.jit, static_argnums=(4, 5, 6), inline=True)
def _nearest(points, batch, r, box, capacity, loop, tile_entries):
    """The nearest points of each, at most ``capacity``; within ``r`` unless that is None."""
    dtype = points.dtype
    num_points, dimensions = points.shape
    constants = (points.astype(distance_dtype(points)), batch, r, box)
    points, batch, r, box = jax.lax.stop_gradient(constants)
    most = min(capacity, num_points)
    if most == 0:
        padding = jnp.zeros(num_points * capacity, jnp.int32)
        shifts = None if box is None else jnp.zeros((len(padding), dimensions), dtype)
        return NeighbourEdges(padding, padding, shifts, jnp.int32(0), num_points, capacity)
    ids = jnp.arange(num_points, dtype=jnp.int32)

    def of_one(receiver):
        apart = points - points[receiver]
        if box is not None:
            apart = apart + to_nearest_image(apart, box)
        squares = jnp.sum(jnp.square(apart), axis=-1)
        is_near = jnp.isfinite(squares)
        if r is not None:
            is_near &= (squares <= r * r) & (r >= 0)
        if batch is not None:
            is_near &= (batch == batch[receiver]) & (batch >= 0)
        if not loop:
            is_near &= ids != receiver
        # The first of equal entries comes first: that is the lower id.
        nearness, senders = jax.lax.top_k(jnp.where(is_near, -squares, -jnp.inf), most)
        return senders, nearness > -jnp.inf, jnp.sum(is_near, dtype=jnp.int32)

    tile = max(1, min(num_points, tile_entries // num_points))
    senders, is_edge, counts = jax.lax.map(of_one, ids, batch_size=tile)
    receivers = jnp.broadcast_to(ids[:, None], senders.shape)
    # Edges move to the front, in their order; slots after them have ends that are no points.
    size = num_points * capacity
    slots = jnp.where(is_edge, jnp.cumsum(is_edge.ravel()).reshape(is_edge.shape) - 1, size)
    empty = jnp.full(size, num_points, jnp.int32)
    senders, receivers = (empty.at[slots].set(i, mode="drop") for i in (senders, receivers))
    shifts = None
    if box is not None:
        apart = points[senders] - points[receivers]
        is_edge = (receivers < num_points)[:, None]
        shifts = jnp.where(is_edge, to_nearest_image(apart, box), 0).astype(dtype)
    most_neighbours = jnp.max(counts)
    if r is None:
        most_neighbours = jnp.minimum(most_neighbours, capacity)
    elif box is not None:
        fits = (2 * r <= box).all()
        most_neighbours = jnp.where(fits, most_neighbours, BEYOND_HALF_OF_THE_BOX)
    return NeighbourEdges(senders, receivers, shifts, most_neighbours, num_points, capacity)
