"""A padded batch of graphs, and float64 oracles that look at one graph at a time."""

import jax.numpy as jnp
import numpy as np

from jaxgnn.graph import GraphBatch, GraphSample, unbatch

SIZES = 4, 1, 6
NODES, EDGES, GRAPHS = 16, 40, 5
_RNG = np.random.default_rng(0)


def _sample(nodes):
    """A graph with repeated edges and self loops, weights and features of nodes and edges."""
    senders, receivers = _RNG.integers(0, nodes, (2, 2 * nodes))
    return GraphSample(
        senders,
        receivers,
        nodes,
        nodes=_RNG.normal(size=(nodes, 3)).astype(np.float32),
        edges=_RNG.normal(size=(2 * nodes, 2)).astype(np.float32),
        weights=_RNG.normal(size=2 * nodes).astype(np.float32),
    )


SAMPLES = [_sample(nodes) for nodes in SIZES]
BATCH = GraphBatch.from_graphs(SAMPLES, pad_to=(NODES, EDGES, GRAPHS))
PACKED = GraphBatch.from_graphs(SAMPLES)  # without any padding


def features(width, *, padding=np.nan):
    """Features of ``BATCH``, of which padding nodes hold anything."""
    x = np.random.default_rng(width).normal(size=(NODES, width)).astype(np.float32)
    x[sum(SIZES) :] = padding
    return jnp.asarray(x)


def split_graphs(x):
    """The rows of each real graph in float64."""
    return [part.astype(np.float64) for part in unbatch(BATCH, np.asarray(x))]


def padded(rows):
    """One row for each real graph, and zeros for the padding graphs."""
    rows = np.stack(rows)
    return np.concatenate([rows, np.zeros((GRAPHS - len(rows), *rows.shape[1:]))])


def padded_nodes(parts):
    """Rows of the nodes of each real graph, and zeros for the padding nodes."""
    rows = np.concatenate(parts)
    return np.concatenate([rows, np.zeros((NODES - len(rows), *rows.shape[1:]))])


def softmax(logits):
    """Over the first axis."""
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(cell, memory, x):
    """One step of an LSTM of Flax in float64: ``(c, h)``."""
    c, h = memory
    weights = [np.asarray(layer.kernel[...], np.float64) for layer in (cell.dense_i, cell.dense_h)]
    gates = x @ weights[0] + h @ weights[1] + np.asarray(cell.dense_h.bias[...], np.float64)
    i, f, g, o = np.split(gates, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)
