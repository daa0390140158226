"""Dropout of edges and nodes leaves out whole ones, with the chance that was asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, ops

NODES = 80
_RNG = np.random.default_rng(0)
_ENDS = _RNG.integers(0, NODES, (2, 3000))
# Both directions, many repeats, and padding.
_EDGES = np.concatenate([_ENDS, _ENDS[::-1], np.zeros((2, 100), int)], axis=1)
GRAPH, (IDS,) = CSRGraph.from_edges(
    *_EDGES,
    NODES,
    weights=np.arange(6100, dtype=np.float32),
    edge_mask=np.arange(6100) < 6000,
    edge_data=(np.arange(6100),),
)


def _edges(graph):
    """Receivers, senders and weights of the edges that are no padding."""
    real = int(graph.indptr[-1])
    arrays = graph.receivers(), graph.senders, graph.weights
    return [np.asarray(array)[:real] for array in arrays]


@pytest.mark.parametrize("undirected", [False, True])
def test_edges_are_left_out_whole_and_the_others_stay_as_they_are(undirected):
    layer = nn.DropEdge(0.3, undirected=undirected)
    drop = jax.jit(lambda graph, data, key: layer(graph, data, rngs=nnx.Rngs(dropout=key)))
    graph, data = drop(GRAPH, {"id": IDS}, jax.random.key(0))
    receivers, senders, weights = _edges(graph)
    chosen = np.asarray(data["id"])[: receivers.size]
    np.testing.assert_array_equal(chosen, weights.astype(int))
    np.testing.assert_array_equal(np.stack([senders, receivers]), _EDGES[:, chosen])
    assert (np.diff(receivers) >= 0).all() and len(set(chosen.tolist())) == chosen.size
    # Six standard deviations of a binomial count; of whole pairs, of which each is there about
    # four times, two deviations more.
    assert abs(receivers.size - 0.7 * 6000) < 6 * np.sqrt(6000 * 0.21) * (2 if undirected else 1)
    assert graph.num_edges == GRAPH.num_edges, "so that nothing compiles anew"
    pairs = set(map(tuple, np.sort(_EDGES[:, chosen], axis=0).T.tolist()))
    left_out = np.sort(_EDGES[:, np.setdiff1d(np.arange(6000), chosen)], axis=0).T.tolist()
    assert bool(pairs & set(map(tuple, left_out))) != undirected
    again, _ = drop(GRAPH, {"id": IDS}, jax.random.key(0))
    other, _ = drop(GRAPH, {"id": IDS}, jax.random.key(1))
    np.testing.assert_array_equal(again.indices, graph.indices)
    assert not np.array_equal(other.indices, graph.indices)


def test_layers_see_the_graph_that_is_left():
    graph = nn.DropEdge(0.5)(GRAPH.with_weights(None), rngs=nnx.Rngs(dropout=0))
    x = jnp.asarray(_RNG.normal(size=(NODES, 4)), jnp.float32)
    real = int(graph.indptr[-1])
    edges = np.asarray(graph.senders)[:real], np.asarray(graph.receivers())[:real]
    fresh = CSRGraph.from_edges(*edges, NODES)
    mean = jax.jit(lambda graph, x: ops.spmm(graph.normalized("mean"), x))
    np.testing.assert_allclose(mean(graph, x), mean(fresh, x), rtol=1e-5, atol=1e-5)


def test_nothing_is_left_out_in_evaluation():
    layer = nn.DropEdge(0.5)
    assert layer(GRAPH) is GRAPH
    layer.eval()
    assert layer(GRAPH, {"id": IDS}, rngs=nnx.Rngs(dropout=0))[0] is GRAPH
    layer.train()
    with pytest.raises(ValueError, match=r"DropEdge: rngs must be an nnx.Rngs with a dropout"):
        layer(GRAPH)


def test_nodes_are_left_out_whole_and_the_others_scaled():
    x = jnp.asarray(_RNG.normal(size=(2, 3000, 3)), jnp.float32)
    y = np.asarray(nn.DropNode(0.25)(x, rngs=nnx.Rngs(dropout=0)))
    kept = y.any(axis=-1)
    np.testing.assert_allclose(y[kept], np.asarray(x)[kept] / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 6 * np.sqrt(0.25 * 0.75 / 6000)


def test_bad_input_is_refused_by_name():
    for layer, x, message in (
        (nn.DropEdge(0.5), np.ones((3, 3)), "DropEdge: graph must be a jaxgnn.CSRGraph"),
        (nn.DropEdge(0.5), GRAPH.normalized("mean"), "graph must be not normalised yet"),
        (nn.DropNode(0.5), jnp.ones(3), r"DropNode: x must be of shape \[..., nodes, features\]"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(x, rngs=nnx.Rngs(dropout=0))
