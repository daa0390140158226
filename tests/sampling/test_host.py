"""Neighbour sampling on the host: NumPy's definition, and the same bits in C++."""

import gc
import os
import threading
import warnings

import numpy as np
import pytest
import scipy.stats

from jaxgnn.sampling import host, reference
from tests.sampling._graphs import (
    IMPLEMENTATIONS,
    assert_equal,
    assert_same,
    draw_sets,
    equal_rows,
    power_law,
    set_probabilities,
    without_edges,
)

COUNTERS = {"seed": 2**40 + 3, "epoch": 2, "step": 5}
WEIGHTS = (0.1, 2.0, 0.7, 1.0, 0.0)
METHODS = {
    "uniform": {},
    "replace": {"replace": True},
    "weighted": {"weights": np.float32},
    "weighted, replace": {"weights": np.float64, "replace": True},
    "labor": {"method": "labor"},
    "labor, weighted": {"method": "labor", "weights": np.float64},
    "labor, dependent": {"method": "labor", "batch_dependency": 4},
    "labor, dependent, weighted": {
        "method": "labor",
        "batch_dependency": 4,
        "weights": np.float32,
    },
}
both = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def sample(implementation, indptr, indices, seeds, fanouts, **options):
    seeds = np.asarray(seeds, np.int64)
    return IMPLEMENTATIONS[implementation](indptr, indices, seeds, fanouts, **(COUNTERS | options))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fanouts", [(5, -1), (15, 10, 5), (40, 1)])
def test_the_host_draws_the_bits_of_the_reference_on_any_number_of_threads(method, fanouts):
    indptr, indices, weights = power_law()
    options = dict(METHODS[method])
    if "weights" in options:
        options["weights"] = weights.astype(options["weights"])
    seeds = np.random.default_rng(3).integers(0, len(indptr) - 1, 70)
    expected = sample("numpy", indptr, indices, seeds, fanouts, **options)
    for dtypes in ((np.int32, np.int32), (np.int64, np.int32), (np.int32, np.int64)):
        graph = indptr.astype(dtypes[0]), indices.astype(dtypes[1])
        for threads in (1, 2, 5):
            drawn = sample("c++", *graph, seeds, fanouts, **options, num_threads=threads)
            assert_same(drawn, expected)


@pytest.mark.parametrize("method", METHODS)
def test_rows_have_the_bits_of_the_reference_whatever_their_senders(method):
    indptr, indices, weights = power_law()
    options = dict(METHODS[method])
    if "weights" in options:
        options["weights"] = weights.astype(options["weights"])
    senders = indices + 1000  # of another type
    rows = np.random.default_rng(4).integers(0, len(indptr) - 1, 150)
    dependency = {"batch_dependency": options.pop("batch_dependency", 1)}
    keys = reference.randomness(**COUNTERS, hop=7, **dependency)
    expected = reference.sample_rows(indptr, senders, rows, 6, keys, **options)
    drawn = host.sample_rows(
        indptr, senders, rows, 6, **COUNTERS, hop=7, **options, **dependency, num_threads=2
    )
    for one, other in zip(drawn, expected, strict=True):
        assert_equal(one, other)


def test_a_step_that_begins_a_period_of_dependent_batches_agrees_too():
    indptr, indices, weights = power_law()
    for options in ({}, {"weights": weights}):
        options |= {"method": "labor", "batch_dependency": 5, "step": 10}
        expected = sample("numpy", indptr, indices, [7, 50, 9], (4, 4), **options)
        assert_same(sample("c++", indptr, indices, [7, 50, 9], (4, 4), **options), expected)


def _excluded(indptr, weights):
    """Edges among others, all edges of some rows, and those of a row before weights of zero."""
    chosen = np.random.default_rng(6).random(len(weights)) < 0.2
    hub = np.argmax(np.diff(indptr))
    chosen[indptr[hub] : indptr[hub + 1] - 3] = True
    for row in range(20, 60):
        chosen[indptr[row] : indptr[row + 1]] = True
    # Rows whose weights of zero alone are left cannot be drawn from by weight.
    sums = np.bincount(np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), weights * ~chosen)
    for row in np.flatnonzero(sums == 0):
        chosen[indptr[row] : indptr[row + 1]] = True
    return np.flatnonzero(chosen)


@both
@pytest.mark.parametrize("method", METHODS)
def test_without_some_edges_the_sample_is_that_of_the_graph_without_them(implementation, method):
    indptr, indices, weights = power_law()
    options, values = dict(METHODS[method]), None
    if "weights" in options:
        values = weights.astype(options.pop("weights"))
    excluded = _excluded(indptr, weights)
    *graph, fewer_weights, positions = without_edges(indptr, indices, values, excluded)
    seeds = np.random.default_rng(3).integers(0, len(indptr) - 1, 90)
    for fanouts in ((5, -1), (15, 2)):
        expected = sample("numpy", *graph, seeds, fanouts, weights=fewer_weights, **options)
        options["num_threads"] = 2
        drawn = sample(
            implementation,
            indptr,
            indices,
            seeds,
            fanouts,
            weights=values,
            excluded=excluded,
            **options,
        )
        for name in ("n_id", "num_nodes", "seed_ids"):
            assert_equal(getattr(drawn, name), getattr(expected, name))
        for hop, fewer in zip(drawn.hops, expected.hops, strict=True):
            assert_equal(hop.indptr, fewer.indptr)
            assert_equal(hop.senders, fewer.senders)
            assert_equal(hop.e_id, positions[fewer.e_id])


@both
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"method": "labor"}])
def test_a_row_that_only_weights_of_zero_are_left_of_draws_nothing(implementation, options):
    indptr, indices = np.array([0, 3, 4]), np.array([1, 0, 1, 0])
    weights = np.array([0.0, 1, 0, 2])
    for fanouts in ((2,), (-1,)):
        drawn = sample(
            implementation,
            indptr,
            indices,
            [0, 1],
            fanouts,
            weights=weights,
            excluded=np.array([1]),
            **options,
        )
        assert drawn.hops[0].indptr[1] == 0 and set(drawn.hops[0].e_id.tolist()) == {3}


@pytest.mark.parametrize("dtypes", [(np.int32, np.int32), (np.int64, np.int64)])
def test_edges_are_found_between_pairs_with_their_repeats(dtypes):
    indptr, indices, _ = power_law()
    graph = indptr.astype(dtypes[0]), indices.astype(dtypes[1])
    rng = np.random.default_rng(2)
    rows, senders = rng.integers(0, len(indptr) - 1, (2, 300))
    hub = np.argmax(np.diff(indptr))
    rows = np.concatenate([rows, np.full(200, hub), [hub]])  # so many that they are searched
    senders = np.concatenate([senders, rng.integers(0, len(indptr) - 1, 200), [senders[0]]])
    receivers = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    pairs = set(zip(rows.tolist(), senders.tolist(), strict=True))
    joined = zip(receivers.tolist(), indices.tolist(), strict=True)
    expected = np.array([at for at, pair in enumerate(joined) if pair in pairs])
    assert_equal(host.find_edges(*graph, rows, senders), expected)
    distinct = np.array(sorted(pairs)).T
    assert_equal(reference.find_edges(*graph, *distinct), expected)
    assert host.find_edges(*graph, rows[:0], senders[:0]).tolist() == []


def test_rows_with_bad_offsets_are_named_where_edges_are_searched():
    indptr, pair = np.array([0, 3, 2, 4]), (np.array([1]), np.array([0]))
    for find in (host.find_edges, reference.find_edges):
        with pytest.raises(ValueError, match="find_edges: indptr must be offsets that never decr"):
            find(indptr, np.zeros(4, int), *pair)


@both
def test_all_sets_of_neighbours_are_drawn_equally_often(implementation):
    drawn = draw_sets(implementation, 20_000, 5, 2)
    drawn = drawn[set_probabilities([1.0] * 5, 2) > 0]
    assert len(drawn) == 10 and drawn.sum() == 20_000
    assert scipy.stats.chisquare(drawn).pvalue > 1e-3


@both
def test_the_first_neighbour_is_drawn_as_often_as_others(implementation):
    for degree in (2, 7, 33):
        drawn = draw_sets(implementation, 7_000, degree, 1)
        assert scipy.stats.chisquare(drawn).pvalue > 1e-3


@pytest.mark.parametrize("method", ["neighbour", "labor"])
@pytest.mark.parametrize("fanout", [1, 2, 3])
def test_sets_are_drawn_as_if_one_after_the_other_by_their_weights(method, fanout):
    drawn = draw_sets("c++", 40_000, 5, fanout, method=method, weights=WEIGHTS)
    expected = set_probabilities(WEIGHTS, fanout)
    assert drawn[expected == 0].sum() == 0  # repeats, and weight zero
    drawn, expected = drawn[expected > 0], expected[expected > 0] * drawn.sum()
    assert scipy.stats.chisquare(drawn, expected).pvalue > 1e-3


def test_a_long_row_is_drawn_by_its_weights():
    """Keys whose logarithm is not computed would be the least in one of many times."""
    weights = np.random.default_rng(0).random(700) ** 3
    drawn = draw_sets("c++", 4_000, 700, 1, weights=weights)
    groups = np.add.reduceat(drawn, np.arange(0, 700, 50))
    expected = np.add.reduceat(weights / weights.sum(), np.arange(0, 700, 50)) * 4_000
    assert scipy.stats.chisquare(groups, expected).pvalue > 1e-3


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_with_replacement_each_draw_is_independent(weights):
    drawn = draw_sets("c++", 40_000, 5, 2, replace=True, weights=weights)
    chances = np.array(weights or [1.0] * 5) / sum(weights or [1.0] * 5)
    pairs = np.outer(chances, chances)
    expected = (np.triu(pairs) + np.tril(pairs, -1).T).ravel()
    assert drawn[expected == 0].sum() == 0
    drawn, expected = drawn[expected > 0], expected[expected > 0] * drawn.sum()
    assert scipy.stats.chisquare(drawn, expected).pvalue > 1e-3


@pytest.mark.parametrize("step", [0, 3, 7])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_dependent_batches_have_the_same_distribution_in_every_step(step, weights):
    options = {"method": "labor", "batch_dependency": 10, "step": step, "weights": weights}
    drawn = draw_sets("c++", 40_000, 5, 2, **options)
    expected = set_probabilities(weights or [1.0] * 5, 2)
    drawn, expected = drawn[expected > 0], expected[expected > 0] * drawn.sum()
    assert scipy.stats.chisquare(drawn, expected).pvalue > 1e-3


@both
def test_labor_shares_senders_among_rows(implementation):
    """Rows with the same senders choose the same ones."""
    indptr, indices = np.arange(51) * 30, np.tile(np.arange(20, 50), 50)
    seeds = np.arange(20)
    shared = sample(implementation, indptr, indices, seeds, (4,), method="labor")
    assert len(shared.n_id) == 20 + 4
    assert len(sample(implementation, indptr, indices, seeds, (4,)).n_id) > 20 + 20


@both
def test_dependent_batches_share_more_nodes_than_independent_ones(implementation):
    indptr, indices = np.array([0] + [300] * 301), np.arange(1, 301)

    def shared(steps, **options):
        options = {"method": "labor", "epoch": 0} | options
        one, other = (
            sample(implementation, indptr, indices, [0], (50,), step=step, **options).n_id
            for step in steps
        )
        return len(np.intersect1d(one, other))

    assert shared((4, 5), batch_dependency=16) > 35
    assert shared((15, 16), batch_dependency=16) > 35  # the end of a period is the next's beginning
    assert shared((0, 16), batch_dependency=16) < 20
    assert shared((4, 5)) < 20


@both
def test_seeds_come_first_in_their_order_and_new_nodes_ascend(implementation):
    indptr, indices, _ = power_law()
    seeds = [300, 2, 17, 300, 0, 17]
    hops = sample(implementation, indptr, indices, seeds, (3, 3))
    assert hops.n_id[:4].tolist() == [300, 2, 17, 0]
    assert hops.n_id[hops.seed_ids].tolist() == seeds
    assert hops.num_nodes[0] == 4 and hops.num_nodes[-1] == len(hops.n_id)
    assert len(np.unique(hops.n_id)) == len(hops.n_id)
    for begin, end in zip(hops.num_nodes, hops.num_nodes[1:], strict=False):
        assert (np.diff(hops.n_id[begin:end]) > 0).all()


@both
@pytest.mark.parametrize("replace", [False, True])
def test_edges_are_edges_of_the_graph_in_its_order(implementation, replace):
    indptr, indices, _ = power_law()
    hops = sample(implementation, indptr, indices, np.arange(0, 400, 9), (5, 4), replace=replace)
    degrees = np.diff(indptr)
    for number, (hop, fanout) in enumerate(zip(hops.hops, (5, 4), strict=True)):
        rows = np.repeat(np.arange(hops.num_nodes[number]), np.diff(hop.indptr))
        receivers = np.searchsorted(indptr, hop.e_id, side="right") - 1
        np.testing.assert_array_equal(receivers, hops.n_id[rows])
        np.testing.assert_array_equal(indices[hop.e_id], hops.n_id[hop.senders])
        assert hop.senders.max() < hops.num_nodes[number + 1]
        steps = np.diff(hop.e_id)[rows[1:] == rows[:-1]]
        assert (steps >= 0).all() if replace else (steps > 0).all()
        found = degrees[hops.n_id[: hops.num_nodes[number]]]
        expected = np.where(found > 0, fanout, 0) if replace else np.minimum(found, fanout)
        np.testing.assert_array_equal(np.diff(hop.indptr), expected)


@both
def test_a_row_as_long_as_the_fanout_gives_all_its_edges(implementation):
    indptr, indices = equal_rows(6, 4)
    for fanout in (4, 5, -1):
        hop = sample(implementation, indptr, indices, np.arange(6), (fanout,)).hops[0]
        np.testing.assert_array_equal(hop.e_id, np.arange(24))
        hop = sample(implementation, indptr, indices, np.arange(6), (fanout,), method="labor").hops[
            0
        ]
        np.testing.assert_array_equal(hop.e_id, np.arange(24))


@both
def test_zero_weights_are_left_out_of_rows_that_take_all(implementation):
    indptr, indices = equal_rows(3, 5)
    weights = np.tile(WEIGHTS, 3)
    for fanout in (4, 5, -1):
        hop = sample(
            implementation, indptr, indices, np.arange(3), (fanout,), weights=weights
        ).hops[0]
        np.testing.assert_array_equal(hop.e_id, [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13])


@both
def test_isolated_seeds_and_graphs_without_edges_or_nodes_are_kept(implementation):
    nothing = np.zeros(0, np.int64)
    hops = sample(implementation, np.zeros(4, np.int64), nothing, [2, 0], (3, -1))
    assert hops.n_id.tolist() == [2, 0] and hops.num_nodes.tolist() == [2, 2, 2]
    assert hops.hops[1].indptr.tolist() == [0, 0, 0] and len(hops.hops[1].senders) == 0
    for options in ({}, {"replace": True}, {"weights": np.zeros(0)}):
        hops = sample(implementation, np.zeros(1, np.int64), nothing, [], (3,), **options)
        assert len(hops.n_id) == 0 and hops.hops[0].indptr.tolist() == [0]
    assert sample(implementation, np.zeros(4, np.int64), nothing, [1], ()).hops == ()


def test_seed_epoch_step_and_hop_give_other_draws():
    indptr, indices = np.arange(101) * 100, np.tile(np.arange(100), 100)

    def offsets(**options):
        hops = sample("c++", indptr, indices, np.arange(100), (5, 5), **options).hops
        return [hop.e_id.tobytes() for hop in hops]

    drawn = offsets()
    for name in COUNTERS:
        drawn += offsets(**{name: COUNTERS[name] + 1})
    drawn += offsets(seed=3)  # the lower half of the other seed
    assert len(set(drawn)) == 10
    assert offsets() == drawn[:2]


def test_the_last_seed_epoch_and_step_agree_too():
    indptr, indices, _ = power_law()
    last = {"seed": 2**64 - 1, "epoch": 2**32 - 1, "step": 2**32 - 1}
    for options in ({}, {"method": "labor"}, {"method": "labor", "batch_dependency": 2}):
        expected = sample("numpy", indptr, indices, [30, 60], (9, 9), **last, **options)
        assert_same(sample("c++", indptr, indices, [30, 60], (9, 9), **last, **options), expected)


def test_threads_of_one_process_sample_at_once():
    indptr, indices, _ = power_law()
    expected = [sample("c++", indptr, indices, [30, 60], (9, 9), step=i) for i in range(8)]
    failed = []

    def work(step):
        for _ in range(20):
            drawn = sample("c++", indptr, indices, [30, 60], (9, 9), step=step, num_threads=2)
            try:
                assert_same(drawn, expected[step])
            except AssertionError as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_an_array_of_a_sample_outlives_the_others():
    indptr, indices, _ = power_law()
    e_id = sample("c++", indptr, indices, np.arange(400), (9, 9)).hops[1].e_id
    before = e_id.copy()
    gc.collect()
    sample("c++", indptr, indices, np.arange(399, -1, -1), (9, 9))
    np.testing.assert_array_equal(e_id, before)


@both
def test_a_mapped_file_is_read_and_names_itself_when_it_has_shrunk(implementation, tmp_path):
    indptr, indices, _ = power_law()
    mapped = []
    for name, array in (("indptr", indptr), ("indices", indices)):
        np.save(tmp_path / f"{name}.npy", array)
        mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    drawn = sample(implementation, *mapped, [7, 90], (5, 5))
    assert_same(drawn, sample(implementation, indptr, indices, [7, 90], (5, 5)))
    os.truncate(tmp_path / "indices.npy", 1000)
    for view in (mapped[1], np.asarray(mapped[1])):
        with pytest.raises(ValueError, match=r"indices must be in a file of .*indices\.npy"):
            sample(implementation, mapped[0], view, [7, 90], (5, 5))


BAD_OPTIONS = {
    "fanouts must be positive and below 1048576, or -1 for all neighbours, got 0": {
        "fanouts": (5, 0)
    },
    "fanouts must be .* got -2": {"fanouts": (-2,)},
    "fanouts must be .* got 1048576": {"fanouts": (2**20,)},
    "fanouts must be .* got 1.5": {"fanouts": (1.5,)},
    "seeds must be node ids from 0 to 3, got 4 at 1": {"seeds": np.array([0, 4])},
    "seeds must be node ids from 0 to 3, got -1 at 0": {"seeds": np.array([-1])},
    "seeds must be a list of integers, got float64": {"seeds": np.zeros(2)},
    "seed must be an integer from 0 to 2.64 - 1, got -1": {"seed": -1},
    "epoch must be an integer from 0 to 2.32 - 1": {"epoch": 2**32},
    "step must be an integer": {"step": 0.5},
    "method must be 'neighbour' or 'labor', got 'labour'": {"method": "labour"},
    "replace must be False for method='labor', got True": {"method": "labor", "replace": True},
    "batch_dependency must be a positive integer, got 0": {"batch_dependency": 0},
    "excluded must be a list of integers, or None, got float64": {"excluded": np.zeros(1)},
    "excluded must be a list of integers, or None, got int64 of shape": {
        "excluded": np.zeros((1, 1), int)
    },
    "excluded must be positions of edges from 0 to 3, got 4 at 1": {"excluded": np.array([0, 4])},
    "excluded must be positions of edges from 0 to 3, got -1 at 0": {"excluded": [-1]},
    "excluded must be distinct and ascending, got 2, then 1, at 1": {"excluded": [0, 2, 1]},
    "excluded must be distinct and ascending, got 1, then 1, at 0": {"excluded": [1, 1]},
    "method must be 'neighbour' or 'labor', got array": {"method": np.ones(9)},
    "indptr must be a contiguous list of int32 or int64, got float64": {"indptr": np.zeros(5)},
    "indptr must be one longer than the number of nodes": {"indptr": np.zeros(0, np.int64)},
    "indptr must be offsets from 0 to at most 4": {"indptr": np.array([0, 2, 3, 4, 5])},
    "indptr must be offsets that never decrease": {"indptr": np.array([0, 3, 2, 4, 4])},
    "indices must be a contiguous list .* not contiguous": {"indices": np.arange(8)[::2]},
    "indices must be a contiguous list of int32 or int64, got list": {"indices": [1, 2, 3, 0]},
    "indices must be node ids from 0 to 3, got 4 at 2": {"indices": np.array([1, 2, 4, 0])},
    "indices must be node ids from 0 to 3, got -7 at 3": {"indices": np.array([1, 2, 0, -7])},
    "weights must be one value for each of 4 edges, got 3": {"weights": np.ones(3)},
    "weights must be a contiguous list of float32 or float64": {"weights": np.ones(4, int)},
    "weights must be finite and not negative, .* got -1.0 at 2": {
        "weights": np.array([1.0, 1, -1, 1])
    },
    "weights must be finite .* got nan at 0": {"weights": np.array([np.nan, 1, 1, 1])},
    "weights must be finite .* got inf at 3": {"weights": np.array([1, 1, 1, np.inf])},
    "weights must be .* got zeros alone for node 0": {"weights": np.array([0.0, 0, 1, 1])},
}


@both
@pytest.mark.parametrize("message", BAD_OPTIONS)
def test_bad_input_is_named(implementation, message):
    graph = {"indptr": np.array([0, 2, 3, 4, 4]), "indices": np.array([1, 2, 3, 0])}
    arguments = {"seeds": np.arange(4), "fanouts": (1, -1)} | graph | COUNTERS
    with pytest.raises(ValueError, match=f"sampling.sample_hops: {message}"):
        IMPLEMENTATIONS[implementation](**(arguments | BAD_OPTIONS[message]))


def test_the_sampler_works_after_bad_input():
    indptr, indices, _ = power_law()
    expected = sample("c++", indptr, indices, [30, 60], (9, 9))
    wrong = np.where(np.arange(len(indices)) % 7 == 3, len(indptr), indices)
    with pytest.raises(ValueError, match="indices must be node ids"):
        sample("c++", indptr, wrong, np.arange(400), (9, 9), num_threads=3)
    assert_same(sample("c++", indptr, indices, [30, 60], (9, 9)), expected)


@pytest.mark.parametrize("threads", [0, -1, 1.5, 2000])
def test_a_bad_number_of_threads_is_named(threads):
    with pytest.raises(ValueError, match="num_threads must be an integer from 1 to 1024"):
        sample("c++", np.zeros(2, int), np.zeros(0, int), [0], (1,), num_threads=threads)


def test_without_the_library_numpy_samples_and_a_warning_says_so(monkeypatch):
    indptr, indices, _ = power_law()
    expected = sample("c++", indptr, indices, [30, 60], (9, 9))
    monkeypatch.setattr(host._ffi, "why_missing", lambda: "needs a compiler")
    host._is_compiled.cache_clear()
    try:
        with pytest.warns(UserWarning, match="slow path: the sampler in C.. needs a compiler"):
            drawn = sample("c++", indptr, indices, [30, 60], (9, 9))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same(sample("c++", indptr, indices, [30, 60], (9, 9)), drawn)
    finally:
        host._is_compiled.cache_clear()
    assert_same(drawn, expected)
