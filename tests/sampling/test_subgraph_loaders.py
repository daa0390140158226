"""Loaders of subgraphs: batches are functions of epoch and step, of one shape, never cut off."""

import itertools
import warnings

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, sampling, training
from jaxgnn.testing.cases import GRAPHS
from jaxgnn.testing.numerics import assert_bit_equal
from tests.sampling._whole_graphs import NODES, assert_induced, random_graph

X = np.random.default_rng(1).normal(size=(NODES, 3)).astype(np.float32)
Y = np.arange(NODES) % 4
TRAIN = np.arange(0, NODES, 3)

LOADERS = {
    "cluster": lambda graph, **options: sampling.ClusterLoader(graph, 6, 2, **options),
    "node": lambda graph, **options: sampling.SaintLoader(graph, "node", size=20, **options),
    "edge": lambda graph, **options: sampling.SaintLoader(graph, "edge", size=12, **options),
    "walk": lambda graph, **options: sampling.SaintLoader(graph, "walk", size=9, **options),
    "shadow": lambda graph, **options: sampling.ShadowLoader(graph, None, (3, 2), 9, **options),
}
each_loader = pytest.mark.parametrize("name", LOADERS)


def _made(name, graph=None, **options):
    options = {"features": X, "labels": Y, "num_threads": 2} | options
    return LOADERS[name](random_graph(weighted=True) if graph is None else graph, **options)


@each_loader
def test_processes_have_parts_of_each_step_in_one_shape(name):
    parts = [_made(name, processes=(index, 2)) for index in (0, 1)]
    assert len(parts[0]) == len(parts[1]) and parts[0].capacity == parts[1].capacity
    batches = [batch for part in parts for batch in part.epoch(0)]
    if name in ("node", "edge", "walk"):
        alone = _made(name)
        for index, part in enumerate(parts):
            assert_bit_equal(part.batch(0, 0).graph, alone.batch(0, index).graph)
        return
    if name == "shadow":
        drawn = [np.asarray(b.n_id)[np.asarray(b.root)[np.asarray(b.seed_mask)]] for b in batches]
    else:
        drawn = [np.asarray(b.n_id)[np.asarray(b.node_mask)] for b in batches]
        losses = [np.asarray(b.node_weight).sum() for b in batches]
        assert np.isclose(np.mean(losses), 1)  # the mean over batches is that over nodes
    assert sorted(np.concatenate(drawn)) == list(range(NODES))
    assert not len(drawn[-1])  # the last step has no part for the second process


@each_loader
def test_batches_have_all_edges_between_their_nodes_and_what_belongs_to_the_nodes(name):
    whole = random_graph(weighted=True, padding=20)
    loader = _made(name, whole) if name == "shadow" else _made(name, whole, train=TRAIN)
    for batch in (loader.batch(0, 0), loader.batch(0, len(loader) - 1)):
        mask, n_id = np.asarray(batch.node_mask), np.asarray(batch.n_id)
        if name in ("cluster", "shadow"):  # the others have weights of their own
            assert_induced(batch, whole)
        else:
            assert_induced(_without_weights(batch), whole.without_weights())
        np.testing.assert_array_equal(batch.x, np.where(mask[:, None], X[n_id], 0))
        if name == "shadow":
            continue
        np.testing.assert_array_equal(batch.y, np.where(mask, Y[n_id], 0))
        np.testing.assert_array_equal(batch.train_mask, mask & np.isin(n_id, TRAIN))
        assert (np.asarray(batch.node_weight)[~np.asarray(batch.train_mask)] == 0).all()


def _without_weights(batch):
    fields = {**vars(batch), "graph": CSRGraph(batch.graph.indptr, batch.graph.indices)}
    return sampling.SubgraphBatch(**fields)


@pytest.mark.costly(2)
@each_loader
def test_a_function_of_batches_compiles_once_and_padding_is_never_read(name):
    compiled = []

    @jax.jit
    def step(batch, layer):
        compiled.append(1)
        return jax.value_and_grad(lambda x: (layer(batch.graph, x)[:5] ** 2).sum())(batch.x)

    layer = nn.SAGEConv(3, 2, rngs=nnx.Rngs(0))
    loader = _made(name)
    for batch in itertools.islice(loader, 3):
        value, gradient = step(batch, layer)
        spoiled = np.where(np.asarray(batch.node_mask)[:, None], batch.x, np.nan)
        spoiled_value, spoiled_gradient = step(
            sampling.SubgraphBatch(**{**vars(batch), "x": jax.device_put(spoiled)}), layer
        )
        real = int(batch.node_mask.sum())
        np.testing.assert_array_equal(spoiled_value, value)
        np.testing.assert_array_equal(spoiled_gradient[:real], gradient[:real])
    assert len(compiled) == 1


def test_a_batch_that_does_not_fit_grows_the_capacity_once_with_a_warning():
    # One cluster of 600 nodes among clusters of two; the eight measured batches miss it.
    clusters = np.concatenate([np.repeat(np.arange(40), 2), np.full(600, 40)])
    ring = CSRGraph.from_edges(np.arange(680), np.roll(np.arange(680), -1), 680)
    loader = sampling.ClusterLoader(ring, clusters, 1, shuffle=False)
    small = loader.batch(0, 0)
    assert small.n_id.shape == (128,) and loader.capacity == (128, 128)
    with pytest.warns(UserWarning, match=r"step 40 has 600 nodes and 599 edges, more than the 128"):
        large = loader.batch(0, 40)
    assert_induced(large, ring)
    assert loader.capacity == (680, 680)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loader.batch(0, 0).n_id.shape == loader.batch(0, 40).n_id.shape == (680,)


@pytest.mark.parametrize("kind", ["memmap", "store", "device"])
def test_features_come_from_files_and_stores(kind, tmp_path):
    class Store:
        num_rows, shape, dtype = NODES, X.shape, X.dtype

        def gather(self, ids, out=None):
            return np.where(ids[:, None] < 0, 0, X[ids])

    np.save(tmp_path / "x.npy", X)
    given = {
        "memmap": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "store": Store(),
        "device": jax.device_put(X),
    }[kind]
    assert_bit_equal(_made("walk", features=given).batch(0, 0), _made("walk").batch(0, 0))


def test_a_mapped_graph_gives_the_same_batches_and_names_a_file_that_shrinks(tmp_path):
    whole, path = random_graph(), tmp_path / "indices"
    np.asarray(whole.indices).tofile(path)
    indices = np.memmap(path, np.int32, mode="r")
    mapped = CSRGraph(np.asarray(whole.indptr), indices, in_range=True)
    loader = _made("walk", mapped)
    assert_bit_equal(loader.batch(0, 0), _made("walk", whole).batch(0, 0))
    infer = lambda: sampling.infer_layerwise(  # noqa: E731
        [lambda block, x: x[0]], mapped, X, progress=False
    )
    np.testing.assert_array_equal(infer(), X)
    path.write_bytes(path.read_bytes()[:100])
    for call in (lambda: loader.batch(0, 1), infer):
        with pytest.raises(ValueError, match=r"graph.indices must be in a file of at least 1200"):
            call()


@pytest.mark.costly(4)
@pytest.mark.parametrize("case", [c for c in GRAPHS if c.build().is_square], ids=lambda c: c.name)
def test_loaders_take_degenerate_graphs(case):
    whole = case.build()
    batches = [sampling.SaintLoader(whole, size=3, norm_samples=3).batch(0, 0)]
    if not whole.is_normalized:
        batches.append(sampling.ClusterLoader(whole, 1).batch(0, 0))
        batches.append(sampling.ShadowLoader(whole, [0, 0], (2, -1), 2).batch(0, 0))
        assert_induced(batches[1], whole)
        assert_induced(batches[2], whole)
        assert int(batches[1].node_mask.sum()) == whole.num_rows
    assert all(int(batch.node_mask.sum()) >= 1 for batch in batches)


def test_fit_takes_a_loader():
    def loss_fn(model, batch, rngs):
        losses = optax.softmax_cross_entropy_with_integer_labels(
            model(batch.graph, batch.x), batch.y
        )
        return (batch.node_weight * losses).sum(), {}

    model = nn.SAGEConv(3, 4, rngs=nnx.Rngs(0))
    config = training.LoopConfig(steps=4)
    result = training.fit(
        model, optax.sgd(0.1), loss_fn, _made("walk"), config=config, progress=False
    )
    assert len(result.history) == 4


BAD = {
    "features: 59 rows": ({"features": X[1:]}, "features must be of 60 rows"),
    "labels: 61": ({"labels": np.zeros(61)}, "labels must be of shape"),
    "seed: negative": ({"seed": -1}, "seed must be an integer from 0"),
    "threads: 0": ({"num_threads": 0}, "num_threads must be an int of at least 1, got 0"),
}
BAD_GRAPHS = {
    "not square": (lambda: CSRGraph.from_edges([0], [0], 2, num_senders=3), "graph must be square"),
    "no nodes": (lambda: CSRGraph.from_edges([], [], 0), "graph must be of at least one node"),
    "no graph": (lambda: np.eye(3), "graph must be a jaxgnn.graph.CSRGraph"),
    "NaN": (lambda: _with_nan(), r"graph.weights\[2\] must be finite, got nan"),
}


def _with_nan():
    whole = random_graph(weighted=True)
    weights = np.array(whole.weights)
    weights[2] = np.nan
    return CSRGraph(whole.indptr, whole.indices, weights)


@each_loader
def test_errors_name_what_is_wrong(name):
    for options, message in BAD.values():
        with pytest.raises(ValueError, match=message):
            _made(name, **options)
    for make, message in BAD_GRAPHS.values():
        with pytest.raises(ValueError, match=message):
            _made(name, make(), features=None, labels=None)
    with pytest.raises(ValueError, match="step must be in"):
        _made(name).batch(0, 1000)
    with pytest.raises(ValueError, match="step must be at least 1"):
        _made(name).steps(0)
    if name != "shadow":
        with pytest.raises(ValueError, match=r"train\[1\] must be in \[0, 60\), got 60"):
            _made(name, train=[1, 60])
        with pytest.raises(ValueError, match="train must be at least one node"):
            _made(name, train=[])
