"""Every op refuses bad input with the op, the argument, the expectation and the value."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxgnn import ops
from jaxgnn.graph import CBSR, CSRGraph

GRAPH = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
EMPTY = CSRGraph.from_edges([], [], 0)
X = jnp.ones((3, 4))
KEPT = ops.maxk(X, 2)


def _graph(**changes):
    return dataclasses.replace(GRAPH, plan=None, **changes)


CASES = {
    "maxk k zero": (lambda: ops.maxk(X, 0), ["maxk: k", "1..4", "got 0"]),
    "maxk k beyond dim": (lambda: ops.maxk(X, 5), ["maxk: k", "1..4", "got 5"]),
    "maxk k negative": (lambda: ops.maxk(X, -1), ["maxk: k", "got -1"]),
    "maxk k float": (lambda: ops.maxk(X, 2.0), ["maxk: k", "an int", "2.0"]),
    "maxk k bool": (lambda: ops.maxk(X, True), ["maxk: k", "an int", "True"]),
    "maxk by": (lambda: ops.maxk(X, 2, by="size"), ["maxk: by", "'magnitude'", "'size'"]),
    "maxk early_stop": (lambda: ops.maxk(X, 2, early_stop=-3), ["maxk: early_stop", "-3"]),
    "maxk early_stop text": (lambda: ops.maxk(X, 2, early_stop="4"), ["maxk: early_stop", "'4'"]),
    "maxk early_stop float": (lambda: ops.maxk(X, 2, early_stop=2.5), ["early_stop", "2.5"]),
    "maxk early_stop huge": (lambda: ops.maxk(X, 2, early_stop=2**70), ["early_stop", "2^31"]),
    "maxk int": (lambda: ops.maxk(X.astype(int), 2), ["maxk: x", "floating", "int32"]),
    "maxk scalar": (lambda: ops.maxk(jnp.ones(()), 1), ["maxk: x", "1 axes", "()"]),
    "maxk no features": (lambda: ops.maxk(jnp.ones((3, 0)), 1), ["maxk: x", "feature", "(3, 0)"]),
    "maxk list": (lambda: ops.maxk([1.0, 2.0], 1), ["maxk: x", "array", "list"]),
    "maxk implementation": (
        lambda: ops.maxk(X, 2, implementation="cuda"),
        ["maxk: implementation", "xla, pallas, ffi", "'cuda'"],
    ),
    "todense not cbsr": (lambda: ops.todense(X), ["todense: cbsr", "CBSR", "Array"]),
    "todense id dtype": (
        lambda: ops.todense(CBSR(KEPT.values, KEPT.indices.astype(jnp.int32), 4)),
        ["todense: cbsr.indices", "uint8", "int32"],
    ),
    "todense shapes": (
        lambda: ops.todense(CBSR(KEPT.values, KEPT.indices[:2], 4)),
        ["todense: cbsr.indices", "(3, 2)", "(2, 2)"],
    ),
    "todense dim": (
        lambda: ops.todense(CBSR(KEPT.values, KEPT.indices, 4.0)),
        ["todense: cbsr.dim", "an int", "4.0"],
    ),
    "todense k beyond dim": (
        lambda: ops.todense(CBSR(KEPT.values, KEPT.indices, 1)),
        ["todense: cbsr.values", "dim = 1", "got 2"],
    ),
    "spmm rows": (lambda: ops.spmm(GRAPH, X[:2]), ["spmm: x", "3, features", "(2, 4)"]),
    "spmm vector": (lambda: ops.spmm(GRAPH, X[:, 0]), ["spmm: x", "2 axes", "(3,)"]),
    "spmm no features": (lambda: ops.spmm(GRAPH, X[:, :0]), ["spmm: x", "feature", "(3, 0)"]),
    "spmm int": (lambda: ops.spmm(GRAPH, X.astype(int)), ["spmm: x", "floating", "int32"]),
    "spmm not a graph": (lambda: ops.spmm(X, X), ["spmm: graph", "CSRGraph", "Array"]),
    "spmm empty graph": (
        lambda: ops.spmm(EMPTY, jnp.ones((0, 4))),
        ["spmm: graph", "at least one node", "(0, 0)"],
    ),
    "spmm index dtype": (
        lambda: ops.spmm(_graph(indices=GRAPH.indices.astype(jnp.uint8)), X),
        ["spmm: graph.indices", "int32", "uint8"],
    ),
    "spmm indptr dtype": (
        lambda: ops.spmm(_graph(indptr=GRAPH.indptr.astype(jnp.float32)), X),
        ["spmm: graph.indptr", "integer", "float32"],
    ),
    "spmm weights length": (
        lambda: ops.spmm(_graph(weights=jnp.ones(2)), X),
        ["spmm: graph.weights", "(3,)", "(2,)"],
    ),
    "spmm weights dtype": (
        lambda: ops.spmm(_graph(weights=jnp.ones(3, int)), X),
        ["spmm: graph.weights", "floating", "int32"],
    ),
    "spmm scale length": (
        lambda: ops.spmm(_graph(row_scale=jnp.ones(4)), X),
        ["spmm: graph.row_scale", "(3,)", "(4,)"],
    ),
    "sddmm rows": (lambda: ops.sddmm(GRAPH, X[:2], X), ["sddmm: a", "row", "(2, 4)"]),
    "sddmm widths": (lambda: ops.sddmm(GRAPH, X, X[:, :2]), ["sddmm: b", "[3, 4]", "[3, 2]"]),
    "sddmm dtypes": (
        lambda: ops.sddmm(GRAPH, X, X.astype(jnp.bfloat16)),
        ["sddmm: b", "float32", "bfloat16"],
    ),
    "maxk_spmm rows": (
        lambda: ops.maxk_spmm(GRAPH, ops.maxk(X[:2], 1)),
        ["maxk_spmm: cbsr", "3 rows", "2 rows"],
    ),
    "maxk_spmm dense": (lambda: ops.maxk_spmm(GRAPH, X), ["maxk_spmm: cbsr", "CBSR", "Array"]),
    "segment_softmax length": (
        lambda: ops.segment_softmax(GRAPH, jnp.ones(4)),
        ["segment_softmax: logits", "[3, ...]", "(4,)"],
    ),
    "segment_softmax list": (
        lambda: ops.segment_softmax(GRAPH, [1.0, 2.0, 3.0]),
        ["segment_softmax: logits", "an array", "list"],
    ),
    "segment_softmax scalar": (
        lambda: ops.segment_softmax(GRAPH, jnp.ones(())),
        ["segment_softmax: logits", "1 axes", "()"],
    ),
    "segment_softmax int": (
        lambda: ops.segment_softmax(GRAPH, jnp.ones(3, int)),
        ["segment_softmax: logits", "floating", "int32"],
    ),
    "session default": (
        lambda: ops.default_implementation("triton"),
        ["default_implementation: implementation", "'triton'"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named(name):
    call, fragments = CASES[name]
    with pytest.raises(ValueError) as error:
        call()
    for fragment in fragments:
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"


def test_shapes_are_checked_at_trace_time():
    with pytest.raises(ValueError, match=r"spmm: x must be"):
        jax.jit(lambda g, x: ops.spmm(g, x)).lower(GRAPH, X[:2])
    with pytest.raises(ValueError, match=r"maxk: k must be in 1\.\.4"):
        jax.jit(lambda x: ops.maxk(x, 9).values).lower(X)
