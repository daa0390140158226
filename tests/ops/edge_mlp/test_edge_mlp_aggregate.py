"""edge_mlp_aggregate: the split form against the formula as it stands, and what it keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.testing import assert_close, random_array, to_float64
from tests.ops.edge_mlp._edges import (
    BIPARTITE,
    QUICK,
    REDUCTIONS,
    RING,
    inputs,
    of_variants,
    params,
)

VARIANTS = (("sum", "gelu"), ("mean", "relu"), ("max", "silu"))


def _assert_forms_agree(graph, arguments, variants=VARIANTS, constant=False):
    """Value and every gradient of both forms, in float64, to 1e-12 of the largest entry."""
    with jax.enable_x64(True):
        wide = to_float64(arguments)
        if constant:
            run = functools.partial(of_variants.__wrapped__, graph, variants=variants)
            made = jax.jit(run, compiler_options=QUICK)(wide)
        else:
            made = of_variants(graph, wide, variants)
        expected = of_variants(graph, wide, variants, "xla")
    for variant, *pair in zip(variants, made, expected, strict=True):
        actual, oracle = (list(map(np.asarray, jax.tree.leaves(part))) for part in pair)
        scale = max(np.abs(leaf).max(initial=0) for leaf in oracle)
        for a, e in zip(actual, oracle, strict=True):
            assert a.dtype == e.dtype == np.float64
            np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12 * scale, err_msg=variant)


def _without_features(layers):
    """Two layers for the ends of an edge alone."""
    return layers._replace(kernels=(layers.kernels[0][:9], layers.kernels[1]))


@pytest.mark.parametrize("name", BIPARTITE)
def test_both_forms_have_equal_values_and_gradients_on_every_graph(name):
    _assert_forms_agree(BIPARTITE[name], inputs(BIPARTITE[name]))


def test_both_forms_agree_where_all_nodes_have_one_degree_and_a_batch_shares_the_edges():
    assert RING.uniform_degrees() == (4, 4)
    _assert_forms_agree(RING, inputs(RING, batch=(2, 3)), constant=True)


@pytest.mark.parametrize(
    "num_layers, variants", [(1, (("mean", None), ("max", "relu"))), (4, (("sum", "relu"),))]
)
def test_both_forms_agree_for_other_depths_and_edges_of_each_member_of_a_batch(
    num_layers, variants
):
    graph = BIPARTITE["padding"]
    _assert_forms_agree(graph, inputs(graph, batch=(2,), num_layers=num_layers, own=True), variants)


def test_two_layers_without_edge_features_and_weights_agree_with_uneven_degrees_of_senders():
    graph = CSRGraph.from_edges([0, 1, 1, 3, 0, 0, 2, 2], np.arange(8) % 4, 4)
    assert graph.uniform_degrees() == (2, None)
    ends, layers, _, _ = inputs(graph, num_layers=2)
    layers = _without_features(layers)
    _assert_forms_agree(graph, (ends, layers, None, None), VARIANTS[:1], constant=True)


def test_bfloat16_equals_float64_up_to_rounding():
    variants, dtype = (("sum", "silu"),), jnp.bfloat16
    arguments = inputs(RING, batch=(2,), num_layers=2, dtype=dtype)
    (made,) = of_variants(RING, arguments, variants)
    with jax.enable_x64(True):
        (expected,) = of_variants(RING, to_float64(arguments), variants, "xla")
    assert made[0].dtype == dtype
    for a, e in zip(*map(jax.tree.leaves, (made, expected)), strict=True):
        assert_close(a, e, reduction_length=100, operands=dtype)


def test_weights_and_scales_of_the_graph_count():
    plain = BIPARTITE["padding"]
    ends, layers, _, weights = inputs(plain, num_layers=2)
    run = functools.partial(ops.edge_mlp_aggregate, h=ends, params=_without_features(layers))
    sym = plain.normalized("sym")

    @functools.partial(jax.jit, compiler_options=QUICK)
    def outputs():
        rows = jnp.minimum(sym.receivers(), 8)  # padding slots have no row
        factors = weights * sym.row_scale[rows] * sym.col_scale[sym.indices]
        return (
            (run(plain.with_weights(weights)), run(plain, weights=weights)),
            (run(sym, weights=weights), run(plain, weights=factors)),
        )

    for actual, expected in outputs():
        np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_nodes_without_edges_get_zero_and_others_the_bias_of_each_edge(implementation):
    graph = CSRGraph.from_edges([0, 1, 1], [1, 1, 3], 5)
    layers = ops.EdgeMLPParams((jnp.zeros((4, 3)), jnp.zeros((3, 2))), (None, jnp.array([-1.0, 2])))

    @jax.jit
    def run(h):
        options = {"implementation": implementation}
        apply = functools.partial(ops.edge_mlp_aggregate, graph, h, layers, **options)
        return [apply(reduce=reduce) for reduce in REDUCTIONS]

    for reduce, y in zip(REDUCTIONS, run(jnp.ones((5, 2))), strict=True):
        twice = 2.0 if reduce == "sum" else 1.0
        np.testing.assert_allclose(y, np.outer([0, twice, 0, 1, 0], [-1, 2]), err_msg=reduce)


def test_without_any_edge_all_is_zero_and_so_are_gradients():
    graph, layers = CSRGraph.from_edges([], [], 3), params(2, 4)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(h, layers):
        def apply(h, layers):
            return [ops.edge_mlp_aggregate(graph, h, layers, reduce=r) for r in REDUCTIONS]

        y, pull_back = jax.vjp(apply, h, layers)
        return y, pull_back(jax.tree.map(jnp.ones_like, y))

    for leaf in jax.tree.leaves(run(jnp.ones((3, 2)), layers)):
        assert not np.asarray(leaf).any()


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_a_mean_is_weighted_and_zero_where_weights_have_no_positive_sum(implementation):
    graph = CSRGraph.from_edges([0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 2, 2], 3)
    sender_plus_ten = ops.EdgeMLPParams((jnp.array([[0.0], [1.0]]),), (jnp.array([10.0]),))

    def mean(weights):
        h = jnp.array([[1.0], [5.0], [7.0]])
        options = {"reduce": "mean", "implementation": implementation}
        y = ops.edge_mlp_aggregate(graph, h, sender_plus_ten, weights=weights, **options)
        return jnp.sum(y), y

    weights = jnp.array([1.0, 3.0, 1.0, -1.0, -2.0, -3.0])
    (_, y), gradient = jax.jit(jax.value_and_grad(mean, has_aux=True))(weights)
    np.testing.assert_allclose(y, [[14.0], [0.0], [0.0]], rtol=1e-6)
    np.testing.assert_allclose(gradient, [-0.75, 0.25, 0, 0, 0, 0], atol=1e-5)


@pytest.mark.parametrize("structure", ["traced", "constant"])
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_edges_that_tie_for_the_largest_share_its_gradient_evenly(implementation, structure):
    """As JAX's segment_max has it."""
    ties = CSRGraph.from_edges([0, 1, 1, 2, 2, 0], [0, 0, 0, 1, 1, 1], 2, num_senders=3)
    sender = ops.EdgeMLPParams((jnp.array([[0.0], [1.0]]),), (None,))

    def gradient(h, graph=ties):
        def total(h):
            options = {"reduce": "max", "implementation": implementation}
            return ops.edge_mlp_aggregate(graph, (jnp.zeros((2, 1)), h), sender, **options).sum()

        return jax.grad(total)(h)

    h = jnp.array([[1.0], [1.0], [4.0]])
    made = jax.jit(gradient)(h, *((ties,) if structure == "traced" else ()))
    np.testing.assert_allclose(made, [[1 / 3], [2 / 3], [1.0]], rtol=1e-6)


def test_what_padding_slots_hold_reaches_neither_values_nor_gradients():
    mask = np.array([True, False, True, False])
    graph = CSRGraph.from_edges([0, 1, 2, 1], [1, 0, 1, 2], 3, edge_mask=mask)
    wild = CSRGraph(graph.indptr, graph.indices.at[2:].set(99), num_cols=3)
    layers, h = params(2, 6), random_array((3, 2), "float32", seed=1)
    features, weights = random_array((4, 2), "float32", seed=2), jnp.array([0.5, 2.0, 1.0, 1.0])

    @functools.partial(jax.jit, compiler_options=QUICK)
    def gradients(graph, features, weights):
        def total(h, layers, features, weights):
            apply = functools.partial(ops.edge_mlp_aggregate, graph, h, layers, features)
            return sum(jnp.sum(apply(weights=weights, reduce=r) ** 2) for r in REDUCTIONS)

        return jax.value_and_grad(total, argnums=(0, 1, 2, 3))(h, layers, features, weights)

    nan = features.at[2:].set(jnp.nan), weights.at[2:].set(jnp.nan)
    padded = gradients(wild.prepared(), *nan)
    jax.tree.map(np.testing.assert_array_equal, padded, gradients(graph, features, weights))
    *_, dfeatures, dweights = padded[1]
    assert not np.asarray(dfeatures[2:]).any() and not np.asarray(dweights[2:]).any()


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nothing_of_the_size_of_edges_times_width_is_kept(reduce):
    graph = CSRGraph.from_edges(np.arange(600) % 7, np.arange(600) % 11, 11)
    h, layers = random_array((4, 11, 5), "float32", seed=1), params(4, 12)
    features = random_array((600, 2), "float32", seed=3)
    apply = functools.partial(ops.edge_mlp_aggregate, graph, reduce=reduce)
    pull_back = jax.eval_shape(lambda *arrays: jax.vjp(apply, *arrays)[1], h, layers, features)
    kept = [leaf.shape for leaf in jax.tree.leaves(pull_back)]
    assert (4, 11, 6) in kept, "both ends, projected, by nodes"
    assert all(np.prod(shape) <= features.size for shape in kept if 600 in shape), kept


def test_what_belongs_to_edges_is_made_again_and_takes_no_memory_meanwhile():
    rng = np.random.default_rng(0)
    graph = CSRGraph.from_edges(rng.integers(0, 300, 20_000), rng.integers(0, 300, 20_000), 300)
    layers, h = params(2, 12, out=6), jnp.ones((300, 6))

    def memory(implementation):
        def loss(layers):
            x = h
            for _ in range(2):
                options = {"activation": "gelu", "implementation": implementation}
                x = ops.edge_mlp_aggregate(graph, x, layers, reduce="mean", **options)
            return jnp.sum(x * x)

        compiled = jax.jit(jax.grad(loss)).lower(layers).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(None) < memory("xla") / 2


def test_the_gradient_of_no_batch_member_is_zero():
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
    params = ops.EdgeMLPParams((jnp.ones((2, 2)), jnp.ones((2, 2))), (jnp.ones(2), jnp.ones(2)))
    loss = lambda params: jnp.sum(ops.edge_mlp_aggregate(graph, jnp.zeros((0, 3, 1)), params))  # noqa: E731
    assert all(not leaf.any() for leaf in jax.tree.leaves(jax.grad(loss)(params)))
