"""The contract of loaders: what all of them promise, that of a user among them."""

import pickle
import threading
import warnings

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph, sampling
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import Capacity, HeteroCapacity
from jaxgnn.testing.numerics import assert_bit_equal

NODES, EDGES = 90, 700
RNG = np.random.default_rng(0)
# Some nodes have many neighbours, so that batches differ in size.
RECEIVERS = np.sort(RNG.integers(0, NODES, EDGES) ** 2 // NODES)
SENDERS = RNG.integers(0, NODES, EDGES)
GRAPH = CSRGraph.from_edges(SENDERS, RECEIVERS, NODES)
TIMES = np.arange(EDGES)  # They ascend within each row.
TYPED = HeteroGraph({("a", "to", "b"): GRAPH, ("b", "back", "a"): GRAPH})
X = RNG.normal(size=(NODES, 3)).astype(np.float32)
SEED_TIMES = RNG.integers(200, EDGES, 50)


class OwnLoader(sampling.Loader):
    """Runs of numbers of random lengths, as a user writes a loader."""

    def __init__(self, num_seeds, batch_size, *, seed=0, **options):
        self.seed = seed
        super().__init__(num_seeds, batch_size, seed=seed, **options)

    def draw(self, step):
        counters = (self.seed, step.epoch, step.step, step.process)
        rng = np.random.default_rng(counters)
        walks = [np.arange(i, i + rng.integers(1, 90)) for i in step.items]
        return np.concatenate([step.items[:0], *walks])

    def sizes(self, sample):
        return Capacity(nodes=(len(sample),), edges=())

    def fields(self, sample, capacity):
        return {"n_id": np.append(sample, np.full(capacity.nodes[0] - len(sample), -1))}


def neighbours(**options):
    return sampling.NeighborLoader(GRAPH, range(50), (4, 3), 9, X, **options)


def temporal(**options):
    times = {"edge_times": TIMES, "seed_times": SEED_TIMES}
    return sampling.NeighborLoader(GRAPH, range(50), (4, 3), 9, X, **times, **options)


def typed(**options):
    return sampling.HeteroNeighborLoader(TYPED, ("a", range(50)), (3, 2), 9, {"b": X}, **options)


def typed_temporal(**options):
    times = {"edge_times": {e: TIMES for e in TYPED}, "seed_times": SEED_TIMES}
    return typed(**times, **options)


def saint(method, size):
    options = {"num_steps": 6, "norm_samples": 5, "features": X}
    return lambda **more: sampling.SaintLoader(GRAPH, method, size=size, **options, **more)


LOADERS = {
    "neighbour": neighbours,
    "labor": lambda **o: neighbours(method="labor", batch_dependency=3, **o),
    "device": lambda **o: neighbours(on="device", **o),
    "temporal": temporal,
    "last": lambda **o: temporal(temporal="last", **o),
    "link": lambda **o: sampling.LinkNeighborLoader(
        GRAPH, (SENDERS[:60], RECEIVERS[:60]), (4, 3), 9, X, **o
    ),
    "hetero": typed,
    "hetero temporal": typed_temporal,
    "cluster": lambda **o: sampling.ClusterLoader(GRAPH, np.arange(NODES) // 5, 2, features=X, **o),
    "saint node": saint("node", 20),
    "saint edge": saint("edge", 20),
    "saint walk": saint("walk", 20),
    "shadow": lambda **o: sampling.ShadowLoader(GRAPH, range(50), (3, 2), 9, features=X, **o),
    "own": lambda **o: OwnLoader(50, 9, **o),
}
each_loader = pytest.mark.parametrize("name", LOADERS)


def _made(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return LOADERS[name](**{"seed": 5, "num_threads": 1} | options)


def _shapes(batch):
    return tuple(map(np.shape, jax.tree.leaves(batch)))


def _differ(batch, other):
    pairs = zip(jax.tree.leaves(batch), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


def _sizes(loader, epoch, step):
    return loader.sizes(loader.draw(loader._step(epoch, step, loader._process)))


@each_loader
def test_a_batch_is_a_function_of_seed_epoch_and_step_whatever_the_threads(name):
    loader, other = _made(name, num_threads=3), _made(name)
    steps = len(loader)
    in_order = [*loader, *loader]  # two epochs
    backwards = [other.batch(*divmod(i, steps)) for i in reversed(range(2 * steps))]
    assert_bit_equal(in_order, backwards[::-1])
    assert len({_shapes(batch) for batch in in_order}) == 1
    assert _differ(in_order[0], in_order[1]) and _differ(in_order[0], in_order[steps])
    other_seed = _made(name, seed=6, capacity=loader.capacity)
    assert _differ(other_seed.batch(0, 0), in_order[0])


@each_loader
def test_a_resumed_training_has_the_batches_of_an_undisturbed_one(name):
    loader = _made(name, num_threads=2)
    steps = len(loader)
    expected = [loader.batch(*divmod(i, steps)) for i in range(steps + 2)]
    resumed = _made(name).steps(start=steps)
    assert_bit_equal([resumed(steps), resumed(steps + 1)], expected[steps - 1 : steps + 1])
    # Other steps than the next one.
    assert_bit_equal([resumed(2), resumed(3), resumed(1)], [expected[i] for i in (1, 2, 0)])
    resumed.close()
    assert_bit_equal(list(loader.epoch(0, start=steps - 2)), expected[steps - 2 : steps])


@each_loader
def test_processes_visit_all_items_once_in_one_shape(name):
    alone, parts = _made(name), [_made(name, processes=(i, 2)) for i in range(2)]
    assert len({len(part) for part in parts}) == 1 and len(parts[0]) <= len(alone)
    assert parts[0].capacity == parts[1].capacity
    steps = range(len(parts[0]))
    items = [part._step(0, step, part._process).items for part in parts for step in steps]
    visited = np.sort(np.concatenate(items))
    np.testing.assert_array_equal(visited, np.arange(parts[0]._num_items))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A step may have a larger capacity, in both.
        for step in steps:
            assert _shapes(parts[0].batch(0, step)) == _shapes(parts[1].batch(0, step))


def _given(sizes):
    """The capacity argument of a loader whose batch of these sizes has no slot left."""
    if isinstance(sizes, HeteroCapacity):
        return sizes.with_rows(9)
    if len(sizes.nodes) == 2 and sizes.nodes[0] == 1:  # a subgraph
        return sizes.nodes[-1], sizes.edges[-1]
    return sizes if len(sizes.nodes) == 1 else sizes.with_seeds(max(sizes.nodes[0], 9))


@each_loader
def test_a_capacity_grows_for_a_batch_that_does_not_fit_and_nothing_is_cut_off(name):
    loader = _made(name)
    places = [(epoch, step) for epoch in range(4) for step in range(len(loader))]
    sizes = {place: _sizes(loader, *place) for place in places}
    pairs = [(a, b) for a in places for b in places if not sizes[a].holds(sizes[b])]
    small, large = pairs[0]
    tight = _made(name, capacity=_given(sizes[small]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tight.batch(*small)
    before = tight.capacity
    with pytest.warns(UserWarning, match=r"from now on it is .* jitted step compiles again"):
        grown = tight.batch(*large)
    assert tight.capacity != before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _shapes(tight.batch(*small)) == _shapes(grown)
        assert_bit_equal(grown, _made(name, capacity=tight.capacity).batch(*large))


def _threads():
    return {t for t in threading.enumerate() if t.name.startswith("jaxgnn-loader")}


@each_loader
def test_threads_end_when_batches_are_closed_or_dropped(name):
    loader, before = _made(name, num_threads=2), _threads()
    for end in (lambda batches: batches.close(), lambda batches: None):
        batches = loader.epoch(0)
        next(batches)
        started = _threads() - before
        assert started
        end(batches)
        del batches
        for thread in started:
            thread.join(5)
        assert not _threads() & started
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError
    for thread in _threads() - before:
        thread.join(5)
    assert not _threads() - before


@each_loader
def test_a_loader_names_wrong_options_and_is_not_copied(name):
    bad = {
        "seed": (-1, "seed must be an integer from 0"),
        "num_threads": (0, "num_threads must be an int of at least 1, got 0"),
        "capacity": ((3,), "capacity must be .*, got"),
        "processes": ((2, 2), r"processes must be two integers \(index, count\)"),
    }
    for option, (value, message) in bad.items():
        with pytest.raises(ValueError, match=message):
            _made(name, **{option: value})
    loader = _made(name)
    kind = type(loader).__name__
    with pytest.raises(ValueError, match=rf"sampling.{kind}: step must be in \[0, {len(loader)}\)"):
        loader.batch(0, len(loader))
    with pytest.raises(ValueError, match="epoch must be an integer from 0"):
        loader.batch(-1, 0)
    with pytest.raises(ValueError, match="step must be at least 1"):
        loader.steps(0)
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        loader.steps()(0)
    with pytest.raises(TypeError, match=f"sampling.{kind}: a loader can not be copied or pickled"):
        pickle.dumps(loader)
    assert repr(loader).startswith(f"{kind}(")


def test_a_loader_without_a_policy_is_refused():
    with pytest.raises(TypeError, match="abstract class"):
        sampling.Loader(3, 1)
    message = r"sampling\.OwnLoader: num_items must be an int of at least 1, got 0"
    with pytest.raises(ValueError, match=message):
        OwnLoader(0, 1)
