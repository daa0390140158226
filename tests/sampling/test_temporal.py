"""No neighbour is drawn at or after the time of its seed."""

import itertools
import os
from collections import Counter

import jax
import numpy as np
import pytest
import scipy.stats

from jaxgnn import CSRGraph
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import HeteroNeighborLoader, NeighborLoader, reference
from jaxgnn.sampling.drawing import Drawing, HostGraph
from jaxgnn.sampling.relations import EdgeTimes, Relation, sample_typed_hops

NODES, EDGES = 40, 400
rng = np.random.default_rng(5)


def _sorted_graph(senders, receivers, times, *sizes, **options):
    """A graph of edges in any order, and their times in the order of its slots."""
    order = np.lexsort((times, receivers))
    graph = CSRGraph.from_edges(senders[order], receivers[order], *sizes, **options)
    return graph, times[order]


# The last node is isolated; many edges have the same time.
ENDS = rng.integers(0, NODES - 1, (2, EDGES))
GRAPH, TIMES = _sorted_graph(*ENDS, rng.integers(0, 30, EDGES), NODES)
INDPTR, INDICES = np.asarray(GRAPH.indptr), np.asarray(GRAPH.indices)
RECEIVERS = np.repeat(np.arange(NODES), np.diff(INDPTR))
# Of the edges by sender only those of node 0, the first row, are in the order of time.
BY_RECEIVER = np.where(ENDS[0] == 0, ENDS[1], NODES - ENDS[1]) // 2
FIRST_SORTED = _sorted_graph(*ENDS, BY_RECEIVER, NODES)
SEEDS = np.array([3, 3, 3, NODES - 1, *rng.integers(0, NODES, 16)])
SEED_TIMES = np.array([5, 20, 20, 9, *rng.integers(0, 32, 16)])


def _loader(seeds=SEEDS, fanouts=(4, 3), batch_size=8, graph=GRAPH, **options):
    options = {"edge_times": TIMES, "seed_times": SEED_TIMES, "shuffle": False} | options
    return NeighborLoader(graph, seeds, fanouts, batch_size, **options)


def _edges(batch, layer):
    """Receivers and senders of the real edges of a block as places in ``n_id``, and their ids."""
    block, indptr = batch.blocks[layer], np.asarray(batch.blocks[layer].indptr)
    rows = np.repeat(np.arange(block.num_rows), np.diff(indptr))
    count = indptr[-1]
    return rows, np.asarray(block.indices)[:count], np.asarray(batch.e_id[layer])[:count]


def _assert_equal(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "options",
    [
        {"temporal": "uniform"},
        {"temporal": "last"},
        {"fanouts": (-1, -1)},
        {"replace": True},
        {"direction": "out"},
    ],
    ids=str,
)
def test_every_edge_of_every_hop_is_before_the_time_of_its_seed(options):
    """The leak of pyg#7794."""
    loader = _loader(**options)
    for step in range(len(loader)):
        batch = loader.batch(0, step)
        n_id, owner = np.asarray(batch.n_id), np.asarray(batch.batch)
        times = SEED_TIMES[step * 8 : step * 8 + 8]
        real = n_id >= 0
        assert (owner[~real] == 8).all()
        seeds = n_id[batch.seed_ids[batch.seed_mask]]
        np.testing.assert_array_equal(seeds, SEEDS[step * 8 : step * 8 + 8])
        np.testing.assert_array_equal(owner[: len(seeds)], np.arange(len(seeds)))
        pairs = set(zip(owner[real], n_id[real], strict=True))
        assert len(pairs) == real.sum() == batch.num_nodes[0]
        for layer in (0, 1):
            rows, cols, e_id = _edges(batch, layer)
            assert (TIMES[e_id] < times[owner[rows]]).all()
            np.testing.assert_array_equal(owner[rows], owner[cols])
            ends = INDICES[e_id], RECEIVERS[e_id]
            senders, drawing = ends[:: -1 if options.get("direction") == "out" else 1]
            np.testing.assert_array_equal(n_id[cols], senders)
            np.testing.assert_array_equal(n_id[rows], drawing)
            if not options.get("replace") and "direction" not in options:
                fanout = options.get("fanouts", (4, 3))[1 - layer]
                rows_here = range(int(batch.num_nodes[layer + 1]))
                allowed = [
                    (TIMES[INDPTR[n] : INDPTR[n + 1]] < times[owner[i]]).sum()
                    for i, n in enumerate(n_id[: len(rows_here)])
                ]
                expected = allowed if fanout < 0 else np.minimum(allowed, fanout)
                np.testing.assert_array_equal(np.bincount(rows, minlength=len(allowed)), expected)


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize(
    ("graph", "times"), [(GRAPH, TIMES), FIRST_SORTED], ids=["random", "first sorted"]
)
def test_last_takes_the_most_recent_edges_and_of_equal_times_the_later_in_the_graph(
    graph, times, direction
):
    given = {"graph": graph, "edge_times": times, "direction": direction}
    loader = _loader(temporal="last", batch_size=len(SEEDS), **given)
    batch = loader.batch(0, 0)
    rows, _, e_id = _edges(batch, 1)
    drawing = np.asarray(graph.receivers() if direction == "in" else graph.senders)
    for row, (node, time) in enumerate(zip(SEEDS, SEED_TIMES, strict=True)):
        of_row = np.flatnonzero((drawing == node) & (times < time)).tolist()
        expected = sorted(of_row, key=lambda e: (times[e], e))[-4:]
        assert e_id[rows == row].tolist() == expected
    _assert_equal(loader.batch(1, 0), batch)  # nothing is drawn


@pytest.mark.parametrize("direction", ["in", "out"])
def test_uniform_draws_are_uniform_among_the_edges_before(direction):
    count = 6000
    times = np.array([7, 1, 3, 3, 9, 2, 5, 0])  # five are before 5
    if direction == "in":
        star, times = _sorted_graph(np.arange(1, 9), np.zeros(8, int), times, 9)
    else:  # one edge in each row
        star = CSRGraph.from_edges([0] * 8, range(1, 9), 9)
    given = {"edge_times": times, "seed_times": np.full(count, 5), "direction": direction}
    loader = NeighborLoader(star, [0] * count, (2,), count, **given)
    rows, _, e_id = _edges(loader.batch(0, 0), 0)
    np.testing.assert_array_equal(np.bincount(rows), 2)
    found = Counter(map(tuple, np.sort(e_id.reshape(count, 2), axis=1).tolist()))
    possible = list(itertools.combinations(np.flatnonzero(times < 5).tolist(), 2))
    assert set(found) == set(possible) and len(possible) == 10
    assert scipy.stats.chisquare([found[pair] for pair in possible]).pvalue > 1e-3


def test_an_edge_at_the_time_of_its_seed_is_not_drawn():
    path = CSRGraph.from_edges([1, 2, 3], [0, 0, 1], 4)
    options = {"edge_times": [4, 5, 5], "labels": np.array([10.0, 20.0, 30.0])}
    loader = NeighborLoader(path, [0, 0, 0], (-1, -1), 3, seed_times=[4, 5, 6], **options)
    batch = next(
        iter(
            NeighborLoader(
                path, [0, 0, 0], (-1, -1), 3, shuffle=False, seed_times=[4, 5, 6], **options
            )
        )
    )
    owner, n_id = np.asarray(batch.batch), np.asarray(batch.n_id)
    assert [n_id[owner == seed].tolist() for seed in range(3)] == [[0], [0, 1], [0, 1, 2, 3]]
    assert batch.y.tolist() == [10.0, 20.0, 30.0]
    assert sorted(loader.batch(0, 0).y.tolist()) == [10.0, 20.0, 30.0]  # labels follow the shuffle


def test_out_draws_the_edges_of_the_transpose_that_is_sorted_by_time():
    order = np.lexsort((TIMES, INDICES))
    ordered = CSRGraph.from_edges(RECEIVERS[order], INDICES[order], NODES)
    for temporal in ("uniform", "last"):
        one = _loader(direction="out", temporal=temporal).batch(0, 1)
        other = _loader(graph=ordered, edge_times=TIMES[order], temporal=temporal).batch(0, 1)
        _assert_equal(one.blocks, other.blocks)
        for ours, theirs in zip(one.e_id, other.e_id, strict=True):
            real = np.asarray(theirs) >= 0
            np.testing.assert_array_equal(ours[real], order[theirs[real]])


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_cpp_draws_what_numpy_defines(latest, direction):
    host, times = EdgeTimes.of(HostGraph.of("test", GRAPH, direction), TIMES)
    relations = [Relation("", "", host, times, (4, 3)), Relation("", "", host, times, (2, -1))]

    def numpy_rows(indptr, indices, rows, fanout, *, seed, epoch, step, hop, **options):
        keys = reference.randomness(seed, epoch, step, hop, options.pop("batch_dependency"))
        del options["num_threads"]
        return reference.sample_rows(indptr, indices, rows, fanout, keys, **options)

    def sample(**options):
        drawing = Drawing((), seed=7)
        found = sample_typed_hops(
            relations,
            {"": NODES},
            "",
            SEEDS,
            drawing=drawing,
            epoch=1,
            step=2,
            seed_times=SEED_TIMES,
            latest=latest,
            **options,
        )
        return found.n_id, found.owners, [[vars(h) for h in of_hops] for of_hops in found.hops]

    expected = sample(draw_rows=numpy_rows)
    for num_threads in (1, 3):
        _assert_equal(sample(num_threads=num_threads), expected)


def test_batches_are_a_function_of_epoch_and_step():
    loader, other = _loader(shuffle=True, num_threads=1), _loader(shuffle=True, num_threads=3)
    batches = list(other.epoch(1))
    for step, batch in enumerate(batches):
        _assert_equal(batch, loader.batch(1, step))
    assert [b.e_id[0].tolist() for b in batches] != [b.e_id[0].tolist() for b in loader.epoch(0)]


def test_dates_and_floats_are_times_too():
    expected = _loader().batch(0, 0)
    for dtype in ("datetime64[s]", np.float32, np.int16):
        times = TIMES.astype(dtype), SEED_TIMES.astype(dtype)
        _assert_equal(_loader(edge_times=times[0], seed_times=times[1]).batch(0, 0), expected)


def test_relations_with_times_draw_what_one_graph_does():
    edge_type = "n", "to", "n"
    graph = HeteroGraph({edge_type: GRAPH})
    for temporal in ("uniform", "last"):
        one = _loader(temporal=temporal).batch(0, 2)
        loader = HeteroNeighborLoader(
            graph,
            ("n", SEEDS),
            (4, 3),
            8,
            edge_times={edge_type: TIMES},
            seed_times=SEED_TIMES,
            temporal=temporal,
            shuffle=False,
        )
        other = loader.batch(0, 2)
        _assert_equal((one.n_id, one.batch), (other.n_id["n"], other.batch["n"]))
        _assert_equal(one.e_id, other.e_id[edge_type])


def test_relations_do_not_leak_and_one_may_be_without_times():
    authors, papers = rng.integers(0, 20, 300), rng.integers(0, 30, 300)
    writes, of_writes = _sorted_graph(authors, papers, rng.random(300), 30, num_senders=20)
    graph = HeteroGraph({("a", "writes", "p"): writes, ("p", "by", "a"): writes.transpose()})
    times = {("a", "writes", "p"): of_writes, ("p", "by", "a"): None}
    seed_times = rng.random(16)
    options = {"edge_times": times, "seed_times": seed_times, "shuffle": False}
    batch = HeteroNeighborLoader(graph, ("p", range(16)), (3, 3, 3), 16, **options).batch(0, 0)
    count = 0
    for block, e_id in zip(batch.blocks, batch.e_id["a", "writes", "p"], strict=True):
        one = block["a", "writes", "p"]
        indptr = np.asarray(one.indptr)
        rows = np.repeat(np.arange(one.num_rows), np.diff(indptr))
        owners = np.asarray(batch.batch["p"])[rows]
        senders = np.asarray(batch.batch["a"])[np.asarray(one.indices)[: indptr[-1]]]
        np.testing.assert_array_equal(owners, senders)
        drawn = times["a", "writes", "p"][np.asarray(e_id)[: indptr[-1]]]
        assert (drawn < seed_times[owners]).all()
        count += len(drawn)
    assert count > 50 and batch.num_edges["p", "by", "a"][1] > 0


BAD = [
    ({"edge_times": None}, "edge_times must be given with seed_times, got None"),
    ({"seed_times": None}, "seed_times must be given with edge_times, got None"),
    ({"edge_times": None, "labels": np.arange(NODES)}, "edge_times must be given with seed_times"),
    ({"edge_times": TIMES[1:]}, rf"edge_times must be of shape \({EDGES},\)"),
    ({"seed_times": SEED_TIMES[1:]}, rf"seed_times must be of shape \({len(SEEDS)},\)"),
    ({"edge_times": TIMES.astype(float)}, "edge_times must be int64, as seed_times are, got float"),
    ({"edge_times": np.full(EDGES, "x")}, "edge_times must be integers, floats or datetime64"),
    ({"temporal": "first"}, "temporal must be 'uniform' or 'last', got 'first'"),
    ({"temporal": "last", "replace": True}, "replace must be False with temporal='last'"),
    ({"method": "labor"}, "method must be 'neighbour' with seed_times"),
    ({"weights": np.ones(EDGES)}, "weights must be None with seed_times"),
    ({"on": "device"}, 'on must be "host" with seed_times'),
    ({"graph": GRAPH.normalized("sym")}, "graph must be not normalised with seed_times"),
    ({"labels": np.arange(NODES)}, rf"labels must be of shape \({len(SEEDS)}, ...\).* each seed"),
]


@pytest.mark.parametrize(("changed", "message"), BAD, ids=[next(iter(b[0])) for b in BAD])
def test_bad_input_is_named(changed, message):
    with pytest.raises(ValueError, match="sampling.NeighborLoader: " + message):
        _loader(**changed)


def test_a_mapped_file_of_times_that_has_shrunk_is_named(tmp_path):
    mapped = []
    for name, times in (("edges", TIMES), ("seeds", SEED_TIMES)):
        np.save(tmp_path / f"{name}.npy", times)
        mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    loader = _loader(edge_times=mapped[0], seed_times=mapped[1])
    for name in ("seeds", "edges"):
        _assert_equal(loader.batch(0, 1), _loader().batch(0, 1))
        os.truncate(tmp_path / f"{name}.npy", 100)
    with pytest.raises(ValueError, match=r"edge_times must be in a file of .*edges\.npy"):
        loader.batch(0, 1)


@pytest.mark.parametrize("dtype", [np.float64, "datetime64[s]"])
def test_missing_times_are_named(dtype):
    times, seed_times = TIMES.astype(dtype), SEED_TIMES.astype(dtype)
    for name in ("edge_times", "seed_times"):
        given = {"edge_times": times.copy(), "seed_times": seed_times.copy()}
        given[name][7] = "nat" if dtype != np.float64 else np.nan
        with pytest.raises(
            ValueError, match=f"{name} must be without missing times, got [Nn]a.* at 7"
        ):
            _loader(**given)


# Nodes 0, 2 and 5 have no edges.
ROWS = CSRGraph.from_edges(range(6), [1, 1, 1, 3, 4, 4], 6)
# Times, the first slot with an earlier one behind it, and the row of both.
UNSORTED = [([4, 3, 5, 0, 0, 0], 0, 1), ([4, 5, 3, 2, 1, 0], 1, 1), ([1, 2, 3, 3, 5, 4], 4, 4)]


@pytest.mark.parametrize(("times", "slot", "row"), UNSORTED, ids=["begin", "end", "last row"])
@pytest.mark.parametrize("dtype", [np.int64, np.float64, "datetime64[Y]"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_unsorted_times_of_a_row_are_named(times, slot, row, dtype, direction):
    times, now = np.array(times).astype(dtype), np.array([9]).astype(dtype)
    with pytest.raises(ValueError) as raised:
        _loader([1], graph=ROWS, edge_times=times, seed_times=now, direction=direction)
    assert str(raised.value) == (
        "sampling.NeighborLoader: edge_times must be ascending within each row of the graph, got "
        f"{times[slot]} at slot {slot}, then {times[slot + 1]} at slot {slot + 1}, of edges to "
        f"node {row}; sort the edges by np.lexsort((times, receivers)) before CSRGraph.from_edges"
    )


@pytest.mark.parametrize("dtype", [np.int64, np.float64, "datetime64[s]"])
def test_equal_times_and_earlier_ones_in_the_next_row_are_in_order(dtype):
    times, now = np.array([5, 5, 6, 4, 3, 3]).astype(dtype), np.full(3, 9).astype(dtype)
    loader = _loader([1, 3, 4], (-1,), graph=ROWS, edge_times=times, seed_times=now)
    assert sorted(_edges(loader.batch(0, 0), 0)[2].tolist()) == [*range(6)]


def test_times_of_padding_slots_are_not_read():
    wide = CSRGraph(GRAPH.indptr, np.append(INDICES, np.zeros(2, np.int32)))
    for direction in ("in", "out"):
        expected = _loader(direction=direction).batch(0, 0)
        for times in (np.append(TIMES, [np.nan, np.nan]), np.append(TIMES, [-1, -2])):
            seed_times = SEED_TIMES.astype(times.dtype)
            given = {"edge_times": times, "seed_times": seed_times, "direction": direction}
            _assert_equal(_loader(graph=wide, **given).batch(0, 0), expected)


def test_without_edges_or_before_all_times_seeds_are_alone():
    empty = CSRGraph.from_edges([], [], NODES)
    for options in ({"graph": empty, "edge_times": TIMES[:0]}, {"seed_times": SEED_TIMES - 100}):
        batch = _loader(**options).batch(0, 0)
        assert batch.num_edges.tolist() == [0, 0] and batch.num_nodes.tolist() == [8, 8, 8]
