"""Neighbours in all images of boxes of any shape, on host and device, against all pairs."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxgnn import graph
from jaxgnn.graph.points import images as _images
from tests.graph._oracles import check_message

RNG = np.random.default_rng(0)
TILTED = np.array([[3.0, 0, 0], [2.9, 1.5, 0], [-4.0, 3.3, 2.0]])
FACES = np.array(list(itertools.product([0.0, 1.0, 2.0], repeat=3)))  # corners, edges, centre

# Points, radius, cell vectors, periodic axes.
BOXES = {
    "orthogonal": (RNG.random((30, 3)) * [4, 5, 6], 1.5, np.diag([4.0, 5, 6]), True),
    "tilted": (RNG.normal(size=(20, 3)) * 3, 1.4, TILTED, True),
    "left-handed": (RNG.normal(size=(20, 3)), 1.4, TILTED[::-1], True),
    "many box lengths": (RNG.random((3, 3)), 2.6, np.eye(3) + 0.3 * RNG.random((3, 3)), True),
    "one atom": (np.ones((1, 3)), 2.0, np.eye(3), True),
    "no atom": (np.ones((0, 3)), 2.0, np.eye(3), True),
    "outside of the box": (RNG.normal(size=(20, 3)) * 40, 1.2, TILTED, True),
    "on faces": (FACES, 1.0, np.eye(3) * 2.0, True),
    "overlapping": (np.repeat(RNG.random((4, 3)), 3, 0), 0.6, np.eye(3), True),
    "zero radius": (np.array([[0.0, 0, 0], [2, 0, 0], [0, 0, 1]]), 0.0, np.eye(3) * 2, True),
    "slab": (RNG.random((20, 3)) * 3, 1.3, TILTED, (True, True, False)),
    "slab across": (RNG.random((20, 3)) * 3, 1.3, TILTED[[2, 0, 1]], (True, False, True)),
    "wire without other vectors": (
        RNG.random((9, 3)),
        1.7,
        np.diag([0, 1.0, 0]),
        (False, True, False),
    ),
    "no box": (RNG.normal(size=(40, 3)), 0.9, None, False),
    "plane": (RNG.normal(size=(20, 2)), 1.1, np.array([[2.0, 0], [1.9, 0.7]]), True),
    "line": (RNG.normal(size=(9, 1)), 3.2, np.array([[-1.5]]), True),
}
ON_DEVICE = ["orthogonal", "tilted", "many box lengths", "on faces", "slab across", "no box"]
ON_DEVICE_RARELY = [name for name in BOXES if name not in ON_DEVICE]


def flags(periodic, dimensions):
    return np.broadcast_to(periodic, dimensions)


def all_images(points, r, box, periodic, *, loop=False, half=False, batch=None):
    """Edges (receiver, sender, image) of all pairs in all images that can be near, sorted."""
    dimensions = points.shape[1]
    axes = np.flatnonzero(flags(periodic, dimensions))
    vectors = np.zeros((0, dimensions)) if box is None else box[axes]
    dual = np.linalg.pinv(vectors)
    apart = points[None] - points[:, None]
    nearest = np.rint(-apart @ dual)  # images that are about as near as any
    most = np.ceil(0.5 + r * np.linalg.norm(dual, axis=0)).astype(int)
    found = []
    for turns in itertools.product(*(range(-m, m + 1) for m in most)):
        images = np.zeros((*apart.shape[:2], dimensions), int)
        images[..., axes] = nearest + np.array(turns, int)
        near = np.square(apart + images[..., axes] @ vectors).sum(-1) <= r * r
        for receiver, sender in np.argwhere(near).tolist():
            image = tuple(images[receiver, sender].tolist())
            is_itself = receiver == sender and not any(image)
            is_second = sender < receiver or (sender == receiver and image < (0,) * dimensions)
            if (is_itself and not loop) or (half and is_second):
                continue
            if batch is None or batch[sender] == batch[receiver] >= 0:
                found.append((receiver, sender, *image))
    return sorted(found)


def pairs_of(edges):
    """Edges (receiver, sender, image), after checks of the order and of the padding."""
    mask = np.asarray(edges.mask)
    receivers, senders, images = (
        np.asarray(a) for a in (edges.receivers, edges.senders, edges.images)
    )
    assert (np.diff(receivers) >= 0).all(), "sorted by receiver, and padding last"
    assert (senders[~mask] == edges.num_points).all()
    assert not images[~mask].any()
    table = np.column_stack([receivers, senders, images])[mask]
    return [tuple(row) for row in table.tolist()]


def on_device(points, r, box, periodic, *, headroom=1.0, **options):
    grid = graph.CellGrid.for_points(points, r, box=box, periodic=periodic, headroom=headroom)
    find = functools.partial(graph.radius_graph_on_device, grid=grid, **options)
    return jax.jit(find)(points, r, box=box)


@pytest.mark.parametrize("loop, half", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", BOXES)
def test_the_host_finds_the_edges_of_all_images(name, loop, half):
    points, r, box, periodic = BOXES[name]
    with jax.enable_x64(True):
        edges = graph.radius_graph(points, r, box=box, periodic=periodic, loop=loop, half=half)
        expected = all_images(points, r, box, periodic, loop=loop, half=half)
        assert pairs_of(edges) == expected
        assert not edges.checked().overflow
        counts = np.bincount([pair[0] for pair in expected], minlength=1)
        assert int(edges.most_neighbours) == counts.max()
        lengths = np.asarray(edges.distances(points))
        assert (lengths <= r * (1 + 1e-12)).all()


@pytest.mark.costly(len(BOXES))
@pytest.mark.parametrize("name", ON_DEVICE + ON_DEVICE_RARELY)
def test_the_device_finds_the_edges_of_all_images(name):
    points, r, box, periodic = BOXES[name]
    expected = all_images(points, r, box, periodic)
    with jax.enable_x64(True):
        edges = on_device(points, r, box, periodic, max_edges=len(expected) + 7)
        assert sorted(pairs_of(edges)) == expected
        assert len(edges.senders) == len(expected) + 7
        assert edges.num_found == len(expected)
        assert not edges.checked().overflow


@pytest.mark.parametrize("name", ["tilted", "one atom"])
def test_the_device_finds_one_edge_of_each_pair_and_loops(name):
    points, r, box, periodic = BOXES[name]
    expected = all_images(points, r, box, periodic, loop=True, half=True)
    with jax.enable_x64(True):
        edges = on_device(points, r, box, periodic, max_neighbours=60, loop=True, half=True)
        assert sorted(pairs_of(edges.checked())) == expected
    assert len(edges.senders) == 60 * len(points)


@pytest.mark.parametrize("place", ["host", "device"])
def test_clouds_in_a_box_have_no_edges_between_them(place):
    points, r, box, periodic = BOXES["tilted"]
    batch = RNG.integers(-1, 3, len(points)).astype(np.int32)
    expected = all_images(points, r, box, periodic, batch=batch)
    with jax.enable_x64(True):
        if place == "host":
            edges = graph.radius_graph(points, r, batch, box=box)
        else:
            edges = on_device(points, r, box, periodic, batch=batch, max_edges=400)
        assert sorted(pairs_of(edges)) == expected


@pytest.mark.parametrize("most", [1, 64, 2**18])
def test_candidates_in_parts_of_any_size_give_the_same_edges(most, monkeypatch):
    points, r, box, periodic = BOXES["orthogonal"]
    monkeypatch.setattr(_images, "_MOST_CANDIDATES", most)
    edges = graph.radius_graph(points, r, box=box)
    assert pairs_of(edges) == all_images(points, r, box, periodic)


def test_half_of_the_nearest_images_is_one_edge_of_each_pair():
    points, r, _, _ = BOXES["orthogonal"]
    sides = np.array([4.0, 5, 6])
    whole = graph.radius_graph(points, r, box=sides)
    half = graph.radius_graph(points, r, box=sides, half=True)
    device = graph.radius_graph_on_device(points, r, box=sides, half=True, max_neighbours=20)
    ends = {tuple(sorted(pair)) for pair in zip(*ends_of(whole), strict=True)}
    for edges in (half, device.checked()):
        senders, receivers = ends_of(edges)
        assert (senders > receivers).all()
        assert sorted(zip(receivers, senders, strict=True)) == sorted(ends)


def ends_of(edges):
    mask = np.asarray(edges.mask)
    return np.asarray(edges.senders)[mask], np.asarray(edges.receivers)[mask]


@pytest.mark.parametrize("name", ["tilted", "slab"])
def test_displacements_have_derivatives_by_points_and_box(name):
    points, r, box, periodic = BOXES[name]
    with jax.enable_x64(True):
        edges = graph.radius_graph(points, r, box=box, periodic=periodic)
        expected = points[np.asarray(edges.senders)] - points[np.asarray(edges.receivers)]
        expected += np.asarray(edges.images) @ box
        np.testing.assert_allclose(edges.displacements(points, box), expected, atol=1e-12)

        @jax.jit
        def energy(points, box):
            return jnp.sin(edges.distances(points, box)).sum()

        check_grads(energy, (points, box), order=2, modes=["rev"], eps=1e-6, rtol=1e-4)


def test_points_may_leave_the_grid_they_were_planned_for():
    """Along open axes cells have their width, so points outside are in the last cells."""
    points, r, _, _ = BOXES["no box"]
    grid = graph.CellGrid.for_points(points, r, headroom=4)
    moved = points * [1.0, 2.5, 0.3] + 100
    with jax.enable_x64(True):
        edges = graph.radius_graph_on_device(moved, r, grid=grid, max_edges=1600)
        assert sorted(pairs_of(edges.checked())) == all_images(moved, r, None, False)


def test_traced_points_that_are_not_finite_set_a_flag_and_change_no_other_edges():
    points, r, box, periodic = BOXES["orthogonal"]
    spoiled = points.astype(np.float32)
    spoiled[[0, 7]] = [[np.nan, 0, 0], [0, np.inf, 0]]
    grid = graph.CellGrid.for_points(points, r, box=box, headroom=2)

    @jax.jit
    def find(points):
        return graph.radius_graph_on_device(points, r, grid=grid, box=box, max_edges=300)

    edges = find(spoiled)
    assert edges.not_finite
    assert edges.num_not_finite == 2
    assert not edges.overflow
    batch = np.zeros(len(points), int)
    batch[[0, 7]] = -1
    assert sorted(pairs_of(edges)) == all_images(points, r, box, periodic, batch=batch)
    assert np.isfinite(jax.grad(lambda points: edges.distances(points).sum())(spoiled)).all()
    with pytest.raises(ValueError, match="finite") as error:
        edges.checked()
    check_message(str(error.value), ["checked", "points", "finite", "2"])
    assert not find(points).not_finite


def test_too_little_room_sets_the_flag_and_the_error_names_what_to_raise():
    points, r, box, periodic = BOXES["orthogonal"]
    expected = all_images(points, r, box, periodic)
    most = int(np.bincount([pair[0] for pair in expected]).max())
    few_slots = on_device(points, r, box, periodic, max_edges=len(expected) - 1)
    few_neighbours = on_device(points, r, box, periodic, max_neighbours=most - 1)
    for edges, name, needed in (
        (few_slots, "max_edges", len(expected)),
        (few_neighbours, "max_neighbours", most),
    ):
        assert edges.overflow
        assert set(pairs_of(edges)) < set(expected)
        with pytest.raises(ValueError, match=name) as error:
            edges.checked()
        check_message(str(error.value), ["checked", name, f"at least {needed}"])
    rows = np.bincount(np.asarray(few_neighbours.receivers)[np.asarray(few_neighbours.mask)])
    assert rows.max() == most - 1


def test_a_grid_that_does_not_fit_sets_the_flag():
    points, r, box, _ = BOXES["orthogonal"]
    grid = graph.CellGrid.for_points(points, r, box=box)
    find = jax.jit(functools.partial(graph.radius_graph_on_device, grid=grid, max_edges=2000))
    assert not find(points, r, box=box).overflow
    for edges in (find(points, 3 * r, box=box), find(points, r, box=box / 3)):
        assert edges.overflow
        with pytest.raises(ValueError, match="grid") as error:
            edges.checked()
        check_message(str(error.value), ["checked", "grid", "CellGrid.for_points"])


def test_a_column_with_more_points_than_it_has_room_for_sets_the_flag():
    spread = RNG.random((40, 2)) * 40
    grid = graph.CellGrid.for_points(spread, 0.5, headroom=1)
    assert grid.words == 1
    edges = graph.radius_graph_on_device(np.zeros((40, 2)), 0.5, grid=grid, max_edges=2000)
    assert edges.overflow


MOVING = {
    "box": (TILTED * 2, True),
    "slab": (TILTED * 2, (True, True, False)),
    "no box": (None, False),
}


@pytest.mark.parametrize("name", MOVING)
def test_a_list_is_rebuilt_when_a_point_has_moved_by_half_of_the_skin(name):
    box, periodic = MOVING[name]
    with jax.enable_x64(True):
        points = RNG.normal(size=(20, 3)) * 2
        near = graph.NeighbourList.allocate(
            points, 1.2, skin=0.4, box=box, periodic=periodic, headroom=2
        )
        assert sorted(pairs_of(near.edges)) == all_images(points, 1.6, box, periodic)
        direction = RNG.normal(size=points.shape)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        moved, further = points + 0.199 * direction, points + 0.201 * direction
        update = jax.jit(graph.NeighbourList.updated)
        assert not near.needs_rebuild(moved)
        assert near.needs_rebuild(further)
        same, new = update(near, moved), update(near, further)
        np.testing.assert_array_equal(same.points, points)
        assert set(all_images(moved, 1.2, box, periodic)) <= set(pairs_of(same.edges))
        assert sorted(pairs_of(new.edges.checked())) == all_images(further, 1.6, box, periodic)
        assert near.needs_rebuild(points * np.nan)


def test_a_list_allows_for_a_box_that_shrinks():
    box, periodic = MOVING["box"]
    with jax.enable_x64(True):
        points = RNG.normal(size=(20, 3)) * 2
        near = graph.NeighbourList.allocate(points, 1.2, skin=0.4, box=box, headroom=2)
        assert not near.needs_rebuild(points, box)
        strain = np.eye(3) + 0.02 * RNG.normal(size=(3, 3))
        inside, shrunk = box @ strain, box * 0.6
        assert not near.needs_rebuild(points @ strain, inside)
        found = set(pairs_of(near.edges))
        assert set(all_images(points @ strain, 1.2, inside, periodic)) <= found
        assert near.needs_rebuild(points * 0.6, shrunk)


X = np.zeros((4, 3), np.float32)
BOX = np.eye(3) * 4
FLAT = np.array([[1.0, 0, 0], [0, 1, 0], [1, 1, 1e-9]])
GRID = graph.CellGrid.for_points(X, 1.0, box=BOX)
HOST, DEVICE = "radius_graph", "radius_graph_on_device"
BAD = {
    "nan": (HOST, {"points": X * np.nan, "box": BOX}, ["points[0]", "finite", "nan"]),
    "negative r": (HOST, {"r": -1.0, "box": BOX}, ["r", "not negative", "-1.0"]),
    "too many images": (
        HOST,
        {"r": 1e6, "box": BOX},
        ["r", "height", "1e+06"],
    ),
    "flat box": (HOST, {"box": FLAT}, ["box", "linearly independent", "1e-09"]),
    "vector of zero": (HOST, {"box": BOX * [0, 1, 1]}, ["box", "linearly independent"]),
    "box of nan": (HOST, {"box": BOX * np.nan}, ["box", "finite", "nan"]),
    "shape": (HOST, {"box": np.eye(2)}, ["box", "(3, 3)", "(2, 2)"]),
    "sides": (HOST, {"box": [4.0, 4, 4], "periodic": True}, ["box", "(3, 3)", "(3,)"]),
    "periodic": (HOST, {"box": BOX, "periodic": (True,)}, ["periodic", "3", "(True,)"]),
    "no box": (HOST, {"periodic": True}, ["periodic", "without a box", "True"]),
    "no grid": (DEVICE, {"box": BOX, "max_neighbours": 3}, ["grid", "None"]),
    "no room": (DEVICE, {"box": BOX, "grid": GRID}, ["max_neighbours", "None"]),
    "no slots": (
        DEVICE,
        {"box": BOX, "grid": GRID, "max_edges": 0},
        ["max_edges", "0"],
    ),
    "no box for a grid": (
        DEVICE,
        {"grid": GRID, "max_edges": 9},
        ["box", "None"],
    ),
    "flat box for a grid": (
        DEVICE,
        {"grid": GRID, "max_edges": 9, "box": FLAT},
        ["box", "linearly independent"],
    ),
    "other axes": (
        DEVICE,
        {"points": X[:, :2], "grid": GRID, "max_edges": 9},
        ["grid", "2 dimensions", "3"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    where, arguments, fragments = BAD[name]
    with pytest.raises(ValueError, match=f"^{where}: ") as error:
        getattr(graph, where)(**{"points": X, "r": 1.0} | arguments)
    check_message(str(error.value), [where, *fragments])


def test_bad_options_of_lists_and_grids_are_named():
    allocate = functools.partial(graph.NeighbourList.allocate, X, 1.0, box=BOX)
    with pytest.raises(ValueError, match="skin must be finite"):
        allocate(skin=-1.0)
    with pytest.raises(ValueError, match="max_edges must be at least 12"):
        allocate(skin=0.5, max_edges=3)
    with pytest.raises(ValueError, match="headroom must be at least 1"):
        allocate(skin=0.5, headroom=0.5)
    with pytest.raises(ValueError, match="points must be of shape"):
        allocate(skin=0.5).needs_rebuild(X[:2])
    with pytest.raises(ValueError, match="must be concrete"):
        jax.eval_shape(lambda x: graph.NeighbourList.allocate(x, 1.0, skin=0.5), X)
