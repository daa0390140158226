"""Neighbours of points, by tree and by device, against all pairs in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxgnn import graph, ops
from jaxgnn.graph.points import neighbours as _neighbours
from jaxgnn.graph.points import neighbours_on_device as _neighbours_on_device
from tests._eager_costs import counted_compilations
from tests.graph._oracles import check_message

RNG = np.random.default_rng(0)
CROWD = 12  # more neighbours than any point below has within its radius

# Points, radius, clouds, sides of the box.
CLOUDS = {
    "random": (RNG.random((17, 3)), 0.5, None, None),
    "plane": (RNG.normal(size=(17, 2)), 0.7, RNG.integers(-1, 3, 17), None),
    "features": (RNG.normal(size=(17, 5)), 1.5, None, None),
    "lattice": (np.mgrid[:4, :4].reshape(2, -1).T * 0.25, 0.25, None, None),
    "periodic lattice": (np.mgrid[:4, :4].reshape(2, -1).T * 0.25, 0.25, None, [1.0, 1.0]),
    "duplicates": (np.repeat([[1.0, 2.0], [1.0, 3.0]], [4, 5], 0), 0.0, None, None),
    "duplicates of clouds": (np.ones((9, 2)), 0.5, [5, 0, 5, 0, 0, 9, 5, 0, 9], None),
    "one point": (np.ones((1, 3)), 1.0, [4], None),
    "no point": (np.ones((0, 3)), 1.0, None, None),
    "padding only": (np.ones((3, 2)), 1.0, [-1, -1, -1], None),
    "box": (RNG.random((17, 3)) * [2, 1, 1.5], 0.5, None, [2.0, 1.0, 1.5]),
    "far outside of the box": (RNG.normal(size=(17, 2)) * 9, 0.4, None, [1.0, 2.0]),
    "box of clouds": (RNG.random((17, 2)), 0.3, RNG.integers(0, 3, 17), [1.0, 0.75]),
    "half of the box": (np.array([[0.0], [1.0], [2.5]]), 1.0, None, [2.0]),
    "borders of the box": (np.array([[-1e-18], [0.0], [1.0], [0.5]]), 0.25, None, [1.0]),
}
BOXES = [name for name, (*_, box) in CLOUDS.items() if box is not None]


@functools.partial(jax.jit, static_argnames=("k", "loop"))
def knn_on_device(points, k=3, batch=None, *, loop=False):
    return graph.knn_graph_on_device(points, k, batch, loop=loop)


@functools.partial(jax.jit, static_argnames=("max_neighbours", "loop"))
def radius_on_device(points, r, batch=None, *, max_neighbours=CROWD, loop=False, box=None):
    options = {"max_neighbours": max_neighbours, "loop": loop, "box": box}
    return graph.radius_graph_on_device(points, r, batch, **options)


ON_DEVICE = {"knn": knn_on_device, "radius": radius_on_device}


@jax.jit
def distances(edges, points):
    return edges.distances(points)


def padded(points, batch, box):
    """The same points among 18 of 5 coordinates, so that JAX compiles few shapes."""
    num_points, dimensions = points.shape
    more = np.zeros((18, 5), points.dtype)
    more[:num_points, :dimensions] = points
    clouds = np.full(18, -1, np.int32)
    clouds[:num_points] = 0 if batch is None else batch
    if box is not None:
        box = np.append(box, np.full(5 - dimensions, 64, box.dtype))
    return more, clouds, box


def all_pairs(points, batch=None, box=None, *, loop=False):
    """Squared distance from each point (column) to each point (row), infinite where no edge is."""
    points = np.asarray(points, np.float64)
    apart = points[None] - points[:, None]
    if box is not None:
        apart = np.stack([_nearest_image(apart[..., a], side) for a, side in enumerate(box)], -1)
    squares = np.square(apart).sum(-1)
    if batch is not None:
        batch = np.asarray(batch)
        squares[(batch[:, None] != batch) | (batch < 0)] = np.inf
    if not loop:
        np.fill_diagonal(squares, np.inf)
    return squares


def _nearest_image(apart, side):
    """The shortest of the differences to a hundred images on each side."""
    images = apart[..., None] + side * np.arange(-100, 101)
    return np.abs(images).min(-1)


def expected_rows(squares, *, k=None, r=np.inf):
    """Senders of each receiver: nearest first, of equal distances the lower id first."""
    rows = []
    for row in squares:
        order = np.argsort(row, kind="stable")
        near = order[(row[order] < np.inf) & (row[order] <= r * r)]
        rows.append(near[:k].tolist())
    return rows


def rows_of(edges):
    """Senders of each receiver, after checks of the order and of the padding."""
    mask, receivers = np.asarray(edges.mask), np.asarray(edges.receivers)
    assert (np.diff(receivers) >= 0).all(), "sorted by receiver, and padding last"
    senders = np.asarray(edges.senders)
    assert (senders[~mask] == edges.num_points).all()
    return [senders[receivers == i].tolist() for i in range(edges.num_points)]


def case(name, dtype):
    """The case with points, radius and box in ``dtype``."""
    points, r, batch, box = CLOUDS[name]
    box = None if box is None else np.array(box, dtype)
    return points.astype(dtype), r, None if batch is None else np.array(batch), box


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == np.float64):
        yield request.param


@pytest.mark.costly(len(CLOUDS))
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("name", CLOUDS)
def test_the_nearest_neighbours_are_those_of_all_pairs(name, loop, dtype):
    points, _, batch, _ = case(name, dtype)
    batch = (
        np.zeros(len(points), int) if len(points) < 4 else batch
    )  # so that three may be too many
    expected = expected_rows(all_pairs(points, batch, loop=loop), k=3)
    host = graph.knn_graph(points, 3, batch, loop=loop)
    many, clouds, _ = padded(points, batch, None)
    device = knn_on_device(many, 3, clouds, loop=loop)
    assert rows_of(host) == expected
    assert rows_of(device)[: len(points)] == expected
    assert np.asarray(host.receivers).max(initial=-1) < len(points), "no padding"
    assert len(device.senders) == 3 * 18
    for edges in (host, device):
        assert not edges.checked().overflow
        assert edges.most_neighbours == max(map(len, expected), default=0)


@pytest.mark.costly(len(CLOUDS))
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("name", CLOUDS)
def test_the_neighbours_within_a_radius_are_those_of_all_pairs(name, loop, dtype):
    points, r, batch, box = case(name, dtype)
    squares = all_pairs(points, batch, box, loop=loop)
    expected = expected_rows(squares, r=float(dtype(r)))
    host = graph.radius_graph(points, r, batch, loop=loop, box=box)
    many, clouds, sides = padded(points, batch, box)
    device = radius_on_device(many, r, clouds, loop=loop, box=sides)
    for edges in (host, device):
        # The order of two distances that differ in rounding only may be another one.
        found = rows_of(edges)[: len(points)]
        assert list(map(sorted, found)) == list(map(sorted, expected))
        assert not edges.checked().overflow
        assert edges.most_neighbours == max(map(len, expected), default=0)
        assert edges.senders.dtype == edges.receivers.dtype == np.int32
    made = np.asarray(distances(device, many))
    real = made[: len(host.senders)]
    exact = np.sqrt(squares[np.asarray(device.receivers)[: len(real)], device.senders[: len(real)]])
    eps = np.finfo(dtype).eps
    rounding = 4 * eps * np.abs(points).max(initial=1)  # of a shift across the points
    np.testing.assert_allclose(real, exact, rtol=8 * eps, atol=rounding)
    assert not made[len(real) :].any(), "padding has the length zero"


@pytest.mark.parametrize("name", BOXES)
def test_shifts_are_whole_sides_and_lead_to_the_nearest_image(name, dtype):
    points, r, batch, box = case(name, dtype)
    squares = all_pairs(points, batch, box)
    edges = graph.radius_graph(points, r, batch, box=box)
    senders, receivers, shifts = (
        np.asarray(a) for a in (edges.senders, edges.receivers, edges.shifts)
    )
    assert shifts.dtype == dtype
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(shifts / box, np.round(shifts / box), rtol=2 * eps)
    apart = points.astype(np.float64)[senders] + shifts - points[receivers]
    rounding = 4 * eps * np.abs(points).max()
    exact = np.sqrt(squares[receivers, senders])
    np.testing.assert_allclose(np.linalg.norm(apart, axis=-1), exact, rtol=8 * eps, atol=rounding)


@pytest.mark.lowers
@pytest.mark.parametrize("name", ["lattice", "periodic lattice", "duplicates", "half of the box"])
def test_ties_come_by_the_lower_id_and_the_radius_is_inclusive(name, dtype):
    points, r, batch, box = case(name, dtype)
    expected = expected_rows(all_pairs(points, batch, box), r=r)
    assert any(expected)
    assert rows_of(graph.radius_graph(points, r, box=box)) == expected
    device = ON_DEVICE["radius"](points, r, max_neighbours=CROWD, box=box)
    assert rows_of(device) == expected


def test_many_equal_points_are_found_in_parts(monkeypatch):
    """Candidates are asked for again until all ties are there, in parts that fit the memory."""
    points = np.concatenate([np.zeros((70, 2)), RNG.random((30, 2)) + 1]).astype(np.float32)
    points = points[RNG.permutation(100)]
    expected = expected_rows(all_pairs(points), k=3)
    monkeypatch.setattr(_neighbours, "_MOST_CANDIDATES", 150)
    assert rows_of(graph.knn_graph(points, 3)) == expected


@pytest.mark.parametrize("entries", [1, 17 * 4, 17 * 17])
def test_tiles_of_any_size_give_the_same_edges(entries, monkeypatch):
    points, r, _, box = case("box", np.float32)
    whole = graph.radius_graph_on_device(points, r, max_neighbours=CROWD, box=box)
    monkeypatch.setattr(_neighbours_on_device, "_TILE_ENTRIES", entries)
    tiled = graph.radius_graph_on_device(points, r, max_neighbours=CROWD, box=box)
    assert rows_of(tiled) == rows_of(whole)


def test_distances_far_from_the_origin_do_not_cancel():
    """In float32, squares of coordinates of 4096 have steps of 2; these points are 1/16 apart."""
    points = 4096 + np.arange(8, dtype=np.float32)[:, None] / 16
    expected = [[i for i in (j - 1, j + 1) if 0 <= i < 8] for j in range(8)]
    assert rows_of(graph.radius_graph_on_device(points, 0.0625, max_neighbours=3)) == expected
    assert rows_of(graph.radius_graph(points, 0.0625)) == expected


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e25, 1e37])
def test_distances_whose_squares_do_not_fit_the_dtype_are_told_apart(scale):
    points = (np.random.default_rng(1).normal(size=(17, 3)) * scale).astype(np.float32)
    expected = rows_of(graph.knn_graph(points, 3))
    assert len(set(map(tuple, expected))) > 3
    assert rows_of(graph.knn_graph_on_device(points, 3)) == expected
    r = np.float32(1.2 * scale)
    within = rows_of(graph.radius_graph(points, r))
    assert rows_of(graph.radius_graph_on_device(points, r, max_neighbours=16)) == within
    grid = graph.CellGrid.for_points(points, r)
    by_cells = graph.radius_graph_on_device(points, r, grid=grid, max_edges=300).checked()
    assert [sorted(row) for row in rows_of(by_cells)] == [sorted(row) for row in within]


def test_clouds_of_any_size_and_tiny_distances_beside_large_ones_agree_with_the_host():
    rng = np.random.default_rng(2)
    tiny = (rng.normal(size=(8, 3)) * 1e-30).astype(np.float32)
    points = np.concatenate([tiny, rng.normal(size=(9, 3)).astype(np.float32)])
    padding = np.full((2, 3), 1e38, np.float32)  # which must not set the scale
    for batch in (None, np.repeat([0, 1], [8, 9])):
        expected = rows_of(graph.knn_graph(points, 3, batch))
        assert rows_of(graph.knn_graph_on_device(points, 3, batch)) == expected
    batch = np.repeat([0, 1, -1], [8, 9, 2])
    found = graph.knn_graph_on_device(np.concatenate([points, padding]), 3, batch)
    assert rows_of(found)[:17] == expected


def test_squares_of_float64_do_not_underflow_on_the_host_either():
    with jax.enable_x64(True):
        points = np.random.default_rng(1).normal(size=(17, 3))
        for scale in (1e-170, 1e90):
            expected = rows_of(graph.knn_graph(points, 3))
            assert rows_of(graph.knn_graph(points * scale, 3)) == expected
            assert rows_of(graph.knn_graph_on_device(points * scale, 3)) == expected
            for periodic in (None, False):
                within = graph.radius_graph(points, 1.2, periodic=periodic)
                found = graph.radius_graph(points * scale, 1.2 * scale, periodic=periodic)
                assert rows_of(found) == rows_of(within)


@pytest.mark.parametrize("search", ["host", "device", "cells"])
def test_float64_points_far_from_the_origin_are_subtracted_before_they_are_rounded(search):
    near = np.random.default_rng(3).random((17, 3)) * 4
    points, box = near + 13_000.0 * np.arange(1, 4), 4.0 * np.eye(3)
    if search == "host":
        edges = graph.radius_graph(points, 1.9, box=box)
        expected = graph.radius_graph(near, 1.9, box=box)
    elif search == "device":
        edges, expected = (graph.knn_graph_on_device(p, 3) for p in (points, near))
    else:
        grid = graph.CellGrid.for_points(points, 1.9, box=box)
        options = {"grid": grid, "box": box, "max_edges": 400}
        edges, expected = (
            graph.radius_graph_on_device(p, 1.9, **options).checked() for p in (points, near)
        )
    assert [sorted(row) for row in rows_of(edges)] == [sorted(row) for row in rows_of(expected)]
    lengths = np.sort(edges.distances(points))
    np.testing.assert_allclose(lengths, np.sort(expected.distances(near)), rtol=3e-6)
    assert lengths.dtype == np.float32


def test_a_radius_is_rounded_to_the_dtype_of_the_points():
    """The float32 next to 0.1 is larger than 0.1, and yet points so far apart are neighbours."""
    points = np.float32([[0.0], [0.1]])
    assert rows_of(graph.radius_graph(points, 0.1)) == [[1], [0]]
    assert rows_of(graph.radius_graph_on_device(points, 0.1, max_neighbours=1)) == [[1], [0]]


def test_too_many_neighbours_set_a_flag_on_a_device_and_leave_the_nearest():
    points = np.float32([[0.0], [1.0], [3.0], [-0.5]])
    edges = ON_DEVICE["radius"](points, 4.0, max_neighbours=2)
    assert bool(edges.overflow)
    assert rows_of(edges) == expected_rows(all_pairs(points), k=2)
    with pytest.raises(ValueError, match="max_neighbours") as error:
        edges.checked()
    check_message(str(error.value), ["checked", "max_neighbours", "at least 3", "2"])
    assert not ON_DEVICE["radius"](points, 4.0, max_neighbours=3).checked().overflow


@pytest.mark.parametrize("search", ["knn", "radius"])
def test_memory_grows_with_points_and_edges_not_with_pairs(search):
    num_points = 20_000
    options = {"k": 8} if search == "knn" else {"r": 0.1, "max_neighbours": 8, "box": np.ones(3)}
    call = getattr(graph, f"{search}_graph_on_device")
    points = jax.ShapeDtypeStruct((num_points, 3), np.float32)
    program = jax.jit(lambda points: call(points, **options)).lower(points).compile()
    assert program.memory_analysis().temp_size_in_bytes < num_points**2 * 4 / 8


@pytest.mark.parametrize("search", ["knn", "radius"])
def test_traced_points_that_are_not_finite_have_no_edges_and_change_no_others(search):
    points, r, _, box = case("box", np.float32)
    bad = [0, 5, 16]
    spoiled, batch = points.copy(), np.zeros(17, np.int32)
    spoiled[bad], batch[bad] = np.float32([[np.nan, 0, 0], [0, np.inf, 0], [0, 0, -np.inf]]), -1
    options = {} if search == "knn" else {"r": r, "box": box}
    call = functools.partial(ON_DEVICE[search], **options)
    edges = call(spoiled)
    rows = rows_of(edges)
    padding = ~np.asarray(edges.mask)
    assert padding.any()
    assert not np.asarray(edges.displacements(spoiled))[padding].any()
    assert edges.shifts is None or not np.asarray(edges.shifts)[padding].any()
    assert np.isfinite(jax.grad(lambda points: distances(edges, points).sum())(spoiled)).all()
    assert rows == rows_of(call(points, batch=batch))
    assert [rows[i] for i in bad] == [[], [], []]


@pytest.mark.parametrize("search", ["host", "device"])
@pytest.mark.parametrize("box", [None, [1.0, 2.0]])
def test_distances_have_the_right_gradients(search, box):
    with jax.enable_x64(True):
        points = RNG.random((6, 2))
        points[1] = points[0] + 1e-3
        found = graph.radius_graph(points, 0.45, box=box)
        assert len(found.senders) > 4

        @jax.jit
        def total(moved):
            if search == "host":
                return jnp.sin(found.distances(moved)).sum()
            edges = ON_DEVICE["radius"](moved, 0.45, max_neighbours=5, box=box)
            return jnp.sin(edges.distances(moved)).sum()

        np.testing.assert_allclose(total(points), np.sin(found.distances(points)).sum())
        check_grads(total, (points,), order=1, eps=1e-7)


def test_gradients_are_zero_and_finite_where_points_coincide():
    points = jnp.array([[1.0, 2.0], [1.0, 2.0], [1.0, 5.0]])

    def total(points):
        edges = graph.radius_graph_on_device(points, 3.0, max_neighbours=4, loop=True)
        return edges.distances(points).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(points)
    assert value == 12
    np.testing.assert_allclose(gradient, [[0, -2], [0, -2], [0, 4]])


@pytest.mark.parametrize("search", ["host", "device"])
def test_edges_stand_in_the_order_of_their_graph(search):
    points, r, _, box = case("box", np.float32)
    x = RNG.normal(size=(17, 2)).astype(np.float32)
    if search == "host":
        edges = graph.radius_graph(points, r, box=box)
    else:
        edges = ON_DEVICE["radius"](points, r, max_neighbours=CROWD, box=box)
    made = edges.graph(edges.distances(points)).validate()
    real = int(made.indptr[-1])
    np.testing.assert_array_equal(made.indices[:real], edges.senders[:real])
    np.testing.assert_array_equal(made.receivers(), edges.receivers)
    np.testing.assert_array_equal(made.weights, edges.distances(points))
    squares = all_pairs(points, None, box)
    matrix = np.where(squares <= r * r, np.sqrt(np.where(squares < np.inf, squares, 0)), 0)
    np.testing.assert_allclose(ops.spmm(made, x), matrix @ x, rtol=1e-4, atol=1e-5)


def test_a_graph_is_made_under_jit_and_for_each_of_several_clouds_by_vmap():
    clouds = RNG.random((3, 17, 3)).astype(np.float32)

    def sums(points):
        edges = graph.radius_graph_on_device(points, 0.5, max_neighbours=CROWD)
        return ops.spmm(edges.graph(edges.distances(points)), points), edges.overflow

    made, overflow = jax.jit(jax.vmap(sums))(clouds)
    assert not overflow.any()
    for points, result in zip(clouds, made, strict=True):
        squares = all_pairs(points)
        matrix = np.where(squares <= 0.25, np.sqrt(np.where(squares < np.inf, squares, 0)), 0)
        np.testing.assert_allclose(result, matrix @ points, rtol=1e-5, atol=1e-6)
    stacked = jax.vmap(lambda p: graph.knn_graph_on_device(p, 2))(clouds)
    with pytest.raises(ValueError, match="vmap"):
        stacked.graph()


def test_the_radius_the_box_and_the_clouds_may_be_traced():
    points, r, batch, box = case("box of clouds", np.float32)
    call = ON_DEVICE["radius"]  # jitted, so they are
    expected = expected_rows(all_pairs(points, batch, box), r=np.float32(r))
    found = rows_of(call(points, r, batch, max_neighbours=CROWD, box=box))
    assert list(map(sorted, found)) == list(map(sorted, expected))
    for radius in (-1.0, np.nan):
        assert not np.asarray(call(points, radius, max_neighbours=CROWD).mask).any()


def test_a_traced_radius_beyond_half_of_a_traced_box_sets_the_flag():
    points, _, batch, box = case("box of clouds", np.float32)
    assert not ON_DEVICE["radius"](points, 0.375, batch, box=box).overflow
    edges = ON_DEVICE["radius"](points, 0.4, batch, box=box)
    assert edges.overflow
    with pytest.raises(ValueError, match="half") as error:
        edges.checked()
    check_message(str(error.value), ["checked", "r", "half of the shortest side"])


def test_points_in_bfloat16_are_compared_in_float32():
    points = RNG.random((17, 3)).astype(jnp.bfloat16)
    expected = expected_rows(all_pairs(points), r=np.float32(0.4))
    device = graph.radius_graph_on_device(points, 0.4, max_neighbours=CROWD)
    for edges in (graph.radius_graph(points, 0.4), device):
        assert list(map(sorted, rows_of(edges))) == list(map(sorted, expected))


def test_searches_on_the_host_compile_nothing_for_a_new_size():
    with counted_compilations() as compiled:
        for size in range(9, 29):
            points = RNG.random((size, 3)).astype(np.float32)
            graph.knn_graph(points, 3).graph()
            graph.radius_graph(points, 0.3, box=[1.0, 1.0, 1.0]).checked().graph()
    assert not compiled


P = np.zeros((4, 2), np.float32)
NAN = np.float32([[0, 0], [1, np.nan]])
BAD_SEARCHES = {
    "nan": ("knn", {"points": NAN}, ["points[1]", "finite", "nan"]),
    "infinite": ("radius", {"points": np.float32([[np.inf, 0]])}, ["points[0]", "finite", "inf"]),
    "one axis": ("knn", {"points": np.zeros(3)}, ["points", "(points, dimensions)", "(3,)"]),
    "integers": ("knn", {"points": np.zeros((3, 2), int)}, ["points", "floating", "int64"]),
    "clouds": ("radius", {"batch": [0, 1]}, ["batch", "(4,)", "(2,)"]),
    "float clouds": ("knn", {"batch": [0.5] * 4}, ["batch", "integer", "float64"]),
    "k = 0": ("knn", {"k": 0}, ["k", "positive", "0"]),
    "k = 1.5": ("knn", {"k": 1.5}, ["k", "positive integer", "1.5"]),
    "large k": ("knn", {"k": 4}, ["k", "other points, 3", "4"]),
    "large k with loops": ("knn", {"k": 5, "loop": True}, ["k", "points, 4", "5"]),
    "negative r": ("radius", {"r": -1.0}, ["r", "not negative", "-1.0"]),
    "r of nan": ("radius", {"r": np.nan}, ["r", "finite", "nan"]),
    "r of two": ("radius", {"r": [1.0, 2.0]}, ["r", "a number", "[2]"]),
    "side of zero": ("radius", {"box": [1.0, 0.0]}, ["box[1]", "positive", "0.0"]),
    "negative side": ("radius", {"box": [-1.0, 3.0]}, ["box[0]", "positive", "-1.0"]),
    "one side": ("radius", {"box": [3.0]}, ["box", "(2,)", "(1,)"]),
    "r beyond half": ("radius", {"r": 1.5, "box": [4.0, 2.0]}, ["r", "half", "1", "1.5"]),
    "capacity": ("radius", {"max_neighbours": 0}, ["max_neighbours", "positive", "0"]),
}


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("name", BAD_SEARCHES)
def test_bad_input_is_named(name, place):
    search, arguments, fragments = BAD_SEARCHES[name]
    defaults = {"points": P, "k": 2} if search == "knn" else {"points": P, "r": 1.0}
    if search == "radius":
        defaults["max_neighbours"] = 3
    where = f"{search}_graph" + ("_on_device" if place == "device" else "")
    with pytest.raises(ValueError, match=f"^{where}: ") as error:
        getattr(graph, where)(**defaults | arguments)
    check_message(str(error.value), [where, *fragments])


def test_too_many_neighbours_on_the_host_are_an_error_that_names_a_point():
    points = np.float32([[0.0], [1.0], [2.0]])
    with pytest.raises(ValueError, match="max_neighbours") as error:
        graph.radius_graph(points, 1.0, max_neighbours=1)
    check_message(
        str(error.value), ["radius_graph", "max_neighbours", "at least 2", "point 1", "1"]
    )
    assert graph.radius_graph(points, 1.0, max_neighbours=2).most_neighbours == 2


def test_traced_points_are_sent_to_the_device():
    for call in (
        lambda p: graph.knn_graph(p, 1),
        lambda p: graph.radius_graph(p, 1.0),
        lambda p: graph.radius_graph(P, p[0, 0]),
    ):
        with pytest.raises(ValueError, match="_on_device") as error:
            jax.eval_shape(lambda p, call=call: call(p).senders, P)
        check_message(str(error.value), ["_graph", "concrete", "_graph_on_device", "a tracer"])
    with pytest.raises(ValueError, match="jit"):
        jax.jit(lambda p: graph.knn_graph_on_device(p, 1).checked())(P)


def test_displacements_of_another_number_of_points_are_refused():
    edges = graph.knn_graph(P, 1)
    for points in (P[:3], P[0]):
        with pytest.raises(ValueError, match="displacements") as error:
            edges.distances(points)
        check_message(str(error.value), ["displacements", "points", "(4, dimensions)", "("])
