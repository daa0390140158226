"""Message passing with a user's own functions: values, gradients, steps, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, ops
from jaxgnn.testing import random_array
from tests.ops.edge_mlp._edges import RING

NODES, DIM = RING.num_rows, 6
H = random_array((NODES, DIM), "float32", seed=0)
FEATURES = random_array((RING.num_edges, 2), "float32", seed=2)
INPUTS = random_array((NODES, DIM), "float32", seed=1)


class Message(nnx.Module):
    """An MLP of both ends and the edge, as ``EdgeMLP`` has it."""

    def __init__(self, layers):
        self.layers = nnx.List(layers)

    def __call__(self, x_dst, x_src, edges):
        first, second = self.layers
        return second(jax.nn.relu(first(jnp.concatenate([x_dst, x_src, edges], axis=-1))))


def _added(x, aggregated, inputs=0.0, *, rngs=None):
    return jnp.tanh(x + aggregated + inputs)


def _pair():
    """The same steps by an ``EdgeMLP`` with an update, and by functions."""
    mlp = nn.EdgeMLP(DIM, [8, DIM], edge_features=2, reduce="mean", rngs=nnx.Rngs(0))
    return mlp, Message(mlp.layers)


class _Added(nn.NodeUpdate):
    def start(self, h):
        return h

    def features(self, state):
        return state

    def __call__(self, state, messages, inputs=None, *, rngs=None):
        return _added(state, messages, inputs)


@pytest.mark.parametrize("recompute_every", [None, 2])
def test_functions_do_what_an_edge_mlp_and_an_update_do(recompute_every):
    mlp, message = _pair()
    options = {"num_steps": 3, "recompute_every": recompute_every}
    theirs = nn.MessagePassing(mlp, _Added(), **options)
    ours = nn.MessagePassing(message, _added, reduce="mean", **options)
    batch = jnp.stack([H, -H])  # shares the graph and the features of its edges
    inputs = jnp.stack([INPUTS, INPUTS])

    @jax.jit
    @jax.value_and_grad
    def loss(layer):
        return jnp.sum(layer(RING, batch, FEATURES, inputs=inputs) ** 2)

    (expected, by_theirs), (actual, by_ours) = loss(theirs), loss(ours)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    actual, wanted = jax.tree.leaves(by_ours), jax.tree.leaves(by_theirs)
    assert len(actual) == len(wanted) == 4
    for a, e in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


def test_one_step_takes_a_pair_several_reductions_and_another_width_also_on_a_padded_graph():
    senders, receivers = np.array([0, 3, 1, 1, 9]), np.array([0, 0, 2, 0, 9])
    features = np.array([1.0, 2.0, 3.0, 4.0, np.nan], np.float32)[:, None]
    graph, edges = CSRGraph.from_edges(
        senders, receivers, 3, num_senders=4, edge_mask=np.arange(5) < 4, edge_data=features
    )
    layer = nn.MessagePassing(
        lambda x_dst, x_src, edges: edges * (x_src - x_dst),
        lambda x, aggregated: jnp.concatenate([x, aggregated], axis=-1),
        reduce=("max", "sum"),
    )
    dst, src = H[:3, :1], H[3:7, :1]
    messages = features[:4] * np.asarray(src[senders[:4]] - dst[receivers[:4]])
    of_first = messages[[0, 1, 3]]
    expected = np.zeros((3, 3))
    expected[:, 0] = dst[:, 0]
    expected[0, 1:] = of_first.max(), of_first.sum()
    expected[2, 1:] = messages[2, 0], messages[2, 0]

    def run(ends):
        return layer(graph, ends, edges)

    np.testing.assert_allclose(jax.jit(run)((dst, src)), expected, rtol=1e-5, atol=1e-6)
    gradients = jax.grad(lambda ends: jnp.sum(run(ends) ** 2))((dst, src))
    assert all(jnp.isfinite(g).all() and jnp.any(g != 0) for g in gradients)

    def parameter_loss(scale):
        scaled = nn.MessagePassing(
            lambda x_dst, x_src, edges: scale * edges * (x_src - x_dst),
            lambda x, aggregated: aggregated,
            reduce="sum",
        )
        return jnp.sum(scaled(graph, (dst, src), edges) ** 2)

    expected = 2 * np.sum(np.square([of_first.sum(), messages[2, 0]]))
    np.testing.assert_allclose(jax.grad(parameter_loss)(1.0), expected, rtol=1e-5)


class _Direction(nnx.Module):
    """A message that is not finite where both ends, or the features of the edge, are zero."""

    def __init__(self):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x_dst, x_src, edges):
        v = (x_src - x_dst) * edges
        return self.scale[...] * v / jnp.linalg.norm(v, axis=-1, keepdims=True)


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_padding_slots_leave_the_gradients_of_the_edges(implementation):
    graph = CSRGraph(indptr=jnp.array([0, 1, 2]), indices=jnp.array([1, 0, 1, 1]))
    features = jnp.array([[1.0], [2.0], [jnp.nan], [jnp.nan]])
    layer = nn.MessagePassing(_Direction(), lambda x, arrived: arrived**2, reduce="sum")

    def loss(layer, x, features):
        with ops.default_implementation(implementation):
            return jnp.sum(layer(graph, x, features))

    arrays = layer, jnp.array([[0.0, 0.0], [3.0, 4.0]]), features
    of_layer, of_nodes, of_edges = jax.grad(loss, argnums=(0, 1, 2))(*arrays)
    # Both messages are unit vectors times the scale, whatever the lengths are.
    np.testing.assert_allclose(of_layer.messages.function.scale[...], 4.0, rtol=1e-6)
    np.testing.assert_allclose(of_nodes, 0, atol=1e-6)
    np.testing.assert_allclose(of_edges, 0, atol=1e-6)


def test_functions_get_the_random_streams_of_each_step_in_training():
    seen = []

    def message(x_dst, x_src, edges, *, rngs):
        seen.append(rngs.dropout())
        return jnp.where(jax.random.bernoulli(seen[-1], 0.5, x_src.shape), x_src, 0)

    layer = nn.MessagePassing(message, _added, reduce="sum", num_steps=2)
    first, again, other = (layer(RING, H, rngs=nnx.Rngs(dropout=seed)) for seed in (0, 0, 1))
    assert len(seen) > 0
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_half_precision_features_keep_their_dtype_whatever_the_functions_return():
    layer = nn.MessagePassing(
        lambda x_dst, x_src, edges: (x_src - x_dst).astype(jnp.float32),
        lambda x, aggregated: x.astype(jnp.float32) + aggregated,
        reduce="sum",
        num_steps=2,
    )
    assert layer(RING, H.astype(jnp.bfloat16)).dtype == jnp.bfloat16


BIPARTITE = CSRGraph.from_edges([0, 3], [1, 0], 2, num_senders=4)


def _layer(message=lambda a, b, e: b, update=_added, **options):
    return nn.MessagePassing(message, update, **({"reduce": "sum"} | options))


def _wrapped(module):
    return lambda *arguments: module(*arguments)


BAD = {
    "an EdgeMLP with a reduction": (
        lambda: _layer(_pair()[0]),
        "MessagePassing: reduce must be None for an EdgeMLP, which has its own, got sum",
    ),
    "a method of a module": (
        lambda: _layer(_pair()[1].__call__),
        "MessagePassing: messages must be a function or a module: a method of one would hide",
    ),
    "a method for an update": (
        lambda: _layer(update=_pair()[1].__call__),
        "MessagePassing: update must be a NodeUpdate, a function or a module: a method of one",
    ),
    "a function around a module": (
        lambda: _layer(_wrapped(_pair()[1])),
        "MessagePassing: messages must be .*reads a module from around it would hide its",
    ),
    "an update around a module": (
        lambda: _layer(update=_wrapped(_pair()[1])),
        "MessagePassing: update must be a NodeUpdate, .*make it the __call__ of a module",
    ),
    "an unknown reduction": (
        lambda: _layer(reduce="median"),
        "MessagePassing: reduce must be None, one of sum, mean, .*, got 'median'",
    ),
    "a function without a reduction": (
        lambda: nn.MessagePassing(lambda a, b, e: b, _added),
        "MessagePassing: reduce must be one of those of ops.aggregate, such as 'sum', .* got None",
    ),
    "a module of the arrays of edges without a reduction": (
        lambda: nn.MessagePassing(_Direction(), _added),
        "MessagePassing: reduce must be one of those of ops.aggregate, such as 'sum', .* got None",
    ),
    "no graph": (
        lambda: _layer()(H, H),
        "MessagePassing: graph must be a jaxgnn.graph.CSRGraph, got ",
    ),
    "other receivers than senders": (
        lambda: _layer()(BIPARTITE, H[:4]),
        r"MessagePassing: graph must be square, or h a pair .* got shape \(2, 4\)",
    ),
    "too few nodes": (
        lambda: _layer()(RING, H[:3]),
        rf"MessagePassing: h must be of shape \[..., {NODES}, features\], got shape \(3, 6\)",
    ),
    "edge features not one an edge": (
        lambda: _layer()(RING, H, FEATURES[:-1]),
        rf"MessagePassing: edge_features must be of shape \[{RING.num_edges}, features\]",
    ),
    "weights": (
        lambda: _layer()(RING, H, weights=FEATURES[:, 0]),
        "MessagePassing: weights must be None with a function of each edge",
    ),
    "messages not one an edge": (
        lambda: _layer(lambda a, b, e: b[:-1])(RING, H),
        rf"MessagePassing: messages must be a function of messages \[{RING.num_edges}, features\]",
    ),
    "an update not one a node": (
        lambda: _layer(update=lambda x, m: jnp.sum(x, axis=0))(RING, H),
        rf"MessagePassing: update must be a function of the features of nodes \[{NODES}, feat",
    ),
    "another width in several steps": (
        lambda: _layer(update=lambda x, m: x[:, :2], num_steps=2)(RING, H),
        rf"MessagePassing: update must be such that .* shape, \({NODES}, 6\), from step to step",
    ),
    "a pair in several steps": (
        lambda: _layer(lambda a, b, e: a, num_steps=2)(BIPARTITE, (H[:2], H[:4])),
        "MessagePassing: update must be such that the features keep their shape",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_functions_and_arguments_are_named(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
