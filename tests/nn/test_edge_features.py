"""Features of edges that come in the order of the input reach the right edges."""

import inspect

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.testing import random_array

_rng = np.random.default_rng(0)
SENDERS, RECEIVERS = _rng.integers(0, 9, (2, 30))
X = random_array((9, 4), "float32", seed=1)
E = random_array((30, 3), "float32", seed=2)
GRAPH, _ = CSRGraph.from_edges(SENDERS, RECEIVERS, 9, edge_data=())


def _dense(kernel, bias):
    """Σ over edges of relu(x_sender + e kernel + bias), by a loop over the input."""
    sums = np.zeros((9, 4))
    for s, r, e in zip(SENDERS, RECEIVERS, np.asarray(E, np.float64), strict=True):
        sums[r] += np.maximum(np.asarray(X[s], np.float64) + e @ kernel + bias, 0)
    return sums


def test_sorted_features_give_the_formula_and_unsorted_ones_do_not():
    layer = nn.MessagePassing(
        lambda _, x, e: jax.nn.relu(x + e @ KERNEL + BIAS), lambda _, y: y, reduce="sum"
    )
    expected = _dense(np.asarray(KERNEL, np.float64), np.asarray(BIAS, np.float64))
    sorted_edges = jax.jit(GRAPH.sort_edges)(E)
    np.testing.assert_allclose(layer(GRAPH, X, sorted_edges), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(layer(GRAPH, X, E) - expected).max() > 0.1


KERNEL = random_array((3, 4), "float32", seed=3)
BIAS = random_array((4,), "float32", seed=4)


def test_features_are_sorted_as_the_constructor_sorts_them():
    tree = {"a": E, "b": [np.arange(30)]}
    graph, expected = CSRGraph.from_edges(SENDERS, RECEIVERS, 9, edge_data=tree)
    jax.tree.map(np.testing.assert_array_equal, graph.sort_edges(tree), expected)


BAD = {
    "CSRGraph.sort_edges: self must be built with edge_data": lambda: CSRGraph.from_edges(
        SENDERS, RECEIVERS, 9
    ).sort_edges(E),
    r"CSRGraph.sort_edges: edges must .*30.*\(29, 3\)": lambda: GRAPH.sort_edges(E[:29]),
    "CSRGraph.sort_edges: self must be without self loops": lambda: (
        GRAPH.with_self_loops().sort_edges(E)
    ),
    r"GINEConv: edge_features must .*graph.sort_edges\(features\)": lambda: nn.GINEConv(
        4, edge_dim=3, rngs=nnx.Rngs(0)
    )(GRAPH, X, E[:29]),
}


@pytest.mark.parametrize("message", BAD)
def test_features_of_other_edges_are_refused(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


def test_every_layer_that_takes_features_of_edges_says_how_to_sort_them():
    calls = [
        getattr(nn, name).__call__
        for name in dir(nn)
        if inspect.isclass(getattr(nn, name)) and issubclass(getattr(nn, name), nnx.Module)
    ]
    takes = [c for c in calls if "edge_features" in inspect.signature(c).parameters]
    assert len(takes) > 8
    assert [c.__qualname__ for c in takes if "sort_edges" not in str(c.__doc__)] == []
