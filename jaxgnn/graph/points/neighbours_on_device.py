"""Neighbours of points on a device, of fixed capacity, exact, under ``jax.jit`` too."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import as_jax, require_count, require_size
from jaxgnn._errors import bad_input
from jaxgnn.graph.points.cell_grid import CellGrid
from jaxgnn.graph.points.images import count_not_finite, find_on_device
from jaxgnn.graph.points.lattice import check_cell
from jaxgnn.graph.points.neighbour_edges import (
    UNKNOWN,
    NeighbourEdges,
    check_k,
    check_points,
    check_radius,
    distance_dtype,
    distance_scale,
    has_cell_vectors,
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
    lower id comes first. The differences are multiplied by a power of two, so that no square is too
    large, and in float32 none is lost unless the distance is below 1e-37 of the largest coordinate.
    No gradient flows through the choice; ``NeighbourEdges.distances`` gives
    differentiable distances.

    Args:
      points: floating [points, dimensions]. Traced points that are not finite have no edges.
        Arrays of numpy in float64 lose the median of the points before they are rounded to float32,
        if that is far from them.
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
    points, batch = _placed(points), _batch(where, batch)
    return _nearest(points, batch, None, None, k, loop, _TILE_ENTRIES, False)


def radius_graph_on_device(
    points: Float[Array, "points dimensions"],
    r: Float[Array, ""] | float,
    batch: Int[Array, " points"] | None = None,
    *,
    max_neighbours: int | None = None,
    loop: bool = False,
    box: Float[Array, " dimensions"] | Float[Array, "dimensions dimensions"] | None = None,
    half: bool = False,
    grid: CellGrid | None = None,
    max_edges: int | None = None,
) -> NeighbourEdges:
    """Finds the neighbours at most ``r`` away from each point; works under ``jit`` and ``vmap``.

    Without a grid, operations, memory, precision and gradients are those of
    ``knn_graph_on_device``. With a ``CellGrid`` only points in near cells are compared, in boxes of
    any shape and for any radius, in all images as by ``radius_graph``: time and memory grow with
    the number of points. ``r`` is rounded to the dtype of the distances.

    Args:
      points: floating [points, dimensions]; see ``knn_graph_on_device``.
      r: the largest distance of a neighbour, inclusive, in the unit of the points; may be traced.
        With a negative traced radius there are no edges.
      batch: the cloud of each point, or None; see ``knn_graph_on_device``.
      max_neighbours: the most neighbours that can be stored for a point, static. If there are more,
        the nearest are kept (with a grid, any), and ``overflow`` of the result is True; ``checked``
        then raises. None only with ``max_edges``.
      loop: whether each point is a neighbour of itself.
      box: sides of a periodic box, floating [dimensions], as in ``radius_graph``; may be traced. If
        a traced radius is more than half of a side, ``overflow`` is set. With a grid, the cell
        vectors of the box, [dimensions, dimensions].
      half: whether only one of the two edges of each pair is found, as in ``radius_graph``.
      grid: sizes of the cells, from ``CellGrid.for_points``, static. If they do not fit the points,
        the radius or the box, ``overflow`` is set, and neighbours may be missing.
      max_edges: number of edge slots, static, with a grid; None for ``points * max_neighbours``. If
        there are more edges, ``overflow`` is set.

    Returns:
      The edges, ``points * max_neighbours`` or ``max_edges`` slots, padding after all edges. With a
      grid the edges have ``images``, and those of a receiver are in the order of cells. Traced
      points that are not finite have no edges, and set ``not_finite``.

    Raises:
      ValueError: on a concrete radius that is negative or more than half of a side; on a side that
        is not positive or cell vectors that are linearly dependent; if ``max_neighbours`` or
        ``max_edges`` is not positive, or there is neither; on wrong shapes or dtypes; on concrete
        points that are not finite; on cell vectors without a grid, or a grid of other axes.

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

      All images, by cells:

      >>> box = jnp.array([[4.0]])
      >>> grid = CellGrid.for_points(points, 3.0, box=box)
      >>> edges = radius_graph_on_device(points, 3.0, grid=grid, box=box, max_edges=8)
      >>> sorted(zip(edges.senders.tolist(), edges.images[:, 0].tolist()))[:4]
      [(0, 0), (0, 0), (1, 0), (1, 0)]
    """
    where = "radius_graph_on_device"
    points, batch = check_points(where, points, batch)
    expected = "a positive integer"
    if max_neighbours is not None or max_edges is None:
        max_neighbours = require_count(where, "max_neighbours", max_neighbours, expected)
    if max_edges is not None:
        max_edges = require_count(where, "max_edges", max_edges, expected)
    batch = _batch(where, batch)
    if grid is not None:
        r, _ = check_radius(where, r, None, points.shape[1], distance_dtype(points))
        box = check_grid_and_box(where, grid, box, points.shape[1])
        slots = max_edges or points.shape[0] * (max_neighbours or 0)
        require_size(where, "max_edges", slots)
        options = (grid, slots, max_neighbours, loop, half)
        return _search_cells(_placed(points), batch, r, box, options)
    if has_cell_vectors(box) or max_neighbours is None:
        expected = "from CellGrid.for_points for cell vectors, or for max_edges alone"
        raise bad_input(where, "grid", expected, "None")
    r, box = check_radius(where, r, box, points.shape[1], distance_dtype(points))
    return _nearest(_placed(points), batch, r, box, max_neighbours, loop, _TILE_ENTRIES, half)


def _placed(points: Any) -> Any:
    """The points on the device, from their median where rounding them would lose differences."""
    narrow = jax.dtypes.canonicalize_dtype(points.dtype)
    if isinstance(points, np.ndarray) and narrow.itemsize < points.dtype.itemsize and len(points):
        median = np.median(points, axis=0)
        if np.abs(median).max(initial=0) > np.ptp(points, axis=0).max(initial=0):
            points = points - median
    return jnp.asarray(points)


def check_grid_and_box(where: str, grid: CellGrid, box: Any, dimensions: int) -> Any:
    """Checks that a grid has the axes of the points and a box where it is periodic."""
    if not isinstance(grid, CellGrid):
        raise bad_input(where, "grid", "a CellGrid", repr(grid))
    if len(grid.periodic) != dimensions:
        expected = f"for points of {dimensions} dimensions"
        raise bad_input(where, "grid", expected, f"one of {len(grid.periodic)}")
    if box is None and any(grid.periodic):
        raise bad_input(where, "box", "the cell vectors of the periodic grid", "None")
    return check_cell(where, box, grid.periodic)


@partial(jax.jit, static_argnums=4, inline=True)
def _search_cells(points, batch, r, box, options):
    """Returns the points within ``r`` of each, in all images, by cells."""
    grid, slots, max_neighbours, loop, half = options
    dtype = distance_dtype(points)
    constants = (points.astype(dtype), batch, r, box)
    search = find_on_device(
        *jax.lax.stop_gradient(constants),
        grid,
        slots=slots,
        capacity=max_neighbours,
        unknown=UNKNOWN,
        loop=loop,
        half=half,
    )
    return NeighbourEdges(
        senders=search.senders,
        receivers=search.receivers,
        shifts=None,
        most_neighbours=search.most_neighbours,
        num_points=points.shape[0],
        capacity=max_neighbours,
        images=search.images,
        box=None if box is None else jnp.asarray(box).astype(points.dtype),
        num_found=search.num_found,
        num_not_finite=search.num_not_finite,
    )


def _batch(where: str, batch: Any) -> Any:
    return None if batch is None else as_jax(where, "batch", batch)


@partial(jax.jit, static_argnums=(4, 5, 6, 7), inline=True)
def _nearest(points, batch, r, box, capacity, loop, tile_entries, half):
    """The nearest points of each, at most ``capacity``; within ``r`` unless that is None."""
    dtype = points.dtype
    num_points, dimensions = points.shape
    not_finite = count_not_finite(points, batch)
    constants = (points.astype(distance_dtype(points)), batch, r, box)
    points, batch, r, box = jax.lax.stop_gradient(constants)
    most = min(capacity, num_points)
    if most == 0:
        padding = jnp.zeros(num_points * capacity, jnp.int32)
        shifts = None if box is None else jnp.zeros((len(padding), dimensions), dtype)
        zero = jnp.int32(0)
        return NeighbourEdges(
            padding, padding, shifts, zero, num_points, capacity, num_not_finite=zero
        )
    ids = jnp.arange(num_points, dtype=jnp.int32)
    is_real = True if batch is None else batch[:, None] >= 0
    lengths = [jnp.where(is_real, points, 0)] + ([] if box is None else [box])
    scale = distance_scale(jnp, dimensions, *lengths)

    def neighbours_of_one(receiver):
        apart = points - points[receiver]
        if box is not None:
            apart = apart + to_nearest_image(apart, box)
        squares = jnp.sum(jnp.square(apart * scale), axis=-1)
        is_near = jnp.isfinite(squares)
        if r is not None:
            is_near &= (squares <= jnp.square(r * scale)) & (r >= 0)
        if batch is not None:
            is_near &= (batch == batch[receiver]) & (batch >= 0)
        if not loop:
            is_near &= ids != receiver
        if half:
            is_near &= ids >= receiver
        # The first of equal entries comes first: that is the lower id.
        nearness, senders = jax.lax.top_k(jnp.where(is_near, -squares, -jnp.inf), most)
        return senders, nearness > -jnp.inf, jnp.sum(is_near, dtype=jnp.int32)

    tile = max(1, min(num_points, tile_entries // num_points))
    senders, is_edge, counts = jax.lax.map(neighbours_of_one, ids, batch_size=tile)
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
        most_neighbours = jnp.where(fits, most_neighbours, UNKNOWN)
    return NeighbourEdges(
        senders,
        receivers,
        shifts,
        most_neighbours,
        num_points,
        capacity,
        num_not_finite=not_finite,
    )
