"""filtered_sum against its reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.graph import masked
from jaxgnn.ops._filters.filtered_sum import GIVEN
from jaxgnn.ops._filters.kernels import MOST_FEATURES
from jaxgnn.testing import check_against_float64, check_numerical_gradients, random_array
from tests.ops._table import BARE, longest_row, usable

IMPLEMENTATIONS = usable(GIVEN)


def _plain(graph, x, weights):
    """The formula as users write it."""
    receivers = graph.receivers()
    real = (receivers < graph.num_rows).reshape(-1, *[1] * (weights.ndim - 1))
    messages = x[graph.indices] * jnp.where(real, weights, 0)
    return jax.ops.segment_sum(messages, receivers, graph.num_rows)


@functools.cache  # one function for each graph, so that it is compiled once
def _given(name):
    return lambda x, weights: _plain(BARE[name], x, weights)


@functools.cache
def _made(name):
    def plain(x, basis, kernel, bias, envelope):
        return _plain(BARE[name], x, (basis @ kernel + bias) * envelope[:, None])

    return plain


def _made_arrays(graph, dim, features, dtype):
    return (
        random_array((graph.num_cols, dim), dtype, seed=0),
        random_array((graph.num_edges, features), dtype, seed=1),
        random_array((features, dim), dtype, seed=2),
        random_array((dim,), dtype, seed=3),
        random_array((graph.num_edges,), dtype, seed=4),
    )


def _call_made(graph, implementation, **options):
    def call(x, basis, kernel, bias, envelope):
        arrays = {"basis": basis, "kernel": kernel, "bias": bias, "envelope": envelope}
        return ops.filtered_sum(graph, x, **arrays, implementation=implementation)

    return call


def _check_given(name, dim, dtype, implementation):
    graph = BARE[name]
    x = random_array((graph.num_cols, dim), dtype, seed=dim)
    weights = random_array((graph.num_edges, dim), dtype, seed=1)
    check_against_float64(
        lambda x, w: ops.filtered_sum(graph, x, w, implementation=implementation),
        _given(name),
        x,
        weights,
        reduction_length=longest_row(graph),
    )


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("name", BARE)
def test_given_filters_value_and_gradients_equal_float64_on_every_graph(name, implementation):
    _check_given(name, 6, "float32", implementation)


@pytest.mark.costly
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "dim, dtype", [(1, "float32"), (128, "float32"), (33, "bfloat16"), (64, "bfloat16")]
)
def test_given_filters_value_and_gradients_equal_float64_at_every_width(dim, dtype, implementation):
    _check_given("padding_edges", dim, dtype, implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float32_filters_of_short_features_have_float32_gradients(implementation):
    graph = BARE["unweighted"]
    x = random_array((graph.num_cols, 16), "bfloat16", seed=0)
    weights = random_array((graph.num_edges, 16), "float32", seed=1)
    check_against_float64(
        lambda x, w: ops.filtered_sum(graph, x, w, implementation=implementation),
        _given("unweighted"),
        x,
        weights,
        reduction_length=longest_row(graph),
    )


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize(
    "name, dim, features, dtype",
    [
        ("hub_row_spans_tasks", 70, 5, "float32"),
        ("padding_edges", 1, 1, "float32"),
        ("bipartite", 33, 20, "bfloat16"),
        ("no_edges", 8, 3, "float32"),
        ("isolated_nodes", 32, 63, "float32"),
        ("repeated_edges", 40, MOST_FEATURES, "float32"),  # with the bias too many
    ],
)
def test_made_filters_value_and_gradients_equal_float64(name, dim, features, dtype, implementation):
    graph = BARE[name]
    check_against_float64(
        _call_made(graph, implementation),
        _made(name),
        *_made_arrays(graph, dim, features, dtype),
        reduction_length=features * max(graph.num_edges, dim),
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "of_x, of_weights",
    [((3, 8), (1, 8)), ((3, 8), (3, 1)), ((1, 8), (3, 8)), ((2, 8), (2, 8)), ((8,), (1,))],
    ids=str,
)
def test_axes_of_heads_and_channels_broadcast(of_x, of_weights, implementation):
    graph = BARE["padding_edges"]
    x = random_array((graph.num_cols, *of_x), "float32", seed=0)
    weights = random_array((graph.num_edges, *of_weights), "float32", seed=1)
    check_against_float64(
        lambda x, w: ops.filtered_sum(graph, x, w, implementation=implementation),
        _given("padding_edges"),
        x,
        weights,
        reduction_length=4 * longest_row(graph),
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_kernels_with_an_axis_of_heads_make_filters_of_heads(implementation):
    graph = BARE["unweighted"]
    x = random_array((graph.num_cols, 3, 8), "float32", seed=0)
    basis = random_array((graph.num_edges, 4), "float32", seed=1)
    for heads in (3, 1):
        kernel = random_array((4, heads, 8), "float32", seed=2)
        y = ops.filtered_sum(graph, x, basis=basis, kernel=kernel, implementation=implementation)
        expected = _plain(graph, x, jnp.einsum("eb,bhd->ehd", basis, kernel))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_agree_with_finite_differences(implementation):
    graph = BARE["repeated_edges"]
    check_numerical_gradients(
        _call_made(graph, implementation), *_made_arrays(graph, 3, 2, "float32")
    )


@pytest.mark.parametrize("implementation", [n for n in IMPLEMENTATIONS if n != "xla"])
@pytest.mark.parametrize("form", ["given", "made"])
def test_forces_and_their_gradients_equal_those_of_plain_jax(form, implementation):
    graph = BARE["padding_edges"]
    x, basis, kernel, bias, envelope = _made_arrays(graph, 8, 5, "float32")

    def curvature(implementation):
        def energy(x, basis, kernel, envelope):
            if form == "given":
                weights = (jnp.tanh(basis) @ kernel + bias) * envelope[:, None]
                y = ops.filtered_sum(graph, x, weights, implementation=implementation)
            else:
                call = _call_made(graph, implementation)
                y = call(x, jnp.tanh(basis), kernel, bias, envelope)
            return jnp.sum(jnp.sin(y))

        def loss(*arrays):
            slopes = jax.grad(energy, argnums=(0, 1, 2, 3))(*arrays)
            return sum(jnp.sum(slope**2) for slope in slopes) / 100

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(x, basis, kernel, envelope)

    for actual, expected in zip(curvature(implementation), curvature("xla"), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_slots_may_contain_anything(implementation):
    mask = [True, True, False]
    graph = CSRGraph.from_edges([0, 1, 0], [1, 0, 0], 2, edge_mask=mask)
    nan = jnp.full((1, 1), jnp.nan)
    x, of_edges = jnp.array([[5.0], [7.0]]), jnp.concatenate([jnp.array([[2.0], [3.0]]), nan])

    def given(x, weights):
        return ops.filtered_sum(graph, x, weights, implementation=implementation)

    def made(x, basis):
        arrays = {"basis": basis, "kernel": jnp.ones((1, 1)), "envelope": basis[:, 0]}
        return ops.filtered_sum(graph, x, **arrays, implementation=implementation)

    for call in (given, made):
        gradients = jax.grad(lambda *a: jnp.sum(call(*a)), argnums=(0, 1))(x, of_edges)  # noqa: B023
        assert all(np.isfinite(g).all() for g in gradients)
        assert gradients[1][2] == 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_leading_axes_share_the_graph_and_may_share_the_filters(implementation):
    graph = BARE["unweighted"]
    x = random_array((2, 3, graph.num_cols, 8), "float32", seed=0)
    weights = random_array((2, 3, graph.num_edges, 8), "float32", seed=1)
    call = functools.partial(ops.filtered_sum, graph, implementation=implementation)
    for of_edges in (weights, weights[0, 0]):
        y = call(x, of_edges)
        for i, j in np.ndindex(2, 3):
            own = of_edges if of_edges.ndim == 2 else of_edges[i, j]
            np.testing.assert_allclose(y[i, j], call(x[i, j], own), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_vmap_of_grad_sums_nothing_over_the_batch(implementation):
    graph = BARE["unweighted"]
    x = random_array((3, graph.num_cols, 4), "float32", seed=0)
    basis = random_array((graph.num_edges, 2), "float32", seed=1)
    kernel = random_array((2, 4), "float32", seed=2)

    def gradients(x):
        def loss(x, basis, kernel):
            arrays = {"basis": basis, "kernel": kernel}
            return jnp.sum(ops.filtered_sum(graph, x, **arrays, implementation=implementation) ** 2)

        return jax.grad(loss, argnums=(0, 1, 2))(x, basis, kernel)

    batched = jax.jit(jax.vmap(gradients))(x)
    for i in range(3):
        for together, alone in zip(batched, gradients(x[i]), strict=True):
            np.testing.assert_allclose(together[i], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["given", "made"])
def test_an_edge_that_is_not_present_is_not_there(form):
    graph = CSRGraph.from_edges([0, 1, 2], [2, 2, 0], 3)
    x, of_edges = jnp.array([[1.0], [2.0], [4.0]]), jnp.array([[1.0], [3.0], [5.0]])
    presence = jnp.array([1.0, 0.0, 0.5])

    def call(graph):
        if form == "given":
            return ops.filtered_sum(graph, x, of_edges)
        return ops.filtered_sum(graph, x, basis=of_edges, kernel=jnp.ones((1, 1)))

    assert call(masked(graph, presence)).ravel().tolist() == [4.0, 0.0, 5.0]
    slopes = jax.grad(lambda p: jnp.sum(call(masked(graph, p))))(presence)
    assert slopes.tolist() == [4.0, 3.0, 10.0]


def test_a_batch_of_graphs_is_a_graph():
    graphs = [CSRGraph.from_edges([0, 1], [1, 0], 2), CSRGraph.from_edges([0], [0], 1)]
    batch = CSRGraph.batch(graphs)
    x = jnp.ones((batch.graph.num_cols, 2))
    y = ops.filtered_sum(batch.graph, x, jnp.full((batch.graph.num_edges, 2), 3.0))
    assert y[:3].tolist() == [[3.0, 3.0]] * 3


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "basis must be given, as weights are not"),
        ({"basis": jnp.ones((3, 2))}, "kernel must be given"),
        ({"weights": jnp.ones((3, 2)), "kernel": jnp.ones((2, 2))}, "kernel must be None"),
        ({"weights": jnp.ones((4, 2))}, "weights must be of shape"),
        ({"weights": jnp.ones((3, 5))}, "weights must be of last axes"),
        ({"basis": jnp.ones((3, 2)), "kernel": jnp.ones((4, 2))}, "kernel must be of shape"),
        (
            {"basis": jnp.ones((3, 2)), "kernel": jnp.ones((2, 2)), "bias": jnp.ones(3)},
            "bias must be of shape",
        ),
        (
            {"basis": jnp.ones((3, 2)), "kernel": jnp.ones((2, 2)), "envelope": jnp.ones(2)},
            "envelope must be of shape",
        ),
        ({"weights": jnp.ones((3, 2), int)}, "weights must be of a floating dtype"),
        ({"basis": jnp.ones((3, 0)), "kernel": jnp.ones((0, 2))}, "basis must be of at least one"),
    ],
)
def test_bad_input_is_named(options, message):
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
    with pytest.raises(ValueError, match=f"filtered_sum: {message}"):
        ops.filtered_sum(graph, jnp.ones((3, 2)), **options)


def test_weights_of_the_graph_are_refused():
    graph = CSRGraph.from_edges([0], [1], 2).with_weights(jnp.ones(1))
    with pytest.raises(ValueError, match="multiply the filters, or the envelope, by them"):
        ops.filtered_sum(graph, jnp.ones((2, 2)), jnp.ones((1, 2)))
