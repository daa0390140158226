"""Convolutions with messages of edges against their formulae, and what may be asked of all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.testing import random_array
from tests.nn import _edge_formulae as formulae
from tests.nn._edge_formulae import COLUMNS, FEATURES, IN, OUT, ROWS, Case, case, values


class Layer(NamedTuple):
    """A layer, its formula, and what it is called with.

    Attributes:
      make: makes it of ``rngs``.
      formula: what it computes.
      edge_dim: width of the features of edges, None for distances, 0 for neither.
      is_bipartite: whether it takes a pair of receivers and senders.
    """

    make: Callable[[nnx.Rngs], Any]
    formula: formulae.Formula
    edge_dim: int | None = FEATURES
    is_bipartite: bool = True


def _mlp(rngs: nnx.Rngs, width: int = IN) -> nn.FusedMLP:
    return nn.FusedMLP([width, 7, OUT], activation="relu", rngs=rngs)


class _OwnMLP(nn.FusedMLP):
    """Evaluated on edges, since a layer can not know what a subclass does."""


AVERAGE = nn.DegreeAverages(2.5, 1.1)
# One of each formula comes first, which is what the shortened suite runs.
LAYERS = {
    "gine": Layer(lambda r: nn.GINEConv(IN, edge_dim=FEATURES, mlp=_mlp(r), rngs=r), formulae.gine),
    "edge conv": Layer(lambda r: nn.EdgeConv(_mlp(r, 2 * IN)), formulae.edge_conv, 0),
    "res gated": Layer(
        lambda r: nn.ResGatedGraphConv(IN, OUT, edge_dim=FEATURES, rngs=r), formulae.res_gated
    ),
    "pna, edges, all scalers, towers": Layer(
        lambda r: nn.PNAConv(
            IN,
            OUT,
            average_degree=AVERAGE,
            aggregators=("sum", "var", "max"),
            scalers=("linear", "inverse_linear", "attenuation"),
            edge_dim=FEATURES,
            towers=2,
            divide_input=True,
            rngs=r,
        ),
        formulae.pna,
    ),
    "pna, several layers, edges": Layer(
        lambda r: nn.PNAConv(
            IN,
            OUT,
            average_degree=AVERAGE,
            aggregators=("sum", "std", "min"),
            edge_dim=FEATURES,
            towers=2,
            pre_layers=3,
            divide_input=True,
            rngs=r,
        ),
        formulae.pna,
    ),
    "cfconv": Layer(
        lambda r: nn.CFConv(IN, OUT, num_filters=5, num_gaussians=7, cutoff=0.8, rngs=r),
        formulae.cfconv,
        None,
    ),
    "gated": Layer(
        lambda r: nn.GatedGraphConv(IN + 2, num_layers=2, rngs=r), formulae.gated, 0, False
    ),
    "pna": Layer(lambda r: nn.PNAConv(IN, OUT, average_degree=AVERAGE, rngs=r), formulae.pna, 0),
    "schnet": Layer(
        lambda r: nn.SchNetInteraction(IN, num_filters=5, num_gaussians=7, cutoff=0.8, rngs=r),
        formulae.schnet_block,
        None,
        False,
    ),
    "sage, max": Layer(lambda r: nn.SAGEConv(IN, OUT, reduce="max", rngs=r), formulae.sage, 0),
    "gin": Layer(lambda r: nn.GINConv(IN, IN, mlp=_mlp(r), rngs=r), formulae.gin, 0),
    "gine, edges as wide as nodes": Layer(lambda r: nn.GINEConv(IN, rngs=r), formulae.gine, IN),
    "edge conv, mean": Layer(
        lambda r: nn.EdgeConv(_mlp(r, 2 * IN), reduce="mean"), formulae.edge_conv, 0
    ),
    "edge conv, min": Layer(
        lambda r: nn.EdgeConv(_mlp(r, 2 * IN), reduce="min"), formulae.edge_conv, 0
    ),
    "edge conv, edge by edge": Layer(
        lambda r: nn.EdgeConv(_OwnMLP([2 * IN, 7, OUT], activation="silu", rngs=r)),
        formulae.edge_conv,
        0,
    ),
    "res gated, bare": Layer(
        lambda r: nn.ResGatedGraphConv(IN, OUT, root_weight=False, use_bias=False, rngs=r),
        formulae.res_gated,
        0,
    ),
    "pna, towers, sum": Layer(
        lambda r: nn.PNAConv(
            IN,
            OUT,
            average_degree=AVERAGE,
            aggregators=("sum", "mean"),
            scalers=("amplification",),
            towers=2,
            rngs=r,
        ),
        formulae.pna,
        0,
    ),
    "pna, several layers": Layer(
        lambda r: nn.PNAConv(
            IN, OUT, average_degree=AVERAGE, pre_layers=2, post_layers=3, towers=2, rngs=r
        ),
        formulae.pna,
        0,
    ),
    "gated, max": Layer(
        lambda r: nn.GatedGraphConv(IN, num_layers=2, reduce="max", use_bias=False, rngs=r),
        formulae.gated,
        0,
        False,
    ),
    **{
        f"sage, {reduce}": Layer(
            lambda r, reduce=reduce: nn.SAGEConv(IN, OUT, reduce=reduce, rngs=r), formulae.sage, 0
        )
        for reduce in ("sum", "min", "std")
    },
    "gin, without its linear layer": Layer(
        lambda r: nn.GINConv(IN, IN, linear=False, mlp=_mlp(r), rngs=r), formulae.gin, 0
    ),
}


ONE_OF_EACH = 11


def _make_layer(name: str) -> Any:
    """The layer with random numbers for all parameters, biases and ε among them."""
    layer = LAYERS[name].make(nnx.Rngs(0))
    for seed, (_, value) in enumerate(nnx.to_flat_state(nnx.state(layer, nnx.Param))):
        value[...] = 0.5 * random_array(value.shape, "float32", seed=seed)
    return layer


def _pair(c: Case) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(c.dst, jnp.float32), jnp.asarray(c.src, jnp.float32)


def _edge_arguments(name: str, edges: Any) -> tuple[Any, ...]:
    return () if LAYERS[name].edge_dim == 0 else (edges,)


@jax.jit
def _values_and_gradients(layer, graph, x, edges, cotangent):
    """The result, and the gradients of its product with a cotangent to all that is floating."""

    def loss(layer, x, edges):
        y = layer(graph, x, *edges)
        return jnp.sum(y * cotangent), y

    (_, y), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(layer, x, edges)
    return y, gradients


@pytest.mark.costly(ONE_OF_EACH)
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_are_those_of_the_formula_for_a_pair_on_a_padded_graph(name):
    layer, (_, formula, edge_dim, is_bipartite) = _make_layer(name), LAYERS[name]
    c = case(0, columns=COLUMNS if is_bipartite else None, edge_dim=edge_dim)
    parameters = values(layer)
    expected = formula(layer, parameters, c)
    graph, edges = c.graph(padding=3)
    cotangent = np.linspace(-1, 1, expected.size).reshape(expected.shape)
    x = _pair(c) if is_bipartite else _pair(c)[0]
    edge_arguments = _edge_arguments(name, edges)
    y, gradients = _values_and_gradients(
        layer, graph, x, edge_arguments, cotangent.astype(np.float32)
    )
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)

    # The slope in one direction of all that is floating, and that of the formula.
    rng = np.random.default_rng(1)
    steps = {path: rng.normal(size=value.shape) for path, value in parameters.items()}
    node_steps = [rng.normal(size=x.shape) for x in (c.dst, c.src)]
    edge_step = rng.normal(size=c.edges.shape)
    of_layer, of_nodes, of_edges = gradients
    slope = sum(np.sum(gradient * steps[path]) for path, gradient in values(of_layer).items())
    slope += sum(map(np.vdot, jax.tree.leaves(of_nodes), node_steps))
    for gradient in of_edges:
        order = np.asarray(graph.edge_order)[: len(c.senders)]
        slope += np.sum(gradient[: len(order)] * edge_step[order])
        assert np.isfinite(gradient).all() and not np.any(gradient[len(order) :])

    def moved(by: float) -> float:
        there = {path: value + by * steps[path] for path, value in parameters.items()}
        dst, src = (x + by * step for x, step in zip((c.dst, c.src), node_steps, strict=True))
        src = src if is_bipartite else dst
        at = c._replace(dst=dst, src=src, edges=c.edges + by * edge_step)
        return float(np.sum(formula(layer, there, at) * cotangent))

    np.testing.assert_allclose(slope, (moved(1e-6) - moved(-1e-6)) / 2e-6, rtol=1e-4, atol=1e-4)


_call = jax.jit(lambda layer, *arguments: layer(*arguments))


@pytest.mark.again("tests/nn/test_convolutions.py")
@pytest.mark.costly(ONE_OF_EACH)
@pytest.mark.parametrize("name", LAYERS)
def test_leading_axes_of_one_array_for_both_ends_share_the_graph(name):
    layer, members = _make_layer(name), [case(0, edge_dim=LAYERS[name].edge_dim) for _ in range(2)]
    members[1] = members[1]._replace(dst=2 * members[1].dst, src=2 * members[1].src)
    graph, edges = members[0].graph()
    x = jnp.stack([_pair(c)[0] for c in members])
    y = _call(layer, graph, x, *_edge_arguments(name, edges))
    for actual, c in zip(y, members, strict=True):
        expected = LAYERS[name].formula(layer, values(layer), c)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["edge conv", "pna", "cfconv", "res gated", "sage, max"])
def test_half_precision_is_near_the_formula_and_keeps_its_dtype(name):
    layer = _make_layer(name)
    c = case(0, edge_dim=LAYERS[name].edge_dim)
    layer.dtype = jnp.bfloat16
    for _, module in nnx.iter_modules(layer):
        if hasattr(module, "dtype"):
            module.dtype = jnp.bfloat16
    graph, edges = c.graph()
    y = _call(layer, graph, _pair(c)[0], *_edge_arguments(name, edges))
    assert y.dtype == jnp.bfloat16
    expected = LAYERS[name].formula(layer, values(layer), c)
    assert np.abs(y.astype(np.float32) - expected).max() < 0.05 * np.abs(expected).max()


def test_an_mlp_of_ours_has_no_array_of_edges_and_any_other_function_is_called_with_one():
    c = case(0)
    graph, _ = c.graph()
    seen = []

    def function(both):
        seen.append(both.shape)
        return jnp.tanh(both)

    y = nn.EdgeConv(function, reduce="sum")(graph, _pair(c)[0])
    receivers = c.dst[c.receivers]
    both = np.concatenate([receivers, c.src[c.senders] - receivers], axis=1)
    expected = formulae.reduced(c, np.tanh(both), "sum")
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert seen == [(30, 2 * IN)]

    layer = _make_layer("edge conv")
    text = str(jax.make_jaxpr(lambda x: layer(graph, x))(_pair(c)[0]))
    assert f"[30,{2 * IN}]" not in text and f"{2 * IN},7]" in text


def test_average_degrees_are_those_of_all_nodes():
    graph, _ = case(0).graph(padding=3)
    degrees = np.bincount(case(0).receivers, minlength=ROWS)
    averages = nn.DegreeAverages.of(graph)
    np.testing.assert_allclose(averages, (degrees.mean(), np.log(degrees + 1).mean()))
    counts = np.bincount(degrees)
    np.testing.assert_allclose(nn.DegreeAverages.of_histogram(counts), averages)
    np.testing.assert_allclose(nn.DegreeAverages.of(graph, graph), averages)
    layer = nn.PNAConv(IN, OUT, average_degree=graph, rngs=nnx.Rngs(0))
    assert layer.average_degree == averages


def test_filters_are_those_of_the_paper():
    distances = jnp.array([0.0, 0.3, 1.0, 1.5])
    centres = np.linspace(0, 1.0, 5)
    smeared = nn.gaussian_smearing(distances, 1.0, 5)
    expected = np.exp(-0.5 / 0.25**2 * (np.asarray(distances)[:, None] - centres) ** 2)
    np.testing.assert_allclose(smeared, expected, rtol=1e-5, atol=1e-6)
    cut = nn.cosine_cutoff(distances, 1.0)
    np.testing.assert_allclose(cut, [1, 0.5 * (np.cos(0.3 * np.pi) + 1), 0, 0], atol=1e-6)
    slopes = jax.vmap(jax.grad(lambda d: nn.cosine_cutoff(d, 1.0)))(jnp.array([0.0, 0.9999, 1.0]))
    np.testing.assert_allclose(slopes, 0, atol=1e-3)
    np.testing.assert_allclose(
        nn.shifted_softplus(jnp.array([-100.0, 0.0, 100.0])), [-np.log(2), 0, 100 - np.log(2)]
    )


def test_whole_distances_have_the_features_of_floats_and_infinite_ones_no_slope():
    np.testing.assert_array_equal(
        nn.gaussian_smearing(jnp.array([0, 1, 2]), 2.0, 5),
        nn.gaussian_smearing(jnp.array([0.0, 1.0, 2.0]), 2.0, 5),
    )
    assert nn.gaussian_smearing(jnp.ones(2, jnp.bfloat16), 2.0, 5).dtype == jnp.bfloat16
    value, slope = jax.value_and_grad(nn.cosine_cutoff)(jnp.inf, 1.0)
    assert (value, slope) == (0, 0)


def test_a_jitted_function_may_close_over_a_graph_of_arrays_of_the_host():
    graph = jax.tree.map(np.asarray, CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3))
    layer = nn.PNAConv(2, 4, edge_dim=1, average_degree=graph, rngs=nnx.Rngs(0))
    x, edges = jnp.ones((3, 2)), jnp.ones((3, 1))
    gradient = jax.eval_shape(jax.grad(lambda x: jnp.sum(layer(graph, x, edges))), x)
    assert gradient.shape == x.shape


@pytest.mark.parametrize("edge_dim", [None, FEATURES])
def test_towers_take_a_graph_without_edges_and_name_one_without_nodes(edge_dim):
    options = {"average_degree": AVERAGE, "towers": 2, "rngs": nnx.Rngs(0)}
    layer = nn.PNAConv(IN, 4, divide_input=True, edge_dim=edge_dim, **options)
    edges = None if edge_dim is None else jnp.ones((0, edge_dim))
    y = layer(CSRGraph.from_edges([], [], 3), jnp.ones((3, IN)), edges)
    assert y.shape == (3, 4)
    assert np.isfinite(y).all()
    with pytest.raises(ValueError, match="graph must be of at least one node"):
        layer(CSRGraph.from_edges([], [], 0), jnp.ones((0, IN)), edges)


GRAPH, EDGE_FEATURES = case(0).graph()
X = random_array((ROWS, IN), "float32", seed=1)
BIPARTITE, _ = case(0, columns=COLUMNS).graph()
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "edge features left out": (
        lambda: _make_layer("gine")(GRAPH, X, None),
        r"GINEConv: edge_features must be of shape \[30, 3\].*, got None",
    ),
    "edge features of another width": (
        lambda: _make_layer("res gated")(GRAPH, X, EDGE_FEATURES[:, :2]),
        r"ResGatedGraphConv: edge_features must be of shape \[30, 3\].*got shape \(30, 2\)",
    ),
    "edge features of a layer without": (
        lambda: _make_layer("pna")(GRAPH, X, EDGE_FEATURES),
        "PNAConv: edge_features must be None for a layer that was made without edge_dim",
    ),
    "one of two ends": (
        lambda: _make_layer("edge conv")(BIPARTITE, X),
        r"EdgeConv: graph must be square, or x a pair \(x_dst, x_src\), got shape \(11, 8\)",
    ),
    "ends of different widths": (
        lambda: _make_layer("edge conv")(BIPARTITE, (X, X[:COLUMNS, :2])),
        r"EdgeConv: x\[1\] must be of shape \[..., 8, 6\], senders .* got shape \(8, 2\)",
    ),
    "another width than that of the MLP": (
        lambda: _make_layer("edge conv")(GRAPH, X[:, :2]),
        r"EdgeConv: x must be of shape \[..., 11, 6\], receivers .* got shape \(11, 2\)",
    ),
    "distances not one an edge": (
        lambda: _make_layer("cfconv")(GRAPH, X, jnp.ones(29)),
        r"CFConv: distances must be of shape \[30\], one for each edge slot, got shape \(29,\)",
    ),
    "distances that are no floats": (
        lambda: _make_layer("cfconv")(GRAPH, X, jnp.ones(30, int)),
        "CFConv: distances must be of a floating dtype, got int32",
    ),
    "a state that is too wide": (
        lambda: nn.GatedGraphConv(4, 1, rngs=nnx.Rngs(0))(GRAPH, X),
        r"GatedGraphConv: x must be at most 4 wide, as the output, got shape \(11, 6\)",
    ),
    "a pair for a state": (
        lambda: _make_layer("gated")(BIPARTITE, (X, X[:COLUMNS])),
        "GatedGraphConv: graph must be square, since nodes keep their state",
    ),
    "towers that do not divide": (
        lambda: nn.PNAConv(IN, 5, average_degree=AVERAGE, towers=2, rngs=nnx.Rngs(0)),
        "PNAConv: out_features must be a multiple of 2 towers, got 5",
    ),
    "towers that do not divide the input": (
        lambda: nn.PNAConv(
            IN, 4, average_degree=AVERAGE, towers=4, divide_input=True, rngs=nnx.Rngs(0)
        ),
        "PNAConv: in_features must be a multiple of 4 towers, got 6",
    ),
    "no graph": (nn.DegreeAverages.of, "DegreeAverages.of: graphs must be one graph or more"),
    "a graph without edges": (
        lambda: nn.DegreeAverages.of(CSRGraph.from_edges([], [], 3)),
        "DegreeAverages.of: the degrees must be of at least one edge, got none",
    ),
    "a traced graph": (
        lambda: jax.jit(nn.DegreeAverages.of)(GRAPH),
        "DegreeAverages.of: graphs must be concrete graphs; call it outside jit, got a traced one",
    ),
    "a histogram of fractions": (
        lambda: nn.DegreeAverages.of_histogram([0.5, 1.0]),
        r"DegreeAverages.of_histogram: counts must be whole numbers .*got float64\[2\]",
    ),
    "a cutoff of nothing": (
        lambda: nn.cosine_cutoff(jnp.ones(3), 0.0),
        "nn.cosine_cutoff: cutoff must be a finite number above 0, got 0.0",
    ),
    "one Gaussian": (
        lambda: nn.gaussian_smearing(jnp.ones(3), 1.0, 1),
        "nn.gaussian_smearing: num_gaussians must be at least 2, got 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_and_arguments_are_named(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
