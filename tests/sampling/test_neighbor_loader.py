"""Batches of a loader are a function of epoch and step, and contain what was asked for."""

import os
import warnings
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.sampling import Capacity, NeighborLoader

NODES, EDGES = 50, 200
rng = np.random.default_rng(3)
# The last node is isolated.
GRAPH = CSRGraph.from_edges(*rng.integers(0, NODES - 1, (2, EDGES)), NODES)
X = rng.normal(size=(NODES, 3)).astype(np.float32)
Y = np.arange(NODES)
INDPTR, INDICES = np.asarray(GRAPH.indptr), np.asarray(GRAPH.indices)


def _loader(seeds=range(40), fanouts=(3, 2), batch_size=8, graph=GRAPH, **options):
    options = {"features": X, "labels": Y} | options
    seeds = None if seeds is None else list(seeds)
    return NeighborLoader(graph, seeds, fanouts, batch_size, **options)


def _assert_equal(batches, expected):
    for ours, theirs in zip(batches, expected, strict=True):
        for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
            np.testing.assert_array_equal(a, b)


def _edges(batch, layer):
    """Senders, receivers and positions of the real edges of a block, as the graph has them."""
    block, n_id = batch.blocks[layer], np.asarray(batch.n_id)
    indptr = np.asarray(block.indptr)
    count = indptr[-1]
    rows = np.repeat(np.arange(block.num_rows), np.diff(indptr))
    e_id = np.asarray(batch.e_id[layer])
    assert (e_id[count:] == -1).all()
    return n_id[np.asarray(block.indices)[:count]], n_id[rows], e_id[:count]


# -- contents --------------------------------------------------------------------------------


def test_edges_features_and_labels_are_those_of_the_graph():
    for batch in _loader(shuffle=True, seed=5):
        n_id = np.asarray(batch.n_id)
        real = n_id >= 0
        assert real.sum() == batch.num_nodes[0] == np.unique(n_id[real]).size
        np.testing.assert_array_equal(batch.x, np.where(real[:, None], X[n_id], 0))
        seeds = n_id[np.asarray(batch.seed_ids)]
        np.testing.assert_array_equal(np.asarray(batch.y)[batch.seed_mask], seeds[batch.seed_mask])
        for layer, fanout in ((0, 2), (1, 3)):
            senders, receivers, e_id = _edges(batch, layer)
            np.testing.assert_array_equal(INDICES[e_id], senders)
            assert ((INDPTR[receivers] <= e_id) & (e_id < INDPTR[receivers + 1])).all()
            assert np.unique(e_id).size == e_id.size == batch.num_edges[layer]
            counts = np.bincount(receivers, minlength=NODES)
            rows = n_id[: batch.num_nodes[layer + 1]]
            np.testing.assert_array_equal(counts[rows], np.minimum(np.diff(INDPTR)[rows], fanout))


def test_seeds_come_first_in_the_order_given_and_repeated_or_isolated_ones_stay():
    seeds = [7, NODES - 1, 3, 7, 0]  # pytorch_sparse#208, cugraph#4355, pyg#9924
    (batch,) = _loader(seeds, batch_size=5, shuffle=False)
    assert batch.n_id[:4].tolist() == [7, NODES - 1, 3, 0] and int(batch.num_nodes[-1]) == 4
    assert batch.seed_ids.tolist() == [0, 1, 2, 0, 3] and batch.y.tolist() == seeds
    assert batch.seed_mask.all()


def test_an_epoch_has_every_seed_once_and_the_last_batch_is_padded():
    batches = list(_loader(range(20)))
    assert [int(b.seed_mask.sum()) for b in batches] == [8, 8, 4]
    assert len({b.capacity for b in batches}) == 1
    y = np.concatenate([np.asarray(b.y)[b.seed_mask] for b in batches])
    assert sorted(y) == list(range(20)) and list(y) != sorted(y)
    assert not np.asarray(batches[-1].y)[4:].any()
    whole = list(_loader(range(20), drop_last=True))
    assert [int(b.seed_mask.sum()) for b in whole] == [8, 8]


def test_a_mask_or_none_are_the_same_seeds_as_their_ids():
    mask = np.zeros(NODES, bool)
    mask[[4, 9]] = True
    one = NeighborLoader(GRAPH, mask, (2,), 2).batch(0, 0)
    _assert_equal([one], [NeighborLoader(GRAPH, [4, 9], (2,), 2).batch(0, 0)])
    assert len(NeighborLoader(GRAPH, None, (2,), 10)) == NODES // 10


@pytest.mark.parametrize(
    "options", [{}, {"on": "device"}, {"on": "device", "method": "labor"}], ids=str
)
def test_a_graph_without_edges_gives_batches_without_edges(options):
    graph = CSRGraph.from_edges([], [], 4)
    (batch,) = NeighborLoader(
        graph, [2, 1], (3, -1), 2, features=X[:4, :1], shuffle=False, **options
    )
    assert batch.num_edges.tolist() == [0, 0] and batch.n_id[:2].tolist() == [2, 1]
    np.testing.assert_array_equal(batch.x[:2], X[[2, 1], :1])


def test_a_mapped_graph_is_the_same_as_one_in_memory(tmp_path):
    for name, array in (("indptr", INDPTR.astype(np.int64)), ("indices", INDICES)):
        np.save(tmp_path / name, array)
    files = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices"))
    _assert_equal(_loader(graph=CSRGraph(*files)).epoch(0), _loader().epoch(0))


@pytest.mark.parametrize("name", ["labels", "graph.weights"])
def test_a_mapped_file_of_labels_or_weights_that_has_shrunk_is_named(name, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(EDGES if name == "graph.weights" else NODES) * 0.5)
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    given = {"labels": array} if name == "labels" else {"graph": GRAPH.with_weights(array)}
    loader = _loader(**given)
    loader.batch(0, 0)
    os.truncate(tmp_path / "a.npy", 100)
    with pytest.raises(ValueError, match=rf"{name} must be in a file of .*a\.npy"):
        loader.batch(0, 1)


def test_direction_out_follows_edges_and_names_them_in_the_graph():
    weighted = GRAPH.with_weights(np.arange(EDGES, dtype=np.float32))
    receivers_of = np.repeat(np.arange(NODES), np.diff(INDPTR))
    batch = _loader(graph=weighted, direction="out", weights=weighted.weights).batch(0, 0)
    for layer in (0, 1):
        found, drawing, e_id = _edges(batch, layer)
        np.testing.assert_array_equal(INDICES[e_id], drawing)
        np.testing.assert_array_equal(receivers_of[e_id], found)
        np.testing.assert_array_equal(batch.blocks[layer].weights[: e_id.size], e_id)
        assert 0 not in e_id  # the edge of weight zero, cugraph#4607


# -- determinism -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (GRAPH.normalized("sym"), {"fanouts": (3, -1)}),
        (GRAPH.with_weights(rng.random(EDGES, np.float32)).normalized("sym"), {"replace": True}),
        (GRAPH, {"method": "labor", "batch_dependency": 3}),
        (GRAPH, {"direction": "out", "edge_ids": False}),
    ],
    ids=["scales", "weights", "labor", "out"],
)
def test_the_device_draws_the_batches_of_the_host(graph, options):
    options = {"graph": graph, "seeds": [7, 7, 49, *range(20)]} | options
    host, device = (_loader(on=on, **options) for on in ("host", "device"))
    for theirs, ours in zip(host.epoch(1), device.epoch(1), strict=True):
        assert ours.capacity == theirs.capacity
        plans = [[replace(b, plan=None) for b in batch.blocks] for batch in (ours, theirs)]
        ours, theirs = (replace(b, blocks=p) for b, p in zip((ours, theirs), plans, strict=True))
        _assert_equal([ours], [theirs])


def test_a_batch_that_does_not_fit_on_the_device_grows_the_capacity_to_what_it_needs():
    loader = _loader(capacity=Capacity((8, 12, 14), (12, 14)), on="device")
    with pytest.warns(UserWarning, match="compiles again"):
        batch = loader.batch(0, 0)
    assert batch.capacity == loader.capacity
    _assert_equal([batch.n_id], [_loader(capacity=loader.capacity).batch(0, 0).n_id])


def test_epochs_steps_and_seeds_give_different_batches():
    def ids(**options):
        return [b.n_id.tolist() for b in _loader(**options).epoch(0)]

    loader = _loader()
    epochs = [[b.y.tolist() for b in loader] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert ids(seed=0) == ids(seed=0) != ids(seed=1)
    assert ids(shuffle=False, seed=0) != ids(shuffle=False, seed=1)


def test_processes_share_the_seeds_and_agree_on_shapes():
    parts = [_loader(range(21), processes=(index, 2)) for index in (0, 1)]
    assert len(parts[0]) == len(parts[1]) == 2
    assert parts[0].capacity == parts[1].capacity
    y = [np.asarray(b.y)[b.seed_mask] for part in parts for b in part.epoch(0)]
    assert [len(part) for part in y] == [8, 5, 8, 0]
    assert sorted(np.concatenate(y)) == list(range(21))


# -- capacity --------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_grows_the_capacity_once_and_says_so():
    small = Capacity((8, 12, 14), (12, 14))
    loader = _loader(capacity=small)
    with pytest.warns(UserWarning, match=r"epoch 0 and step 0 .* more than .* compiles again"):
        first = loader.batch(0, 0)
    assert loader.capacity.holds(small) and first.capacity == loader.capacity != small
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest = list(loader)
    expected = _loader(capacity=loader.capacity)
    _assert_equal([first, *rest], [expected.batch(0, 0), *expected])


def test_the_measured_capacity_holds_all_batches_and_no_more_than_can_be():
    loader = _loader(fanouts=(-1, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {batch.capacity for batch in loader} == {loader.capacity}
    assert loader.capacity.nodes[0] == 8 and loader.capacity.nodes[-1] == NODES
    assert loader.capacity.edges[-1] <= EDGES


# -- bad input -------------------------------------------------------------------------------

BAD = [
    ({"fanouts": (3, 0)}, r"fanouts must be positive .* got 0"),
    ({"fanouts": (-2,)}, r"fanouts must be .* got -2"),
    ({"fanouts": ()}, "fanouts must be a number for each layer"),
    ({"seeds": [0, NODES]}, rf"seeds must be node ids .* got {NODES} at 1"),
    ({"seeds": [-1]}, "seeds must be node ids .* got -1 at 0"),
    ({"seeds": []}, "seeds must be at least one node"),
    ({"seeds": [0.5]}, "seeds must be a list of integers"),
    ({"batch_size": 0}, "batch_size must be an int of at least 1"),
    ({"features": X[1:]}, f"features must be of {NODES} rows.* got {NODES - 1} rows"),
    ({"features": [1.0]}, "features must be an array, a path"),
    ({"labels": Y[1:]}, rf"labels must be of shape \({NODES}, ...\)"),
    ({"labels": np.full(NODES, "a")}, "labels must be of numbers, or bool, got dtype <U1"),
    ({"features": X.astype(object)}, "features must be of numbers, or bool, got dtype object"),
    ({"seeds": None, "graph": CSRGraph.from_edges([], [], 0)}, "seeds must be at least one node"),
    ({"batch_dependency": 4}, "batch_dependency must be 1 for method='neighbour'"),
    ({"method": "layer"}, "method must be 'neighbour' or 'labor'"),
    ({"direction": "both"}, 'direction must be "in" or "out"'),
    ({"processes": (2, 2)}, "processes must be"),
    ({"num_threads": 0}, "num_threads must be"),
    ({"seed": -1}, "seed must be"),
    ({"weights": np.ones(3)}, rf"weights must be of shape \({EDGES},\)"),
    ({"weights": np.full(EDGES, -1.0)}, "weights must be finite and not negative.* got -1.0 at 0"),
    ({"weights": np.full(EDGES, np.nan)}, "weights must be .* got nan at 0"),
    ({"weights": np.zeros(EDGES)}, "weights must be .* got zeros alone for node"),
    ({"capacity": Capacity((8, 9, 9), (1, 1))}, "capacity must be .* at least that of one seed"),
    ({"capacity": Capacity((8, 90), (90,))}, "capacity must be numbers of nodes, edges and candid"),
    ({"on": "gpu"}, 'on must be "host" or "device"'),
    ({"on": "device", "weights": np.ones(EDGES)}, 'weights must be None with on="device"'),
    ({"on": "device", "fanouts": (65,)}, 'fanouts must be at most 64, or -1, with on="device"'),
    ({"graph": GRAPH.normalized("mean"), "weights": np.ones(EDGES)}, "weights must be None for a"),
    ({"graph": CSRGraph.from_edges([0], [0], 1, num_senders=2)}, "graph must be square"),
]


@pytest.mark.parametrize(("changed", "message"), BAD, ids=[next(iter(b[0])) for b in BAD])
def test_bad_input_is_named(changed, message):
    with pytest.raises(ValueError, match="sampling.NeighborLoader: " + message):
        _loader(**({"seeds": [1, 2]} | changed))


def test_the_counts_of_reads_are_those_of_the_batches():
    loader = _loader()
    counts = np.zeros(NODES, int)
    for batch in loader.epoch(0):
        n_id = np.asarray(batch.n_id)
        counts[n_id[n_id >= 0]] += 1
    np.testing.assert_array_equal(loader.read_counts(), counts)
