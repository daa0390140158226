"""interaction: the split form against the formula edge by edge, padding, and bad input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.graph import masked
from jaxgnn.testing import assert_close, random_array, to_float64
from tests.ops.edge_mlp._edges import BIPARTITE, QUICK, params

OUT, CONTEXT = 6, 3
OPTIONS = {
    "graphcast": {"activation": "silu"},
    "jraph": {"norm": None, "residual": False, "ends": "both", "activate_last": True},
    "edges are summed": {"norm": "rms", "summed": "edges", "ends": "both", "activation": "tanh"},
    "means at senders": {"reduce": "mean", "ends": "senders", "activation": "sigmoid"},
}


def inputs(graph, *, layers=2, dtype="float32", batch=()):
    """Ends of different widths, features of edges with NaN in padding, layers, scale and offset."""
    ends = tuple(
        random_array((*batch, nodes, width), dtype, seed)
        for nodes, width, seed in ((graph.num_rows, 5, 1), (graph.num_cols, 4, 2))
    )
    e = random_array((*batch, graph.num_edges, OUT), dtype, seed=3)
    real = np.arange(graph.num_edges) < np.asarray(graph.indptr)[-1]
    e = jnp.where(real[:, None], e, jnp.nan)
    context = random_array((*batch, graph.num_rows, CONTEXT), dtype, seed=4)
    made = params(layers, 5 + 4 + OUT + CONTEXT, dtype, out=OUT)
    scale, offset = (random_array((OUT,), dtype, seed) for seed in (5, 6))
    return ends, e, made, context, scale, offset


@functools.partial(jax.jit, static_argnames=("options", "implementation"), compiler_options=QUICK)
def values_and_gradients(graph, arguments, options, implementation=None):
    """Results and gradients for cotangents that are random, also in padding."""

    def run(ends, e, layers, context, scale, offset):
        shared = {"context": context, "scale": scale, "offset": offset}
        return ops.interaction(
            graph, ends, e, layers, **shared, **dict(options), implementation=implementation
        )

    y, pull_back = jax.vjp(run, *arguments)
    slopes = [random_array(a.shape, a.dtype, seed=90 + i) for i, a in enumerate(jax.tree.leaves(y))]
    return y, pull_back(jax.tree.unflatten(jax.tree.structure(y), slopes))


def _assert_forms_agree(graph, arguments, options):
    with jax.enable_x64(True):
        wide = to_float64(arguments)
        frozen = tuple(options.items())
        made, expected = (values_and_gradients(graph, wide, frozen, i) for i in (None, "xla"))
    for a, e in zip(*map(jax.tree.leaves, (made, expected)), strict=True):
        assert np.isfinite(e).all()
        np.testing.assert_allclose(a, e, rtol=1e-11, atol=1e-11 * np.abs(e).max(initial=1e-3))


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", BIPARTITE)
@pytest.mark.parametrize("options", OPTIONS)
def test_both_forms_have_equal_values_and_gradients_and_ignore_padding(name, options):
    graph = BIPARTITE[name]
    _assert_forms_agree(graph, inputs(graph), OPTIONS[options])


@pytest.mark.parametrize(
    "layers, batch, options", [(1, (2,), "graphcast"), (3, (), "means at senders")]
)
def test_both_forms_agree_for_other_depths_and_a_batch(layers, batch, options):
    graph = BIPARTITE["padding"]
    _assert_forms_agree(graph, inputs(graph, layers=layers, batch=batch), OPTIONS[options])


def test_bfloat16_equals_float64_up_to_rounding():
    graph = BIPARTITE["random"]
    arguments = inputs(graph, dtype=jnp.bfloat16)
    made = values_and_gradients(graph, arguments, (("activation", "silu"),))
    with jax.enable_x64(True):
        wide = to_float64(arguments)
        exact = values_and_gradients(graph, wide, (("activation", "silu"),), "xla")
    for a, e in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        assert a.dtype == jnp.bfloat16
        assert_close(a, e, reduction_length=100, operands=jnp.bfloat16)


def test_padding_and_nodes_without_edges_are_zero():
    graph = BIPARTITE["padding"]
    edges, sums = ops.interaction(graph, *_without_context(graph))
    real = int(graph.indptr[-1])
    assert real < graph.num_edges and not np.asarray(edges[real:]).any()
    assert np.isfinite(edges).all() and np.isfinite(sums).all()
    isolated = BIPARTITE["isolated nodes"]
    _, sums = ops.interaction(isolated, *_without_context(isolated))
    degrees = np.asarray(isolated.degrees())
    assert (degrees == 0).any() and not np.asarray(sums)[degrees == 0].any()


def _without_context(graph):
    ends, e, made, *_ = inputs(graph)
    return ends, e, made._replace(kernels=(made.kernels[0][:-CONTEXT], *made.kernels[1:]))


def test_nodes_without_edges_do_not_reach_gradients_even_if_they_are_nan():
    graph = CSRGraph.from_edges([0, 1], [1, 0], 3)
    h, e = jnp.ones((3, 2)).at[2].set(jnp.nan), jnp.ones((2, 4))
    layers = ops.EdgeMLPParams((random_array((8, 4), "float32", seed=1),), (None,))
    total = lambda h, layers: jnp.sum(ops.interaction(graph, h, e, layers)[0] ** 2)  # noqa: E731
    for leaf in jax.tree.leaves(jax.grad(total, (0, 1))(h, layers)):
        assert np.isfinite(leaf).all()


def test_a_nan_stays_in_its_edge_and_in_its_receiver():
    graph = CSRGraph.from_edges([0, 1, 2, 0], [1, 1, 0, 2], 3)
    e = jnp.ones((4, 4)).at[0, 1].set(jnp.nan)
    layers = ops.EdgeMLPParams((random_array((8, 4), "float32", seed=1),), (None,))
    edges, sums = ops.interaction(graph, jnp.ones((3, 2)), e, layers)
    assert np.isnan(edges).any(axis=1).tolist() == [True, False, False, False]
    assert np.isnan(sums).any(axis=1).tolist() == [True, False, False]


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_edges_of_one_feature_have_finite_values_and_gradients(norm):
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
    layers = ops.EdgeMLPParams((jnp.ones((3, 1)),), (None,))

    def total(h, e):
        return jnp.sum(ops.interaction(graph, h, e, layers, norm=norm)[0])

    value, slopes = jax.value_and_grad(total, (0, 1))(jnp.ones((3, 1)), jnp.ones((3, 1)))
    assert np.isfinite(value) and all(np.isfinite(s).all() for s in slopes)


def test_an_edge_of_presence_zero_is_not_summed():
    graph = CSRGraph.from_edges([2, 0, 1, 0], [0, 1, 1, 2], 3)
    without = CSRGraph.from_edges([2, 0, 0], [0, 1, 2], 3)
    layers = ops.EdgeMLPParams((random_array((8, 4), "float32", seed=1),), (None,))
    h, e = random_array((3, 2), "float32", seed=2), random_array((4, 4), "float32", seed=3)
    _, sums = ops.interaction(masked(graph, jnp.array([1.0, 1.0, 0.0, 1.0])), h, e, layers)
    _, expected = ops.interaction(without, h, e[jnp.array([0, 1, 3])], layers)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)


def _call(**changed):
    graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
    given = {
        "graph": graph,
        "h": jnp.ones((3, 2)),
        "e": jnp.ones((3, 4)),
        "params": ops.EdgeMLPParams((jnp.ones((8, 4)),), (None,)),
    }
    return ops.interaction(**(given | changed))


BAD = {
    "edges of another width": ({"e": jnp.ones((3, 3))}, "kernels[0]"),
    "a residual of another width": (
        {"e": jnp.ones((3, 5)), "params": ops.EdgeMLPParams((jnp.ones((9, 4)),), (None,))},
        "e must be as wide as the last layer, 4",
    ),
    "an edge too few": ({"e": jnp.ones((2, 4))}, "of shape [3, any], one entry for each edge slot"),
    "a residual without edges": (
        {"e": None, "params": ops.EdgeMLPParams((jnp.ones((4, 4)),), (None,))},
        "residual must be False",
    ),
    "an unknown norm": ({"norm": "batch"}, "norm must be"),
    "eps of zero": ({"eps": 0.0}, "eps must be positive"),
    "a scale of another width": ({"scale": jnp.ones(3)}, "scale must be of shape (4,)"),
    "context of other rows": ({"context": jnp.ones((2, 1))}, "context must be"),
    "a mean of unknown ends": ({"ends": "edges"}, "ends must be"),
    "weights of the graph": (
        {"graph": CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3, weights=jnp.ones(3))},
        "multiply features by them",
    ),
    "other parameters": ({"params": [jnp.ones((8, 4))]}, "params must be ops.EdgeMLPParams"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    changed, message = BAD[case]
    with pytest.raises(ValueError, match="interaction: ") as error:
        _call(**changed)
    assert message in str(error.value)
