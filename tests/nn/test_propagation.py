"""Layers that carry features several steps, against their formulae in float64 numpy."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from jaxgnn import CSRGraph, nn
from jaxgnn.nn.conv import gcn_sum as _gcn_sum
from jaxgnn.nn.conv.propagation import _LOOPLESS
from jaxgnn.testing import random_array

NODES = 9
X = random_array((NODES, 6), "float32", seed=0)
INITIAL = random_array((NODES, 6), "float32", seed=1)


def _graph(*, weighted: bool = False, padding: int = 0, undirected: bool = False) -> CSRGraph:
    """Random edges, a repeated one and two loops among them; the last node has none."""
    rng = np.random.default_rng(3)
    senders, receivers = rng.integers(0, NODES - 1, (2, 20))
    senders[:3], receivers[:3] = [2, 5, 0], [2, 5, 1]
    if undirected:
        senders, receivers = np.append(senders, receivers), np.append(receivers, senders)
    count = len(senders)
    weights = None
    if weighted:
        by_pair = rng.uniform(0.5, 2.0, (NODES, NODES))
        weights = (by_pair + by_pair.T)[senders, receivers].astype(np.float32)
        weights = np.pad(weights, (0, padding), constant_values=np.nan)
    ends = [np.pad(ids, (0, padding)) for ids in (senders, receivers)]
    mask = np.arange(count + padding) < count if padding else None
    return CSRGraph.from_edges(*ends, NODES, weights, edge_mask=mask)


GRAPHS = {
    "directed": _graph(),
    "weighted": _graph(weighted=True),
    "weighted, undirected and padded": _graph(weighted=True, padding=3, undirected=True),
}


def _adjacency(graph: CSRGraph) -> np.ndarray:
    return graph.to_scipy().toarray().astype(np.float64)


def _symmetric(adjacency: np.ndarray) -> np.ndarray:
    degrees = adjacency.sum(axis=1)
    scales = np.where(degrees > 0, np.maximum(degrees, 1e-30) ** -0.5, 0)
    return scales[:, None] * adjacency * scales


def _add_loops(graph: CSRGraph) -> np.ndarray:
    """``P``: each node without a loop gets one of weight one."""
    adjacency = _adjacency(graph)
    return _symmetric(adjacency + np.diag(np.diag(adjacency) == 0))


def _wide(parameter) -> np.ndarray:
    return np.asarray(parameter[...], np.float64)


def _sgc(layer: nn.SGConv, graph: CSRGraph, x: np.ndarray) -> np.ndarray:
    matrix = np.linalg.matrix_power(_add_loops(graph), 3)
    return matrix @ x @ _wide(layer.linear.kernel) + _wide(layer.bias)


def _appnp(layer: nn.APPNP, graph: CSRGraph, x: np.ndarray) -> np.ndarray:
    z = x
    for _ in range(4):
        z = 0.8 * _add_loops(graph) @ z + 0.2 * x
    return z


def _cheb(layer: nn.ChebConv, graph: CSRGraph, x: np.ndarray) -> np.ndarray:
    adjacency = _adjacency(graph)
    adjacency -= np.diag(np.diag(adjacency))
    degrees = adjacency.sum(axis=1)
    inverse = np.where(degrees > 0, 1 / np.maximum(degrees, 1e-30), 0)
    laplacian = {
        "sym": np.eye(NODES) - _symmetric(adjacency),
        "rw": np.eye(NODES) - adjacency * inverse,
        None: np.diag(degrees) - adjacency,
    }[layer.normalization]
    scaled = 2 * laplacian / 1.7 - np.eye(NODES)
    polynomials = [np.eye(NODES), scaled]
    while len(polynomials) < len(layer.linears):
        polynomials.append(2 * scaled @ polynomials[-1] - polynomials[-2])
    terms = zip(polynomials, layer.linears, strict=False)  # One term has two polynomials.
    return sum(t @ x @ _wide(linear.kernel) for t, linear in terms) + _wide(layer.bias)


def _gcnii(layer: nn.GCNIIConv, graph: CSRGraph, x: np.ndarray) -> np.ndarray:
    beta = np.log(0.5 / 3 + 1)
    neighbours, residual = 0.7 * _add_loops(graph) @ x, 0.3 * np.asarray(INITIAL, np.float64)
    first = _wide(layer.linear.kernel)
    second = first if layer.initial_linear is None else _wide(layer.initial_linear.kernel)
    mapped = neighbours @ first + residual @ second
    return (1 - beta) * (neighbours + residual) + beta * mapped


def _le(layer: nn.LEConv, graph: CSRGraph, x: np.ndarray) -> np.ndarray:
    y = x @ _wide(layer.self_linear.kernel) + _wide(layer.self_linear.bias)
    sent = x @ _wide(layer.sender_linear.kernel) + _wide(layer.sender_linear.bias)
    received = x @ _wide(layer.receiver_linear.kernel)
    for i, weights in enumerate(_adjacency(graph)):
        y[i] += sum(w * (sent[j] - received[i]) for j, w in enumerate(weights))
    return y


class Case(NamedTuple):
    """Options of a layer, its formula, and further arguments of its call."""

    layer: Callable[..., Any]
    sizes: tuple[int, ...]
    options: dict[str, Any]
    formula: Callable[..., np.ndarray]
    call: Mapping[str, Any] = MappingProxyType({})

    def make(self, **options: Any) -> Any:
        """The layer with biases that are not zero."""
        arguments = (
            self.options | options | ({} if self.layer is nn.APPNP else {"rngs": nnx.Rngs(0)})
        )
        layer = self.layer(*self.sizes, **arguments)
        state = nnx.state(layer, nnx.Param)
        shifted = jax.tree.map(
            lambda p: p + jnp.arange(p.shape[-1]) / 8 if p.ndim == 1 else p, state
        )
        nnx.update(layer, shifted)
        return layer


def _cheb_case(terms: int, width: int, **options: Any) -> Case:
    options = {"num_terms": terms} | options
    return Case(nn.ChebConv, (6, width), options, _cheb, {"lambda_max": 1.7})


_NEAR_IDENTITY = {"alpha": 0.3, "strength": 0.5, "place": 3}

CASES = {
    "SGConv, wider": Case(nn.SGConv, (6, 8), {"num_steps": 3}, _sgc),
    "SGConv, narrower": Case(nn.SGConv, (6, 4), {"num_steps": 3}, _sgc),
    "APPNP": Case(nn.APPNP, (), {"num_steps": 4, "alpha": 0.2}, _appnp),
    "ChebConv, one term": _cheb_case(1, 4),
    "ChebConv, two terms, wider": _cheb_case(2, 8),
    "ChebConv, two terms, narrower": _cheb_case(2, 4),
    "ChebConv, five terms, wider": _cheb_case(5, 8),
    "ChebConv, five terms, narrower": _cheb_case(5, 4),
    "ChebConv, random walk": _cheb_case(3, 8, normalization="rw"),
    "ChebConv, not normalised": _cheb_case(2, 4, normalization=None),
    "GCNIIConv": Case(nn.GCNIIConv, (6,), _NEAR_IDENTITY, _gcnii, {"initial": INITIAL}),
    "GCNIIConv of two matrices": Case(
        nn.GCNIIConv, (6,), _NEAR_IDENTITY | {"share_weights": False}, _gcnii, {"initial": INITIAL}
    ),
    "LEConv": Case(nn.LEConv, (6, 4), {}, _le),
}


# One program for all graphs of one structure: what is traced does not know its values.
_traced = jax.jit(lambda layer, graph, x, options: layer(graph, x, **options))


@pytest.mark.costly(len(CASES))
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", CASES)
def test_a_layer_computes_its_formula(name, graph):
    case = CASES[name]
    layer = case.make()
    expected = case.formula(layer, GRAPHS[graph], np.asarray(X, np.float64))
    actual = layer(GRAPHS[graph], X, **case.call)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", [name for name in CASES if name != "ChebConv, one term"])
def test_under_jit_a_layer_reads_a_graph_that_is_an_argument_and_leading_axes(name):
    case, graph = CASES[name], GRAPHS["weighted, undirected and padded"]
    layer, x = case.make(), jnp.stack([X, 2 * X - 1])
    arguments = {k: jnp.stack([v, v]) if k == "initial" else v for k, v in case.call.items()}
    y = _traced(layer, graph, x, arguments)
    for part, features in zip(y, x, strict=True):
        expected = case.formula(layer, graph, np.asarray(features, np.float64))
        np.testing.assert_allclose(part, expected, rtol=1e-5, atol=5e-5)


@pytest.mark.again("test_a_layer_computes_its_formula")
@pytest.mark.parametrize(
    "name",
    [
        "ChebConv, five terms, narrower",
        "ChebConv, not normalised",
        "ChebConv, random walk",
        "LEConv",
    ],
)
def test_gradients_are_those_of_the_formula(name):
    case, graph = CASES[name], GRAPHS["weighted"]
    structure, state = nnx.split(case.make(), nnx.Param)

    @jax.jit
    def loss(state, x, weights):
        y = nnx.merge(structure, state)(graph.with_weights(weights), x, **case.call)
        return jnp.sum(jnp.sin(y))

    arguments = state, X, graph.weights
    check_grads(loss, arguments, order=1, modes=["rev"], rtol=1e-2, atol=1e-2)


@pytest.mark.costly(len(CASES))
@pytest.mark.parametrize("name", CASES)
def test_half_precision_stays_half_precision(name):
    case = CASES[name]
    y = case.make(dtype=jnp.bfloat16)(GRAPHS["directed"], X, **case.call)
    assert y.dtype == jnp.bfloat16
    expected = case.make()(GRAPHS["directed"], X, **case.call)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=5e-2, atol=1e-1)


def test_dropout_of_personalised_propagation_is_drawn_anew_in_each_step():
    graph = GRAPHS["weighted"]
    p = _gcn_sum.gcn_sum("APPNP", graph, normalize=True, add_self_loops=True)
    keys = nnx.Rngs(dropout=0)
    steps = [p.dropped(0.5, keys.dropout()) for _ in range(2)]
    z = X
    for step in steps:
        kept = step.graph.weights != 0
        np.testing.assert_allclose(step.graph.weights[kept], 2 * p.graph.weights[kept], rtol=1e-6)
        assert 0 < kept.sum() < graph.num_edges
        assert 0 < (step.loops != 0).sum() < (p.loops != 0).sum()
        z = 0.8 * step(z, None) + 0.2 * X
    assert (steps[0].graph.weights != steps[1].graph.weights).any()
    layer = nn.APPNP(num_steps=2, alpha=0.2, dropout=0.5)
    np.testing.assert_allclose(layer(graph, X, rngs=nnx.Rngs(dropout=0)), z, rtol=1e-5, atol=1e-6)


def test_a_normalised_graph_is_used_unchanged():
    graph = GRAPHS["weighted"].with_self_loops()
    prepared = graph.normalized("gcn")
    for layer in (nn.SGConv(6, 4, num_steps=2, rngs=nnx.Rngs(0)), nn.APPNP()):
        np.testing.assert_allclose(layer(prepared, X), layer(graph, X), rtol=1e-5, atol=1e-5)
    layer = nn.APPNP(num_steps=1, alpha=0.0, normalize=False)
    expected = _adjacency(graph) @ np.asarray(X, np.float64)
    np.testing.assert_allclose(layer(graph, X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalization", ["sym", "rw", None])
def test_filters_take_a_bound_of_the_eigenvalues_unless_a_call_has_one(normalization):
    graph = GRAPHS["weighted, undirected and padded"]
    layer = nn.ChebConv(6, 4, num_terms=4, normalization=normalization, rngs=nnx.Rngs(0))
    without_loops = _adjacency(graph) * (1 - np.eye(NODES))
    bound = 2.0 if normalization else 2 * without_loops.sum(axis=1).max()
    expected = layer(graph, X, lambda_max=bound)
    np.testing.assert_allclose(layer(graph, X), expected, rtol=1e-5, atol=1e-5)
    nothing = CSRGraph.from_edges([1], [1], NODES)  # Its only edge is ignored.
    assert np.isfinite(layer(nothing, X)).all()


@pytest.mark.parametrize("normalization", ["sym", "rw", None])
@pytest.mark.parametrize("is_traced", [False, True])
def test_a_filter_of_float32_is_of_float32_where_float64_is_enabled(normalization, is_traced):
    layer = nn.ChebConv(6, 4, normalization=normalization, implementation="ffi", rngs=nnx.Rngs(0))
    with jax.enable_x64(True):
        graph = _graph()
        if is_traced:
            kind = jax.eval_shape(lambda graph, x: layer(graph, x), graph, X)
        else:
            kind = jax.eval_shape(lambda x: layer(graph, x), X)
    assert kind.dtype == jnp.float32


def test_a_filter_reads_a_graph_that_a_jitted_function_closes_over():
    layer, graph = nn.ChebConv(6, 4, rngs=nnx.Rngs(0)), _graph()
    y = jax.jit(lambda x: layer(graph, x))(X)
    np.testing.assert_allclose(y, layer(_graph(), X), rtol=1e-5, atol=1e-5)


def test_what_a_filter_remembers_of_a_graph_goes_with_it():
    before = len(_LOOPLESS)
    layer = nn.ChebConv(6, 4, rngs=nnx.Rngs(0))
    graph = _graph()
    layer(graph, X)
    layer(jax.tree.map(lambda leaf: leaf, graph), X)
    assert len(_LOOPLESS) == before + 1
    del graph
    assert len(_LOOPLESS) == before


def test_differences_to_neighbours_of_another_type():
    graph = CSRGraph.from_edges([0, 3, 3], [1, 0, 1], 2, num_senders=4)
    layer = nn.LEConv((3, 6), 4, rngs=nnx.Rngs(0))
    x_dst, x_src = random_array((2, 3), "float32", seed=2), X[:4]
    sent, received = layer.sender_linear(x_src), layer.receiver_linear(x_dst)
    expected = layer.self_linear(x_dst) + jnp.stack(
        [sent[3] - received[0], sent[0] + sent[3] - 2 * received[1]]
    )
    np.testing.assert_allclose(layer(graph, (x_dst, x_src)), expected, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_named():
    graph, rngs = GRAPHS["directed"], nnx.Rngs(0)
    wide = CSRGraph.from_edges([0], [0], 2, num_senders=NODES)
    for layer in (nn.SGConv(6, 4, rngs=rngs), nn.APPNP(), nn.ChebConv(6, 4, rngs=rngs)):
        name = type(layer).__name__
        with pytest.raises(ValueError, match=f"{name}: graph must be square, since the sum is tak"):
            layer(wide, X)
        with pytest.raises(ValueError, match=rf"{name}: x must be of shape \[..., 9, "):
            layer(graph, X[:5])
    for value in (0.0, -1, jnp.ones(2)):
        with pytest.raises(ValueError, match="ChebConv: lambda_max must be a positive number"):
            nn.ChebConv(6, 4, rngs=rngs)(graph, X, lambda_max=value)
    for kind in ("rw", None):
        layer = nn.ChebConv(6, 4, normalization=kind, rngs=rngs)
        with pytest.raises(
            ValueError, match=r"ChebConv: graph must be not normalised, .* normalised$"
        ):
            layer(graph.normalized("gcn"), X)
    with pytest.raises(
        ValueError, match="ChebConv: normalization must be None, 'sym' or 'rw', got"
    ):
        nn.ChebConv(6, 4, normalization="mean", rngs=rngs)  # pyrefly: ignore
    with pytest.raises(ValueError, match=r"GCNIIConv: initial must be of shape \(9, 6\), as x"):
        nn.GCNIIConv(6, rngs=rngs)(graph, X, INITIAL[:3])
