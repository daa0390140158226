"""The table of reductions: a new entry works in the ops, their gradients, and layers."""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, ops
from jaxgnn.graph import GraphBatch, GraphSample, masked
from jaxgnn.ops._aggregate import aggregate as op
from jaxgnn.testing import assert_close, random_array
from pallas_kernels.arguments.reductions import REDUCTIONS, summed

GRAPH = CSRGraph.from_edges([0, 1, 2, 3, 0, 1], [1, 1, 2, 2, 2, 0], 5)
X = random_array((5, 3), "float32", seed=0)
ROOT_MEAN_SQUARE = summed(
    lambda maths, x: x * x,
    slope=lambda maths, x: x * 2.0,
    result=lambda maths, total, count: maths.root(total / count),
)


@pytest.fixture
def rms(monkeypatch):
    """A reduction that no compiled kernel has."""
    monkeypatch.setitem(REDUCTIONS, "rms", ROOT_MEAN_SQUARE)
    known = {op.Aggregation: tuple(REDUCTIONS)}
    monkeypatch.setattr(op, "get_args", lambda kind: known.get(kind, get_args(kind)))
    return "rms"


def _plain(graph, messages):
    squares = jax.ops.segment_sum(messages**2, graph.receivers(), graph.num_rows)
    count = jnp.maximum(graph.degrees(), 1)[:, None].astype(messages.dtype)
    some = squares > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1) / count), 0)


def test_the_table_has_the_names_of_the_type():
    assert get_args(ops.Aggregation) == tuple(REDUCTIONS)
    assert op.WEIGHTED == ("sum", "mean")


@pytest.mark.parametrize("implementation", ["xla", None])
def test_a_sum_of_functions_has_values_and_gradients(rms, implementation):
    names = (rms, "std", "mean")

    def reduced(x):
        y = ops.neighbour_reduce(GRAPH, x, names, implementation=implementation)
        return jnp.split(y, 3, axis=-1)[0]

    expected, pull = jax.vjp(lambda x: _plain(GRAPH, x[GRAPH.indices]), X)
    actual, pull_back = jax.vjp(reduced, X)
    assert_close(actual, expected, reduction_length=8)
    assert_close(pull_back(jnp.cos(X))[0], pull(jnp.cos(X))[0], reduction_length=8)
    messages = X[GRAPH.indices]
    of_messages = ops.aggregate(GRAPH, messages, rms, implementation=implementation)
    assert_close(of_messages, expected, reduction_length=8)


def test_compiled_kernels_refuse_it_by_name(rms):
    with pytest.raises(NotImplementedError, match=r"needs reductions among sum, .*, got rms"):
        ops.aggregate(GRAPH, X[GRAPH.indices], rms, implementation="ffi")


def test_a_masked_graph_counts_edges_by_their_presence(rms):
    present = jnp.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    kept = np.asarray(present) > 0
    graph = CSRGraph.from_edges(
        np.asarray(GRAPH.indices)[kept], np.asarray(GRAPH.receivers())[kept], 5
    )
    expected = ops.neighbour_reduce(graph, X, rms)
    assert_close(ops.neighbour_reduce(masked(GRAPH, present), X, rms), expected, reduction_length=8)


def test_layers_read_the_table(rms, monkeypatch):
    pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
    batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
    from jaxgnn.nn.pooling import pool as pooling

    monkeypatch.setitem(pooling._REDUCES, rms, pooling._pooled(ROOT_MEAN_SQUARE))
    x = random_array((8, 3), "float32", seed=1)
    pooled = nn.pool(x, batch, rms)
    expected = jnp.sqrt(jnp.mean(x[:4].reshape(2, 2, 3) ** 2, axis=1))
    assert_close(pooled[:2], expected, reduction_length=4)
    assert not pooled[2:].any()
    # Where the change by a shift of all messages is not known, PNA adds it to the messages.
    layer = nn.PNAConv(3, 4, aggregators=("mean",), average_degree=GRAPH, rngs=nnx.Rngs(0))
    expected = layer(GRAPH, X)
    unknown = dataclasses.replace(REDUCTIONS["mean"], shifted=None)
    monkeypatch.setitem(REDUCTIONS, "mean", unknown)
    assert_close(layer(GRAPH, X), expected, reduction_length=16)
