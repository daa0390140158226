"""Interaction networks and graph network blocks: their formulae, jraph's results, padding."""

import functools

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import GraphBatch, GraphSample
from jaxgnn.testing import random_array

SENDERS, RECEIVERS = np.array([[0, 1, 2, 0, 3, 3], [1, 2, 2, 3, 0, 0]])  # repeated; 4 is isolated
GRAPH, ORDER = CSRGraph.from_edges(SENDERS, RECEIVERS, 5, edge_data=np.arange(6))
X = random_array((5, 8), "float32", seed=0)
E = random_array((6, 4), "float32", seed=1)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def _wide(parameter):
    return np.asarray(parameter[...], np.float64)


def _mlp(layers, x):
    for place, layer in enumerate(layers):
        x = x @ _wide(layer.kernel) + _wide(layer.bias)
        x = np.maximum(x, 0) if place < len(layers) - 1 else x
    return x


def _norm(norm, y):
    """LayerNorm or RMSNorm with the parameters of a layer."""
    if norm.kind is None:
        return y
    y = y - y.mean(axis=1, keepdims=True) if norm.kind == "layer" else y
    y = y / np.sqrt((y**2).mean(axis=1, keepdims=True) + 1e-5) * _wide(norm.scale)
    return y if norm.offset is None else y + _wide(norm.offset)


def _move(layer):
    """Gives every parameter another value, so that scales and offsets count."""
    rng = np.random.default_rng(5)

    def other(parameter):
        noise = rng.standard_normal(parameter.shape).astype(np.float32)
        return parameter + 0.3 * jnp.asarray(noise)

    nnx.update(layer, jax.tree.map(other, nnx.state(layer, nnx.Param)))
    return layer


def _formula(layer, graph, x_dst, x_src, edges):
    """``nn.InteractionNetwork``, edge by edge, in float64."""
    x_dst, x_src, edges = (np.asarray(a, np.float64) for a in (x_dst, x_src, edges))
    receivers, senders = np.asarray(graph.receivers()), np.asarray(graph.indices)
    inputs = np.concatenate([x_dst[receivers], x_src[senders], edges], axis=1)
    update = _norm(layer.edge_update.norm, _mlp(layer.edge_update.layers, inputs))
    new = edges + update if layer.residual else update
    sums = np.zeros((len(x_dst), new.shape[1]))
    np.add.at(sums, receivers, update if layer.summed == "update" else new)
    if layer.reduce == "mean":
        counts = np.bincount(receivers, minlength=len(x_dst))
        sums = sums / np.maximum(counts, 1)[:, None]
    inputs = np.concatenate([x_dst, sums], axis=1)
    node = _norm(layer.node_update.norm, _mlp(layer.node_update.mlp.layers, inputs))
    return (x_dst + node if layer.residual else node), new


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "rms", "summed": "edges", "reduce": "mean", "mlp_features": [16, 3]},
        {"norm": None, "residual": False, "mlp_features": []},
    ],
    ids=["GraphCast", "other options", "original"],
)
def test_an_interaction_network_is_its_formula(options):
    layer = _move(nn.InteractionNetwork(8, 4, **options, rngs=nnx.Rngs(0)))
    expected = _formula(layer, GRAPH, X, X, E)
    for actual, wanted in zip(jax.jit(lambda: layer(GRAPH, X, E))(), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, **CLOSE)


def test_a_pair_updates_the_receivers_of_a_bipartite_graph():
    graph, edges = CSRGraph.from_edges([0, 5, 5], [1, 0, 1], 2, num_senders=6, edge_data=E[:3])
    layer = _move(nn.InteractionNetwork((8, 3), 4, rngs=nnx.Rngs(0)))
    src = random_array((6, 3), "float32", seed=2)
    expected = _formula(layer, graph, X[:2], src, edges)
    actual = jax.jit(lambda: layer(graph, (X[:2], src), edges))()
    assert actual[0].shape == (2, 8) and actual[1].shape == (3, 4)
    for f, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(f, wanted, **CLOSE)


def test_leading_axes_share_the_graph_and_perhaps_the_edges():
    layer = nn.InteractionNetwork(8, 4, rngs=nnx.Rngs(0))
    x = random_array((3, 5, 8), "float32", seed=3)
    shared, each = jax.jit(lambda: (layer(GRAPH, x, E), [layer(GRAPH, y, E) for y in x]))()
    for place in range(3):
        for actual, wanted in zip(shared, each[place], strict=True):
            np.testing.assert_allclose(actual[place], wanted, **CLOSE)


def test_a_network_without_residuals_is_that_of_jraph():
    layer = _move(
        nn.InteractionNetwork(8, 4, norm=None, residual=False, mlp_features=[7], rngs=nnx.Rngs(0))
    )

    def edge(e, sent, received):
        return nn.FusedMLP.from_linears(list(layer.edge_update.layers), activation="relu")(
            jnp.concatenate([received, sent, e], axis=-1)
        )

    def node(h, received):
        return layer.node_update(h, received)

    jraphs = jraph.InteractionNetwork(edge, node)
    expected, (h, edges) = jax.jit(lambda: (jraphs(_tuple(X, E, None)), layer(GRAPH, X, E)))()
    np.testing.assert_allclose(h, expected.nodes, **CLOSE)
    np.testing.assert_allclose(edges, expected.edges, **CLOSE)


def _tuple(nodes, edges, of_graphs, counts=((5,), (6,))):
    n_node, n_edge = map(np.array, counts)
    senders, receivers = np.asarray(GRAPH.indices), np.asarray(GRAPH.receivers())
    return jraph.GraphsTuple(nodes, edges, receivers, senders, of_graphs, n_node, n_edge)


def _jraphs(block):
    """The same block as a ``jraph.GraphNetwork``."""
    edge_mlp = nn.FusedMLP.from_linears(list(block.edge_update.layers), activation="relu")
    return jraph.GraphNetwork(
        lambda e, sent, received, u: edge_mlp(jnp.concatenate([received, sent, e, u], axis=-1)),
        lambda h, sent, received, u: block.node_update(h, sent, received, u),
        lambda nodes, edges, u: block.global_update(nodes, edges, u),
    )


def test_a_block_of_one_graph_is_that_of_jraph_with_leading_axes_too():
    block = _move(nn.GraphNetBlock(8, 4, 3, out_features=5, mlp_features=[7], rngs=nnx.Rngs(0)))
    u = random_array((2, 3), "float32", seed=4)
    x = jnp.stack([X, 2 * X])

    def both():
        tuples = [_tuple(x[place], E, u[place][None]) for place in range(2)]
        return block(GRAPH, x, E, u), list(map(_jraphs(block), tuples))

    actual, jraphs = jax.jit(both)()
    for place, expected in enumerate(jraphs):
        wanted = expected.nodes, expected.edges, expected.globals[0]
        for f, w in zip(actual, wanted, strict=True):
            np.testing.assert_allclose(f[place], w, **CLOSE)


@pytest.fixture(scope="module")
def batch():
    samples = [
        GraphSample([0, 1, 1], [1, 0, 0], 3, nodes=X[:3], edges=E[:3], globals=jnp.ones(3)),
        GraphSample([], [], 1, nodes=X[3:4], edges=E[:0], globals=jnp.zeros(3)),
        GraphSample([0, 1], [1, 0], 2, nodes=X[:2], edges=E[3:5], globals=2 * jnp.ones(3)),
    ]
    return GraphBatch.from_graphs(samples, pad_to=(9, 8, 5))


def test_a_block_of_a_batch_is_that_of_jraph_in_each_graph(batch):
    block = _move(nn.GraphNetBlock(8, 4, 3, rngs=nnx.Rngs(0)))
    arrays = batch.nodes, batch.edges, batch.globals
    tuple_ = batch.to_graphs_tuple()
    expected, actual = jax.jit(lambda: (_jraphs(block)(tuple_), block(batch, *arrays)))()
    real = np.asarray(batch.node_mask), np.asarray(batch.edge_mask()), np.asarray(batch.graph_mask)
    for f, w, is_real in zip(
        actual, (expected.nodes, expected.edges, expected.globals), real, strict=True
    ):
        np.testing.assert_allclose(f[is_real], w[is_real], **CLOSE)
        assert not np.asarray(f)[~is_real].any()


def test_nothing_leaks_from_padding(batch):
    block = nn.GraphNetBlock(8, 4, 3, norm="layer", residual=True, rngs=nnx.Rngs(0))
    masks = batch.node_mask, batch.edge_mask(), batch.graph_mask
    clean = batch.nodes, batch.edges, batch.globals
    spoiled = tuple(jnp.where(m[:, None], a, jnp.nan) for m, a in zip(masks, clean, strict=True))

    graphdef, parameters = nnx.split(block)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def run(parameters, arrays):
        results = nnx.merge(graphdef, parameters)(batch, *arrays)
        return sum(jnp.sum(part**2) for part in results), results

    for actual, wanted in zip(
        *map(jax.tree.leaves, (run(parameters, spoiled), run(parameters, clean))), strict=True
    ):
        np.testing.assert_array_equal(actual, wanted)


def test_a_graph_without_edges_updates_its_nodes_alone():
    graph = CSRGraph.from_edges([], [], 5)
    layer = nn.InteractionNetwork(8, 4, rngs=nnx.Rngs(0))
    block = nn.GraphNetBlock(8, 4, 3, rngs=nnx.Rngs(0))
    (h, edges), of_block = jax.jit(
        lambda: (layer(graph, X, E[:0]), block(graph, X, E[:0], jnp.ones(3)))
    )()
    np.testing.assert_allclose(h, _formula(layer, graph, X, X, E[:0])[0], **CLOSE)
    assert edges.shape == (0, 4)
    assert np.isfinite(of_block[2]).all()


def test_widths_of_one_are_normalised_to_the_offset():
    layer = nn.InteractionNetwork(1, 1, rngs=nnx.Rngs(0))
    h, edges = jax.jit(lambda: layer(GRAPH, X[:, :1], E[:, :1]))()
    np.testing.assert_allclose(h, X[:, :1], **CLOSE)
    np.testing.assert_allclose(edges, E[:, :1], **CLOSE)


def test_bad_arguments_are_named(batch):
    layer = nn.InteractionNetwork(8, 4, rngs=nnx.Rngs(0))
    block = nn.GraphNetBlock(8, 4, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"^InteractionNetwork: edge_features must be .*\[6, 4\]"):
        layer(GRAPH, X, E[:, :3])
    with pytest.raises(ValueError, match=r"^InteractionNetwork: x must be of shape \[..., 5, 8\]"):
        layer(GRAPH, X[:, :7], E)
    with pytest.raises(ValueError, match=r"^GraphNetBlock: global_features must be .*\[3\]"):
        block(GRAPH, X, E, jnp.ones((1, 3)))
    with pytest.raises(ValueError, match=r"^GraphNetBlock: global_features must be .*\[5, 3\]"):
        block(batch, batch.nodes, batch.edges, jnp.ones(3))
    with pytest.raises(ValueError, match=r"^GraphNetBlock: graph must be square"):
        block(CSRGraph.from_edges([0], [0], 1, num_senders=2), X[:1], E[:1], jnp.ones(3))
    with pytest.raises(ValueError, match=r"^GraphNetBlock: out_features must be None with resid"):
        nn.GraphNetBlock(8, 4, 3, out_features=8, residual=True, rngs=nnx.Rngs(0))
