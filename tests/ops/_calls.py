"""Calls of each op for the tests of all ops: a new op has its entries here.

Such tests are: eager calls are compiled once, exported programs have any sizes, weights of edges
are applied or refused, ids out of range are clamped, and kernels are few modules away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import CBSR, CSRGraph, Incidence, ops
from jaxgnn.testing import random_array
from tests.ops.hypergraph._hypergraph import INCIDENCE
from tests.ops.hypergraph._hypergraph import arrays as hypergraph_arrays
from tests.ops.mhc import _mhc as mhc

GRAPH = CSRGraph.from_edges([0, 1, 2, 0, 3], [1, 2, 2, 3, 0], 4)
RING = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4)
WEIGHTED = GRAPH.with_weights(jnp.arange(1.0, 6.0))
X = random_array((4, 6), "float32", seed=0)
BATCH = random_array((2, 4, 6), "float32", seed=1)
SQUARE = random_array((3, 4, 4), "float32", seed=2)
STREAMS = mhc.streams((3,), 4, 6)
PARAMETERS = mhc.parameters(4, 6)
OUTPUTS = mhc.outputs((3,), 4, 6)
KERNELS = [random_array((6, 5), "float32", seed=3), random_array((5, 6), "float32", seed=4)]
BIASES = [jnp.ones(5), jnp.ones(6)]
PAIR = [random_array((12, 5), "float32", seed=5), random_array((5, 3), "float32", seed=6)]
EDGE_FILTERS = random_array((5, 6), "float32", seed=8)
LAYERS = ops.EdgeMLPParams(PAIR, [jnp.ones(5), None])
OF_EDGES = random_array((5, 3), "float32", seed=1)
IRREPS = {"irreps_in": "3x0e+1o", "irreps_sh": "0e+1o", "irreps_out": "3x0e+3x1o+0e"}
COUPLED = partial(ops.tensor_product_sum, **IRREPS)
HARMONICS = random_array((5, 4), "float32", seed=9)
OF_PATHS = random_array((5, 7), "float32", seed=10)
WITH_EDGES = [random_array((15, 5), "float32", seed=8), PAIR[1]]
INTERACTION = ops.EdgeMLPParams(WITH_EDGES, [jnp.ones(5), jnp.ones(3)])
KEPT = ops.maxk(X, 2)
HYPERGRAPH = {k: v for k, v in hypergraph_arrays().items() if v is not None}
PLAIN = {k: v for k, v in hypergraph_arrays(attention=False).items() if v is not None}


def _compressed(values):
    return CBSR(values, KEPT.indices, 6)


EAGER = {
    "aggregate": {
        "": (
            lambda a, i: ops.aggregate(GRAPH, a, ("max", "std"), implementation=i),
            random_array((5, 3), "float32", seed=7),
        ),
    },
    "neighbour_reduce": {
        "": (
            lambda a, i: ops.neighbour_reduce(
                GRAPH, a[0], ("max", "softmax"), temperature=a[1], implementation=i
            ),
            (X, jnp.float32(0.5)),
        ),
    },
    "dot_attention": {
        "": (
            lambda a, i: ops.dot_attention(GRAPH, *a, implementation=i),
            (X[:, :, None], X[:, :3, None], X[:, 3:, None]),
        ),
        "weights and dropout": (
            lambda a, i: ops.dot_attention(
                GRAPH,
                *a,
                dropout=0.5,
                key=jax.random.key(0),
                return_weights=True,
                implementation=i,
            ),
            (BATCH[..., None], BATCH[..., None], BATCH[..., None]),
        ),
    },
    "gat_attention": {
        "": (lambda a, i: ops.gat_attention(GRAPH, *a, implementation=i), (X, X, X[:, :, None])),
    },
    "gatv2_attention": {
        "": (
            lambda a, i: ops.gatv2_attention(GRAPH, *a, implementation=i),
            (X[:, :, None], X[:, :, None], X[0, :, None]),
        ),
    },
    "edge_mlp_aggregate": {
        **{
            reduce: (
                lambda a, i, reduce=reduce: ops.edge_mlp_aggregate(
                    GRAPH, a[0], a[1], reduce=reduce, implementation=i
                ),
                (X, LAYERS),
            )
            for reduce in ("sum", "mean", "max")
        },
        "one degree": (
            lambda a, i: ops.edge_mlp_aggregate(RING, *a, implementation=i),
            (BATCH, LAYERS),
        ),
        "weighted": (
            lambda a, i: ops.edge_mlp_aggregate(WEIGHTED, *a, implementation=i),
            (BATCH, LAYERS),
        ),
    },
    "interaction": {
        "layer norm": (
            lambda a, i: ops.interaction(GRAPH, *a, scale=jnp.ones(3), implementation=i),
            (X, OF_EDGES, INTERACTION),
        ),
        "a batch, both ends": (
            lambda a, i: ops.interaction(
                GRAPH, *a, norm="rms", summed="edges", ends="both", reduce="mean", implementation=i
            ),
            (BATCH, OF_EDGES, INTERACTION),
        ),
    },
    "filtered_sum": {
        "": (lambda a, i: ops.filtered_sum(GRAPH, *a, implementation=i), (X, EDGE_FILTERS)),
        "made": (
            lambda a, i: ops.filtered_sum(GRAPH, **a, implementation=i),
            {
                "x": BATCH,
                "basis": EDGE_FILTERS[:, :2],
                "kernel": EDGE_FILTERS[:2],
                "bias": EDGE_FILTERS[2],
                "envelope": EDGE_FILTERS[:, 0],
            },
        ),
    },
    "tensor_product_sum": {
        "": (lambda a, i: COUPLED(GRAPH, *a, implementation=i), (X, HARMONICS, OF_PATHS)),
        "basis": (
            lambda a, i: COUPLED(GRAPH, **a, implementation=i),
            {"x": BATCH, "harmonics": HARMONICS, "basis": OF_EDGES, "kernel": OF_PATHS[:3]},
        ),
    },
    "fused_linear": {
        "gelu": (
            lambda a, i: ops.fused_linear(*a, activation="gelu", implementation=i),
            (X, KERNELS[0], BIASES[0]),
        ),
        "maxk": (
            lambda a, i: ops.fused_linear(*a, activation=ops.MaxK(2), implementation=i),
            (X, KERNELS[0], BIASES[0]),
        ),
    },
    "fused_mlp": {
        "": (
            lambda a, i: ops.fused_mlp(*a, activation="relu", implementation=i),
            (X, KERNELS, BIASES),
        )
    },
    "hypergraph_conv": {
        path: (
            lambda a, i, path=path: ops.hypergraph_conv(
                incidence=INCIDENCE, **a, path=path, activation="relu", implementation=i
            ),
            tree,
        )
        for path, tree in (("sums", PLAIN), ("mixing", PLAIN))
    }
    | {
        f"attention by {path}": (
            lambda a, i, path=path: ops.hypergraph_conv(
                incidence=INCIDENCE,
                **a,
                path=path,
                dropout=0.5,
                key=jax.random.key(0),
                implementation=i,
            ),
            HYPERGRAPH,
        )
        for path in ("sums", "mixing")
    },
    "maxk": {
        "": (lambda a, i: ops.maxk(a, 2, implementation=i), X),
        "early stop": (lambda a, i: ops.maxk(a, 2, early_stop=4, implementation=i), X),
        "magnitude": (lambda a, i: ops.maxk(a, 2, by="magnitude", implementation=i), BATCH),
    },
    "maxk_spmm": {
        "": (
            lambda a, i: ops.maxk_spmm(WEIGHTED, _compressed(a), implementation=i),
            KEPT.values,
        ),
    },
    "mhc_expand": {"": (lambda a, i: ops.mhc_expand(a, 3, implementation=i), X)},
    "mhc_head": {
        "": (
            lambda a, i: ops.mhc_head(*a, implementation=i),
            (STREAMS, PARAMETERS[0][:4], jnp.ones(()), PARAMETERS[2][:4]),
        ),
    },
    "mhc_layer": {
        gradient: (
            lambda a, i, gradient=gradient: ops.mhc_layer(
                jnp.tanh, *a, gradient=gradient, implementation=i
            ),
            (STREAMS, *PARAMETERS),
        )
        for gradient in ("exact", "implicit")
    },
    "mhc_post": {
        "": (lambda a, i: ops.mhc_post(*a, implementation=i), (STREAMS, *OUTPUTS)),
    },
    "mhc_post_pre": {
        "": (
            lambda a, i: ops.mhc_post_pre(*a, implementation=i),
            (STREAMS, *OUTPUTS, *PARAMETERS),
        ),
    },
    "mhc_pre": {
        "": (
            lambda a, i: ops.mhc_pre(*a, return_streams=True, implementation=i),
            (STREAMS, *PARAMETERS),
        ),
        "static": (
            lambda a, i: ops.mhc_pre(a[0], None, None, a[1], implementation=i),
            (STREAMS, PARAMETERS[2]),
        ),
    },
    "permutation_mixture": {
        "": (lambda a, i: ops.permutation_mixture(a, implementation=i), SQUARE[0, :, :2]),
    },
    "sddmm": {
        "": (lambda a, i: ops.sddmm(GRAPH, *a, implementation=i), (X, X)),
        "batch": (lambda a, i: ops.sddmm(GRAPH, *a, implementation=i), (BATCH, BATCH)),
    },
    "segment_softmax": {
        "": (lambda a, i: ops.segment_softmax(GRAPH, a, implementation=i), jnp.arange(5.0)),
    },
    "sinkhorn": {
        f"{gradient}, {last} last, eps {eps}": (
            lambda a, i, options=(gradient, last, eps): ops.sinkhorn(
                a, gradient=options[0], last=options[1], eps=options[2], implementation=i
            ),
            SQUARE,
        )
        for gradient, last, eps in (
            ("exact", "rows", 1e-6),
            ("exact", "columns", 0.0),
            ("implicit", "rows", 1e-6),
        )
    },
    "spmm": {
        "": (
            lambda a, i: ops.spmm(WEIGHTED.with_weights(a[0]), a[1], implementation=i),
            (WEIGHTED.weights, X),
        ),
        "batch": (lambda a, i: ops.spmm(GRAPH.normalized("sym"), a, implementation=i), BATCH),
        "heads": (
            lambda a, i: ops.spmm(WEIGHTED.with_weights(a[0]), a[1], implementation=i),
            (jnp.ones((5, 2)), X.reshape(4, 2, 3)),
        ),
    },
    "todense": {"": (lambda a, i: ops.todense(_compressed(a), implementation=i), KEPT.values)},
}
"""Of each op: cases by name, each a function of one tree of arrays and of the implementation, and
the tree."""

NODES, EDGES, TOKENS, OFFSETS = "nodes", "edges", "tokens", "nodes + 1"
TRIANGLE = CSRGraph.from_edges([0, 1, 2, 2], [1, 0, 0, 2], 3)
PHI, ALPHA, BIAS, GAMMA = mhc.parameters(4, 64)
WEIGHT, ADDED = random_array((8, 8), "float32", seed=20), random_array((8,), "float32", seed=21)
WEIGHT_OF_ENDS = random_array((16, 8), "float32", seed=22)


class Exported(NamedTuple):
    """A function of arrays, and their shapes; those named are of ids."""

    run: Callable[..., Any]
    shapes: tuple[tuple[Any, ...], ...]
    ids: tuple[str, ...] = ()


def of_graph(run, *shapes) -> Exported:
    """``run(graph, …)``, where rows, columns and edges have any number."""
    made = lambda indptr, indices, *given: run(CSRGraph(indptr, indices), *given)  # noqa: E731
    return Exported(made, ((OFFSETS,), (EDGES,), *shapes), ("indptr", "nodes"))


def _of_hypergraph(nodes: int, **options) -> Exported:
    parts = [list(range(0, nodes // 2)), list(range(nodes // 2 - 1, nodes))]
    hypergraph = Incidence.from_hyperedges(parts, nodes)
    if "attention" in options:
        options["attributes"] = jnp.ones((2, 8))
    run = functools.partial(ops.hypergraph_conv, incidence=hypergraph, kernel=WEIGHT, **options)
    return Exported(lambda x: run(x), ((TOKENS, nodes, 8),))


def _incidences(**options) -> Exported:
    def run(nodes, hyperedges, x):
        return ops.hypergraph_conv(x, Incidence(nodes, hyperedges, 6, 3), **options)

    return Exported(run, ((EDGES,), (EDGES,), (6, 8)), ("three", "three"))


def _messages(graph, x):
    params = ops.EdgeMLPParams((WEIGHT_OF_ENDS, WEIGHT), (ADDED, None))
    return ops.edge_mlp_aggregate(graph, x, params)


def _updated(graph, x, e):
    params = ops.EdgeMLPParams((jnp.ones((24, 8)), WEIGHT), (ADDED, None))
    return ops.interaction(graph, x, e, params, ends="both")


STREAMS_SHAPE = (TOKENS, 4, 64)
OUTPUT_SHAPES = STREAMS_SHAPE, (TOKENS, 64), (TOKENS, 4), (TOKENS, 4, 4)
EXPORTED = {
    "maxk": Exported(lambda x: ops.maxk(x, 3).values, ((NODES, 8),)),
    "maxk by magnitude": Exported(lambda x: ops.maxk(x, 3, by="magnitude").values, ((NODES, 8),)),
    "todense": Exported(lambda x: ops.todense(ops.maxk(x, 3)), ((NODES, 8),)),
    "CBSR.todense": Exported(lambda x: ops.maxk(x, 3).todense(), ((NODES, 8),)),
    "spmm": of_graph(ops.spmm, (NODES, 8)),
    "spmm with weights": of_graph(
        lambda graph, weights, x: ops.spmm(graph.with_weights(weights), x), (EDGES,), (NODES, 8)
    ),
    "spmm of heads": of_graph(
        lambda graph, weights, x: ops.spmm(graph.with_weights(weights), x),
        (EDGES, 2),
        (NODES, 2, 4),
    ),
    "spmm of a mean": of_graph(lambda g, x: ops.spmm(g.normalized("mean"), x), (NODES, 8)),
    "spmm, a batch": Exported(lambda x: ops.spmm(TRIANGLE, x), ((TOKENS, 3, 8),)),
    "spmm, any width": Exported(lambda x: ops.spmm(TRIANGLE, x), ((3, NODES),)),
    "maxk_spmm": of_graph(lambda graph, x: ops.maxk_spmm(graph, ops.maxk(x, 3)), (NODES, 8)),
    "sddmm": of_graph(ops.sddmm, (NODES, 8), (NODES, 8)),
    "sddmm, a batch": Exported(lambda x: ops.sddmm(TRIANGLE, x, x), ((TOKENS, 3, 8),)),
    "segment_softmax": of_graph(ops.segment_softmax, (EDGES, 2)),
    "segment_softmax, any heads": Exported(
        lambda x: ops.segment_softmax(TRIANGLE, x), ((4, TOKENS),)
    ),
    "aggregate": of_graph(
        lambda graph, x: ops.aggregate(graph, x, ("max", "std", "softmax")), (EDGES, 8)
    ),
    "neighbour_reduce": of_graph(
        lambda graph, x: ops.neighbour_reduce(graph, x, ("min", "mean"), ties="first"), (NODES, 8)
    ),
    "filtered_sum": of_graph(ops.filtered_sum, (NODES, 8), (EDGES, 8)),
    "filtered_sum of a basis": of_graph(
        lambda graph, x, basis: ops.filtered_sum(graph, x, basis=basis, kernel=WEIGHT[:3]),
        (NODES, 8),
        (EDGES, 3),
    ),
    "tensor_product_sum": of_graph(COUPLED, (NODES, 6), (EDGES, 4), (EDGES, 7)),
    "edge_mlp_aggregate": of_graph(_messages, (NODES, 8)),
    "edge_mlp_aggregate, a batch": Exported(lambda x: _messages(TRIANGLE, x), ((TOKENS, 3, 8),)),
    "interaction": of_graph(_updated, (NODES, 8), (EDGES, 8)),
    "interaction, a batch": Exported(
        lambda x, e: _updated(TRIANGLE, x, e), ((TOKENS, 3, 8), (TOKENS, 4, 8))
    ),
    "fused_linear": Exported(
        lambda x: ops.fused_linear(x, WEIGHT, ADDED, activation="gelu"), ((TOKENS, 8),)
    ),
    "fused_linear with maxk": Exported(
        lambda x: ops.fused_linear(x, WEIGHT, activation=ops.MaxK(3)).values, ((TOKENS, 8),)
    ),
    "fused_mlp": Exported(
        lambda x: ops.fused_mlp(x, [WEIGHT, WEIGHT], [ADDED, None], activation="silu"),
        ((TOKENS, NODES, 8),),
    ),
    "permutation_mixture": Exported(ops.permutation_mixture, ((TOKENS, 6),)),
    "mhc_pre": Exported(lambda x: ops.mhc_pre(x, PHI, ALPHA, BIAS, GAMMA), (STREAMS_SHAPE,)),
    "mhc_pre, static": Exported(lambda x: ops.mhc_pre(x, None, None, BIAS), (STREAMS_SHAPE,)),
    "mhc_post": Exported(ops.mhc_post, OUTPUT_SHAPES),
    "mhc_post_pre": Exported(
        lambda *given: ops.mhc_post_pre(*given, PHI, ALPHA, BIAS, GAMMA), OUTPUT_SHAPES
    ),
    "mhc_layer": Exported(
        lambda x: ops.mhc_layer(jnp.tanh, x, PHI, ALPHA, BIAS, GAMMA), (STREAMS_SHAPE,)
    ),
    "mhc_head": Exported(
        lambda x: ops.mhc_head(x, PHI[:4], ALPHA[0], BIAS[:4], GAMMA), (STREAMS_SHAPE,)
    ),
    "mhc_expand": Exported(lambda x: ops.mhc_expand(x, 4), ((TOKENS, 64),)),
    "hypergraph_conv, 8 nodes": _of_hypergraph(8, activation="gelu"),
    "hypergraph_conv, 20 nodes": _of_hypergraph(20),
    "hypergraph_conv, 200 nodes": _of_hypergraph(200),
    "hypergraph_conv with attention": _of_hypergraph(8, attention=jnp.ones((2, 8))),
    "hypergraph_conv with attention, sums": _of_hypergraph(
        8, attention=jnp.ones((2, 8)), path="sums"
    ),
    "hypergraph_conv, any incidences": _incidences(),
    "hypergraph_conv, any incidences, sums": _incidences(path="sums"),
    "Incidence.todense": Exported(
        lambda *ids: Incidence(*ids, 6, 3).todense(), ((EDGES,), (EDGES,)), ("three", "three")
    ),
    **{
        f"sinkhorn, n = {n}, {gradient}": Exported(
            functools.partial(ops.sinkhorn, gradient=gradient), ((TOKENS, n, n),)
        )
        for n in (1, 4, 5)
        for gradient in ("exact", "implicit")
    },
}
"""Of each op: functions of arrays of any sizes; widths are known."""


HEADS = X.reshape(4, 2, 3)
KEPT_HEADS = ops.maxk(HEADS, 2)
REDUCTIONS = get_args(ops.Aggregation)
WEIGHTED_CALLS = {
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
    "interaction": {"": partial(ops.interaction, h=X, e=OF_EDGES, params=INTERACTION)},
    "segment_softmax": {"": partial(ops.segment_softmax, logits=OF_EDGES)},
    "filtered_sum": {
        "": partial(ops.filtered_sum, x=X, weights=EDGE_FILTERS),
        "made": partial(ops.filtered_sum, x=X, basis=OF_EDGES, kernel=EDGE_FILTERS[:3]),
    },
    "tensor_product_sum": {
        "": partial(COUPLED, x=X, harmonics=HARMONICS, weights=OF_PATHS),
        "basis": partial(COUPLED, x=X, harmonics=HARMONICS, basis=OF_EDGES, kernel=OF_PATHS[:3]),
    },
    "sddmm": {"": partial(ops.sddmm, a=X, b=X)},
    "spmm": {"": partial(ops.spmm, x=X)},
    "maxk_spmm": {"": partial(ops.maxk_spmm, cbsr=KEPT)},
}
"""Of each op that takes a graph: calls of one graph, by their options."""

PLAIN_LAYERS = ops.EdgeMLPParams((jnp.ones((16, 4)) / 8, jnp.ones((4, 4)) / 4), (None, None))
OUT_OF_RANGE = {
    "spmm": ops.spmm,
    "sddmm": lambda graph, x: ops.sddmm(graph, x, x),
    "segment_softmax": lambda graph, x: ops.segment_softmax(graph, ops.sddmm(graph, x, x)),
    "neighbour_reduce": lambda graph, x: ops.neighbour_reduce(graph, x, ("max", "softmax")),
    "maxk_spmm": lambda graph, x: ops.maxk_spmm(graph, ops.maxk(x, 3)),
    "filtered_sum": lambda graph, x: ops.filtered_sum(graph, x, jnp.ones((graph.num_edges, 8))),
    "tensor_product_sum": lambda graph, x: COUPLED(
        graph, x[:, :6], jnp.ones((graph.num_edges, 4)), jnp.ones((graph.num_edges, 7))
    ),
    "edge_mlp_aggregate": lambda graph, x: ops.edge_mlp_aggregate(graph, x, PLAIN_LAYERS),
    "interaction": lambda graph, x: sum(
        ops.interaction(graph, x, None, PLAIN_LAYERS, residual=False, ends="both")[1]
    ),
}
"""Of each op that follows ids of a graph: a function of a graph and of features 8 wide."""

ENDS = np.arange(60) % 20
CYCLES = CSRGraph.from_edges(ENDS[::-1], np.sort(ENDS), 20)
REGULAR = CSRGraph.from_edges(np.arange(512) % 64, np.arange(512) // 8, 64)  # 8 edges a row
PAIRS = Incidence(ENDS, np.sort(ENDS), num_nodes=20, num_hyperedges=20)


def _random(*shape, dtype="float32"):
    return random_array(shape, dtype, seed=1)


def _streams(*shape):
    return _random(*shape, dtype="bfloat16")


PRE_ARRAYS = _random(24, 1024), _random(3), _random(24)
POST_ARRAYS = _streams(64, 4, 256), _streams(64, 256), _random(64, 4), _random(64, 4, 4)
NARROW_LAYERS = [_streams(128, 128)] * 2


EDGE_MLP = ops.EdgeMLPParams(
    [_streams(128, 64), _streams(64, 64), _streams(64, 64)], [None, None, None]
)
ON_A_GPU = {
    "maxk": lambda ops: ops.maxk(_random(20, 256), 32),
    "spmm": lambda ops: ops.spmm(CYCLES, _random(20, 64)),
    "maxk_spmm": lambda ops: ops.maxk_spmm(CYCLES, KEPT_OF_CYCLES),
    "filtered_sum": lambda ops: ops.filtered_sum(CYCLES, _random(20, 64), _random(60, 64)),
    "segment_softmax": lambda ops: ops.segment_softmax(CYCLES, _random(60, 2)),
    "aggregate": lambda ops: ops.aggregate(CYCLES, _random(60, 64), "max"),
    "dot_attention": lambda ops: ops.dot_attention(CYCLES, *[_random(20, 2, 32)] * 3),
    "gat_attention": lambda ops: ops.gat_attention(
        CYCLES, _random(20, 2), _random(20, 2), _random(20, 2, 32)
    ),
    "gatv2_attention": lambda ops: ops.gatv2_attention(
        CYCLES, *[_random(20, 2, 32)] * 2, _random(2, 32)
    ),
    "mhc_pre": lambda ops: ops.mhc_pre(POST_ARRAYS[0], *PRE_ARRAYS),
    "mhc_post": lambda ops: ops.mhc_post(*POST_ARRAYS),
    "sinkhorn": lambda ops: ops.sinkhorn(_random(64, 4, 4)),
    "mhc_post_pre": lambda ops: ops.mhc_post_pre(*POST_ARRAYS, *PRE_ARRAYS),
    "mhc_layer": lambda ops: ops.mhc_layer(lambda x: x, POST_ARRAYS[0], *PRE_ARRAYS),
    "fused_linear": lambda ops: ops.fused_linear(_streams(4096, 128), NARROW_LAYERS[0]),
    "fused_mlp": lambda ops: ops.fused_mlp(
        _streams(4096, 128), NARROW_LAYERS, [None, None], activation="relu"
    ),
    "edge_mlp_aggregate": lambda ops: ops.edge_mlp_aggregate(REGULAR, _streams(64, 64), EDGE_MLP),
    "interaction": lambda ops: ops.interaction(
        CYCLES, _random(20, 64), _random(60, 64), ops.EdgeMLPParams([_random(192, 64)], [None])
    ),
    "hypergraph_conv": lambda ops: ops.hypergraph_conv(_random(20, 64), PAIRS),
}
KEPT_OF_CYCLES = ops.maxk(_random(20, 256), 32, implementation="xla")
"""Of each op that has kernels for GPUs: a call that they support; ``ops`` is ``jaxgnn.ops``."""
