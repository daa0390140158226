"""segment_softmax against float64 and against jax.nn.softmax."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph.reference import segment_softmax as reference
from jaxgnn.ops._graph.segment_softmax import FORWARD
from jaxgnn.testing import (
    DTYPES,
    check_against_float64,
    check_numerical_gradients,
    random_array,
)
from tests.ops._table import BARE, longest_row, usable

IMPLEMENTATIONS = usable(FORWARD)


@functools.cache  # one function for each graph, so that it is compiled once
def _reference(name):
    return lambda logits: reference.segment_softmax(BARE[name], logits)


@functools.cache
def _longest_row(name):
    return longest_row(BARE[name])


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("name", BARE)
def test_value_and_gradient_equal_float64_on_every_graph(name, implementation):
    graph = BARE[name]
    check_against_float64(
        lambda logits: ops.segment_softmax(graph, logits, implementation=implementation),
        _reference(name),
        random_array((graph.num_edges, 3), "float32", seed=1, scale=2.0),
        reduction_length=_longest_row(name),
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_row_is_jax_nn_softmax(dtype, implementation):
    graph = BARE["padding_edges"]
    logits = random_array((graph.num_edges,), dtype, seed=2, scale=30.0)
    p = np.asarray(ops.segment_softmax(graph, logits, implementation=implementation))
    indptr = np.asarray(graph.indptr)
    exact = np.asarray(logits, np.float32)
    # Rows of one length for all, so that softmax is compiled once.
    rows = np.full((graph.num_rows, np.diff(indptr).max()), -np.inf, np.float32)
    for row, (begin, end) in zip(rows, itertools.pairwise(indptr), strict=True):
        row[: end - begin] = exact[begin:end]
    softmax = np.asarray(jax.nn.softmax(jnp.asarray(rows)).astype(dtype).astype(jnp.float32))
    for expected, (begin, end) in zip(softmax, itertools.pairwise(indptr), strict=True):
        np.testing.assert_allclose(
            p[begin:end].astype(np.float32), expected[: end - begin], rtol=1e-2, atol=1e-6
        )
    assert not p[indptr[-1] :].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_large_logits_neither_overflow_nor_lose_the_sum(implementation):
    graph = CSRGraph.from_edges([0, 1, 2, 0], [0, 0, 0, 1], 3)
    p = ops.segment_softmax(
        graph, jnp.array([1e30, -1e30, 1e30, 5.0]), implementation=implementation
    )
    np.testing.assert_allclose(p, [0.5, 0.0, 0.5, 1.0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_infinities_and_nan_behave_as_in_jax_nn_softmax(implementation):
    graph = CSRGraph.from_edges([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2], 3)
    logits = jnp.array([-jnp.inf, -jnp.inf, jnp.nan, 1.0, -jnp.inf, 1.0])
    p = np.asarray(ops.segment_softmax(graph, logits, implementation=implementation))
    expected = np.concatenate([np.asarray(jax.nn.softmax(pair)) for pair in logits.reshape(3, 2)])
    np.testing.assert_allclose(p, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradient_agrees_with_finite_differences(implementation):
    graph = BARE["repeated_edges"]
    check_numerical_gradients(
        lambda logits: ops.segment_softmax(graph, logits, implementation=implementation) ** 2,
        random_array((12, 2), "float32", seed=3),
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_vmap_over_logits_shares_the_graph(implementation):
    graph = BARE["padding_edges"]
    logits = random_array((4, graph.num_edges, 2), "float32", seed=4)

    def apply(logits):
        return ops.segment_softmax(graph, logits, implementation=implementation)

    for together, alone in zip(jax.vmap(apply)(logits), logits, strict=True):
        np.testing.assert_allclose(together, apply(alone), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_it_can_be_differentiated_twice(implementation):
    graph = BARE["repeated_edges"]
    logits = random_array((graph.num_edges, 2), "float32", seed=5)

    def second(name):
        def first(logits):
            run = functools.partial(ops.segment_softmax, graph, implementation=name)
            return jnp.sum(jax.grad(lambda x: jnp.sum(run(x) ** 3))(logits) ** 2)

        return jax.jit(jax.grad(first))(logits)

    np.testing.assert_allclose(second(implementation), second("xla"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("implementation", [n for n in IMPLEMENTATIONS if n != "xla"])
def test_a_row_of_more_edges_than_float32_counts_exactly_is_summed_exactly(implementation):
    edges = 2**18
    graph = CSRGraph(np.array([0, edges]), np.zeros(edges, np.int32), num_cols=1)
    equal, dy = jnp.zeros((edges, 2)), jnp.full((edges, 2), 0.1)

    @jax.jit
    def run(logits):
        y, pull_back = jax.vjp(
            lambda x: ops.segment_softmax(graph, x, implementation=implementation), logits
        )
        return y, *pull_back(dy)

    y, gradient = run(equal + 3.3)
    np.testing.assert_allclose(y, 1 / edges, rtol=1e-6)
    np.testing.assert_allclose(gradient, 0, atol=1e-6 * 0.1 / edges)
