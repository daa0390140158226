"""Norms over batches agree with loops over single graphs in float64, whatever padding holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import nn
from jaxgnn.graph import GraphBatch, GraphSample
from tests.nn._batches import (
    BATCH,
    GRAPHS,
    SIZES,
    features,
    lstm,
    padded_nodes,
    softmax,
    split_graphs,
)

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def _graph_norm(x, layer):
    shift = np.asarray(layer.mean_scale[...], np.float64)
    centred = x - shift * x.mean(axis=0)
    return centred / np.sqrt((centred**2).mean(axis=0) + 1e-5)


def _pair_norm(x, layer):
    centred = x - x.mean(axis=0)
    if layer.individually:
        return 2 * centred / (1e-5 + np.linalg.norm(centred, axis=1, keepdims=True))
    return 2 * centred / np.sqrt(1e-5 + (centred**2).sum(axis=1).mean())


def _normalized(x, axis):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)


NORMS = {
    "GraphNorm": (lambda: nn.GraphNorm(4), _graph_norm),
    "LayerNorm of nodes": (lambda: nn.LayerNorm(4), lambda x, _: _normalized(x, 1)),
    "LayerNorm of graphs": (
        lambda: nn.LayerNorm(4, mode="graph"),
        lambda x, _: _normalized(x, (0, 1)),
    ),
    "PairNorm": (lambda: nn.PairNorm(scale=2.0), _pair_norm),
    "PairNorm of single nodes": (lambda: nn.PairNorm(scale=2.0, individually=True), _pair_norm),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_that_of_the_single_graphs(name):
    make, oracle = NORMS[name]
    layer, x = make(), features(4)
    scale, bias = np.arange(1.0, 5), np.arange(4) / 7
    if hasattr(layer, "mean_scale"):
        layer.mean_scale[...] = jnp.linspace(0.2, 0.9, 4)
    if getattr(layer, "scale", None) is None or isinstance(layer.scale, float):
        scale, bias = np.ones(4), np.zeros(4)
    else:
        layer.scale[...], layer.bias[...] = jnp.asarray(scale, "f4"), jnp.asarray(bias, "f4")
    expected = [oracle(part, layer) * scale + bias for part in split_graphs(x)]
    np.testing.assert_allclose(jax.jit(layer)(x, BATCH), padded_nodes(expected), **CLOSE)
    np.testing.assert_allclose(jax.jit(layer)(x[:4]), expected[0], **CLOSE)
    gradient = np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(layer(x, BATCH)))))(x))
    assert np.isfinite(gradient[: sum(SIZES)]).all(), "also in a graph of one node"
    assert not gradient[sum(SIZES) :].any()
    assert jax.eval_shape(layer, x.astype(jnp.bfloat16), BATCH).dtype == jnp.bfloat16


def test_a_masked_batch_norm_is_that_of_the_real_nodes():
    x = features(4)
    real = np.asarray(x, np.float64)[: sum(SIZES)]
    layer = nn.BatchNorm(4, momentum=0.9, rngs=nnx.Rngs(0))
    layer.train()
    expected = padded_nodes([_normalized(real, 0)])
    np.testing.assert_allclose(layer(x, BATCH), expected, **CLOSE)
    np.testing.assert_allclose(layer.norm.mean[...], 0.1 * real.mean(axis=0), **CLOSE)
    np.testing.assert_allclose(layer.norm.var[...], 0.9 + 0.1 * real.var(axis=0), **CLOSE)
    layer.eval()
    running = [np.asarray(p[...], np.float64) for p in (layer.norm.mean, layer.norm.var)]
    evaluated = (real - running[0]) / np.sqrt(running[1] + 1e-5)
    # Under jax.jit, where the layer is a constant: an evaluation writes nothing.
    for call in (layer, jax.jit(lambda x, batch: layer(x, batch))):
        np.testing.assert_allclose(call(x, BATCH), padded_nodes([evaluated]), **CLOSE)


@pytest.mark.parametrize("nodes", [8, 0], ids=["padding alone", "no rows"])
def test_a_batch_without_nodes_leaves_the_averages_and_has_finite_gradients(nodes):
    empty = GraphBatch.from_graphs([GraphSample([], [], 0)], pad_to=(max(nodes, 1), 1))
    layer = nn.BatchNorm(4, momentum=0.9, rngs=nnx.Rngs(0))
    layer.train()
    layer(features(4), BATCH)
    before = [np.asarray(p[...]) for p in (layer.norm.mean, layer.norm.var)]
    args = (jnp.ones((nodes, 4)), empty) if nodes else (jnp.ones((0, 4)),)

    def total(layer, x, *batch):
        return jnp.sum(jnp.sin(layer(x, *batch)))

    y = nnx.jit(lambda layer, *args: layer(*args))(layer, *args)
    assert y.shape == args[0].shape and not np.asarray(y).any()
    assert not np.asarray(nnx.jit(nnx.grad(total, argnums=1))(layer, *args)).any()
    after = [np.asarray(p[...]) for p in (layer.norm.mean, layer.norm.var)]
    np.testing.assert_array_equal(after, before)
    assert np.isfinite(layer(features(4), BATCH)).all()


def test_jumping_knowledge_joins_the_layers():
    layers = [features(width, padding=0)[:, :4] for width in (4, 5, 6)]
    joined = nn.JumpingKnowledge("concat")(layers)
    np.testing.assert_array_equal(joined, np.concatenate(layers, axis=1))
    largest = nn.JumpingKnowledge("max")(layers)
    np.testing.assert_array_equal(largest, np.max(layers, axis=0))
    weighted = nn.JumpingKnowledge("lstm", features=4, num_layers=3, rngs=nnx.Rngs(0))
    wide = [np.asarray(layer, np.float64) for layer in layers]

    def states(cell, inputs):
        memory, hidden = (np.zeros((16, 6)), np.zeros((16, 6))), []
        for x in inputs:
            memory = lstm(cell, memory, x)
            hidden.append(memory[1])
        return np.stack(hidden)

    both = [states(weighted.forward, wide), states(weighted.backward, wide[::-1])[::-1]]
    kernel, bias = (
        np.asarray(p[...], np.float64) for p in (weighted.attention.kernel, weighted.attention.bias)
    )
    weights = softmax(np.concatenate(both, axis=-1) @ kernel + bias)
    expected = (weights * np.stack(wide)).sum(axis=0)
    np.testing.assert_allclose(jax.jit(weighted)(layers), expected, **CLOSE)


BAD = {
    "no layers": (lambda: nn.JumpingKnowledge("max")([]), "layers must be a list of at least one"),
    "layers of two widths": (
        lambda: nn.JumpingKnowledge("max")([features(4), features(5)]),
        r"JumpingKnowledge: layers\[1\] must be of shape \(16, 4\), got \(16, 5\)",
    ),
    "too few layers": (
        lambda: nn.JumpingKnowledge("lstm", features=4, num_layers=3, rngs=nnx.Rngs(0))(
            [features(4)]
        ),
        "layers must be the outputs of 3 layers, got 1 arrays",
    ),
    "an LSTM of unknown width": (
        lambda: nn.JumpingKnowledge("lstm", num_layers=3, rngs=nnx.Rngs(0)),
        "features must be given for mode='lstm', got None",
    ),
    "a batch of another size": (
        lambda: nn.GraphNorm(4)(features(4)[:GRAPHS], BATCH),
        r"GraphNorm: x must be of shape \[16, ...\]",
    ),
    "another width": (
        lambda: nn.BatchNorm(4, rngs=nnx.Rngs(0))(features(5), BATCH),
        r"BatchNorm: x must be of shape \[nodes, 4\], got shape \(16, 5\)",
    ),
    "no nodes": (lambda: nn.PairNorm()(features(4)[0]), r"x must be of shape \[nodes, features\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
