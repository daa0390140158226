"""spmm and sddmm against their references."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph.reference import spmm as reference_spmm
from jaxgnn.ops._graph.spmm import SDDMM, SPMM
from jaxgnn.testing import (
    DIMS,
    DTYPES,
    check_against_float64,
    check_numerical_gradients,
    random_array,
)
from tests.ops._table import BUILT, longest_row, usable

IMPLEMENTATIONS = usable(SPMM)


def _with(graph: CSRGraph, weights) -> CSRGraph:
    return graph if graph.weights is None else graph.with_weights(weights)


def _weights(graph: CSRGraph):
    return jnp.zeros(()) if graph.weights is None else graph.weights


@functools.cache
def _longest_row(name):
    return longest_row(BUILT[name])


@functools.cache  # one function for each graph, so that it is compiled once
def _spmm_reference(name):
    return lambda weights, x: reference_spmm.spmm(_with(BUILT[name], weights), x)


@functools.cache
def _sddmm_reference(name):
    return lambda a, b: reference_spmm.sddmm(BUILT[name].with_weights(None), a, b)


def _check_spmm(name, dim, dtype, implementation):
    graph = BUILT[name]
    x = random_array((graph.num_cols, dim), dtype, seed=dim, scale=3.0)
    check_against_float64(
        lambda weights, x: ops.spmm(_with(graph, weights), x, implementation=implementation),
        _spmm_reference(name),
        _weights(graph),
        x,
        reduction_length=max(_longest_row(name), dim),
    )


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("name", BUILT)
def test_spmm_value_and_gradients_equal_float64_on_every_graph(name, implementation):
    _check_spmm(name, 16, "float32", implementation)


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
def test_weights_of_padding_slots_may_be_anything(implementation):
    mask, weights = [True, True, False], jnp.array([2.0, 3.0, jnp.nan])
    graph = CSRGraph.from_edges([0, 1, 0], [1, 0, 0], 2, edge_mask=mask).with_weights(weights)

    def loss(weights, x):
        y = ops.spmm(graph.with_weights(weights), x, implementation=implementation)
        return jnp.sum(y * jnp.array([[1.0], [10.0]]))

    dweights, dx = jax.grad(loss, argnums=(0, 1))(graph.weights, jnp.array([[5.0], [7.0]]))
    assert dx.tolist() == [[30.0], [2.0]]
    assert dweights.tolist() == [7.0, 50.0, 0.0]


@pytest.mark.costly
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_spmm_value_and_gradients_equal_float64_at_every_width(dim, dtype, implementation):
    _check_spmm("padding_edges", dim, dtype, implementation)


@pytest.mark.costly
@pytest.mark.parametrize("implementation", usable(SDDMM))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["one_node_no_edges", "padding_edges", "sym", "bipartite", "hub_row_spans_tasks"]
)
def test_sddmm_value_and_gradients_equal_float64(name, dtype, implementation):
    graph = BUILT[name].with_weights(None)  # with its scales
    a = random_array((graph.num_rows, 33), dtype, seed=1)
    b = random_array((graph.num_cols, 33), dtype, seed=2)
    check_against_float64(
        lambda a, b: ops.sddmm(graph, a, b, implementation=implementation),
        _sddmm_reference(name),
        a,
        b,
        reduction_length=max(33, _longest_row(name)),
    )


@pytest.mark.costly
@pytest.mark.parametrize("name", ["weighted", "sym", "padding_edges"])
def test_reference_is_the_dense_matrix_product(name):
    graph = BUILT[name]
    dense = np.zeros(graph.shape)
    rows = np.asarray(graph.receivers())
    real = rows < graph.num_rows
    weights = np.ones(graph.num_edges) if graph.weights is None else np.asarray(graph.weights)
    np.add.at(dense, (rows[real], np.asarray(graph.indices)[real]), weights[real])
    if graph.row_scale is not None:
        dense = np.asarray(graph.row_scale)[:, None] * dense * np.asarray(graph.col_scale)
    x = random_array((graph.num_cols, 5), "float32", seed=0)
    np.testing.assert_allclose(reference_spmm.spmm(graph, x), dense @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_spmm_gradients_agree_with_finite_differences(implementation):
    graph = BUILT["repeated_edges"].with_weights(random_array((12,), "float32", seed=3))
    x = random_array((3, 4), "float32", seed=4)
    check_numerical_gradients(
        lambda w, x: ops.spmm(graph.with_weights(w), x, implementation=implementation),
        graph.weights,
        x,
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_spmm_second_derivative_equals_the_references(implementation):
    graph = BUILT["bipartite"]
    x = random_array((graph.num_cols, 4), "float32", seed=5)

    def curvature(implementation):
        def loss(weights, x):
            y = ops.spmm(graph.with_weights(weights), x, implementation=implementation)
            return jnp.sum(y**3) / 100

        def slope(weights, x):
            dw, dx = jax.grad(loss, argnums=(0, 1))(weights, x)
            return jnp.sum(dw**2) + jnp.sum(dx**2)

        return jax.grad(slope, argnums=(0, 1))(graph.weights, x)

    for actual, expected in zip(curvature(implementation), curvature("xla"), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_leading_axes_and_nested_vmap_share_the_graph(implementation):
    graph = BUILT["padding_edges"]
    x = random_array((2, 3, graph.num_cols, 8), "float32", seed=6)
    batched = ops.spmm(graph, x, implementation=implementation)
    for i in range(2):
        for j in range(3):
            alone = ops.spmm(graph, x[i, j], implementation=implementation)
            np.testing.assert_allclose(batched[i, j], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_vmap_of_grad_over_features_sums_nothing_over_the_batch(implementation):
    graph = BUILT["weighted"]
    x = random_array((3, graph.num_cols, 8), "float32", seed=7)

    def gradients(x):
        def loss(weights, x):
            y = ops.spmm(graph.with_weights(weights), x, implementation=implementation)
            return jnp.sum(y**2)

        return jax.grad(loss, argnums=(0, 1))(graph.weights, x)

    batched = jax.jit(jax.vmap(gradients))(x)
    for i in range(3):
        for together, alone in zip(batched, gradients(x[i]), strict=True):
            np.testing.assert_allclose(together[i], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_vmap_over_weights_and_over_whole_graphs(implementation):
    first = CSRGraph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], 3)
    second = CSRGraph.from_edges([2, 2, 0, 1], [0, 0, 0, 2], 3)
    graphs = jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second)
    weights = random_array((2, 4), "float32", seed=8)
    x = random_array((3, 5), "float32", seed=9)

    def apply(graph, weights, x):
        return ops.spmm(graph.with_weights(weights), x, implementation=implementation)

    over_graphs = jax.vmap(apply, in_axes=(0, 0, None))(graphs, weights, x)
    over_weights = jax.vmap(apply, in_axes=(None, 0, None))(first, weights, x)
    for i, graph in enumerate((first, second)):
        np.testing.assert_allclose(over_graphs[i], apply(graph, weights[i], x), rtol=1e-5)
        np.testing.assert_allclose(over_weights[i], apply(first, weights[i], x), rtol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_works_under_scan_and_checkpoint(implementation):
    graph = BUILT["mean"]
    x = random_array((graph.num_cols, 6), "float32", seed=10)

    def three_steps(x, wrap):
        step = wrap(lambda h: ops.spmm(graph, h, implementation=implementation))
        return jnp.sum(jax.lax.scan(lambda h, _: (step(h), None), x, length=3)[0] ** 2)

    plain = jax.jit(jax.grad(lambda x: three_steps(x, lambda f: f)))(x)
    remat = jax.jit(jax.grad(lambda x: three_steps(x, jax.checkpoint)))(x)
    np.testing.assert_allclose(plain, remat, rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(plain).max()) > 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_graph_without_a_plan_gives_the_same_under_jit(implementation):
    planned = BUILT["padding_edges"]
    bare = dataclasses.replace(planned, plan=None)
    x = random_array((planned.num_cols, 6), "float32", seed=11)

    @jax.jit
    def value_and_gradient(graph, x):
        def loss(x):
            return jnp.sum(ops.spmm(graph, x, implementation=implementation) ** 2)

        return jax.value_and_grad(loss)(x)

    for actual, expected in zip(
        value_and_gradient(bare, x), value_and_gradient(planned, x), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nan_in_a_feature_reaches_its_neighbours_only(implementation):
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 4)
    x = jnp.ones((4, 3)).at[0, 1].set(jnp.nan)
    y = np.asarray(ops.spmm(graph, x, implementation=implementation))
    assert np.isnan(y[1, 1])
    assert np.isfinite(np.delete(y.ravel(), 1 * 3 + 1)).all()
