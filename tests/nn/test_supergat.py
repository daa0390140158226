"""SuperGATConv against its formulas, and its loss over edges and pairs without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import nn
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import negative_edges
from jaxgnn.testing import random_array

NODES, IN, HEADS, OUT = 7, 5, 2, 3
SENDERS, RECEIVERS = np.array([0, 1, 2, 2, 3, 3, 5]), np.array([1, 1, 1, 0, 1, 1, 0])
X = random_array((NODES, IN), "float32", seed=1)
NEGATIVES = jnp.array([[0, 4, -1, 6], [3, 4, -1, 2]])


def _layer(attention_type, **options):
    options = {"heads": HEADS, "attention_type": attention_type} | options
    return nn.SuperGATConv(IN, OUT, **options, rngs=nnx.Rngs(0))


def _padded(senders, receivers):
    """The graph with two padding slots."""
    mask = np.arange(len(senders) + 2) < len(senders)
    ends = (np.pad(ids, (0, 2)) for ids in (senders, receivers))
    return CSRGraph.from_edges(*ends, NODES, edge_mask=mask)


def _looped():
    """The edges without loops, and one loop for each node."""
    kept, nodes = SENDERS != RECEIVERS, np.arange(NODES)
    return np.append(SENDERS[kept], nodes), np.append(RECEIVERS[kept], nodes)


def _split_heads(layer):
    z = np.asarray(X, np.float64) @ np.asarray(layer.linear.kernel[...], np.float64)
    return z.reshape(NODES, HEADS, OUT)


def _expected(layer, senders, receivers):
    z = _split_heads(layer)
    products = np.sum(z[senders] * z[receivers], axis=-1)
    if layer.attention_type == "SD":
        scores = products / np.sqrt(OUT)
    else:
        src, dst = (np.asarray(v[...]) for v in (layer.src_attention, layer.dst_attention))
        sums = np.sum(z[senders] * src + z[receivers] * dst, axis=-1)
        scores = sums / (1 + np.exp(-products))
    powers = np.exp(np.where(scores > 0, scores, 0.2 * scores))
    y = np.zeros((NODES, HEADS, OUT))
    for row in np.unique(receivers):
        of_row = receivers == row
        weights = powers[of_row] / powers[of_row].sum(axis=0)
        y[row] = np.sum(weights[:, :, None] * z[senders[of_row]], axis=0)
    return y.reshape(NODES, -1) + np.asarray(layer.bias[...])


@pytest.mark.parametrize("attention_type", ["MX", "SD"])
@pytest.mark.parametrize("loops", [True, False])
def test_it_is_the_formula_of_the_paper(attention_type, loops):
    layer = _layer(attention_type, add_self_loops=loops)
    layer.bias[...] = random_array((HEADS * OUT,), "float32", seed=2)
    edges = _looped() if loops else (SENDERS, RECEIVERS)
    y = jax.jit(layer)(_padded(SENDERS, RECEIVERS), X)
    np.testing.assert_allclose(y, _expected(layer, *edges), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention_type", ["MX", "SD"])
def test_the_loss_is_the_mean_cross_entropy_of_edges_and_pairs_that_were_drawn(attention_type):
    layer = _layer(attention_type)
    loss = jax.jit(layer.attention_loss)(_padded(SENDERS, RECEIVERS), X, NEGATIVES)
    pair = tuple(np.asarray(NEGATIVES))
    of_pair = jax.jit(layer.attention_loss)(_padded(SENDERS, RECEIVERS), X, pair)
    np.testing.assert_allclose(of_pair, loss, rtol=1e-6)
    z, scale = _split_heads(layer), 1.0 if attention_type == "MX" else OUT**-0.5
    terms = []
    for sign, (senders, receivers) in ((-1, _looped()), (1, ([0, 4, 6], [3, 4, 2]))):
        logits = scale * np.sum(z[senders] * z[receivers], axis=-1).mean(axis=-1)
        terms += np.logaddexp(0, sign * logits).tolist()
    np.testing.assert_allclose(loss, np.mean(terms), rtol=1e-5)


def test_descent_of_the_loss_teaches_to_tell_edges_from_pairs_without_one():
    layer = _layer("SD")
    graph = CSRGraph.from_edges(SENDERS, RECEIVERS, NODES)
    negatives = negative_edges(graph, 8, jax.random.key(1))
    structure, state = nnx.split(layer)

    def loss(state):
        return nnx.merge(structure, state).attention_loss(graph, X, negatives)

    @jax.jit
    def step(state, _):
        value, slopes = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.5 * g, state, slopes), value

    _, losses = jax.lax.scan(step, state, length=100)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nn.SuperGATConv((IN, 4), OUT, rngs=nnx.Rngs(0)),
            r"SuperGATConv: in_features must be an int, .* got \(5, 4\)",
        ),
        (
            lambda: _layer("MX")(_padded(SENDERS, RECEIVERS), X, jnp.ones((9, 1))),
            "SuperGATConv: edge_features must be None",
        ),
        (
            lambda: _layer("MX").attention_loss(_padded(SENDERS, RECEIVERS), X, NEGATIVES.T),
            r"SuperGATConv: negatives must be integers of shape \[2, pairs\].*int.* \(4, 2\)",
        ),
        (
            lambda: _layer("MX").attention_loss(_padded(SENDERS, RECEIVERS), X, ([0, 1], [2.0])),
            r"SuperGATConv: negatives must be .*, got int32 of shape \(2,\) and float32 of .*1",
        ),
        (
            lambda: _layer("MX").attention_loss(_padded(SENDERS, RECEIVERS), X[None], NEGATIVES),
            r"SuperGATConv: x must be of shape \[nodes, in\], got shape \(1, 7, 5\)",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
