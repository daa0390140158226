"""Networks are rewritten as others wrote them: layers of jraph and jraphx, and code by hand."""

import itertools

import jax
import jax.numpy as jnp
import jraph
import pytest
from flax import nnx

from tests.fusion._cases import (
    EDGES,
    NODES,
    RECEIVERS,
    SENDERS,
    applied,
    arrays,
    assert_same,
    fuse,
)

X, E, GLOBALS = arrays((NODES, 4), (EDGES, 3), (1, 2))
FIRST, BIAS, LAST, UPDATE = arrays((11, 8), (8,), (8, 5), (9, 6), seed=1)
SCORE, VECTOR = arrays((9, 1), (8, 1), seed=2)
EDGE, CELL = (0.2 * a for a in arrays((8, 8), (12, 4), seed=3))
COUNTS = "the number of edges of each segment"


def _sum(messages, ids=RECEIVERS, count=NODES):
    return jax.ops.segment_sum(messages, ids, count)


def _graph(x, edges=None, of_graph=None):
    counts = jnp.array([NODES]), jnp.array([EDGES])
    return jraph.GraphsTuple(x, edges, RECEIVERS, SENDERS, of_graph, *counts)


def _mlp(*columns):
    return jax.nn.relu(jnp.concatenate(columns, axis=-1) @ FIRST + BIAS) @ LAST


def _graph_convolution(x):
    layer = jraph.GraphConvolution(lambda x: x @ FIRST[:4], add_self_edges=True)
    return layer(_graph(x)).nodes


def _gat(x):
    def logits(sent, received, _):
        return jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1) @ VECTOR)

    return jraph.GAT(lambda x: x @ FIRST[:4, :4], logits)(_graph(x)).nodes


def _interaction_network(x, e):
    layer = jraph.InteractionNetwork(
        lambda e, sent, received: _mlp(received, sent, e),
        lambda x, received: jnp.concatenate([x, received], axis=-1) @ UPDATE,
    )
    return layer(_graph(x, e)).nodes


def _graph_network(x, e, of_graph):
    layer = jraph.GraphNetwork(
        lambda e, sent, received, of_graph: _mlp(e, sent, received) + of_graph[:, :1],
        lambda x, sent, received, of_graph: jnp.concatenate([x, received], axis=-1) @ UPDATE,
        lambda x, e, of_graph: jnp.concatenate([x, e, of_graph], axis=-1),
    )
    made = layer(_graph(x, e, of_graph))
    return made.nodes, made.edges, made.globals


def _graph_network_of_nodes(x, e):
    layer = jraph.GraphNetwork(
        lambda e, sent, received, of_graph: _mlp(e, sent, received),
        lambda x, sent, received, of_graph: jnp.concatenate([x, received], axis=-1) @ UPDATE,
    )
    return layer(_graph(x, e)).nodes


def _graph_net_gat(x, e):
    layer = jraph.GraphNetGAT(
        lambda e, sent, received, of_graph: jnp.concatenate([e, sent, received], -1) @ FIRST[:, :1],
        lambda x, sent, received, of_graph: jnp.concatenate([x, received], axis=-1) @ UPDATE[:5],
        lambda e, sent, received, of_graph: jnp.concatenate([e, sent, received], -1) @ SCORE,
        lambda e, weights: e * weights,
    )
    return layer(_graph(x, e)).nodes


def _maxk_network(x):
    """Two layers of MaxK: the largest columns by ``top_k`` and a scatter, and the mean of them."""
    for kernel in (FIRST[:4], FIRST[:8]):
        hidden = x @ kernel
        values, columns = jax.lax.top_k(hidden, 3)
        kept = jnp.zeros_like(hidden).at[jnp.arange(NODES)[:, None], columns].set(values)
        degrees = _sum(jnp.ones(EDGES))
        x = _sum(kept[SENDERS]) / jnp.maximum(degrees, 1)[:, None] + hidden
    return x


def _sudoku_steps(h):
    """Three steps of a recurrent network that passes messages between cells."""
    x = h
    for _ in range(3):
        ends = jnp.concatenate([h[SENDERS], h[RECEIVERS]], axis=-1)
        hidden = jax.nn.relu(jax.nn.relu(ends @ EDGE + BIAS) @ EDGE + BIAS)
        h = jnp.tanh(jnp.concatenate([x, h, _sum(hidden @ EDGE[:, :4])], axis=-1) @ CELL)
    return h @ FIRST[:4]


def _sudoku_batch(h):
    return jax.vmap(_sudoku_steps)(h)


def _sudoku_loop(h):
    """The same with a loop of Python over the puzzles."""
    results = []
    for i in range(h.shape[0]):
        results.append(_sudoku_steps(h[i]))
    return jnp.stack(results)


def _hypergraph_convolution(x):
    """A convolution of hypergraphs, in which receivers are the hyperedges of the senders."""
    projected, ones = x @ FIRST[:4], jnp.ones(EDGES)
    of_nodes, of_hyperedges = _sum(ones, SENDERS), _sum(ones)
    node_scale = jnp.where(of_nodes > 0, 1 / of_nodes, 0)
    hyperedge_scale = jnp.where(of_hyperedges > 0, 1 / of_hyperedges, 0)
    gathered = _sum(hyperedge_scale[RECEIVERS][:, None] * projected[SENDERS])
    return _sum(node_scale[SENDERS][:, None] * gathered[RECEIVERS], SENDERS) + BIAS


PUZZLES = jnp.stack([X, 2 * X, X - 1])
TARGETS = {
    "jraph.GraphConvolution": (_graph_convolution, (X,), ["spmm", COUNTS, COUNTS]),
    "jraph.GAT": (_gat, (X,), ["2 products", "gat_attention"]),
    "jraph.InteractionNetwork": (_interaction_network, (X, E), ["edge_mlp_aggregate"]),
    "jraph.GraphNetwork": (
        _graph_network,
        (X, E, GLOBALS),
        ["3 products", COUNTS, "aggregate", COUNTS, "aggregate", "aggregate"],
    ),
    "jraph.GraphNetwork of nodes": (_graph_network_of_nodes, (X, E), ["edge_mlp_aggregate"]),
    "jraph.GraphNetGAT": (
        _graph_net_gat,
        (X, E),
        ["3 products", "3 products", "segment_softmax", "aggregate"],
    ),
    "MaxK by hand": (_maxk_network, (X,), ["maxk_spmm"] * 2 + [COUNTS]),
    "Sudoku by hand": (_sudoku_batch, (PUZZLES,), ["edge_mlp_aggregate"] * 3),
    "Sudoku with a loop": (_sudoku_loop, (PUZZLES,), ["vmap"] + ["edge_mlp_aggregate"] * 3),
    "hypergraphs by two sums": (
        _hypergraph_convolution,
        (X,),
        ["the sum first"] * 2 + ["spmm"] * 2,
    ),
}
LAYERS = {
    "GCNConv": (lambda conv, **o: conv.GCNConv(4, 5, **o), ["spmm"]),
    "SAGEConv": (lambda conv, **o: conv.SAGEConv(4, 5, **o), ["spmm", COUNTS]),
    "SAGEConv of maxima": (
        lambda conv, **o: conv.SAGEConv(4, 5, aggr="max", **o),
        ["neighbour_reduce", COUNTS],
    ),
    # Its leaky ReLU has another derivative at zero than that of the op of attention.
    "GATConv": (
        lambda conv, **o: conv.GATConv(4, 6, heads=2, **o),
        ["sums by nodes"] * 2 + ["segment_softmax and spmm"],
    ),
    "GATConv without loops": (
        lambda conv, **o: conv.GATConv(4, 6, heads=2, add_self_loops=False, concat=False, **o),
        ["sums by nodes"] * 2 + ["segment_softmax and spmm"],
    ),
    "GATv2Conv": (lambda conv, **o: conv.GATv2Conv(4, 6, heads=2, **o), ["gatv2_attention"]),
    "GINConv": (
        lambda conv, rngs: conv.GINConv(
            nnx.Sequential(nnx.Linear(4, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 5, rngs=rngs))
        ),
        ["spmm"],
    ),
}
# Widths, activation and rows of multi-layer perceptrons.
PERCEPTRONS = {
    "of two layers": ((16, 32, 8), jax.nn.relu, 8),
    "of three layers": ((16, 32, 32, 8), jax.nn.relu, 8),
    "of five layers": ((16, 24, 24, 24, 24, 8), jax.nn.relu, 8),
    "of one row": ((16, 32, 8), jax.nn.relu, 1),
    "that narrows": ((64, 16, 2), jax.nn.relu, 16),
    "that widens": ((2, 16, 64), jax.nn.relu, 16),
    "of gelu": ((16, 32, 8), jax.nn.gelu, 8),
    "of silu": ((16, 32, 8), jax.nn.silu, 8),
    "of odd widths": ((7, 13, 5, 3), jax.nn.relu, 11),
}


@pytest.fixture(autouse=True)
def promotion_of_dtypes_as_users_have_it():
    """Layers of jraph multiply features by degrees, which are integers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_jraphx_is_rewritten_as_it_is(name):
    convolutions = pytest.importorskip("jraphx.nn.conv", reason="reason: needs jraphx")
    build, ops = LAYERS[name]
    layer = build(convolutions, rngs=nnx.Rngs(0))
    edges = jnp.stack([SENDERS, RECEIVERS])

    def run(x):
        return layer(x, edges)

    found = applied(fuse(run), X)
    assert [op for op in found if op not in ("fused_linear", "fused_mlp")] == ops
    assert_same(run, fuse(run), X)


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", PERCEPTRONS)
def test_a_perceptron_is_one_op(name):
    widths, activation, rows = PERCEPTRONS[name]
    shapes = [*itertools.pairwise(widths)]
    x, *parameters = arrays((rows, widths[0]), *shapes, *((width,) for width in widths[1:]))
    kernels, biases = parameters[: len(shapes)], parameters[len(shapes) :]

    def run(x, kernels, biases):
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            x = activation(x @ (0.3 * kernel) + bias)
        return x @ kernels[-1] + biases[-1]

    assert applied(fuse(run), x, kernels, biases) == ["fused_mlp"]
    flat = _of_lists(run, len(kernels))
    assert_same(flat, fuse(flat), x, *kernels, *biases)


def _of_lists(run, count):
    return lambda x, *rest: run(x, rest[:count], rest[count:])


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", TARGETS)
def test_a_network_is_rewritten_as_it_is_written(name):
    fn, args, ops = TARGETS[name]
    found = applied(fuse(fn), *args)
    assert [op for op in found if op not in ("fused_linear", "fused_mlp")] == ops
    assert_same(fn, fuse(fn), *args)
