"""Processes that run one program have batches of one shape in each step, without messages."""

import warnings

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph, sampling
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import Capacity
from jaxgnn.sampling.capacity import measured
from jaxgnn.testing.numerics import assert_bit_equal

# 82 stars of one leaf each, but 600 leaves of the last one: two processes have its seed in step 40,
# which no batch of the capacity is from.
STARS, LAST = 82, 600
LEAVES = np.arange(STARS, 2 * STARS - 1 + LAST)
CENTRES = np.minimum(np.arange(len(LEAVES)), STARS - 1)
GRAPH = CSRGraph.from_edges(LEAVES, CENTRES, LEAVES[-1] + 1)
CLUSTERS = np.concatenate([np.arange(STARS), CENTRES])
HEAVY, OPTIONS = 40, {"shuffle": False, "num_threads": 1}


def _hetero(**options):
    graph = HeteroGraph({("a", "to", "a"): GRAPH})
    return sampling.HeteroNeighborLoader(graph, ("a", range(STARS)), (-1,), 1, **options)


LOADERS = {
    "neighbor": lambda **o: sampling.NeighborLoader(GRAPH, range(STARS), (-1,), 1, **o),
    "device": lambda **o: sampling.NeighborLoader(GRAPH, range(STARS), (-1,), 1, on="device", **o),
    "link": lambda **o: sampling.LinkNeighborLoader(
        GRAPH, (range(STARS), range(STARS)), (-1,), 1, negatives=0, **o
    ),
    "hetero": _hetero,
    "cluster": lambda **o: sampling.ClusterLoader(GRAPH, CLUSTERS, 1, **o),
    "shadow": lambda **o: sampling.ShadowLoader(GRAPH, range(STARS), (-1,), 1, **o),
}
each_loader = pytest.mark.parametrize("name", LOADERS)


def _parts(name, count=2, **options):
    return [LOADERS[name](processes=(i, count), **OPTIONS, **options) for i in range(count)]


def _shapes(batch):
    return tuple(map(np.shape, jax.tree.leaves(batch)))


@each_loader
def test_a_step_has_the_capacity_of_its_largest_part_in_all_processes(name):
    parts = _parts(name)
    usual = {_shapes(part.batch(0, step)) for part in parts for step in (0, 39)}
    assert len(usual) == 1
    for part in parts:  # the seed of the other process is as heavy for the first
        with pytest.warns(UserWarning, match=r"epoch 0 and step 40 has .* in one of 2 processes"):
            part.batch(0, HEAVY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        heavy = [part.batch(0, HEAVY) for part in parts]
        assert {_shapes(part.batch(0, step)) for part in parts for step in (0, 39)} == usual
    assert len(set(map(_shapes, heavy))) == 1 and _shapes(heavy[0]) not in usual
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumed = _parts(name)[1]
        resumed.batch(1, HEAVY)  # no batch before it changes a shape
        assert_bit_equal(resumed.batch(0, HEAVY), heavy[1])


@each_loader
def test_a_given_capacity_is_that_of_all_steps_and_a_batch_beyond_it_is_an_error(name):
    capacity = LOADERS[name](**OPTIONS).capacity
    first, second = _parts(name, capacity=capacity)
    assert _shapes(first.batch(0, HEAVY)) == _shapes(second.batch(0, 0))
    message = r"capacity must be enough for the batch of epoch 0 and step 40, .*6\d\d.* got .*128"
    with pytest.raises(ValueError, match=message):
        second.batch(0, HEAVY)


def test_capacities_are_measured_on_the_parts_of_all_processes():
    order = np.arange(STARS)
    order[[33, -1]] = order[[-1, 33]]  # the heavy one is in step 3 of the process 3
    made = [
        sampling.NeighborLoader(GRAPH, order, (-1,), 1, processes=(i, 10), **OPTIONS)
        for i in (0, 9)
    ]
    assert made[0].capacity == made[1].capacity
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _shapes(made[0].batch(0, 3)) == _shapes(made[1].batch(0, 3))


@pytest.mark.parametrize("seed", range(20))
def test_a_widened_capacity_holds_all_sizes_ascends_and_is_one_of_few(seed):
    rng = np.random.default_rng(seed)
    bound = Capacity(np.sort(rng.integers(1, 9000, 4)), rng.integers(1, 90000, 3))
    most = np.array(bound._numbers())

    def drawn(share):
        numbers = np.maximum((most * rng.uniform(0, share, most.size)).astype(int), 0)
        numbers[:4] = np.sort(np.minimum(numbers[:4], most[0]))
        return Capacity(numbers[:4], numbers[4:])

    base = measured([drawn(0.1)], bound)
    wide = {base.widened([drawn(1), drawn(0.5)], bound) for _ in range(50)}
    assert len(wide) < 45 and all(bound.holds(w) and w.holds(base) for w in wide)
    sizes = [drawn(1), drawn(1)]
    widened = base.widened(sizes, bound)
    assert all(map(widened.holds, sizes))


CAPACITIES = [(0, 5), (5,), (5, 6, 7), (True, 5), 5, "56", (5.0, 6), Capacity((1, 5), (6,))]


@pytest.mark.parametrize("capacity", CAPACITIES, ids=repr)
def test_a_bad_capacity_of_a_subgraph_loader_is_named(capacity):
    message = "sampling.ClusterLoader: capacity must be two integers of at least 1"
    with pytest.raises(ValueError, match=message):
        LOADERS["cluster"](capacity=capacity)


def test_a_given_capacity_of_subgraphs_is_their_shape_and_grows_in_one_process():
    loader = LOADERS["cluster"](capacity=[4, 7], **OPTIONS)
    assert loader.capacity == (4, 7) == (*loader.batch(0, 0).graph.shape[:1], 7)
    with pytest.warns(UserWarning, match="more than the 4 nodes and 7 edges of the capacity"):
        assert loader.batch(0, STARS - 1).n_id.shape == (loader.capacity[0],) != (4,)


PROCESSES = [(True, 2), (0.5, 2), "01", (0,), (0, 1, 2), (0, 0), (-1, 2), 3, {0: 1}, (0, 2.0)]


@pytest.mark.parametrize("processes", PROCESSES, ids=repr)
@each_loader
def test_bad_processes_are_named(name, processes):
    with pytest.raises(ValueError, match=r"processes must be two integers \(index, count\)"):
        LOADERS[name](processes=processes)


def test_drop_last_of_a_shadow_loader_leaves_out_the_last_step():
    def made(**options):
        return sampling.ShadowLoader(GRAPH, range(11), (1,), 3, drop_last=True, **options)

    assert len(made()) == 3 and len(made(processes=(1, 2))) == 1
    assert all(batch.seed_mask.all() for batch in made(processes=(1, 2)))
    with pytest.raises(ValueError, match="batch_size must be at most the number of seeds, 11,"):
        made(processes=(1, 7))
