"""Splits of edges leak nothing from one part to an earlier one."""

import numpy as np
import pytest

from jaxgnn.datasets import cora, split_edges


def _random_edges(seed, nodes=60, edges=400):
    """Edges in one or in both directions, some more than once, and self loops."""
    ends = np.random.default_rng(seed).integers(0, nodes, (2, edges))
    return np.concatenate([ends, ends[::-1, : edges // 2], ends[:, : edges // 4]], axis=1)


def _pairs(edges, undirected):
    """The set of pairs of edges [2, edges], without self loops."""
    pairs = (tuple(sorted(pair)) if undirected else tuple(pair) for pair in edges.T.tolist())
    return {pair for pair in pairs if pair[0] != pair[1]}


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("supervision", [0.3, None])
def test_nothing_leaks_and_nothing_is_lost(undirected, supervision):
    edges = _random_edges(0)
    split = split_edges(*edges, 60, supervision=supervision, undirected=undirected, seed=3)
    parts = split.train, split.validation, split.test
    messages = [_pairs(part.messages, undirected) for part in parts]
    asked = [_pairs(part.supervision, undirected) for part in parts]
    every = _pairs(edges, undirected)
    for part, pairs in zip(parts, asked, strict=True):
        assert part.supervision.shape[1] == len(pairs), "each pair stands there once"
        assert part.supervision.dtype == part.messages.dtype == np.int32
        np.testing.assert_array_equal(part.messages, edges[:, part.message_ids])
    # Messages and supervision of one part and of earlier ones.
    assert asked[0] == messages[0] if supervision is None else not asked[0] & messages[0]
    assert not asked[1] & (messages[1] | asked[0])
    assert not asked[2] & (messages[2] | asked[0] | asked[1])
    # Each part sees exactly what the earlier ones may know.
    assert messages[1] == asked[0] | messages[0]
    assert messages[2] == messages[1] | asked[1]
    assert messages[2] | asked[2] == every
    # All edges of a pair that a part sees are there, in both directions and repeated.
    for part, seen in zip(parts, messages, strict=True):
        is_seen = [not _pairs(edge[:, None], undirected) - seen for edge in edges.T]
        np.testing.assert_array_equal(part.message_ids, np.flatnonzero(is_seen))


def test_self_loops_are_messages_of_every_part_and_supervise_none():
    edges = _random_edges(1)
    loops = np.flatnonzero(edges[0] == edges[1])
    split = split_edges(*edges, 60)
    assert loops.size
    for part in (split.train, split.validation, split.test):
        assert np.isin(loops, part.message_ids).all()
        assert (part.supervision[0] != part.supervision[1]).all()


def test_parts_have_their_fractions_and_their_seed():
    data = cora(largest_component=False, split="planetoid")
    given = data.senders, data.receivers, data.num_nodes
    split = split_edges(*given, validation=0.1, test=0.2, supervision=0.25)
    sizes = [part.supervision.shape[1] for part in (split.train, split.validation, split.test)]
    assert sizes == [round(0.25 * (5278 - 528 - 1056)), 528, 1056]
    assert split.test.messages.shape == (2, 2 * (5278 - 1056))
    again, other = (split_edges(*given, validation=0.1, test=0.2, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(again.test.supervision, split.test.supervision)
    shared = _pairs(other.test.supervision, True) & _pairs(split.test.supervision, True)
    assert 100 < len(shared) < 400, "about a fifth of 1,056"
    # No order tells the parts apart.
    assert (np.diff(split.test.supervision[0]) < 0).any()


RING = np.arange(10), (np.arange(10) + 1) % 10
BAD = {
    "fractions over one": (
        {"validation": 0.5, "test": 0.6},
        r"split_edges: validation \+ test must be below 1, to leave pairs to train on, "
        r"got 0.5 \+ 0.6 = 1.1",
    ),
    "a fraction over one": ({"test": 1.5}, r"test must be a fraction in \(0, 1\), got 1.5"),
    "a count": ({"validation": 5}, r"validation must be a fraction in \(0, 1\), got 5"),
    "no fraction": ({"test": float("nan")}, "test must be a fraction"),
    "a seed below zero": ({"seed": -1}, "split_edges: seed must be an integer from 0 on, got -1"),
    "no seed": ({"seed": None}, "split_edges: seed must be an integer from 0 on, got None"),
    "a fraction as a seed": ({"seed": 0.5}, "seed must be an integer from 0 on, got 0.5"),
    "no supervision": ({"supervision": 0.0}, r"supervision must be None or a fraction in \(0, 1\)"),
    "too few pairs": ({}, "of which validation has none, got 10 pairs"),
    "all supervise": (
        {"validation": 0.4, "test": 0.4, "supervision": 0.9},
        "messages of the training has none",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_fractions_are_refused_by_name(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        split_edges(*RING, 10, **options)


def test_bad_edges_are_refused_by_name():
    for edges, nodes, message in (
        (([0, 1], [1]), 2, r"receivers must be as many as senders \(2\), got 1"),
        (([0, 7], [1, 0]), 2, r"senders\[1\] must be in \[0, 2\), got 7"),
        (([0.5], [1]), 2, r"senders must be integers of shape \[edges\], got float64"),
        (([[0]], [[1]]), 2, r"senders must be integers of shape \[edges\]"),
        (([], []), 2, r"senders must be integers of shape \[edges\]"),
        (([0], [1]), 0, "num_nodes must be an int of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            split_edges(*edges, nodes)
