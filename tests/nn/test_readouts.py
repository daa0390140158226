"""Readouts agree with loops over single graphs in float64, whatever padding holds."""

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
    NODES,
    PACKED,
    SIZES,
    features,
    lstm,
    padded,
    padded_nodes,
    softmax,
    split_graphs,
)

CLOSE = {"rtol": 2e-5, "atol": 2e-6}
REDUCES = {
    "sum": lambda x: x.sum(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "min": lambda x: x.min(axis=0),
    "var": lambda x: x.var(axis=0),
    "std": lambda x: np.sqrt(x.var(axis=0) + 1e-5),
}


def assert_padding_takes_no_part(function, x):
    """Gradients are finite for all nodes, and zero for padding."""
    gradient = np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(function(x)))))(x))
    assert np.isfinite(gradient[: sum(SIZES)]).all() and np.any(gradient)
    assert not gradient[sum(SIZES) :].any()


def test_each_reduction_is_that_of_the_single_graphs():
    x = features(3)
    actual = jax.jit(lambda x, batch: nn.pool(x, batch, list(REDUCES)))(x, BATCH)
    expected = padded(
        [np.concatenate([f(part) for f in REDUCES.values()]) for part in split_graphs(x)]
    )
    np.testing.assert_allclose(actual, expected, **CLOSE)
    assert_padding_takes_no_part(lambda x: nn.pool(x, BATCH, list(REDUCES)), x)
    # Not a graph too many without padding; of features of any shape; in the dtype of the input.
    packed = jax.jit(nn.pool, static_argnums=2)(x[: sum(SIZES), :, None], PACKED, "mean")
    np.testing.assert_allclose(packed[..., 0], expected[:3, 3:6], **CLOSE)
    half = jax.eval_shape(lambda x: nn.pool(x.astype(jnp.bfloat16), BATCH, "std"), x)
    assert half.dtype == jnp.bfloat16


def test_a_number_that_is_not_finite_stays_in_its_own_graph():
    x = features(3).at[0, 0].set(jnp.inf)
    actual = jax.jit(lambda x: nn.pool(x, BATCH, list(REDUCES)))(x)
    assert np.isfinite(actual[1:]).all()


def test_equal_largest_nodes_share_the_gradient():
    x = jnp.array([[2.0], [2.0], [1.0]])
    batch = GraphBatch.from_graphs([GraphSample([0], [1], 3)])
    gradient = jax.jit(jax.grad(lambda x: nn.pool(x, batch, "max")[0, 0]))(x)
    np.testing.assert_array_equal(gradient[:, 0], [0.5, 0.5, 0])


def test_a_sum_of_many_nodes_keeps_its_digits():
    nodes = 50_000
    batch = GraphBatch.from_graphs([GraphSample([], [], nodes)])
    x = np.random.default_rng(0).random((nodes, 1)).astype(np.float32)
    actual = jax.jit(lambda x: nn.pool(x, batch, "sum"))(x)
    np.testing.assert_allclose(actual[0, 0], x.astype(np.float64).sum(), rtol=3e-7)


@pytest.mark.costly(1)
@pytest.mark.parametrize("gates, values", [(1, None), (5, 5)])
def test_attention_weighs_the_nodes_of_each_graph(gates, values):
    rngs, x = nnx.Rngs(0), features(3)
    gate = nnx.Linear(3, gates, rngs=rngs)
    value = None if values is None else nnx.Linear(3, values, rngs=rngs)
    layer = nn.AttentionPooling(gate, value)

    def linear(layer, x):
        kernel, bias = (np.asarray(p[...], np.float64) for p in (layer.kernel, layer.bias))
        return x @ kernel + bias

    def one(part):
        values = part if value is None else linear(value, part)
        return (softmax(linear(gate, part)) * values).sum(axis=0)

    expected = padded([one(part) for part in split_graphs(x)])
    np.testing.assert_allclose(jax.jit(layer)(x, BATCH), expected, **CLOSE)
    assert_padding_takes_no_part(lambda x: layer(x, BATCH), x)


def test_set2set_asks_with_an_lstm():
    x, layer = features(3), nn.Set2Set(3, num_steps=3, rngs=nnx.Rngs(0))

    def one(part):
        memory, result = (np.zeros(3), np.zeros(3)), np.zeros(6)
        for _ in range(3):
            memory = lstm(layer.lstm, memory, result)
            weights = softmax(part @ memory[1])
            result = np.concatenate([memory[1], weights @ part])
        return result

    expected = padded([one(part) for part in split_graphs(x)])
    np.testing.assert_allclose(jax.jit(layer)(x, BATCH), expected, **CLOSE)
    assert_padding_takes_no_part(lambda x: layer(x, BATCH), x)


def test_sort_pool_keeps_the_nodes_of_the_largest_last_feature():
    x = features(3)
    x = x.at[:2, -1].set(1.0)  # Equal nodes keep their order.

    def one(part):
        order = np.argsort(-part[:, -1], kind="stable")[:3]
        return np.concatenate([part[order], np.zeros((3 - len(order), 3))])

    expected = padded([one(part) for part in split_graphs(x)])
    actual = jax.jit(nn.SortPool(3))(x, BATCH)
    np.testing.assert_array_equal(actual, expected.astype(np.float32))
    assert_padding_takes_no_part(lambda x: nn.SortPool(3)(x, BATCH), x)
    many = jax.eval_shape(nn.SortPool(20), x, BATCH)
    assert many.shape == (GRAPHS, 20, 3), "more than there are nodes"


def test_a_virtual_node_hears_its_graph_and_is_heard():
    x, layer = features(3), nn.VirtualNode(3, rngs=nnx.Rngs(0))
    state = features(3, padding=0)[:GRAPHS]

    def mlp(v):
        first, last = (
            [np.asarray(p[...], np.float64) for p in (linear.kernel, linear.bias)]
            for linear in layer.mlp.layers
        )
        return np.maximum(v @ first[0] + first[1], 0) @ last[0] + last[1]

    states = np.asarray(state, np.float64)
    heard = [part + v for part, v in zip(split_graphs(x), states, strict=False)]
    said = [v + mlp(v + part.sum(axis=0)) for part, v in zip(heard, states, strict=False)]
    actual, new = jax.jit(layer)(x, BATCH, state)
    np.testing.assert_allclose(actual, padded_nodes(heard), **CLOSE)
    np.testing.assert_allclose(new, padded(said), **CLOSE)
    at_first, _ = jax.jit(layer)(x, BATCH)
    np.testing.assert_array_equal(at_first[: sum(SIZES)], x[: sum(SIZES)])


@pytest.mark.parametrize(
    "ratio, nodes, kept",
    [(0.6, 25, 15), (0.3, 50, 15), (0.07, 100, 7), (1 / 3, 9, 3), (1 - 0.7, 10, 3)],
)
def test_top_k_pooling_keeps_the_exact_number_of_nodes(ratio, nodes, kept):
    batch = GraphBatch.from_graphs([GraphSample([], [], nodes)], pad_to=(nodes + 1, 1))
    layer = nn.TopKPooling(2, ratio=ratio, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(nodes + 1, 2)).astype(np.float32)
    pooled = jax.jit(layer)(jnp.asarray(x), batch)[1]
    assert int(pooled.node_mask.sum()) == kept


@pytest.mark.costly(1)
@pytest.mark.parametrize("options", [{"ratio": 0.5}, {"k": 3}])
def test_top_k_pooling_keeps_the_best_nodes_and_the_edges_between_them(options):
    x = features(3)
    layer = nn.TopKPooling(3, **options, rngs=nnx.Rngs(1))
    kept, pooled, node_ids = jax.jit(layer)(x, BATCH)
    direction = np.asarray(layer.direction[...], np.float64)
    direction /= np.linalg.norm(direction)
    wanted, rows, first = [], [], 0
    for part in split_graphs(x):
        scores = np.tanh(part @ direction)
        count = min(3, len(part)) if "k" in options else -(-len(part) // 2)
        best = np.argsort(-scores)[:count]
        wanted.extend(first + best)
        rows.extend(part[best] * scores[best, None])
        first += len(part)
    real = len(wanted)
    np.testing.assert_array_equal(node_ids[:real], wanted)
    np.testing.assert_array_equal(node_ids[real:], NODES)
    np.testing.assert_allclose(kept[:real], rows, **CLOSE)
    assert not np.asarray(kept[real:]).any()
    np.testing.assert_array_equal(pooled.node_mask, np.arange(len(node_ids)) < real)
    # The adjacency, with its weights and the features of edges, is that of the kept nodes.
    old, new = BATCH.graph.to_scipy().toarray(), pooled.graph.to_scipy().toarray()
    np.testing.assert_allclose(new[:real, :real], old[np.ix_(wanted, wanted)], **CLOSE)
    assert not new[real:].any() and not new[:, real:].any()
    weights, pairs = np.asarray(pooled.graph.weights), BATCH.graph
    ends = np.asarray(pooled.graph.receivers()), np.asarray(pooled.graph.senders)
    edges = {
        (wanted[r], wanted[s], float(w), *map(float, e))
        for r, s, w, e in zip(*ends, weights, np.asarray(pooled.edges), strict=True)
        if r < real
    }
    entries = zip(
        np.asarray(pairs.receivers()), pairs.senders, pairs.weights, BATCH.edges, strict=True
    )
    expected = {
        (int(r), int(s), float(w), *map(float, e))
        for r, s, w, e in entries
        if r in wanted and s in wanted
    }
    assert edges == expected
    # Counts fit the ids, so that further layers may follow.
    counts = np.bincount(pooled.graph_ids, minlength=GRAPHS)
    np.testing.assert_array_equal(pooled.num_nodes_of_each, counts)
    np.testing.assert_array_equal(pooled.graph_mask, BATCH.graph_mask)
    np.testing.assert_array_equal(pooled.nodes[:real], BATCH.nodes[wanted])
    assert int(np.sum(pooled.num_edges_of_each)) == pooled.graph.num_edges
    if "ratio" in options:
        again = jax.jit(nn.TopKPooling(3, k=1, rngs=nnx.Rngs(2)))(kept, pooled)
        np.testing.assert_array_equal(again.batch.num_nodes_of_each[:3], 1)
        assert_padding_takes_no_part(lambda x: layer(x, BATCH).x, x)


def test_top_k_pooling_of_a_batch_without_padding_leaves_slots_to_no_graph():
    x = features(3)[: sum(SIZES)]
    layer = nn.TopKPooling(3, ratio=0.5, rngs=nnx.Rngs(1))

    @jax.jit
    def means(x, batch):
        kept, pooled, _ = layer(x, batch)
        return nn.pool(kept, pooled, "mean"), pooled.num_nodes_of_each

    actual, counts = means(x, PACKED)
    assert counts.tolist() == [2, 1, 3]
    np.testing.assert_allclose(actual, means(features(3), BATCH)[0][:3], **CLOSE)


X = features(3, padding=0)
BAD = {
    "an unknown reduction": (
        lambda: nn.pool(X, BATCH, "median"),
        "nn.pool: reduce must be among sum, mean, max, min, var, std, got 'median'",
    ),
    "no reduction": (lambda: nn.pool(X, BATCH, []), "reduce must be among"),
    "a batch of another size": (
        lambda: nn.pool(X[:-1], BATCH, "sum"),
        r"x must be of shape \[16, ...\], a row for each node slot of the batch, got shape",
    ),
    "integers": (lambda: nn.pool(X.astype(int), BATCH, "sum"), "x must be of a floating dtype"),
    "no batch": (
        lambda: nn.pool(X, BATCH.graph, "sum"),
        "batch must be a jaxgnn.graph.GraphBatch, got CSRGraph",
    ),
    "the graph of each node": (
        lambda: nn.pool(X, np.zeros(16, np.int32), "sum"),
        r"GraphBatch \(of ids of graphs there are jaxgnn.segment_mean and its like\), got ndarray",
    ),
    "another width": (
        lambda: nn.Set2Set(4, rngs=nnx.Rngs(0))(X, BATCH),
        r"Set2Set: x must be of shape \[nodes, 4\], got shape \(16, 3\)",
    ),
    "a gate of two logits": (
        lambda: nn.AttentionPooling(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))(X, BATCH),
        r"AttentionPooling: gate must be to return shape \(16, 1\) or \(16, 3\)",
    ),
    "virtual nodes of other graphs": (
        lambda: nn.VirtualNode(3, rngs=nnx.Rngs(0))(X, BATCH, X),
        r"VirtualNode: state must be of shape \(5, 3\), got shape \(16, 3\)",
    ),
    "both ratio and k": (
        lambda: nn.TopKPooling(3, ratio=0.5, k=2, rngs=nnx.Rngs(0)),
        "TopKPooling: ratio must be given, or k in its place, and not both, got 0.5 and k=2",
    ),
    "neither ratio nor k": (lambda: nn.TopKPooling(3, rngs=nnx.Rngs(0)), "ratio must be given"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
