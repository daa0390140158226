"""Pairs without an edge are drawn with the chances that the docs promise, and never an edge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from jaxgnn import CSRGraph, sampling
from jaxgnn.sampling.negatives import _below

DRAWS = 40_000


def _random_graph(seed, senders, receivers, chance):
    """A graph with repeated edges, and which pairs of [senders, receivers] it joins."""
    joined = np.random.default_rng(seed).random((senders, receivers)) < chance
    ends = np.nonzero(joined)
    once, again = ends, [x[: x.size // 2] for x in ends]
    edges = [np.concatenate(pair) for pair in zip(once, again, strict=True)]
    return CSRGraph.from_edges(*edges, receivers, num_senders=senders), joined


def _counts(pairs, shape):
    counts = np.zeros(shape, int)
    np.add.at(counts, tuple(np.asarray(pairs).reshape(2, -1)), 1)
    return counts


@pytest.mark.costly(3)
@pytest.mark.parametrize("weights", ["uniform", "degree"])
@pytest.mark.parametrize("shape, self_loops", [((9, 9), False), ((9, 9), True), ((5, 12), False)])
def test_pairs_have_the_chances_that_their_weights_give(weights, shape, self_loops):
    graph, joined = _random_graph(0, *shape, chance=0.5)
    drawn = sampling.negative_edges(
        graph, DRAWS, jax.random.key(1), weights=weights, self_loops=self_loops
    )
    assert drawn.shape == (2, DRAWS) and drawn.dtype == jnp.int32
    chances = ~joined * 1.0
    if shape[0] == shape[1] and not self_loops:
        np.fill_diagonal(chances, 0)
    if weights == "degree":
        chances *= np.outer(joined.sum(axis=1) ** 0.75, joined.sum(axis=0) ** 0.75)
    counts, possible = _counts(drawn, shape), chances > 0
    assert not counts[~possible].any()
    expected = chances[possible] / chances.sum() * DRAWS
    assert chisquare(counts[possible], expected).pvalue > 1e-3


@pytest.mark.parametrize("weights", ["uniform", "degree"])
def test_each_source_gets_receivers_of_its_own_with_equal_chances(weights):
    graph, joined = _random_graph(1, 6, 7, chance=0.4)
    sources = np.array([4, 0, 4])
    drawn = sampling.negative_edges(
        graph, DRAWS, jax.random.key(0), sources=sources, weights=weights
    )
    assert drawn.shape == (2, 3, DRAWS)
    np.testing.assert_array_equal(drawn[0], np.broadcast_to(sources[:, None], (3, DRAWS)))
    for at, source in enumerate(sources):
        chances = ~joined[source] * (joined.sum(axis=0) ** 0.75 if weights == "degree" else 1.0)
        counts = np.bincount(drawn[1, at], minlength=7)
        assert not counts[chances == 0].any()
        expected = chances[chances > 0] / chances.sum() * DRAWS
        assert chisquare(counts[chances > 0], expected).pvalue > 1e-3


def test_no_edge_of_a_large_graph_with_nodes_of_many_edges_is_drawn():
    rng, nodes = np.random.default_rng(0), 3000
    senders = np.concatenate([np.zeros(2990, int), rng.integers(0, nodes, 20_000)])
    receivers = np.concatenate([np.arange(2990), rng.integers(0, nodes, 20_000)])
    graph = CSRGraph.from_edges(senders, receivers, nodes)
    edges = set(zip(senders.tolist(), receivers.tolist(), strict=True))
    for weights in ("uniform", "degree"):
        sampler = sampling.NegativeSampler.of(graph, weights=weights)
        drawn = np.asarray(sampler.sample(jax.random.key(0), 20, jnp.arange(nodes))).reshape(2, -1)
        assert drawn.min() == 0 and drawn.max() < nodes
        assert not edges & set(zip(*drawn.tolist(), strict=True))
        assert (drawn[0] != drawn[1]).all()


def test_a_sampler_is_drawn_from_inside_of_jit_and_marks_what_has_no_pair():
    joined = np.ones((4, 4), bool)
    joined[1, 2] = joined[3, 0] = False
    graph = CSRGraph.from_edges(*np.nonzero(joined), 4)
    sampler = sampling.NegativeSampler.of(graph)

    @jax.jit
    def draw(sampler, key, sources):
        return sampler.sample(key, 2, sources), sampler.sample(key, 50)

    own, any_pairs = draw(sampler, jax.random.key(0), jnp.array([0, 1, 3, 4, -7]))
    pairs = [[0, -1], [1, 2], [3, 0], [-1, -1], [-1, -1]]
    np.testing.assert_array_equal(own[..., 0].T, pairs)
    assert set(zip(*any_pairs.tolist(), strict=True)) == {(1, 2), (3, 0)}


def test_padding_edges_are_no_edges():
    mask = np.array([True, False, True])
    graph = CSRGraph.from_edges([0, 0, 1], [1, 2, 0], 3, edge_mask=mask)
    drawn = sampling.negative_edges(graph, 100, jax.random.key(0))
    assert set(zip(*drawn.tolist(), strict=True)) == {(0, 2), (1, 2), (2, 0), (2, 1)}


def test_a_graph_without_edges_gives_any_pair():
    graph = CSRGraph.from_edges([], [], 3)
    drawn = sampling.negative_edges(graph, 200, jax.random.key(0), self_loops=True)
    assert np.count_nonzero(_counts(drawn, (3, 3))) == 9


def test_numbers_below_a_limit_are_products_of_64_bits():
    rng = np.random.default_rng(0)
    bits = np.concatenate([rng.integers(0, 2**32, 500), [0, 2**32 - 1]]).astype(np.uint32)
    limits = np.concatenate([rng.integers(1, 2**31, 500), [2**31 - 1] * 2]).astype(np.int32)
    expected = [int(a) * int(b) >> 32 for a, b in zip(bits, limits, strict=True)]
    np.testing.assert_array_equal(_below(jnp.asarray(limits), jnp.asarray(bits)), expected)


GRAPH = CSRGraph.from_edges([0, 1], [1, 0], 3)
COMPLETE = CSRGraph.from_edges([0, 1], [1, 0], 2)
KEY = jax.random.key(0)
BAD = {
    "all nodes joined": (COMPLETE, {}, "graph must be with some pair of nodes that no edge joins"),
    "no nodes": (CSRGraph.from_edges([], [], 0), {}, "graph must be with some pair of nodes"),
    "no edges to weigh by": (
        CSRGraph.from_edges([], [], 3),
        {"weights": "degree"},
        "with an edge, by which",
    ),
    "unknown weights": (GRAPH, {"weights": "rank"}, "weights must be one of uniform, degree"),
    "an array of weights": (GRAPH, {"weights": np.ones(2000)}, "weights must be one of .* array"),
    "a list of weights": (
        GRAPH,
        {"weights": [1.0] * 2000},
        r"got \[1.0, .* \(10,000 characters\)$",
    ),
    "an array of self loops": (GRAPH, {"self_loops": np.ones(3)}, "self_loops must be True or Fal"),
    "none to draw": (GRAPH, {"num": 0}, "num must be an int of at least 1, got 0"),
    "a source out of range": (GRAPH, {"sources": [0, 3]}, r"sources\[1\] must be in \[0, 3\)"),
    "sources that are no ids": (GRAPH, {"sources": [0.5]}, "sources must be integers of shape"),
    "a source joined to all": (
        CSRGraph.from_edges([0, 0], [1, 2], 3),
        {"sources": [1, 0]},
        r"sources\[1\] must be a node that is not joined to all receivers, got 0",
    ),
    "no graph": (np.ones((2, 2)), {}, "graph must be a jaxgnn.graph.CSRGraph, got ndarray"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    graph, options, message = BAD[name]
    with pytest.raises(ValueError, match=rf"^sampling\.negative_edges: .*{message}"):
        sampling.negative_edges(graph, **({"num": 5, "key": KEY} | options))


def test_a_traced_graph_is_refused():
    with pytest.raises(ValueError, match="graph must be concrete; call it outside jit"):
        jax.jit(lambda graph: sampling.negative_edges(graph, 2, KEY))(GRAPH)
