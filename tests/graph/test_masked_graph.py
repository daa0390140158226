"""MaskedGraph: presence of edges, in graphs that are derived from it and in ops."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.graph import edge_presence, looped_features, masked, with_one_loop_each
from jaxgnn.testing import random_array

GRAPH = CSRGraph.from_edges([0, 1, 2, 0, 3, 1], [1, 2, 2, 3, 0, 2], 4)
PRESENCE = jnp.array([1.0, 0.5, 0.3, 0.6, 0.95, 0.75])
WEIGHTS = jnp.array([2.0, 1.0, 4.0, 3.0, 0.5, 1.0])
MESSAGES = random_array((6, 3), "float32", seed=0)
X = random_array((4, 3), "float32", seed=1)


def test_presence_is_part_of_the_weights_and_of_the_degrees():
    made = masked(GRAPH.with_weights(WEIGHTS), PRESENCE)
    np.testing.assert_allclose(made.weights, WEIGHTS * PRESENCE)
    rows = np.asarray(GRAPH.receivers())
    np.testing.assert_allclose(made.degrees(), np.bincount(rows, PRESENCE, 4))
    assert made.uniform_degrees() == (None, None)
    bare = made.without_weights()
    np.testing.assert_allclose(edge_presence(bare), PRESENCE)
    np.testing.assert_allclose(bare.weights, PRESENCE)
    assert edge_presence(GRAPH) is None
    assert edge_presence(made.with_weights(WEIGHTS)) is None  # weights that count it already


def test_derived_graphs_keep_the_presence_of_each_edge():
    made = masked(GRAPH.with_weights(WEIGHTS), PRESENCE)
    back = made.transpose().transpose()
    np.testing.assert_array_equal(back.indices, GRAPH.indices)
    np.testing.assert_allclose(edge_presence(back), PRESENCE)
    np.testing.assert_allclose(back.weights, WEIGHTS * PRESENCE)
    looped = made.with_self_loops(weight=7.0)
    is_loop = np.asarray(looped.receivers()) == np.asarray(looped.indices)
    before = np.asarray(GRAPH.receivers()) == np.asarray(GRAPH.indices)
    np.testing.assert_allclose(np.asarray(looped.weights)[is_loop].max(), 7.0)
    assert is_loop.sum() == 4 and before.sum() == 1
    expected = np.sort([*PRESENCE, *np.ones(3)])
    np.testing.assert_allclose(np.sort(edge_presence(looped)), expected)
    one_each = with_one_loop_each(masked(GRAPH, PRESENCE)).graph
    total = float(PRESENCE[~before].sum()) + 4
    np.testing.assert_allclose(edge_presence(one_each).sum(), total, rtol=1e-6)


@pytest.mark.costly(3)
@pytest.mark.parametrize(
    "name", ["max", "softmax", "std", "sum", "mean", "var", "min", "logsumexp"]
)
def test_derivatives_of_reductions_agree_with_differences(name):
    def value(presence):
        y = ops.aggregate(masked(GRAPH, presence), MESSAGES, name)
        return jnp.sum(y * jnp.arange(1.0, 4.0))

    size = 2.0**-8
    slopes = jax.jit(jax.grad(value))(PRESENCE)
    ahead, behind = (jax.jit(jax.vmap(value))(PRESENCE + s * size * jnp.eye(6)) for s in (1, -1))
    np.testing.assert_allclose(slopes, (ahead - behind) / (2 * size), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shift", [-10.0, 10.0])  # extremes on either side of zero
def test_reductions_leave_out_edges_of_presence_zero(shift):
    kept = np.array([0, 1, 3, 4, 5])
    ends = np.asarray(GRAPH.indices)[kept], np.asarray(GRAPH.receivers())[kept]
    names, messages = get_args(ops.Aggregation), MESSAGES + shift
    presence = jnp.zeros(6).at[kept].set(1.0)
    found, expected = jax.jit(
        lambda: (
            ops.aggregate(masked(GRAPH, presence), messages, names),
            ops.aggregate(CSRGraph.from_edges(*ends, 4), messages[kept], names),
        )
    )()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_where_all_edges_are_there_a_mean_and_a_softmax_give_each_its_share():
    scores = random_array((6, 1), "float32", seed=2)
    rows = np.asarray(GRAPH.receivers())
    direction = jnp.arange(1.0, 4.0)
    along = np.asarray(MESSAGES @ direction)

    def mean(presence):
        return jnp.sum(ops.aggregate(masked(GRAPH, presence), MESSAGES, "mean") @ direction)

    def softmax(presence):
        graph = masked(GRAPH, presence)
        weights = ops.segment_softmax(graph, scores)
        return jnp.sum(ops.aggregate(GRAPH, weights * MESSAGES) @ direction)

    shares = 1 / np.bincount(rows, minlength=4)[rows]
    np.testing.assert_allclose(jax.grad(mean)(jnp.ones(6)), shares * along, rtol=1e-4, atol=1e-5)
    weights = np.asarray(ops.segment_softmax(GRAPH, scores))[:, 0]
    np.testing.assert_allclose(
        jax.grad(softmax)(jnp.ones(6)), weights * along, rtol=1e-4, atol=1e-5
    )


def test_attention_of_a_masked_edge_with_the_largest_score_is_finite():
    q, k = jnp.ones((4, 1, 1)), jnp.array([0.0, 300.0, 0.0, 0.0])[:, None, None]
    graph = masked(GRAPH, jnp.ones(6).at[jnp.asarray(GRAPH.indices) == 1].set(0.0))
    run = functools.partial(ops.dot_attention, q=q, k=k, v=X[:, None], scale=1.0)
    y, weights = run(graph, return_weights=True)
    np.testing.assert_allclose(y[2, 0], X[2], rtol=1e-6)
    assert np.isfinite(y).all() and set(np.asarray(weights).ravel()) <= {0.0, 1.0}


def test_a_normalised_mean_has_the_presence_of_a_single_edge():
    y = ops.spmm(masked(GRAPH, PRESENCE).normalized("mean"), X)
    share = PRESENCE[int(GRAPH.indptr[3])]  # of the one edge that enters node 3
    np.testing.assert_allclose(y[3], share * X[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("graph", "presence", "message"),
    [
        (GRAPH, jnp.ones(5), r"^masked: presence must be floating of shape \(6,\)"),
        (GRAPH, jnp.ones(6, jnp.int32), r"got int32\[6\]"),
        (masked(GRAPH, PRESENCE), PRESENCE, r"^masked: graph must be a CSRGraph that is not mas"),
    ],
)
def test_what_can_not_be_masked_is_named(graph, presence, message):
    with pytest.raises(ValueError, match=message):
        masked(graph, presence)


def test_features_of_loops_that_count_extremes_are_refused():
    graph = masked(GRAPH, PRESENCE)
    looped = with_one_loop_each(graph)
    with pytest.raises(ValueError, match=r"^looped_features: fill_value must be 'mean', 'ad"):
        looped_features(graph, looped, MESSAGES, "max")
