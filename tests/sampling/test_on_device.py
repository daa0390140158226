"""Sampling under jit equals the NumPy reference bit for bit, and compiles once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.sampling import device, device_rows, random, reference
from jaxgnn.sampling.device import sample_on_device

NODES, SLOTS = 200, 8000
SEED = 2**40 + 3


def _graph(degrees):
    """Offsets and senders; all graphs have as many slots for senders, so they share programs."""
    rng = np.random.default_rng(1)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    return indptr, rng.integers(0, NODES, SLOTS, dtype=np.int32)


def _degrees():
    rng = np.random.default_rng(0)
    skewed = np.minimum(rng.pareto(1.0, NODES) * 4, 120).astype(np.int64)
    skewed[rng.random(NODES) < 0.2] = 0
    one_row = np.zeros(NODES, np.int64)
    one_row[3] = 150
    return {"skewed": skewed, "no edges": 0 * skewed, "one row": one_row}


GRAPHS = {name: _graph(degrees) for name, degrees in _degrees().items()}
# Repeated seeds, and the node of most edges; some are isolated.
SEEDS = np.array([3, 17, 3, 199, 0, 42, 42, 8, 9, 10, 11, 12], np.int64)
CASES = {
    "uniform, then all neighbours": ((3, -1), {}),
    "a word of 32 slots and more": ((34,), {}),
    "with replacement": ((3,), {"replace": True}),
    "labor": ((3,), {"method": "labor"}),
    "labor, moving": ((3,), {"method": "labor", "batch_dependency": 3}),
    "marks": ((3,), {"relabelling": "marks"}),
}


def _capacity(fanouts):
    return {
        "nodes": (len(SEEDS), *(NODES for _ in fanouts)),
        "edges": tuple(2500 for _ in fanouts),
        "candidates": tuple(4000 for _ in fanouts),
    }


def _on_the_device(graph, seeds, fanouts, **options):
    arrays = map(jnp.asarray, (*graph, np.asarray(seeds, np.int32)))
    return sample_on_device(*arrays, fanouts, **{"seed": SEED, "epoch": 2} | options)


def _reference_of(graph, seeds, fanouts, *, step, **options):
    options.pop("relabelling", None)
    return reference.sample_hops(*graph, seeds, fanouts, seed=SEED, epoch=2, step=step, **options)


def _assert_same(sample, expected):
    num_nodes = len(expected.n_id)
    assert not sample.overflow
    np.testing.assert_array_equal(sample.num_nodes, expected.num_nodes)
    np.testing.assert_array_equal(sample.n_id[:num_nodes], expected.n_id)
    assert (sample.n_id[num_nodes:] == -1).all()
    np.testing.assert_array_equal(sample.seed_ids[: len(expected.seed_ids)], expected.seed_ids)
    for h, hop in enumerate(expected.hops):
        num_rows, num_edges = len(hop.indptr), len(hop.e_id)
        assert sample.num_edges[h] == num_edges
        np.testing.assert_array_equal(sample.indptr[h][:num_rows], hop.indptr)
        assert (sample.indptr[h][num_rows:] == num_edges).all()
        for name, padding in (("senders", 0), ("e_id", -1)):
            made = getattr(sample, name)[h]
            np.testing.assert_array_equal(made[:num_edges], getattr(hop, name))
            assert (made[num_edges:] == padding).all()


def test_random_words_and_numbers_below_bounds_equal_the_reference():
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, 2**31, 500, dtype=np.int32)
    slots = rng.integers(0, 2**20, 500, dtype=np.int32)
    bounds = np.concatenate([rng.integers(0, 2**31, 400), np.arange(100)]).astype(np.int32)
    expected_key = random.hop_key(random.batch_key(SEED, 5, 9), 1, 2)
    expected = random.draw(expected_key, nodes, slots)

    @jax.jit
    def drawn(nodes, slots, bounds):
        seed = np.uint32(SEED & 0xFFFFFFFF), np.uint32(SEED >> 32)
        key = device_rows.hop_key(seed, jnp.uint32(5), jnp.uint32(9), 1, 2)
        words = device_rows.draw(key, nodes, slots)
        return words, device_rows.below(words, bounds)

    (high, low), numbers = jax.tree.map(np.asarray, drawn(nodes, slots, bounds))
    np.testing.assert_array_equal(high, (expected >> np.uint64(32)).astype(np.uint32))
    np.testing.assert_array_equal(low, expected.astype(np.uint32))
    np.testing.assert_array_equal(numbers, random.below(expected, bounds))


@pytest.mark.costly
@pytest.mark.parametrize("case", [case for case in CASES if case != "marks"])
def test_without_some_edges_batches_equal_the_reference_and_compile_once(case):
    fanouts, options = CASES[case]
    before = device._sample_hops._cache_size()
    for step, name in enumerate(GRAPHS, start=4):
        count = int(GRAPHS[name][0][-1])
        chosen = np.flatnonzero(np.random.default_rng(step).random(count) < 0.3)
        expected = _reference_of(
            GRAPHS[name], SEEDS, fanouts, step=step, excluded=chosen, **options
        )
        excluded = np.full(1000, np.iinfo(np.int32).max, np.int32)
        excluded[: len(chosen)] = chosen
        made = _on_the_device(
            GRAPHS[name],
            SEEDS,
            fanouts,
            step=step,
            excluded=jnp.asarray(excluded),
            **options,
            **_capacity(fanouts),
        )
        _assert_same(made, expected)
    assert device._sample_hops._cache_size() <= before + 1


@pytest.mark.costly
@pytest.mark.parametrize("case", CASES)
def test_batches_equal_the_reference_and_compile_once(case):
    fanouts, options = CASES[case]
    before = device._sample_hops._cache_size()
    for step, name in enumerate(GRAPHS, start=4):
        expected = _reference_of(GRAPHS[name], SEEDS, fanouts, step=step, **options)
        made = _on_the_device(
            GRAPHS[name], SEEDS, fanouts, step=step, **options, **_capacity(fanouts)
        )
        _assert_same(made, expected)
    assert device._sample_hops._cache_size() <= before + 1


def test_padding_of_seeds_draws_nothing():
    seeds = np.array([42, 8, 42, 17])
    padded = np.full(len(SEEDS), -1)
    padded[: len(seeds)] = seeds
    made = _on_the_device(GRAPHS["skewed"], padded, (3, -1), step=1, **_capacity((3, -1)))
    _assert_same(made, _reference_of(GRAPHS["skewed"], seeds, (3, -1), step=1))
    assert made.seed_mask.tolist() == [i < len(seeds) for i in range(len(SEEDS))]
    assert not made.seed_ids[len(seeds) :].any()
    nothing = _on_the_device(
        GRAPHS["skewed"], np.full(len(SEEDS), -1), (3, -1), step=1, **_capacity((3, -1))
    )
    assert not nothing.num_nodes.any() and not nothing.num_edges.any() and not nothing.overflow


@pytest.mark.parametrize("case", ["with replacement", "marks"])
def test_several_batches_at_a_time_equal_single_ones_in_a_jitted_step(case):
    fanouts, options = CASES[case]
    graph = GRAPHS["skewed"]
    seeds, steps = np.stack([SEEDS, SEEDS[::-1], SEEDS + 1 - SEEDS % 2]), np.array([4, 5, 6])

    def sample(seeds, step):
        return _on_the_device(graph, seeds, fanouts, step=step, **options, **_capacity(fanouts))

    arrays = map(jnp.asarray, (*graph, seeds.astype(np.int32), steps))

    @jax.jit
    def together(indptr, indices, seeds, steps):
        return jax.vmap(
            lambda seeds, step: sample_on_device(
                indptr,
                indices,
                seeds,
                fanouts,
                seed=SEED,
                epoch=2,
                step=step,
                **options,
                **_capacity(fanouts),
            )
        )(seeds, steps)

    made = together(*arrays)
    for i, step in enumerate(steps):
        expected = _reference_of(graph, seeds[i], fanouts, step=int(step), **options)
        _assert_same(jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), made), expected)


@pytest.mark.parametrize("bound", [50, 2**31], ids=["in one sort", "each by itself"])
def test_rows_sort_by_themselves_under_vmap(bound):
    keys = np.random.default_rng(0).integers(0, 50, (3, 40)).astype(np.uint32)
    made, places = jax.vmap(lambda row: device_rows.sort_rows(row, bound))(jnp.asarray(keys))
    np.testing.assert_array_equal(places, np.argsort(keys, axis=1, kind="stable"))
    np.testing.assert_array_equal(made, np.sort(keys, axis=1))


@pytest.mark.parametrize("short", ["nodes", "edges", "candidates"])
def test_a_batch_without_room_says_so_and_how_much_it_needs(short):
    fanouts, options = CASES["labor"]
    expected = _reference_of(GRAPHS["skewed"], SEEDS, fanouts, step=0, **options)
    capacity = _capacity(fanouts)
    capacity[short] = {"nodes": (12, 15), "edges": (9,), "candidates": (30,)}[short]
    made = _on_the_device(GRAPHS["skewed"], SEEDS, fanouts, step=0, **options, **capacity)
    assert made.overflow
    indptr = GRAPHS["skewed"][0]
    needed = {
        "nodes": (made.num_nodes[1], expected.num_nodes[1]),
        "edges": (made.num_edges[0], len(expected.hops[0].e_id)),
        "candidates": (
            made.num_candidates[0],
            np.diff(indptr)[expected.n_id[: expected.num_nodes[0]]].sum(),
        ),
    }
    assert needed[short][0] == needed[short][1]
    assert made.indptr[0][-1] <= capacity["edges"][0]
    assert (made.senders[0] >= 0).all() and (made.senders[0] < capacity["nodes"][1]).all()


def test_blocks_are_graphs_of_the_sampled_edges():
    graph, capacity = GRAPHS["skewed"], _capacity((3, -1))
    made = _on_the_device(graph, SEEDS, (3, -1), step=0, **capacity)
    blocks = made.blocks()
    nodes = capacity["nodes"]
    assert [block.shape for block in blocks] == [(nodes[1], nodes[2]), (nodes[0], nodes[1])]
    for block, e_id in zip(blocks, reversed(made.e_id), strict=True):
        receivers, senders = block.to_scipy().nonzero()
        e_id = e_id[e_id >= 0]
        rows = np.searchsorted(graph[0], e_id, side="right") - 1
        expected = np.unique(np.stack([rows, graph[1][e_id]]), axis=1)
        found = np.unique(np.asarray(made.n_id)[np.stack([receivers, senders])], axis=1)
        np.testing.assert_array_equal(found, expected)


def test_programs_of_large_graphs_lower_to_cuda():
    sizes = {"indptr": 2_450_001, "indices": 123_000_000, "seeds": 1024}
    shapes = [jax.ShapeDtypeStruct((n,), jnp.int32) for n in sizes.values()]
    traced = jax.jit(
        lambda *arrays: sample_on_device(
            *arrays,
            (15, 10),
            nodes=(1024, 16_384, 180_224),
            edges=(15_360, 163_840),
            seed=0,
            epoch=0,
            step=0,
        )
    ).trace(*shapes)
    assert "xi64>" not in _without_constants(traced.lower(lowering_platforms=("cuda",)).as_text())


def _without_constants(text):
    """The program without its attributes, which are always of 64 bits."""
    return "\n".join(line.split("{")[0] for line in text.splitlines() if "dense<" not in line)


def test_bad_arguments_are_named():
    good = {"fanouts": (3, 2), "step": 0} | _capacity((3, 2))
    wrong = {
        "fanouts": [(0, 2), (65, 2)],
        "nodes": [(12, 20), (11, 20, 30), (12, 30, 20)],
        "edges": [(5,), (0, 5)],
        "weights": [np.ones(SLOTS)],
        "method": ["walks", np.ones(3)],
        "excluded": [np.zeros(2), np.zeros(2, np.int64), np.zeros((1, 2), np.int32)],
        "seed": [-1, 2**64, 0.5, np.ones(3)],
        "epoch": [-1, 0.5, "first", np.ones(3, int), None],
        "replace": [1, np.ones(2)],
        "relabelling": ["hash", np.ones(2), ["sort"]],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                _on_the_device(GRAPHS["skewed"], SEEDS, **good | {name: value})
    with pytest.raises(ValueError, match="candidates"):
        _on_the_device(GRAPHS["skewed"], SEEDS, **good | {"method": "labor", "candidates": None})
    indptr, indices = GRAPHS["skewed"]
    for at in range(3):
        arrays = [indptr, indices, SEEDS.astype(np.int32)]
        arrays[at] = arrays[at].astype(np.float32)
        with pytest.raises(ValueError, match=("indptr", "indices", "seeds")[at]):
            sample_on_device(*arrays, seed=0, epoch=0, **good)
