"""Layers of attention against the formulae of PyTorch Geometric, written in float64 numpy."""

import functools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import GraphBatch, GraphSample, looped_features, with_one_loop_each
from jaxgnn.testing import random_array

IN, OUT, FEATURES = 6, 4, 3
ROWS, COLUMNS = 11, 8  # The bipartite graph; square ones have 11 nodes.


class Edges(NamedTuple):
    """Edges as PyTorch Geometric has them: in any order, without padding."""

    senders: np.ndarray
    receivers: np.ndarray
    features: np.ndarray

    def graph(self, columns: int = ROWS, *, padding: int = 0) -> tuple[CSRGraph, jax.Array]:
        """The graph, and the features of its slots, which are not numbers in padding."""
        padded = [np.pad(ids, (0, padding)) for ids in self[:2]]
        features = np.pad(self.features, ((0, padding), (0, 0)), constant_values=np.nan)
        mask = np.arange(len(features)) < len(self.senders)
        return CSRGraph.from_edges(
            *padded,
            ROWS,
            num_senders=columns,
            edge_mask=mask if padding else None,
            edge_data=features.astype(np.float32),
        )


def _edges(seed: int, columns: int = ROWS) -> Edges:
    """Random edges, repeated ones and loops among them; the last three receivers have none."""
    rng = np.random.default_rng(seed)
    receivers = rng.integers(0, ROWS - 3, 30)
    senders = rng.integers(0, columns, 30)
    senders[:4] = receivers[:4] = [2, 2, 5, ROWS - 4]
    return Edges(senders % columns, receivers, rng.normal(size=(30, FEATURES)))


def replace_loops(edges: Edges, num_nodes: int, fill_value: Any) -> Edges:
    """Removes loops, then adds one to each node, with features of the edges that enter."""
    senders, receivers, features = (part[edges.senders != edges.receivers] for part in edges)
    loops = np.zeros((num_nodes, FEATURES))
    for node in range(num_nodes):
        entering = features[receivers == node]
        if not isinstance(fill_value, str):
            loops[node] = fill_value
        elif fill_value == "mul":
            loops[node] = np.prod(entering, axis=0)
        elif len(entering):
            reduce = {"add": np.sum}.get(fill_value) or getattr(np, fill_value)
            loops[node] = reduce(entering, axis=0)
    nodes = np.arange(num_nodes)
    pairs = ((senders, nodes), (receivers, nodes), (features, loops))
    return Edges(*map(np.concatenate, pairs))


def _softmax(scores: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    weights = np.zeros_like(scores)
    for row in np.unique(receivers):
        of_row = scores[receivers == row]
        exponentials = np.exp(of_row - of_row.max(axis=0))
        weights[receivers == row] = exponentials / exponentials.sum(axis=0)
    return weights


def _leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.2 * x)


class Formula:
    """A layer with its parameters in float64, to be called with edges and features of both ends."""

    def __init__(self, layer: nnx.Module, values: dict[tuple, np.ndarray]):
        self.layer = layer
        self.values = values

    def get(self, *path: str) -> np.ndarray | None:
        return self.values.get(path)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = x @ self.get(name, "kernel")
        return y if self.get(name, "bias") is None else y + self.get(name, "bias")

    def heads(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.linear(name, x).reshape(len(x), -1, OUT)

    def __call__(self, edges: Edges, x_dst: np.ndarray, x_src: np.ndarray) -> np.ndarray:
        looped = self.layer.edges.add_self_loops
        if looped:
            num_nodes = min(len(x_dst), len(x_src))
            edges = replace_loops(edges, num_nodes, self.layer.edges.fill_value)
        scores, values = {
            nn.GATConv: self._gat,
            nn.GATv2Conv: self._gatv2,
            nn.TransformerConv: self._transformer,
        }[type(self.layer)](edges, x_dst, x_src)
        weights = _softmax(scores, edges.receivers)
        y = np.zeros((len(x_dst), *values.shape[1:]))
        np.add.at(y, edges.receivers, weights[:, :, None] * values)
        y = y.reshape(len(y), -1) if self.layer.heads.concat else y.mean(axis=1)
        if isinstance(self.layer, nn.TransformerConv):
            return self._add_root(y, x_dst)
        if self.get("residual_linear", "kernel") is not None:
            y = y + self.linear("residual_linear", x_dst)
        return y if self.get("bias") is None else y + self.get("bias")

    def _gat(self, edges, x_dst, x_src):
        name = "src_linear" if self.get("dst_linear", "kernel") is None else "dst_linear"
        at_dst = self.heads(name, x_dst)[edges.receivers]
        at_src = self.heads("src_linear", x_src)[edges.senders]
        scores = np.sum(at_dst * self.get("dst_attention"), axis=-1)
        scores = scores + np.sum(at_src * self.get("src_attention"), axis=-1)
        if self.get("edge_attention") is not None:
            of_edges = self.heads("edge_linear", edges.features)
            scores = scores + np.sum(of_edges * self.get("edge_attention"), axis=-1)
        return _leaky_relu(scores), at_src

    def _gatv2(self, edges, x_dst, x_src):
        name = "src_linear" if self.get("dst_linear", "kernel") is None else "dst_linear"
        at_src = self.heads("src_linear", x_src)[edges.senders]
        total = self.heads(name, x_dst)[edges.receivers] + at_src
        if self.get("edge_linear", "kernel") is not None:
            total = total + self.heads("edge_linear", edges.features)
        return np.sum(_leaky_relu(total) * self.get("attention"), axis=-1), at_src

    def _transformer(self, edges, x_dst, x_src):
        queries = self.heads("query_linear", x_dst)[edges.receivers]
        keys = self.heads("key_linear", x_src)[edges.senders]
        values = self.heads("value_linear", x_src)[edges.senders]
        if self.get("edge_linear", "kernel") is not None:
            of_edges = self.heads("edge_linear", edges.features)
            keys, values = keys + of_edges, values + of_edges
        return np.sum(queries * keys, axis=-1) / np.sqrt(OUT), values

    def _add_root(self, y, x_dst):
        if self.get("root_linear", "kernel") is None:
            return y
        root = self.linear("root_linear", x_dst)
        if self.get("beta_linear", "kernel") is None:
            return y + root
        gate = self.linear("beta_linear", np.concatenate([y, root, y - root], axis=1))
        gate = 1 / (1 + np.exp(-gate))
        return gate * root + (1 - gate) * y


def _values(layer: nnx.Module) -> dict[tuple, np.ndarray]:
    flat = nnx.to_flat_state(nnx.state(layer, nnx.Param))
    return {path: np.asarray(variable[...], np.float64) for path, variable in flat}


def _make_layer(kind: type[nnx.Module], in_features: Any = IN, **options: Any) -> Any:
    """A layer whose biases are not zero."""
    layer = kind(in_features, OUT, **options, rngs=nnx.Rngs(0))
    for path, variable in nnx.to_flat_state(nnx.state(layer, nnx.Param)):
        if path[-1] == "bias":
            variable[...] = jnp.linspace(-1.0, 1.0, variable.shape[0], dtype=variable.dtype)
    return layer


X = random_array((ROWS, IN), "float32", seed=0)
FILL_VALUES = ["mean", "add", "min", "max", "mul", 0.5, [1.0, -2.0, 3.0]]
LAYERS = {"transformer": nn.TransformerConv, "gatv2": nn.GATv2Conv, "gat": nn.GATConv}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gat, loops by max, mean of heads, residual": (
        "gat",
        {"heads": 3, "concat": False, "residual": True, "edge_dim": 3, "fill_value": "max"},
    ),
    "gatv2, shared weights, mean of heads, residual": (
        "gatv2",
        {"heads": 3, "concat": False, "residual": True, "share_weights": True},
    ),
    "transformer with features of edges, mean of heads, gate": (
        "transformer",
        {"heads": 3, "concat": False, "edge_dim": 3, "beta": True, "use_bias": False},
    ),
    "gatv2 without loops or bias": (
        "gatv2",
        {"heads": 2, "edge_dim": 3, "add_self_loops": False, "use_bias": False},
    ),
    "gat without loops or bias": (
        "gat",
        {"heads": 2, "edge_dim": 3, "add_self_loops": False, "use_bias": False},
    ),
    "gat": ("gat", {}),
    "gatv2": ("gatv2", {}),
    "transformer": ("transformer", {"heads": 3}),
    "transformer with a gate": ("transformer", {"heads": 2, "beta": True}),
    "transformer without root": ("transformer", {"root_weight": False, "beta": True}),
    **{
        f"{kind}, loops by {fill}": (kind, {"heads": 2, "edge_dim": 3, "fill_value": fill})
        for kind, fill in [*(("gat", f) for f in FILL_VALUES), ("gatv2", "mean"), ("gatv2", "mul")]
    },
}


@functools.partial(jax.jit, static_argnames="return_attention_weights")
def _traced(layer: Any, *arguments: Any, **options: Any) -> Any:
    """A call with a graph of which no value is known; one program for all of one shape."""
    return layer(*arguments, **options)


def _concrete(layer: Any, graph: CSRGraph, x: Any, *features: Any, **options: Any) -> Any:
    """A call with a graph that is a constant of the program."""
    return jax.jit(lambda layer, *arrays: layer(graph, *arrays, **options))(layer, x, *features)


def _assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.costly(5)
@pytest.mark.parametrize("kind, options", OPTIONS.values(), ids=OPTIONS)
def test_a_layer_is_that_of_pytorch_geometric_also_on_a_padded_graph(kind, options):
    layer, edges = _make_layer(LAYERS[kind], **options), _edges(1)
    expected = Formula(layer, _values(layer))(edges, *[np.asarray(X, np.float64)] * 2)
    graph, features = edges.graph(padding=4)
    arguments = (graph, X, features) if layer.edges.dim else (graph, X)
    _assert_close(_traced(layer, *arguments), expected)
    _assert_close(_concrete(layer, *arguments), expected)


@pytest.mark.costly
@pytest.mark.parametrize("kind", LAYERS)
def test_a_pair_is_of_the_receivers_and_the_senders(kind):
    layer = _make_layer(LAYERS[kind], (IN, 5), heads=2, edge_dim=3)
    edges = _edges(2, COLUMNS)
    x = X, random_array((COLUMNS, 5), "float32", seed=1)
    expected = Formula(layer, _values(layer))(edges, *(np.asarray(e, np.float64) for e in x))
    graph, features = edges.graph(COLUMNS)
    _assert_close(_concrete(layer, graph, x, features), expected)
    one_width = _make_layer(LAYERS[kind], IN)
    x = X, X[:COLUMNS]
    formula = Formula(one_width, _values(one_width))
    _assert_close(
        _concrete(one_width, graph, x), formula(edges, *(np.asarray(e, np.float64) for e in x))
    )


@pytest.mark.costly(3)
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_slopes_of_the_formula(kind):
    layer, edges = _make_layer(LAYERS[kind], heads=2, edge_dim=3), _edges(3)
    graph, features = edges.graph(padding=4)
    cotangent = np.linspace(-1, 1, ROWS * 2 * OUT).reshape(ROWS, -1)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def gradients(layer, x, features):
        return jnp.sum(layer(graph, x, features) * cotangent.astype(np.float32))

    of_layer, dx, dfeatures = gradients(layer, X, features)
    rng = np.random.default_rng(0)
    steps = {path: rng.normal(size=value.shape) for path, value in _values(layer).items()}
    x_step, feature_step = rng.normal(size=X.shape), rng.normal(size=edges.features.shape)
    order = np.asarray(graph.edge_order)[: len(edges.senders)]
    slope = np.sum(dx * x_step) + np.sum(dfeatures[: len(order)] * feature_step[order])
    slope += sum(np.sum(of_layer_ * steps[path]) for path, of_layer_ in _values(of_layer).items())
    assert np.isfinite(dfeatures).all() and not np.any(dfeatures[len(order) :])

    def moved(by: float) -> float:
        values = {path: value + by * steps[path] for path, value in _values(layer).items()}
        there = edges._replace(features=edges.features + by * feature_step)
        x = np.asarray(X, np.float64) + by * x_step
        return float(np.sum(Formula(layer, values)(there, x, x) * cotangent))

    expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
    np.testing.assert_allclose(slope, expected, rtol=1e-4)


def test_agnn_is_that_of_pytorch_geometric():
    edges = _edges(4)
    looped = replace_loops(edges, ROWS, 0.0)
    x = X.at[3].set(0)  # A zero vector has no direction.
    x64 = np.asarray(x, np.float64)
    unit = x64 / np.maximum(np.linalg.norm(x64, axis=1, keepdims=True), 1e-12)
    for options, beta, there in (
        ({}, 1.5, looped),
        ({"requires_grad": False, "add_self_loops": False}, 1.0, edges),
    ):
        layer = nn.AGNNConv(**options)
        if layer.beta is not None:
            layer.beta[...] = jnp.float32(beta)
        cosines = np.sum(unit[there.receivers] * unit[there.senders], axis=1, keepdims=True)
        weights = _softmax(beta * cosines, there.receivers)
        expected = np.zeros(X.shape)
        np.add.at(expected, there.receivers, weights * x64[there.senders])
        graph, _ = edges.graph()
        _assert_close(_concrete(layer, graph, x), expected)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(nn.AGNNConv()(graph, x) ** 2)))(x)
    assert np.isfinite(gradient).all()


@pytest.mark.costly
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_come_with_the_graph_of_their_edges(kind):
    layer = _make_layer(LAYERS[kind], heads=2, edge_dim=3)
    graph, features = _edges(5).graph(padding=4)
    y, (looped, weights) = _traced(layer, graph, X, features, return_attention_weights=True)
    x64 = np.asarray(X, np.float64)
    _assert_close(y, Formula(layer, _values(layer))(_edges(5), x64, x64))
    real = looped.receivers() < ROWS
    assert weights.shape == (looped.num_edges, 2) and not np.any(weights[~real])
    sums = jax.ops.segment_sum(weights, looped.receivers(), ROWS)
    expected = np.asarray(looped.degrees() > 0, np.float32)
    np.testing.assert_allclose(sums, np.stack([expected, expected], axis=1), atol=1e-6)
    if layer.edges.add_self_loops:
        assert jnp.sum(looped.indices[real] == looped.receivers()[real]) == ROWS
    else:
        np.testing.assert_array_equal(looped.indices, graph.indices)


@pytest.mark.again("tests/ops/attention/test_attention.py")
@pytest.mark.costly
@pytest.mark.parametrize("kind", LAYERS)
def test_leading_axes_share_the_graph_as_vmap_does(kind):
    layer = _make_layer(LAYERS[kind], heads=2, edge_dim=3)
    graph, features = _edges(6).graph()
    x = random_array((2, 3, ROWS, IN), "float32", seed=2)
    y = _concrete(layer, graph, x, features)
    assert y.shape == (2, 3, ROWS, 2 * OUT)
    of_each = jnp.stack([features, 2 * features, 3 * features])
    mapped = jax.jit(jax.vmap(lambda x, e: layer(graph, x, e)))(x[0], of_each)
    _assert_close(mapped[0], y[0, 0])
    _assert_close(_concrete(layer, graph, x[0], of_each), mapped)


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["agnn", *LAYERS])
def test_a_batch_of_graphs_is_each_graph_by_itself(kind):
    layer = nn.AGNNConv() if kind == "agnn" else _make_layer(LAYERS[kind])
    parts = [_edges(7), _edges(8)]
    samples = [GraphSample(*edges[:2], num_nodes=ROWS) for edges in parts]
    batch = GraphBatch.from_graphs(samples, pad_to="power_of_two")
    x = jnp.full((batch.graph.num_rows, IN), 7.0).at[: 2 * ROWS].set(jnp.concatenate([X, -X]))
    y = _traced(layer, batch.graph, x)
    assert np.isfinite(y).all()
    for place, (edges, features) in enumerate(zip(parts, (X, -X), strict=True)):
        _assert_close(y[ROWS * place :][:ROWS], _concrete(layer, edges.graph()[0], features))


@pytest.mark.costly
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"param_dtype": "bfloat16"}])
def test_half_precision_is_close(kind, options):
    graph, features = _edges(9).graph()
    layer = _make_layer(LAYERS[kind], heads=2, edge_dim=3, **options)
    x = X if "dtype" in options else X.astype(jnp.bfloat16)
    y = _concrete(layer, graph, x, features)
    assert y.dtype == jnp.bfloat16
    x64 = np.asarray(x, np.float64)
    expected = Formula(layer, _values(layer))(_edges(9), x64, x64)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.costly
@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_leaves_out_edges_behind_the_softmax(kind):
    layer = _make_layer(LAYERS[kind], heads=2, dropout=0.25)
    graph, _ = _edges(10).graph()

    @jax.jit
    def call(layer, rngs):
        return layer(graph, X, rngs=rngs, return_attention_weights=True)

    _, (_, plain) = call(layer, None)
    y, (_, dropped) = call(layer, nnx.Rngs(dropout=1))
    kept = np.asarray(dropped != 0)
    assert 0.5 < kept.mean() < 0.95
    np.testing.assert_allclose(dropped, np.where(kept, plain / 0.75, 0), rtol=1e-5, atol=1e-7)
    again, _ = call(layer, nnx.Rngs(dropout=1))
    np.testing.assert_array_equal(again, y)


def test_a_graph_that_was_prepared_once_gives_the_same():
    graph, features = _edges(11).graph(padding=2)
    looped = with_one_loop_each(graph)
    assert with_one_loop_each(CSRGraph(graph.indptr, graph.indices)) is looped
    there = looped_features(graph, looped, features, "max")
    options = {"edge_dim": 3, "fill_value": "max"}
    layer = _make_layer(nn.GATv2Conv, **options)
    prepared = _make_layer(nn.GATv2Conv, **options, add_self_loops=False)
    expected = _concrete(layer, graph, X, features)
    _assert_close(_concrete(prepared, looped.graph, X, there), expected)


def test_integers_a_column_of_features_and_plain_numpy_are_taken():
    graph, features = _edges(12).graph()
    layer = _make_layer(nn.GATConv, edge_dim=1)
    ids = np.arange(ROWS * IN, dtype=np.int32).reshape(ROWS, IN) % 5
    y = _concrete(layer, graph, ids, np.asarray(features)[:, 0])
    _assert_close(y, _concrete(layer, graph, jnp.float32(ids), features[:, :1]))


GRAPH, EDGE_FEATURES = _edges(13).graph()
BIPARTITE, _ = _edges(14, COLUMNS).graph(COLUMNS)
PLAIN, WITH_EDGES = _make_layer(nn.GATConv), _make_layer(nn.GATv2Conv, edge_dim=3)
BAD_CALLS = {
    "no graph": (PLAIN, ("graph", X), "graph must be a jaxgnn.graph.CSRGraph.*, got str"),
    "features first": (PLAIN, (X, GRAPH), "graph.*which comes before the features, got ArrayImpl"),
    "an edge_index": (
        PLAIN,
        (np.array([[0, 1], [1, 0]]), X),
        r"\(CSRGraph.from_edge_index\(edge_index, num_nodes\) makes one\), got ndarray",
    ),
    "an edge_index of torch": (
        PLAIN,
        (types.SimpleNamespace(ndim=2, shape=(2, 9), dtype="torch.int64"), X),
        r"\(CSRGraph.from_edge_index\(edge_index, num_nodes\) makes one\), got SimpleNamespace",
    ),
    "a table": (PLAIN, (types.SimpleNamespace(ndim=2, shape=(2, 9)), X), "CSRGraph.*SimpleName"),
    "a graph of jraph": (PLAIN, (GRAPH.to_graphs_tuple(), X), "CSRGraph.from_graphs_tuple makes"),
    "a batch": (PLAIN, (GraphBatch.from_graphs([GRAPH]), X), r"\(pass batch.graph\), got GraphB"),
    "words": (
        PLAIN,
        (GRAPH, np.full(X.shape, "a")),
        "x must be of numbers, or bool, got dtype <U1",
    ),
    "a list": (PLAIN, (GRAPH, {1: 2}), r"x must be an array, got dict"),
    "another width": (PLAIN, (GRAPH, X[:, :5]), r"x must be of shape \[..., 11, 6\].*\(11, 5\)"),
    "fewer nodes": (PLAIN, (GRAPH, X[:7]), r"x must be of shape \[..., 11, 6\].*\(7, 6\)"),
    "three ends": (PLAIN, (GRAPH, (X, X, X)), r"x must be an array, or a pair.*got 3"),
    "one of two": (PLAIN, (BIPARTITE, X), r"graph must be square, or x a pair.*\(11, 8\)"),
    "ends the other way": (
        PLAIN,
        (BIPARTITE, (X[:8], X)),
        r"x\[0\] must be of shape \[..., 11, 6\], receivers by features, got shape \(8, 6\)",
    ),
    "senders that do not match": (
        PLAIN,
        (BIPARTITE, (X, X)),
        r"x\[1\] must be of shape \[..., 8, 6\], senders by features, got shape \(11, 6\)",
    ),
    "other leading axes": (
        PLAIN,
        (BIPARTITE, (X[None], X[:8])),
        r"x\[1\] must be of leading axes \(1,\), as x\[0\], got shape \(8, 6\)",
    ),
    "features of edges without edge_dim": (
        PLAIN,
        (GRAPH, X, EDGE_FEATURES),
        r"edge_features must be None for a layer that was made without edge_dim.*\(30, 3\)",
    ),
    "no features of edges": (
        WITH_EDGES,
        (GRAPH, X),
        r"edge_features must be of shape \[30, 3\], edge slots by features, got None",
    ),
    "features of fewer edges": (
        WITH_EDGES,
        (GRAPH, X, EDGE_FEATURES[:7]),
        r"edge_features must be of shape \[30, 3\].*got shape \(7, 3\)",
    ),
    "features of another width": (
        WITH_EDGES,
        (GRAPH, X, EDGE_FEATURES[:, :2]),
        r"edge_features must be of shape \[30, 3\].*got shape \(30, 2\)",
    ),
    "features with other leading axes": (
        WITH_EDGES,
        (GRAPH, X[None], EDGE_FEATURES[None, None]),
        r"\[30, 3\], .* or the same with the leading axes of x, \(1,\), got shape \(1, 1, 30, 3\)",
    ),
    "a pair for AGNN": (
        nn.AGNNConv(),
        (BIPARTITE, (X, X[:8])),
        "AGNNConv: graph must be square, since each node is compared",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_arguments_that_do_not_fit_are_named_with_their_shapes(name):
    layer, arguments, message = BAD_CALLS[name]
    with pytest.raises(ValueError, match=rf"^{type(layer).__name__}: |{message}") as error:
        layer(*arguments)
    assert error.match(message)


def test_options_that_disagree_are_refused():
    with pytest.raises(ValueError, match=r"share_weights must be False where the ends are of diff"):
        nn.GATv2Conv((8, 6), 4, share_weights=True, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"fill_value must be a number, or 3 of them.*2 numbers"):
        nn.GATConv(8, 4, edge_dim=3, fill_value=[1.0, 2.0], rngs=nnx.Rngs(0))


def test_numbers_for_loops_may_be_an_array_of_jax_or_numpy():
    graph, features = CSRGraph.from_edges([0, 1], [1, 2], 3, edge_data=np.ones((2, 3), np.float32))
    fills = [1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 3.0])
    layers = [nn.GATConv(4, 2, edge_dim=3, fill_value=f, rngs=nnx.Rngs(0)) for f in fills]
    expected, *others = [np.asarray(layer(graph, jnp.ones((3, 4)), features)) for layer in layers]
    for y in others:
        np.testing.assert_array_equal(y, expected)
    number = nn.GATConv(4, 2, edge_dim=3, fill_value=jnp.array(0.5), rngs=nnx.Rngs(0))
    assert number.edges.fill_value == 0.5
    with pytest.raises(ValueError, match=r"fill_value must be a number, or 3 of them.*got 4"):
        nn.GATConv(4, 2, edge_dim=3, fill_value=jnp.ones(4), rngs=nnx.Rngs(0))
