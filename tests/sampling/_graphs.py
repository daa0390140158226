"""Graphs whose samples have known distributions, and graphs for comparisons."""

import itertools

import numpy as np

from jaxgnn.sampling import host, reference

IMPLEMENTATIONS = {"numpy": reference.sample_hops, "c++": host.sample_hops}


def power_law(nodes=400, seed=0):
    """A graph with isolated nodes, hubs and repeated edges; weights with zeros among them."""
    rng = np.random.default_rng(seed)
    degrees = np.minimum(rng.pareto(1.0, nodes) * 4, 600).astype(np.int64)
    degrees[:5] = 0
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, nodes, indptr[-1])
    weights = np.where(rng.random(len(indices)) < 0.3, 0.0, rng.random(len(indices)))
    weights[indptr[:-1][degrees > 0]] = 0.5
    return indptr, indices, weights


def without_edges(indptr, indices, weights, excluded):
    """A graph without some edges, and the position of each of its edges in the whole graph."""
    left = np.delete(np.arange(len(indices)), excluded)
    offsets = indptr - np.searchsorted(excluded, indptr).astype(indptr.dtype)
    return offsets, indices[left], None if weights is None else weights[left], left


def equal_rows(rows, degree):
    """``rows`` nodes with ``degree`` senders each, no sender of two of them."""
    nodes = rows * (1 + degree)
    indptr = np.minimum(np.arange(nodes + 1), rows) * degree
    return indptr, np.arange(rows, nodes)


def draw_sets(implementation, rows, degree, fanout, **options):
    """Numbers of the sets of offsets that ``equal_rows`` draw: how often each set was drawn."""
    weights = options.pop("weights", None)
    indptr, indices = equal_rows(rows, degree)
    if weights is not None:
        options["weights"] = np.tile(np.asarray(weights, np.float64), rows)
    counters = {"seed": 1, "epoch": 0, "step": 3} | options
    hops = IMPLEMENTATIONS[implementation](
        indptr, indices, np.arange(rows), (fanout,), **counters
    ).hops
    drawn = np.sort(hops[0].e_id.reshape(rows, fanout) % degree, axis=1)
    code = drawn @ (degree ** np.arange(fanout)[::-1])
    return np.bincount(code, minlength=degree**fanout)


def set_probabilities(weights, fanout):
    """Probability of each set, by adding those of all orders in which it can be drawn."""
    degree = len(weights)
    found = np.zeros(degree**fanout)
    for order in itertools.permutations(range(degree), fanout):
        left, probability = sum(weights), 1.0
        for offset in order:
            probability *= weights[offset] / left
            left -= weights[offset]
        found[np.sort(order) @ (degree ** np.arange(fanout)[::-1])] += probability
    return found


def assert_same(one, other):
    """Asserts that two samples have the same arrays of the same dtypes."""
    for name in ("n_id", "num_nodes", "seed_ids"):
        assert_equal(getattr(one, name), getattr(other, name))
    assert len(one.hops) == len(other.hops)
    for hop, other_hop in zip(one.hops, other.hops, strict=True):
        for name in ("indptr", "senders", "e_id"):
            assert_equal(getattr(hop, name), getattr(other_hop, name))


def assert_equal(one, other):
    """Asserts equal dtypes and entries."""
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)
