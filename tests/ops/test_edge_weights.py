"""Weights of edges: every op applies those of its graph, or refuses the graph."""

import inspect
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.testing import random_array

GRAPH = CSRGraph.from_edges([0, 1, 2, 0, 3], [1, 2, 2, 3, 0], 4)
WEIGHTS = jnp.array([0.5, 2.0, 3.0, 0.25, 1.5])
X = random_array((4, 6), "float32", seed=0)
HEADS = X.reshape(4, 2, 3)
OF_EDGES = random_array((5, 3), "float32", seed=1)
LAYERS = ops.EdgeMLPParams([random_array((12, 5), "float32", seed=2)], [None])
KEPT = ops.maxk(X, 2)
KEPT_HEADS = ops.maxk(HEADS, 2)
REDUCTIONS = get_args(ops.Aggregation)

# Of each op: calls of one graph, by the options that choose what is computed.
CALLS = {
    "aggregate": {
        name: partial(ops.aggregate, messages=OF_EDGES, reduce=name) for name in REDUCTIONS
    },
    "neighbour_reduce": {
        name: partial(ops.neighbour_reduce, x=X, reduce=name) for name in REDUCTIONS
    }
    | {"two": partial(ops.neighbour_reduce, x=X, reduce=("sum", "max"))},
    "dot_attention": {
        "": partial(ops.dot_attention, q=HEADS, k=HEADS, v=HEADS),
        "sparse values": partial(ops.dot_attention, q=HEADS, k=HEADS, v=KEPT_HEADS),
    },
    "gat_attention": {
        "": partial(ops.gat_attention, a_dst=X[:, :2], a_src=X[:, 2:4], v=HEADS),
        "sparse values": partial(ops.gat_attention, a_dst=X[:, :2], a_src=X[:, 2:4], v=KEPT_HEADS),
    },
    "gatv2_attention": {
        "": partial(ops.gatv2_attention, x_dst=HEADS, x_src=HEADS, attention=HEADS[0]),
    },
    "edge_mlp_aggregate": {
        name: partial(ops.edge_mlp_aggregate, h=X, params=LAYERS, reduce=name)
        for name in get_args(ops.Reduce)
    },
    "segment_softmax": {"": partial(ops.segment_softmax, logits=OF_EDGES)},
    "sddmm": {"": partial(ops.sddmm, a=X, b=X)},
    "spmm": {"": partial(ops.spmm, x=X)},
    "maxk_spmm": {"": partial(ops.maxk_spmm, cbsr=KEPT)},
}
ALL = [
    pytest.param(op, call, id=f"{op}-{case or 'plain'}")
    for op, calls in CALLS.items()
    for case, call in calls.items()
]


def _takes_a_graph(function) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any("CSRGraph" in str(each.annotation) for each in parameters)


def test_the_table_has_every_op_that_takes_a_graph():
    functions = {name for name, f in vars(ops).items() if inspect.isfunction(f)}
    found = {name for name in functions if _takes_a_graph(getattr(ops, name))}
    # sparse_implementation names kernels, and computes nothing.
    assert found - {"sparse_implementation"} == set(CALLS)


@pytest.mark.parametrize("op, call", ALL)
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_an_op_applies_weights_or_refuses_them_and_says_what_to_do(op, call, implementation):
    run = jax.jit(lambda weights: call(GRAPH.with_weights(weights), implementation=implementation))
    try:
        weighted = run(WEIGHTS)
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"{op}: graph must be without weights")
        assert "without_weights()" in message
        call(GRAPH.with_weights(WEIGHTS).without_weights(), implementation=implementation)
        return
    for ones, others in zip(*map(jax.tree.leaves, (run(jnp.ones(5)), weighted)), strict=True):
        assert not np.array_equal(ones, others)
