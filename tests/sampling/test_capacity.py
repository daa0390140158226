"""Blocks of a batch chain, for any graph, seeds and options of a loader.

The rows of a block are the first of its columns, and the columns of the next block. A network of
layers ends with an error otherwise.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgnn import CSRGraph
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import (
    Capacity,
    HeteroCapacity,
    HeteroNeighborLoader,
    LinkNeighborLoader,
    NeighborLoader,
)
from jaxgnn.sampling.capacity import measured, rounded

HOPS = st.lists(st.sampled_from([1, 2, 7, -1]), min_size=1, max_size=3)
# More nodes than the least number of slots, so that loaders differ in what bounds them.
NUM_NODES = st.sampled_from([2, 60, 700])
SEED = st.integers(0, 2**32 - 1)
any_options = settings(max_examples=30, deadline=None)


def _ring(num_nodes):
    node = np.arange(num_nodes)
    ends = np.concatenate([[node, np.roll(node, -1)], [np.roll(node, -1), node]], axis=1)
    return CSRGraph.from_edges(*ends, num_nodes)


def _random_graph(rng, num_nodes, num_senders=None):
    """A graph with hubs, repeated edges and isolated nodes; sometimes none of its nodes has any."""
    count = int(rng.choice([0, num_nodes, 4 * num_nodes]))
    senders = (num_senders or num_nodes) * rng.random(count) ** rng.choice([1, 3])
    receivers = rng.integers(0, num_nodes, count)
    return CSRGraph.from_edges(senders.astype(int), receivers, num_nodes, num_senders=num_senders)


def _seeds(rng, num_nodes):
    """Few or many nodes, repeated or not, and sometimes more than there are nodes."""
    return rng.integers(0, rng.integers(1, num_nodes + 1), rng.choice([1, 5, num_nodes, 900]))


def _assert_chain(batch):
    for block, following in itertools.pairwise(batch.blocks):
        assert block.num_rows == following.num_cols
    nodes = np.asarray(batch.num_nodes)
    assert batch.blocks[0].num_cols == batch.n_id.shape[0] >= nodes[0]
    for block, count in zip(batch.blocks, nodes[1:], strict=True):
        assert count <= block.num_rows <= block.num_cols
    h = batch.x
    for block in batch.blocks:
        h = np.asarray(block.to_scipy() @ h) + h[: block.num_rows]
    assert np.asarray(batch.seed_ids).max() < h.shape[0]


def _features(num_nodes):
    return np.ones((num_nodes, 1), np.float32)


@any_options
@given(seed=SEED, num_nodes=NUM_NODES, fanouts=HOPS, data=st.data())
def test_blocks_chain(seed, num_nodes, fanouts, data):
    rng = np.random.default_rng(seed)
    graph, seeds = _random_graph(rng, num_nodes), _seeds(rng, num_nodes)
    options = data.draw(st.sampled_from([{}, {"method": "labor"}, {"replace": True}]))
    if data.draw(st.booleans()) and not options.get("method"):
        times = np.sort(rng.integers(0, 9, graph.num_edges))
        options |= {"edge_times": times, "seed_times": rng.integers(0, 9, len(seeds))}
    size = data.draw(st.sampled_from([1, 30, 500]))
    options |= {"features": _features(num_nodes), "num_threads": 1, "seed": seed}
    loader = NeighborLoader(graph, seeds, fanouts, size, **options)
    _assert_chain(loader.batch(0, len(loader) - 1))


@any_options
@given(seed=SEED, num_nodes=NUM_NODES, fanouts=HOPS, data=st.data())
def test_blocks_of_pairs_chain(seed, num_nodes, fanouts, data):
    rng = np.random.default_rng(seed)
    graph, pairs = _random_graph(rng, num_nodes), np.stack([_seeds(rng, num_nodes)] * 2)
    rng.shuffle(pairs[1])
    options = {name: data.draw(st.booleans()) for name in ("keep_senders", "undirected")}
    options["negatives"] = data.draw(st.sampled_from([0, 5] if num_nodes > 2 else [0]))
    size = data.draw(st.sampled_from([1, 30, 256]))
    options |= {"features": _features(num_nodes), "num_threads": 1, "seed": seed}
    loader = LinkNeighborLoader(graph, pairs, fanouts, size, **options)
    _assert_chain(loader.batch(0, len(loader) - 1))


@any_options
@given(seed=SEED, counts=st.tuples(NUM_NODES, NUM_NODES), hops=st.integers(1, 3), data=st.data())
def test_blocks_of_several_types_chain(seed, counts, hops, data):
    rng = np.random.default_rng(seed)
    sizes = dict(zip("ab", counts, strict=True))
    graph = HeteroGraph(
        {(s, "to", r): _random_graph(rng, sizes[r], sizes[s]) for s, r in ("ab", "ba", "aa")}
    )
    fanout = st.lists(st.sampled_from([0, 1, 7, -1]), min_size=hops, max_size=hops)
    seeds, x = _seeds(rng, sizes["a"]), {t: _features(count) for t, count in sizes.items()}
    size = data.draw(st.sampled_from([1, 30, 500]))
    fanouts = {edge_type: data.draw(fanout) for edge_type in graph.edge_types}
    loader = HeteroNeighborLoader(graph, ("a", seeds), fanouts, size, x, num_threads=1)
    batch = loader.batch(0, len(loader) - 1)
    rows = [block.num_nodes for block in batch.blocks]
    for t, ids in batch.n_id.items():
        slots = [ids.shape[0], *(of_types[t] for of_types in rows[1:])]
        assert rows[0][t] <= slots[0] and slots == sorted(slots, reverse=True)
        assert (np.asarray(batch.num_nodes[t])[:-1] <= slots).all()
    assert int(batch.seed_ids.max()) < rows[-1]["a"]


@pytest.mark.parametrize("on", ["host", "device"])
def test_repeated_seeds_have_as_many_rows_as_slots(on):
    x = _features(1000)
    seeds = np.repeat(np.arange(10), 100)
    batch = NeighborLoader(_ring(1000), seeds, (1, 1), 500, x, on=on).batch(0, 0)
    assert [block.shape for block in batch.blocks] == [(500, 500), (500, 500)]
    _assert_chain(batch)


def test_slots_of_ends_are_measured():
    graph, node = _ring(2000), np.arange(2000)
    pairs = node, (node + 1) % 2000
    options = {"features": _features(2000), "negatives": 5}
    # All nodes, if the ends of a batch were different ones.
    loader = LinkNeighborLoader(graph, pairs, (2, 2), 200, **options)
    assert loader.capacity.nodes[0] < 0.9 * 2000
    _assert_chain(loader.batch(0, 0))
    kept = LinkNeighborLoader(graph, pairs, (2, 2), 50, keep_senders=True, **options)
    assert kept.capacity.nodes[0] <= 50 * (2 + 5)


@pytest.mark.parametrize("on", ["host", "device"])
def test_slots_of_ends_grow(on):
    graph, node = _ring(600), np.arange(600)
    pairs, few = (node, (node + 1) % 600), Capacity((128, 256), (256,))
    loader = LinkNeighborLoader(
        graph, pairs, (1,), 100, _features(600), negatives=0, capacity=few, on=on
    )
    with pytest.warns(UserWarning, match="more than Capacity"):
        batch = loader.batch(0, 0)
    assert batch.capacity == loader.capacity and loader.capacity.holds(few)
    assert loader.capacity.nodes[0] <= 200
    _assert_chain(batch)


def test_no_number_of_nodes_is_below_the_one_before():
    bound = Capacity((500, 700, 900), (900, 900))
    sizes = [Capacity((10, 20, 40), (10, 20))]
    assert measured(sizes, bound).nodes == (500, 500, 500)
    assert rounded(sizes, bound).nodes == (128, 128, 128)
    typed = [HeteroCapacity({"a": (10, 20), "b": (0, 40)}, {("a", "to", "b"): (10,)})]
    most = HeteroCapacity({"a": (500, 700), "b": (0, 900)}, {("a", "to", "b"): (900,)})
    assert HeteroCapacity.measured(typed, most).nodes == {"a": (500, 500), "b": (0, 128)}
