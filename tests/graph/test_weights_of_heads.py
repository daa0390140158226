"""Graphs whose edges have a weight for each of several heads, [edges, heads]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.graph import GraphBatch, coalesce, subgraph, to_undirected
from jaxgnn.testing import random_array

SENDERS, RECEIVERS = np.array([2, 0, 1, 2]), np.array([1, 0, 0, 2])
WEIGHTS = np.arange(8.0, dtype="float32").reshape(4, 2)
GRAPH = CSRGraph.from_edges(SENDERS, RECEIVERS, 3, WEIGHTS)


def _matrices(graph):
    """The dense matrix of each head."""
    dense = np.zeros((2, *graph.shape))
    count = int(graph.indptr[-1])
    rows = np.repeat(np.arange(graph.num_rows), np.diff(np.asarray(graph.indptr)))
    for row, column, weights in zip(
        rows, np.asarray(graph.indices)[:count], np.asarray(graph.weights), strict=False
    ):
        dense[:, row, column] += weights
    return dense


EXPECTED = np.zeros((2, 3, 3))
EXPECTED[:, RECEIVERS, SENDERS] = WEIGHTS.T


def test_constructors_sort_the_weights_of_all_heads_with_the_edges():
    np.testing.assert_array_equal(_matrices(GRAPH), EXPECTED)
    given = jnp.asarray(SENDERS), jnp.asarray(RECEIVERS)
    traced = jax.jit(lambda s, r, w: CSRGraph.from_edges(s, r, 3, w))(*given, WEIGHTS)
    np.testing.assert_array_equal(traced.weights, GRAPH.weights)
    padded = CSRGraph.from_edges(SENDERS, RECEIVERS, 3, WEIGHTS, edge_mask=[True] * 3 + [False])
    assert padded.weights.shape == (4, 2) and int(padded.indptr[-1]) == 3


def test_derived_graphs_keep_the_weights_of_all_heads():
    np.testing.assert_array_equal(_matrices(GRAPH.transpose()), EXPECTED.swapaxes(1, 2))
    looped = _matrices(GRAPH.with_self_loops(0.5))
    np.testing.assert_array_equal(looped, EXPECTED + np.diag([0.0, 0.5, 0.0]))
    assert GRAPH.prepared().validate().weights is GRAPH.weights
    assert "weights=float32[4, 2]" in repr(GRAPH)
    scaled = GRAPH.with_weights(None).normalized("sym").with_weights(GRAPH.weights)
    assert scaled.normalization == "sym" and scaled.weights.shape == (4, 2)


def test_transforms_select_and_combine_the_weights_of_each_head():
    part = subgraph(GRAPH, [2, 1]).graph
    np.testing.assert_array_equal(_matrices(part), EXPECTED[:, [2, 1]][:, :, [2, 1]])
    double = CSRGraph.from_edges(
        np.tile(SENDERS, 2), np.tile(RECEIVERS, 2), 3, np.concatenate([WEIGHTS, 3 * WEIGHTS])
    )
    for reduce, factor in (("sum", 4), ("mean", 2), ("max", 3)):
        np.testing.assert_array_equal(_matrices(coalesce(double, reduce)), factor * EXPECTED)
    both = to_undirected(GRAPH, "sum")
    np.testing.assert_array_equal(_matrices(both), EXPECTED + EXPECTED.swapaxes(1, 2))


def test_stacked_graphs_with_heads_are_told_from_single_ones():
    weights = random_array((5, 4, 2), "float32", seed=0)
    stacked = jax.vmap(GRAPH.with_weights)(weights)
    with pytest.raises(ValueError, match="self must be a single one, with arrays of one axis"):
        stacked.degrees()
    back = jax.vmap(lambda graph: graph.transpose().transpose().weights)(stacked)
    np.testing.assert_array_equal(back, weights)


BAD = {
    "no row an edge": (
        lambda: GRAPH.with_weights(np.ones((2, 4))),
        r"CSRGraph.with_weights: weights must be of shape \(4,\), .* or \(4, heads\), got \(2, 4\)",
    ),
    "three axes": (
        lambda: CSRGraph.from_edges([0], [0], 1, np.ones((1, 1, 1))),
        r"CSRGraph.from_edges: weights must be of shape \(1,\), .* or \(1, heads\), got \(1, 1, 1",
    ),
    "integers": (
        lambda: GRAPH.with_weights(np.ones((4, 2), int)),
        "CSRGraph.with_weights: weights must be of a floating dtype, got int64",
    ),
    "not finite": (
        lambda: GRAPH.with_weights(np.full((4, 2), np.nan)).validate(),
        r"CSRGraph: weights\[0, 0\] must be finite, got nan",
    ),
    "normalised": (
        lambda: GRAPH.normalized("mean"),
        "CSRGraph.normalized: self.weights must be one number for each edge",
    ),
    "scipy": (
        lambda: GRAPH.to_scipy(),
        "CSRGraph.to_scipy: self.weights must be one number for each edge",
    ),
    "batch": (
        lambda: GraphBatch.from_graphs([GRAPH, GRAPH]),
        r"GraphBatch.from_graphs: graphs\[0\].weights must be one number for each edge",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_takes_one_weight_an_edge_says_so(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
