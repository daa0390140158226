"""Neighbours of points on the host, by the KD-tree of scipy, and in all images by cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import is_concrete, put_own, require_count
from jaxgnn._errors import bad_input
from jaxgnn.graph.plan.sorting import sort_edges
from jaxgnn.graph.points.images import ImageSearch
from jaxgnn.graph.points.lattice import Lattice, check_cell, check_periodic
from jaxgnn.graph.points.neighbour_edges import (
    NeighbourEdges,
    check_k,
    check_points,
    check_radius,
    distance_scale,
    has_cell_vectors,
    to_nearest_image,
)

if TYPE_CHECKING:
    from scipy.spatial import KDTree

# Number of candidates of neighbours in memory at a time.
_MOST_CANDIDATES = 2**22
# Distances of the tree, which are rounded, only select candidates.
_SLACK = 1e-12


def knn_graph(
    points: npt.ArrayLike, k: int, batch: npt.ArrayLike | None = None, *, loop: bool = False
) -> NeighbourEdges:
    """Finds the ``k`` nearest neighbours of each point, on the host and outside of ``jit``.

    Distances are compared in float64, and of equal distances the lower id comes first.
    ``knn_graph_on_device`` does the same on a device and under ``jit``.

    Args:
      points: floating [points, dimensions].
      k: number of neighbours of each point.
      batch: the cloud of each point, in any order; only points of one cloud are neighbours, and
        points with a negative cloud have no edges. None for a single cloud.
      loop: whether a point is among its own ``k`` neighbours, at distance zero.

    Returns:
      The edges, without padding. A point whose cloud has fewer than ``k`` others gets an edge from
      each of them.

    Raises:
      ValueError: if ``k`` is not positive, or too large for a single cloud; on wrong shapes or
        dtypes; on points that are traced or not finite.

    Example:
      >>> import numpy as np
      >>> points = np.array([[0.0], [1.0], [3.0]])
      >>> edges = knn_graph(points, 1)
      >>> edges.senders.tolist(), edges.receivers.tolist()
      ([1, 0, 1], [0, 1, 2])
      >>> graph = edges.graph(edges.distances(points))
      >>> graph.weights.tolist()
      [1.0, 1.0, 2.0]
    """
    cloud = _Cloud("knn_graph", points, batch)
    k = check_k("knn_graph", k, cloud.num_points, batch, loop=loop)
    ends = _nearest(cloud, k, loop=loop)
    return cloud.edges(ends, None)


def radius_graph(
    points: npt.ArrayLike,
    r: float,
    batch: npt.ArrayLike | None = None,
    *,
    max_neighbours: int | None = None,
    loop: bool = False,
    box: npt.ArrayLike | None = None,
    periodic: bool | tuple[bool, ...] | None = None,
    half: bool = False,
) -> NeighbourEdges:
    """Finds the neighbours of each point that are at most ``r`` away, outside of ``jit``.

    A box is given by its sides, for the nearest image of each point, or by its cell vectors, for
    all images. The latter has any shape, and ``r`` any size: a point then has several edges from
    images of the same point, and edges from images of itself, each with its ``images``.

    Distances are compared in float64, after ``r`` and sides were rounded to the dtype of the points
    (float32 for half precision); cell vectors are not rounded. Points that coincide are neighbours
    at distance zero, for ``r=0`` too. ``radius_graph_on_device`` does the same on a device and
    under ``jit``.

    Args:
      points: floating [points, dimensions].
      r: the largest distance of a neighbour, inclusive, in the unit of the points.
      batch: the cloud of each point, or None; see ``knn_graph``.
      max_neighbours: the largest number of neighbours that a point may have; None for any number.
      loop: whether each point is a neighbour of itself.
      box: sides of a periodic box with right angles, floating [dimensions], or cell vectors as rows
        of a matrix [dimensions, dimensions], of any shape and handedness. Points may lie outside of
        the box. With sides, the distance is that of the nearest image, so ``r`` must be at most
        half of the shortest side; at exactly half a side two images are equally near, and one of
        them is a neighbour. With cell vectors, all images within ``r`` are neighbours.
      periodic: whether each axis of cell vectors is periodic, such as ``(True, True, False)`` for a
        slab; None for all axes. Other cell vectors are not used. False without a box searches by
        cells, which is faster than the tree for many points.
      half: whether only one of the two edges of each pair is found: from the point of higher id,
        or, of images of one point, from the higher image.

    Returns:
      The edges, without padding. With cell vectors or ``periodic`` they have ``images``, and the
      edges of a receiver are sorted by sender, then by image.

    Raises:
      ValueError: if a point has more than ``max_neighbours``; on a radius that is negative, more
        than half of a side, or about a hundred heights of the box; on a side that is not positive
        or cell vectors that are linearly dependent; on wrong shapes or dtypes; on points that are
        traced or not finite.

    Example:
      >>> import numpy as np
      >>> points = np.array([[0.5], [1.0], [3.5]])
      >>> edges = radius_graph(points, 1.0, box=[4.0])
      >>> edges.senders.tolist(), edges.receivers.tolist()
      ([1, 2, 0, 0], [0, 0, 1, 2])
      >>> edges.displacements(points)[:, 0].tolist()
      [0.5, -1.0, -0.5, 1.0]

      All images of one atom, in a chain along the first axis:

      >>> edges = radius_graph(np.zeros((1, 2)), 4.5, box=2 * np.eye(2), periodic=(True, False))
      >>> edges.images.tolist()
      [[-2, 0], [-1, 0], [1, 0], [2, 0]]
      >>> edges.distances(np.zeros((1, 2))).tolist()
      [4.0, 2.0, 2.0, 4.0]
    """
    where = "radius_graph"
    if not is_concrete(r, *jax.tree.leaves(box)):
        raise _traced(where, "r and box")
    cloud = _Cloud(where, points, batch)
    if max_neighbours is not None:
        expected = "a positive integer"
        max_neighbours = require_count(where, "max_neighbours", max_neighbours, expected)
    dtype = np.promote_types(cloud.given.dtype, np.float32)
    dimensions = cloud.points.shape[1]
    if periodic is not None or has_cell_vectors(box):
        axes = check_periodic(where, periodic, box, dimensions)
        cell = check_cell(where, box, axes)
        r, _ = check_radius(where, r, None, dimensions, dtype)
        edges = _edges_in_images(where, cloud, float(r), cell, axes, loop=loop, half=half)
    else:
        r, box = check_radius(where, r, box, dimensions, dtype)
        ends = _pairs_within(cloud, r.astype(np.float64), box, loop=loop)
        edges = cloud.edges(ends if not half else _half_of(ends), box)
    if max_neighbours is not None and edges.most_neighbours > max_neighbours:
        at = np.bincount(np.asarray(edges.receivers)).argmax()
        expected = f"at least {int(edges.most_neighbours)}, as many as point {at} has"
        raise bad_input(where, "max_neighbours", expected, max_neighbours)
    return edges


class _Cloud:
    """Checked points in float64, with one more coordinate that keeps clouds apart in a tree.

    The differences of this coordinate are exactly zero within a cloud.
    """

    def __init__(self, where: str, points: Any, batch: Any):
        if not is_concrete(points, batch):
            raise _traced(where, "points and batch")
        self.given, batch = check_points(where, points, batch)
        self.points = np.asarray(self.given).astype(np.float64)
        self.num_points = len(self.points)
        if batch is None:
            batch = np.zeros(self.num_points, np.int32)
        self.batch = np.asarray(batch)
        self.ids = np.flatnonzero(self.batch >= 0)  # Ids of the points with a cloud.
        self.scale = distance_scale(np, self.points.shape[1], self.points[self.ids])

    def tree(self, points: np.ndarray, apart: float, sides: np.ndarray | None = None) -> KDTree:
        """Returns the tree of the points with a cloud; clouds are more than ``apart`` apart."""
        _, ranks = np.unique(self.batch[self.ids], return_inverse=True)
        coordinates = np.column_stack([points[self.ids], ranks * (2 * apart + 1)])
        from scipy.spatial import KDTree

        return KDTree(coordinates, boxsize=None if sides is None else np.append(sides, 0))

    def squares(self, senders: np.ndarray, receivers: np.ndarray, box: np.ndarray | None = None):
        """Returns squared distances times ``scale²``, and infinity between different clouds."""
        apart = self.points[senders] - self.points[receivers]
        if box is not None:
            apart += to_nearest_image(apart, box)
        squares = np.square(apart * self.scale).sum(-1)
        return np.where(self.batch[senders] == self.batch[receivers], squares, np.inf)

    def edges(self, ends: tuple[np.ndarray, np.ndarray], box: np.ndarray | None) -> NeighbourEdges:
        """Returns the edges of sorted ends; the counts of neighbours are those of the edges."""
        senders, receivers = ends
        shifts = None
        if box is not None:
            apart = self.points[senders] - self.points[receivers]
            shifts = to_nearest_image(apart, box.astype(np.float64))
            dtype = jax.dtypes.canonicalize_dtype(self.given.dtype)
            shifts = put_own(shifts.astype(dtype))
        most = np.bincount(receivers, minlength=1).max()
        return NeighbourEdges(
            senders=put_own(senders.astype(np.int32)),
            receivers=put_own(receivers.astype(np.int32)),
            shifts=shifts,
            most_neighbours=put_own(np.asarray(most, np.int32)),
            num_points=self.num_points,
        )


def _traced(where: str, names: str) -> ValueError:
    expected = f"concrete; under jit call {where}_on_device"
    return bad_input(where, names, expected, "a tracer")


def _half_of(ends: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    senders, receivers = ends
    is_kept = senders >= receivers
    return senders[is_kept], receivers[is_kept]


def _edges_in_images(
    where: str,
    cloud: _Cloud,
    r: float,
    cell: np.ndarray | None,
    axes: tuple[bool, ...],
    *,
    loop: bool,
    half: bool,
) -> NeighbourEdges:
    """Returns the edges within ``r`` in all images of a box."""
    lattice = Lattice.of_box(cell, axes, np.float64)
    search = ImageSearch(cloud.points, cloud.batch, r, lattice, axes, loop, half)
    senders, receivers, along = search.edges(where)
    images = np.zeros((len(senders), len(axes)), np.int32)
    images[:, list(lattice.axes)] = along
    most = np.bincount(receivers, minlength=1).max()
    dtype = jax.dtypes.canonicalize_dtype(cloud.given.dtype)
    return NeighbourEdges(
        senders=put_own(senders),
        receivers=put_own(receivers),
        shifts=None,
        most_neighbours=put_own(np.asarray(most, np.int32)),
        num_points=cloud.num_points,
        images=put_own(images),
        box=None if cell is None else put_own(cell.astype(dtype)),
    )


def _pairs_within(
    cloud: _Cloud, r: np.floating, box: np.ndarray | None, *, loop: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns senders and receivers of all pairs that are at most ``r`` apart, sorted."""
    points = cloud.points
    if not len(cloud.ids):
        return cloud.ids, cloud.ids
    size = np.abs(points).max(initial=0)
    if box is not None:
        box = box.astype(np.float64)
        points = np.mod(points, box)
        points = np.where(points < box, points, 0)  # the remainder of -1e-20 is rounded to the side
        size += box.max(initial=0)
    reach = r + _SLACK * (size + r)
    pairs = cloud.tree(points, reach, box).query_pairs(reach, output_type="ndarray")
    one, other = cloud.ids[pairs.reshape(-1, 2)].T
    loops = cloud.ids if loop else cloud.ids[:0]
    senders = np.concatenate([one, other, loops])
    receivers = np.concatenate([other, one, loops])
    squares = cloud.squares(senders, receivers, box)
    with np.errstate(over="ignore"):
        near = squares <= np.square(r * cloud.scale)
    senders, receivers, squares = senders[near], receivers[near], squares[near]
    order = np.lexsort((senders, squares, receivers))
    return senders[order], receivers[order]


def _nearest(cloud: _Cloud, k: int, *, loop: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns senders and receivers of the ``k`` nearest neighbours of each point, sorted.

    The tree finds one candidate more than needed. If that is as near as the last neighbour, others
    may have lower ids, so the search is repeated with twice as many candidates.
    """
    if not len(cloud.ids):
        return cloud.ids, cloud.ids
    extent = np.ptp(cloud.points[cloud.ids], axis=0)
    tree = cloud.tree(cloud.points, float(np.sqrt(np.square(extent).sum())))
    pending, needed = np.arange(len(cloud.ids)), k + (not loop)
    size, chosen = needed + 1, []
    while len(pending):
        size = min(size, len(cloud.ids))
        step, again = max(1, _MOST_CANDIDATES // size), []
        for start in range(0, len(pending), step):
            places = pending[start : start + step]
            distances, candidates = tree.query(tree.data[places], k=np.arange(1, size + 1))
            last = distances[:, min(needed, size) - 1]
            is_tie = (distances[:, -1] <= last * (1 + _SLACK)) & (size < len(cloud.ids))
            again.append(places[is_tie])
            chosen.append(_chosen(cloud, places[~is_tie], candidates[~is_tie], k, loop=loop))
        pending, size = np.concatenate(again), 2 * size
    senders, receivers = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
    _, order = sort_edges(receivers, cloud.num_points)  # A stable sort.
    return senders[order], receivers[order]


def _chosen(cloud: _Cloud, places: np.ndarray, candidates: np.ndarray, k: int, *, loop: bool):
    """Senders and receivers of the ``k`` nearest candidates of each point, nearest first."""
    senders = cloud.ids[candidates]
    receivers = np.broadcast_to(cloud.ids[places][:, None], senders.shape)
    squares = cloud.squares(senders, receivers)
    if not loop:
        squares[senders == receivers] = np.inf
    order = np.lexsort((senders, squares), axis=-1)[:, :k]
    senders, squares = (np.take_along_axis(a, order, -1) for a in (senders, squares))
    is_edge = squares < np.inf
    return senders[is_edge], receivers[:, : senders.shape[1]][is_edge]
