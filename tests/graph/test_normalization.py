"""Degree normalisation: what it multiplies by, where it is kept, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from tests.graph._oracles import (
    assert_same_tree,
    dense,
    edge_lists,
    normalize,
    random_edges,
    receivers,
)

KINDS = ["mean", "sym"]
PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)


def normalized(matrix, kind):
    """D⁻¹ A, or D_r^-½ A D_c^-½; without edges the scale is zero."""
    rows, columns = matrix.sum(1), matrix.sum(0)

    def power(degrees, exponent):
        return np.where(degrees > 0, np.where(degrees > 0, degrees, 1) ** exponent, 0)

    if kind == "mean":
        return power(rows, -1.0)[:, None] * matrix
    return power(rows, -0.5)[:, None] * matrix * power(columns, -0.5)


@pytest.mark.parametrize("kind", KINDS)
@PROPERTY
@given(edges=edge_lists())
def test_counts_degrees_of_an_unweighted_graph_and_gives_it_no_weights(kind, edges):
    graph = normalize(edges.graph(weighted=False), kind).validate()
    expected = normalized(edges.dense(weighted=False), kind)
    np.testing.assert_allclose(dense(graph), expected, rtol=1e-6)
    assert graph.weights is None
    assert graph.row_scale.dtype == jnp.float32
    assert (graph.col_scale is None) == (kind == "mean")


@pytest.mark.parametrize("kind", KINDS)
@PROPERTY
@given(edges=edge_lists())
def test_sums_weights_of_a_weighted_graph_and_folds_into_them(kind, edges):
    graph = normalize(edges.graph(), kind).validate()
    np.testing.assert_allclose(dense(graph), normalized(edges.dense(), kind), rtol=1e-5)
    assert graph.row_scale is None
    assert graph.col_scale is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_traced_equals_eager(kind, weighted):
    graph = random_edges(5, 6, 9, 900).graph(weighted=weighted)
    expected = dense(graph.normalized(kind))
    np.testing.assert_allclose(dense(normalize(graph, kind)), expected, rtol=1e-6)
    if not weighted:  # then degrees of columns come from the plan, or are counted
        unplanned = CSRGraph(graph.indptr, graph.indices, num_cols=9)
        np.testing.assert_allclose(dense(normalize(unplanned, kind)), expected, rtol=1e-6)


def test_none_changes_nothing():
    graph = random_edges(5, 6, 9, 5).graph()
    assert graph.normalized(None) is graph


def test_mean_rows_add_up_to_one_or_have_no_edges():
    edges = random_edges(3, 6, 9, 5)
    for weighted in (False, True):
        sums = dense(normalize(edges.graph(weighted=weighted), "mean")).sum(1)
        has_edges = edges.dense().sum(1) > 0
        assert 0 < has_edges.sum() < 6
        np.testing.assert_allclose(sums, has_edges, rtol=1e-6)


def test_sym_of_an_undirected_graph_is_symmetric():
    edges = random_edges(1, 6, 6, 5)
    both = [edges.senders, edges.receivers], [edges.receivers, edges.senders]
    senders, receivers = (np.concatenate(ends) for ends in both)
    weights = np.tile(edges.weights, 2)
    for graph in (
        CSRGraph.from_edges(senders, receivers, 6),
        CSRGraph.from_edges(senders, receivers, 6, weights),
    ):
        matrix = dense(normalize(graph, "sym"))
        np.testing.assert_allclose(matrix, matrix.T, rtol=1e-5)
        assert np.abs(np.linalg.eigvalsh(matrix)).max() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_transpose_of_a_normalised_graph_is_the_transposed_matrix(kind, weighted):
    graph = random_edges(7, 6, 9, 900).graph(weighted=weighted).normalized(kind)
    np.testing.assert_array_equal(dense(graph.transpose().validate()), dense(graph).T)
    assert_same_tree(graph.transpose().transpose(), graph)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_kernels_apply_it(kind, weighted):
    edges = random_edges(8, 6, 9, 900)
    x = np.linspace(-1, 1, 9 * 3, dtype=np.float32).reshape(9, 3)
    graph = edges.graph(weighted=weighted).normalized(kind)
    expected = normalized(edges.dense(weighted=weighted), kind) @ x
    np.testing.assert_allclose(ops.spmm(graph, x), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_through_the_folded_degrees(kind):
    """Against the same formula in dense jnp, autodifferentiated; and nothing from padding."""
    edges = random_edges(9, 6, 9, 5)
    graph = edges.graph()
    real = int(graph.indptr[-1])
    factors = np.random.default_rng(0).normal(size=(6, 9)).astype(np.float32)
    rows, columns = np.asarray(receivers(graph))[:real], np.asarray(graph.indices)[:real]

    def sparse_loss(weights):
        result = graph.with_weights(weights).normalized(kind)
        return jnp.sum(result.weights[:real] * factors[rows, columns])

    def dense_loss(weights):
        matrix = jnp.zeros((6, 9)).at[rows, columns].add(weights[:real])
        row_sums = matrix.sum(1, keepdims=True)
        column_sums = matrix.sum(0)
        row_sums = jnp.where(row_sums == 0, 1, row_sums)
        column_sums = jnp.where(column_sums == 0, 1, column_sums)
        if kind == "mean":
            return jnp.sum(factors * matrix / row_sums)
        return jnp.sum(factors * matrix / jnp.sqrt(row_sums * column_sums))

    # What lies in the padding slots must reach neither the value nor the gradient.
    weights = np.where(np.arange(5) < real, graph.weights, np.nan)
    value, gradient = jax.jit(jax.value_and_grad(sparse_loss))(weights)
    expected_value, expected_gradient = jax.jit(jax.value_and_grad(dense_loss))(graph.weights)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    assert 0 < real < 5
    result = normalize(graph.with_weights(weights), kind)
    assert not np.asarray(result.weights)[real:].any(), "not even NaN stays in padding slots"
    assert not np.asarray(gradient)[real:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_where_weights_cancel_out(kind):
    graph = CSRGraph.from_edges([0, 1, 2], [0, 0, 1], 3)

    @jax.jit
    @jax.value_and_grad
    def total(weights):
        return graph.with_weights(weights).normalized(kind).weights.sum()

    for weights in ([1.0, -1.0, 0.0], [-2.0, -1.0, -1.0]):
        value, gradient = total(jnp.array(weights))
        assert value == 0, "nonpositive sums count as no edges"
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("kind", "dtype"), [("mean", jnp.bfloat16), ("sym", jnp.float16)])
def test_degrees_of_half_precision_weights_are_summed_in_float32(kind, dtype):
    """In bfloat16 a sum of ones stops at 256, in float16 a sum of hundreds is infinite."""
    edges = random_edges(4, 6, 9, 900, hub=True)
    weights = (100 * edges.weights).astype(dtype)
    graph = CSRGraph.from_edges(edges.senders, edges.receivers, 6, weights, num_senders=9)
    exact = np.zeros((6, 9))
    np.add.at(exact, (edges.receivers, edges.senders), weights.astype(np.float64))
    actual = dense(normalize(graph, kind))
    np.testing.assert_allclose(actual, normalized(exact, kind), rtol=float(jnp.finfo(dtype).eps))


def test_scales_are_constants_without_gradient():
    """They are made from integer offsets; the gradient to the features passes through them."""
    graph = random_edges(6, 6, 9, 5).graph(weighted=False).normalized("sym")
    total = jax.jit(lambda x: ops.spmm(graph, x, implementation="xla").sum())
    gradient = np.asarray(jax.grad(total)(np.ones((9, 1), np.float32)))
    np.testing.assert_allclose(gradient[:, 0], dense(graph).sum(0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "sym", "gcn"])
def test_scales_of_a_concrete_graph_are_rounded_once(kind):
    degrees = np.arange(1, 400)
    ends = np.repeat(np.arange(399), degrees)
    graph = CSRGraph.from_edges(ends, ends, 399).normalized(kind)
    exact = degrees ** (-1.0 if kind == "mean" else -0.5)
    scales = [graph.row_scale] if kind == "mean" else [graph.row_scale, graph.col_scale]
    for scale in scales:
        np.testing.assert_array_equal(scale, exact.astype(np.float32))


@pytest.mark.parametrize("kind", ["mean", "sym"])
def test_scales_are_as_exact_as_features_of_float64(kind):
    with jax.enable_x64(True):
        graph = CSRGraph.from_edges([0, 1, 2, 0], [0, 0, 0, 1], 3).normalized(kind)
        y = ops.spmm(graph, jnp.eye(3, dtype=jnp.float64))
        rows, columns = (np.array([3.0, 1.0, 0.0]), np.array([2.0, 1.0, 1.0]))
        dense = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        safe = np.maximum(rows, 1)[:, None]
        expected = dense / safe if kind == "mean" else dense / np.sqrt(safe * columns)
        np.testing.assert_allclose(y, expected, rtol=1e-15)
        x = jnp.ones((3, 4), jnp.float32)
        np.testing.assert_allclose(ops.spmm(graph, x), expected @ np.asarray(x), rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True], ids=["concrete", "traced"])
@pytest.mark.parametrize("kind", KINDS)
def test_degrees_of_a_hub_are_as_exact_as_a_short_sum(kind, jit):
    """In order, 300,000 weights of 0.1 add up in float32 to a sum that is off by 4e-3."""
    count = 300_000
    hub = np.zeros(count, np.int32)
    weights = jnp.full(count, 0.1, jnp.float32)
    ends = (hub, hub) if kind == "sym" else (np.arange(count) % 7, hub)
    graph = CSRGraph.from_edges(*ends, 7).with_weights(weights)

    def of(weights):
        return graph.with_weights(weights).normalized(kind).weights

    made = np.asarray((jax.jit(of) if jit else of)(weights), np.float64)
    np.testing.assert_allclose(made, 1 / count, rtol=2e-6 if jit else 2e-7)


def test_gradients_of_a_hub_reach_its_weights_as_those_of_the_formula():
    count = 70_000  # of four levels of parts
    receivers = np.where(np.arange(count) < 66_000, 1, np.arange(count) % 5).astype(np.int32)
    graph = CSRGraph.from_edges(np.arange(count) % 9, receivers, 5, num_senders=9)
    weights = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, count), jnp.float32)
    rows = graph.receivers()

    def loss(weights, normalize):
        return jnp.sum(jnp.cos(normalize(weights) * jnp.arange(count, dtype=weights.dtype)))

    def by_library(weights):
        return graph.with_weights(weights).normalized("mean").weights

    def by_formula(weights):
        return weights / jax.ops.segment_sum(weights, rows, 5)[rows]

    made = jax.grad(loss)(weights, by_library)
    with jax.enable_x64(True):
        exact = jax.jit(jax.grad(loss), static_argnums=1)(weights.astype("float64"), by_formula)
    np.testing.assert_allclose(made, exact, rtol=1e-3, atol=1e-4 * np.abs(exact).max())
