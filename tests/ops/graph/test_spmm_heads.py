"""spmm with weights [edges, heads]: each head of the features is summed with weights of its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph.reference import spmm as reference
from jaxgnn.ops._graph.spmm import SPMM
from jaxgnn.testing import DTYPES, assert_close, check_against_float64, random_array
from tests._programs import equations_of
from tests.ops._table import BUILT, longest_row, usable

IMPLEMENTATIONS = usable(SPMM)
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def _arrays(graph, heads, dim, dtype="float32", batch=()):
    weights = random_array((*batch, graph.num_edges, heads), "float32", seed=1)
    return weights, random_array((*batch, graph.num_cols, heads, dim), dtype, seed=2)


@functools.cache  # one function for each graph, so that it is compiled once
def _reference(name):
    return lambda weights, x: reference.spmm(BUILT[name].with_weights(weights), x)


def _apply(name, implementation):
    graph = BUILT[name]
    return lambda w, x: ops.spmm(graph.with_weights(w), x, implementation=implementation)


def _check(name, heads, dim, dtype, implementation):
    check_against_float64(
        _apply(name, implementation),
        _reference(name),
        *_arrays(BUILT[name], heads, dim, dtype),
        reduction_length=max(longest_row(BUILT[name]), dim),
    )


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("name", BUILT)
def test_value_and_gradients_equal_float64_on_every_graph(name, implementation):
    _check(name, 3, 5, "float32", implementation)


@pytest.mark.costly
@every_implementation
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dim", [(1, 1), (5, 1), (1, 16), (2, 37), (4, 64)])
def test_value_and_gradients_equal_float64_at_every_width(heads, dim, dtype, implementation):
    _check("padding_edges", heads, dim, dtype, implementation)


@every_implementation
def test_a_head_is_summed_with_its_own_weights_and_the_scales_of_the_graph(implementation):
    graph = BUILT["padding_and_sym"]
    weights, x = _arrays(graph, 3, 7)
    together = ops.spmm(graph.with_weights(weights), x, implementation=implementation)
    for head in range(3):
        of_head = graph.with_weights(weights[:, head])
        alone = ops.spmm(of_head, x[:, head], implementation=implementation)
        np.testing.assert_allclose(together[:, head], alone, rtol=1e-5, atol=1e-6)


@every_implementation
def test_weights_of_padding_slots_may_be_anything(implementation):
    graph = BUILT["padding_edges"]
    weights, x = _arrays(graph, 2, 3)
    spoiled = weights.at[int(graph.indptr[-1]) :].set(jnp.nan)

    def gradients(weights):
        return jax.vjp(_apply("padding_edges", implementation), weights, x)[1](x[:33] + 1)

    dweights, dx = gradients(spoiled)
    expected = gradients(weights)[1]
    if implementation == "xla" and jax.default_backend() != "cpu":  # it scatters in any order
        assert_close(dx, expected, reduction_length=graph.num_edges)
    else:
        np.testing.assert_array_equal(dx, expected)
    assert not np.asarray(dweights)[int(graph.indptr[-1]) :].any()


@every_implementation
def test_second_derivatives_equal_those_of_the_reference(implementation):
    arrays = _arrays(BUILT["bipartite"], 2, 3)

    def curvature(name):
        def slope(weights, x):
            loss = lambda w, x: jnp.sum(_apply("bipartite", name)(w, x) ** 3) / 100  # noqa: E731
            return sum(jnp.sum(d**2) for d in jax.grad(loss, (0, 1))(weights, x))

        return jax.jit(jax.grad(slope, (0, 1)))(*arrays)

    for actual, expected in zip(curvature(implementation), curvature("xla"), strict=True):
        largest = float(jnp.abs(expected).max())
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * largest)


@every_implementation
def test_leading_axes_share_the_weights_and_vmap_maps_them_too(implementation):
    apply = _apply("weighted", implementation)
    weights, x = _arrays(BUILT["weighted"], 2, 4, batch=(3,))
    shared = apply(weights[0], x.reshape(3, 1, *x.shape[1:]))

    def with_gradients(weights, x):
        y, pull_back = jax.vjp(apply, weights, x)
        return y, pull_back(jnp.sin(y))

    mapped = jax.jit(jax.vmap(with_gradients))(weights, x)
    over_x = jax.jit(jax.vmap(with_gradients, (None, 0)))(weights[0], x)
    with_gradients = jax.jit(with_gradients)
    for i in range(3):
        alone = with_gradients(weights[i], x[i])
        of_first = with_gradients(weights[0], x[i])
        np.testing.assert_allclose(shared[i, 0], of_first[0], rtol=1e-5, atol=1e-5)
        for made, expected in ((mapped, alone), (over_x, of_first)):
            for a, e in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a[i], e, rtol=1e-4, atol=1e-4)


@every_implementation
def test_it_is_the_sum_of_attention_over_the_softmax_of_scores(implementation):
    graph = BUILT["isolated_nodes"]
    logits, v = _arrays(graph, 3, 4)
    weights = ops.segment_softmax(graph, logits)
    made = ops.spmm(graph.with_weights(weights), v, implementation=implementation)
    zeros = jnp.zeros((graph.num_rows, 3))
    attended = ops.gat_attention(
        graph, zeros, zeros, v, edge_logits=logits, negative_slope=1.0, implementation="xla"
    )
    np.testing.assert_allclose(made, attended, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", [n for n in IMPLEMENTATIONS if n != "xla"])
def test_the_compiled_kernels_make_no_array_of_edges_times_heads_times_width(implementation):
    graph = BUILT["unweighted"]
    arrays = _arrays(graph, 2, 9)

    def loss(weights, x):
        return jnp.sum(_apply("unweighted", implementation)(weights, x) ** 2)

    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(*arrays)
    made = (v.aval for equation in equations_of(program.jaxpr) for v in equation.outvars)
    largest = max(int(np.prod(array.shape)) for array in made)
    assert largest <= max(graph.num_edges * 2, graph.num_rows * 2 * 9)


HEADS = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3, jnp.ones((3, 4)))


@pytest.mark.parametrize(
    "shape, got",
    [((3, 8), "at least 3 axes"), ((3, 2, 8), r"\[..., 3, 4, features\]"), ((4, 4, 8), "rows?")],
)
def test_features_need_the_nodes_of_the_graph_and_the_heads_of_its_weights(shape, got):
    with pytest.raises(ValueError, match=rf"^spmm: x must be .*{got}.*shape \(") as raised:
        ops.spmm(HEADS, jnp.ones(shape))
    assert str(shape) in str(raised.value)


def test_other_ops_ask_for_one_weight_an_edge_or_none():
    x = jnp.ones((3, 4))
    params = ops.EdgeMLPParams((jnp.ones((8, 2)),), (None,))
    with pytest.raises(ValueError, match=r"^maxk_spmm: graph.weights must be one number .*\(3, 4"):
        ops.maxk_spmm(HEADS, ops.maxk(x, 2))
    with pytest.raises(ValueError, match=r"^edge_mlp_aggregate: graph.weights must be one number"):
        ops.edge_mlp_aggregate(HEADS, x, params)
    with pytest.raises(ValueError, match=r"^sddmm: graph must be without weights, .*\(3, 4\)"):
        ops.sddmm(HEADS, x, x)
    with pytest.raises(ValueError, match=r"^segment_softmax: graph must be without weights"):
        ops.segment_softmax(HEADS, jnp.ones((3, 2)))
