"""GCNConv and GINConv against the formulae of PyTorch Geometric, written in float64 numpy."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import GraphBatch, GraphSample
from jaxgnn.graph.csr import normalization as _gcn
from jaxgnn.nn.conv import gcn_sum as _gcn_sum
from jaxgnn.testing import random_array


class Edges(NamedTuple):
    """A directed multigraph with weights or None, and which of its edges are no padding."""

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray | None
    real: np.ndarray
    num_nodes: int

    def graph(self) -> CSRGraph:
        return CSRGraph.from_edges(*self[:2], self.num_nodes, self.weights, edge_mask=self.real)


def _edges(seed, *, weighted=False, loops=0, masked=False) -> Edges:
    """Random edges between the first 11 of 14 nodes; the other three are isolated."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 11, (2, 40))
    ends = ends[:, ends[0] != ends[1]]
    nodes = rng.permutation(14)[:loops]
    senders, receivers = np.concatenate([ends, [nodes, nodes]], axis=1)
    weights = rng.uniform(0.5, 2, len(senders)).astype(np.float32) if weighted else None
    real = rng.random(len(senders)) < 0.6 if masked else np.ones(len(senders), bool)
    return Edges(senders, receivers, weights, real, 14)


EDGES = {
    "directed": _edges(0),
    "some loops": _edges(1, loops=5),
    "all loops": _edges(2, loops=14),
    "weighted": _edges(3, weighted=True),
    "weighted with some loops": _edges(4, weighted=True, loops=5),
    "weighted with all loops": _edges(5, weighted=True, loops=14),
    "padded": _edges(6, loops=6, masked=True),
    "weighted and padded": _edges(7, weighted=True, loops=6, masked=True),
    "without edges": Edges(*np.zeros((2, 0), int), None, np.zeros(0, bool), 14),
}


def gcn_norm(edges: Edges, *, add_self_loops: bool) -> np.ndarray:
    """The normalised adjacency, dense: in-degrees at both ends, loops where none remain."""
    senders, receivers = edges.senders[edges.real], edges.receivers[edges.real]
    weights = np.ones(len(edges.real)) if edges.weights is None else edges.weights
    weights = weights[edges.real].astype(np.float64)
    if add_self_loops:
        remaining = np.setdiff1d(np.arange(edges.num_nodes), senders[senders == receivers])
        senders, receivers = (np.append(ends, remaining) for ends in (senders, receivers))
        weights = np.append(weights, np.ones(len(remaining)))
    degrees = np.bincount(receivers, weights, edges.num_nodes)
    scales = np.where(degrees > 0, np.maximum(degrees, 1e-30) ** -0.5, 0)
    matrix = np.zeros((edges.num_nodes, edges.num_nodes))
    np.add.at(matrix, (receivers, senders), scales[receivers] * weights * scales[senders])
    return matrix


X = random_array((14, 6), "float32", seed=0)


def _layer(**options) -> nn.GCNConv:
    layer = nn.GCNConv(6, 4, **options, rngs=nnx.Rngs(0))
    layer.bias[...] = jnp.arange(4.0)
    return layer


def _expected(layer: nn.GCNConv, matrix: np.ndarray, x: jax.Array = X) -> np.ndarray:
    h = np.asarray(x, np.float64) @ np.asarray(layer.linear.kernel[...], np.float64)
    return matrix @ h + np.arange(4.0)


# One program for all graphs of one structure.
_traced = jax.jit(lambda layer, graph, x: layer(graph, x))


@pytest.mark.costly(len(EDGES))
@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("name", EDGES)
def test_gcn_is_that_of_pytorch_geometric(name, add_self_loops):
    edges, layer = EDGES[name], _layer(add_self_loops=add_self_loops)
    expected = _expected(layer, gcn_norm(edges, add_self_loops=add_self_loops))
    graph = edges.graph()
    np.testing.assert_allclose(layer(graph, X), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(_traced(layer, graph, X), expected, rtol=1e-5, atol=1e-5)


def test_by_default_both_loops_and_normalisation_are_there_and_without_the_latter_neither():
    edges = EDGES["weighted"]
    graph, layer, plain = edges.graph(), _layer(), _layer(normalize=False)
    expected = _expected(layer, gcn_norm(edges, add_self_loops=True))
    np.testing.assert_allclose(layer(graph, X), expected, rtol=1e-5, atol=1e-5)
    adjacency = graph.to_scipy().toarray()
    np.testing.assert_allclose(plain(graph, X), _expected(plain, adjacency), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="GCNConv: add_self_loops must be False or None with norm"):
        _layer(normalize=False, add_self_loops=True)


@pytest.mark.parametrize("name", ["directed", "some loops", "weighted with some loops", "padded"])
def test_a_graph_that_was_prepared_once_gives_the_same(name):
    graph = EDGES[name].graph()
    prepared = graph.with_self_loops().normalized("gcn").validate()
    layer = _layer()
    np.testing.assert_allclose(layer(prepared, X), layer(graph, X), rtol=1e-5, atol=1e-5)
    expected = gcn_norm(EDGES[name], add_self_loops=True)
    np.testing.assert_allclose(prepared.to_scipy().toarray(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "maxk"])
def test_the_node_itself_is_activated_like_its_neighbours(activation):
    layer = _layer(activation=activation, k=2)
    h = np.asarray(X) @ np.asarray(layer.linear.kernel[...])
    smallest = 0 if activation == "relu" else np.sort(h, axis=1)[:, -2, None]
    h = np.where(h >= smallest, h, 0)
    edges = EDGES["some loops"]
    expected = gcn_norm(edges, add_self_loops=True) @ h + np.arange(4.0)
    np.testing.assert_allclose(layer(edges.graph(), X), expected, rtol=1e-5, atol=1e-5)


def test_leading_axes_share_the_graph_and_half_precision_is_rounded_once_more():
    edges, layer = EDGES["some loops"], _layer(dtype=jnp.bfloat16)
    x = random_array((3, 14, 6), "bfloat16", seed=1)
    y = layer(edges.graph(), x)
    assert y.dtype == jnp.bfloat16
    expected = _expected(layer, gcn_norm(edges, add_self_loops=True), x)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=2e-2, atol=2e-2)


def test_a_batch_of_graphs_is_each_graph_by_itself():
    parts = [EDGES["directed"], EDGES["some loops"]]
    samples = [GraphSample(*edges[:2], num_nodes=14) for edges in parts]
    batch = GraphBatch.from_graphs(samples, pad_to="power_of_two")
    layer = _layer()
    x = jnp.zeros((batch.graph.num_rows, 6)).at[:28].set(jnp.concatenate([X, X]))
    for y in (layer(batch.graph, x), _traced(layer, batch.graph, x)):
        for place, edges in enumerate(parts):
            expected = _expected(layer, gcn_norm(edges, add_self_loops=True))
            actual = y[14 * place :][:14]
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_weights_get_the_gradient_of_the_formula():
    edges = EDGES["weighted with some loops"]
    graph, layer = edges.graph(), _layer()
    rows, columns = graph.receivers(), graph.senders
    missing = jnp.ones(14).at[jnp.where(rows == columns, rows, 14)].set(0, mode="drop")
    kernel = layer.linear.kernel[...]

    def layer_sum(weights):
        return jnp.sum(jnp.sin(layer(graph.with_weights(weights), X)))

    def formula_sum(weights):
        matrix = jnp.zeros((14, 14), weights.dtype).at[rows, columns].add(weights)
        matrix = matrix + jnp.diag(missing.astype(weights.dtype))
        scales = matrix.sum(1) ** -0.5
        h = X.astype(weights.dtype) @ kernel.astype(weights.dtype)
        y = scales[:, None] * (matrix @ (scales[:, None] * h))
        return jnp.sum(jnp.sin(y + jnp.arange(4, dtype=weights.dtype)))

    def sum_of_normalized(weights):
        prepared = graph.with_self_loops().with_weights(weights).normalized("gcn")
        return jnp.sum(_layer()(prepared, X))

    assert jax.jit(jax.grad(sum_of_normalized))(graph.with_self_loops().weights).any()
    actual = jax.jit(jax.grad(layer_sum))(graph.weights)
    with jax.enable_x64(True):
        expected = jax.jit(jax.grad(formula_sum))(graph.weights.astype(jnp.float64))
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


def test_coefficients_of_a_concrete_graph_are_computed_once_for_its_arrays(monkeypatch):
    calls = []

    def computed(graph, add_self_loops):
        calls.append(add_self_loops)
        return original(graph, add_self_loops)

    original = _gcn._computed
    monkeypatch.setattr(_gcn, "_computed", computed)
    graph, layers = EDGES["some loops"].graph(), [_layer() for _ in range(2)]
    for layer in layers:
        layer(graph, X)
        layer(jax.tree.map(lambda leaf: leaf, graph), X)  # another object of the same arrays
        jax.jit(functools.partial(layer, graph))(X)
    assert calls == [True]
    _layer(add_self_loops=False)(graph, X)
    assert calls == [True, False]


def test_nothing_is_remembered_of_a_graph_that_is_gone():
    before = len(_gcn._COEFFICIENTS)
    graph = _edges(8, weighted=True, loops=3).graph()
    _layer()(graph, X)
    assert len(_gcn._COEFFICIENTS) == before + 1
    del graph
    assert len(_gcn._COEFFICIENTS) == before


def test_a_normalised_graph_that_lacks_loops_is_named_unless_the_layer_adds_none():
    _gcn_sum.warn_once.cache_clear()
    graph = EDGES["some loops"].graph().normalized("gcn")
    with pytest.warns(UserWarning, match=r"GCNConv: the graph is normalised already.*with_self_l"):
        once = _layer()(graph, X)
    np.testing.assert_array_equal(_layer()(graph, X), once)  # without another warning
    np.testing.assert_array_equal(_layer(add_self_loops=False)(graph, X), once)
    _gcn_sum.warn_once.cache_clear()
    _layer()(EDGES["all loops"].graph().normalized("gcn"), X)


def test_a_graph_of_other_receivers_than_senders_must_be_normalised_by_the_caller():
    graph = CSRGraph.from_edges([0, 4, 1], [1, 2, 1], 3, num_senders=5)
    x = jnp.ones((5, 6))
    with pytest.raises(ValueError, match="GCNConv: graph must be square, or normalised by the cal"):
        _layer()(graph, x)
    with pytest.raises(ValueError, match=r"normalized\('gcn'\): self must be square"):
        graph.normalized("gcn")
    mean = graph.normalized("mean")
    expected = _expected(_layer(), mean.to_scipy().toarray(), x)
    np.testing.assert_allclose(_layer()(mean, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "maxk", None])
def test_gin_without_its_linear_layer_is_that_of_pytorch_geometric(activation):
    rngs = nnx.Rngs(0)
    mlp = nn.FusedMLP([6, 8, 3], activation="relu", rngs=rngs)
    options = {"activation": activation, "k": 2, "linear": False, "mlp": mlp}
    layer = nn.GINConv(6, 6, **options, rngs=rngs)
    assert set(nnx.state(layer, nnx.Param)) == {"epsilon", "mlp"}
    layer.epsilon[...] = jnp.float32(0.5)
    h = np.asarray(X, np.float64)
    if activation is not None:
        h = np.where(h >= (0 if activation == "relu" else np.sort(h, 1)[:, -2, None]), h, 0)
    graph = EDGES["weighted"].graph()
    total = 1.5 * h + graph.to_scipy().toarray() @ h
    expected = mlp(jnp.asarray(total, jnp.float32))
    np.testing.assert_allclose(layer(graph, X), expected, rtol=1e-4, atol=1e-4)


def test_gin_without_its_linear_layer_keeps_the_width_and_takes_any_numbers():
    with pytest.raises(ValueError, match="GINConv: out_features must be in_features, 6, with lin"):
        nn.GINConv(6, 4, linear=False, rngs=nnx.Rngs(0))
    layer = nn.GINConv(6, 6, linear=False, rngs=nnx.Rngs(0))
    graph = EDGES["directed"].graph()
    bits = X > 0
    with jax.numpy_dtype_promotion("standard"):
        actual = layer(graph, bits)
    np.testing.assert_array_equal(actual, layer(graph, bits.astype(jnp.float32)))
