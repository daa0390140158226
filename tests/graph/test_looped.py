"""Graphs in which every node has one self loop, and the features of their edges."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxgnn import CSRGraph
from jaxgnn.graph import looped_features, with_one_loop_each

_rng = np.random.default_rng(0)
_senders, _receivers = _rng.integers(0, 6, (2, 20))
_MASK = np.arange(20) < 14
GRAPHS = {
    "square": CSRGraph.from_edges(_senders, _receivers, 8),
    "padded": CSRGraph.from_edges(_senders, _receivers, 8, edge_mask=_MASK),
    "more receivers": CSRGraph.from_edges(_senders, _receivers, 9, num_senders=6),
    "more senders": CSRGraph.from_edges(_senders, _receivers, 6, num_senders=9),
    "only loops": CSRGraph.from_edges([0, 0, 2], [0, 0, 2], 3),
    "without edges": CSRGraph.from_edges(np.zeros(0, int), np.zeros(0, int), 3),
    "weighted": CSRGraph.from_edges(_senders, _receivers, 8, np.ones(20, np.float32)),
}
_traced = jax.jit(with_one_loop_each)


def _rows(graph):
    """The senders of each row in order."""
    indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
    return [indices[a:b].tolist() for a, b in itertools.pairwise(indptr)]


@pytest.mark.parametrize("name", GRAPHS)
def test_each_row_keeps_its_edges_in_order_and_ends_with_its_loop(name):
    graph = GRAPHS[name]
    loops = min(graph.shape)
    expected = [
        [sender for sender in senders if sender != row] + [row] * (row < loops)
        for row, senders in enumerate(_rows(graph))
    ]
    for made in (with_one_loop_each(graph), _traced(graph)):
        assert _rows(made.graph) == expected
        assert made.graph.shape == graph.shape and made.graph.weights is None
        made.graph.validate()
        real = made.graph.receivers() < graph.num_rows
        ends = np.append(np.asarray(graph.indices), np.arange(loops))
        np.testing.assert_array_equal(
            ends[made.sources][real], np.asarray(made.graph.indices)[real]
        )


def test_slots_are_as_many_as_edges_and_loops_where_shapes_must_not_depend_on_values():
    assert with_one_loop_each(GRAPHS["padded"]).graph.num_edges == 28
    assert _traced(GRAPHS["square"]).graph.num_edges == 28
    made = with_one_loop_each(GRAPHS["square"]).graph
    assert made.num_edges == made.indptr[-1] < 28


def test_a_concrete_graph_is_made_once_also_when_it_was_taken_apart():
    graph = GRAPHS["square"]
    made = with_one_loop_each(graph)
    again = jax.tree.unflatten(*jax.tree.flatten(graph)[::-1])
    assert with_one_loop_each(again) is made
    wider = CSRGraph(graph.indptr, graph.indices, num_cols=20)
    assert with_one_loop_each(wider).graph.shape == (8, 20)


@pytest.mark.costly
@pytest.mark.parametrize("fill_value", ["mul", "max", "mean", "add", "min", 0.5, (1.0, 2.0)])
def test_features_of_loops_have_gradients_and_padding_none(fill_value):
    graph = GRAPHS["padded"]
    looped = with_one_loop_each(graph)
    features = jnp.asarray(_rng.normal(size=(20, 2)), jnp.float32)

    @jax.jit
    def values(features):
        return looped_features(graph, looped, features, fill_value)

    check_grads(values, (features,), order=1, modes=["rev"], rtol=1e-2, atol=1e-2)
    spoiled = features.at[14:].set(jnp.nan)
    np.testing.assert_array_equal(values(spoiled), values(features.at[14:].set(0)))
    gradient = jax.jit(jax.grad(lambda e: jnp.sum(values(e) ** 2)))(spoiled)
    assert np.isfinite(gradient).all() and not gradient[14:].any()


def test_a_product_with_a_zero_has_the_gradient_of_a_product():
    graph = CSRGraph.from_edges([1, 2, 3], [0, 0, 0], 4)
    looped = with_one_loop_each(graph)

    def loop_of_the_first(features):
        return looped_features(graph, looped, features[:, None], "mul")[3, 0]

    gradient = jax.jit(jax.grad(loop_of_the_first))
    np.testing.assert_array_equal(gradient(jnp.array([2.0, 3.0, 5.0])), [15.0, 10.0, 6.0])
    np.testing.assert_array_equal(gradient(jnp.array([2.0, 0.0, 5.0])), [0.0, 10.0, 0.0])
    np.testing.assert_array_equal(gradient(jnp.array([0.0, 0.0, 5.0])), [0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "features, fill_value, message",
    [
        (jnp.ones(20), "mean", r"features must be of shape \[..., 20, features\].*\(20,\)"),
        (jnp.ones((19, 2)), "mean", r"features must be of shape \[..., 20, features\].*\(19, 2\)"),
        (jnp.ones((20, 2), jnp.int32), "mean", "features must be of a floating dtype, got int32"),
        (jnp.ones((20, 2)), "median", "fill_value must be a number, numbers, or one of mean, add"),
        (jnp.ones((20, 2)), (1.0, 2.0, 3.0), "fill_value must be one finite number, or 2 of them"),
        (jnp.ones((20, 2)), np.nan, "fill_value must be one finite number, or 2 of them"),
    ],
)
def test_features_that_do_not_fit_are_named(features, fill_value, message):
    graph = GRAPHS["square"]
    with pytest.raises(ValueError, match=f"looped_features: {message}"):
        looped_features(graph, with_one_loop_each(graph), features, fill_value)


def test_stacked_graphs_are_refused():
    graph = GRAPHS["square"]
    stacked = jax.tree.map(
        lambda leaf: jnp.stack([leaf, leaf]), CSRGraph(graph.indptr, graph.indices)
    )
    with pytest.raises(ValueError, match="with_one_loop_each: graph must be a single one"):
        with_one_loop_each(stacked)


def test_leading_axes_of_features_share_the_graph():
    graph = GRAPHS["padded"]
    looped = with_one_loop_each(graph)
    features = jnp.asarray(_rng.normal(size=(2, 20, 3)), jnp.float32)
    made = looped_features(graph, looped, features, "max")
    np.testing.assert_array_equal(made[1], looped_features(graph, looped, features[1], "max"))
