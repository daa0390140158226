"""Outside of ``jit`` an op is compiled once, whatever it is made of, and leaves nothing behind."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph, deterministic, ops, verify
from jaxgnn.ops._core.eager import run_compiled, runs_now
from jaxgnn.ops._core.registry import OPS
from jaxgnn.testing import random_array
from tests._eager_costs import assert_costs_nothing_again
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
LAYERS = ops.EdgeMLPParams(PAIR, [jnp.ones(5), None])
KEPT = ops.maxk(X, 2)
HYPERGRAPH = {k: v for k, v in hypergraph_arrays().items() if v is not None}
PLAIN = {k: v for k, v in hypergraph_arrays(attention=False).items() if v is not None}


def _compressed(values):
    return CBSR(values, KEPT.indices, 6)


# Of each op: cases by name, each a function of one tree of arrays and of the implementation, and
# the tree.
CASES = {
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
ALL = [
    pytest.param(op, case, implementation, id=f"{op}-{case or 'plain'}-{implementation}")
    for op, cases in CASES.items()
    for case in cases
    for implementation in (None, "xla")
]


def test_the_table_has_every_op():
    assert {name for op in OPS for name in op.functions} == set(CASES)


def _total(tree):
    parts = [jnp.sum(y) for y in jax.tree.leaves(tree) if jnp.issubdtype(y.dtype, jnp.floating)]
    return jnp.sum(jnp.stack(parts))


@pytest.mark.costly
@pytest.mark.parametrize("op, case, implementation", ALL)
def test_eager_values_and_gradients_are_compiled_once_and_leave_nothing(op, case, implementation):
    function, tree = CASES[op][case]
    gradient = jax.grad(lambda tree: _total(function(tree, implementation)))
    assert_costs_nothing_again(lambda: (function(tree, implementation), gradient(tree)))


MODES = {
    "verify": lambda: verify("strict"),
    "deterministic": deterministic,
    "default": lambda: ops.default_implementation("xla"),
}


@pytest.mark.costly
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op, case", [("sinkhorn", "exact, rows last, eps 1e-06"), ("spmm", "")])
def test_modes_have_programs_of_their_own_which_are_compiled_once(op, case, mode):
    function, tree = CASES[op][case]

    def call():
        with MODES[mode]():
            return jax.grad(lambda tree: _total(function(tree, None)))(tree)

    call_without = lambda: function(tree, None)  # noqa: E731
    jax.block_until_ready(call_without())
    assert_costs_nothing_again(lambda: (call(), call_without()))


def test_eager_vmap_is_compiled_once_and_leaves_nothing():
    for implementation in (None, "xla"):
        mapped = jax.vmap(functools.partial(ops.sinkhorn, implementation=implementation))
        assert_costs_nothing_again(lambda mapped=mapped: mapped(SQUARE))


def test_operations_run_now_unless_they_are_recorded():
    seen = []

    def look(x):
        seen.append(runs_now())
        return 2 * x

    x = jnp.ones(3)
    look(x), jax.grad(lambda x: jnp.sum(look(x)))(x), jax.vmap(look)(x), jax.jvp(look, (x,), (x,))
    with jax.ensure_compile_time_eval():
        look(x)
    assert seen == [True] * 5
    seen.clear()
    jax.jit(look)(x), jax.make_jaxpr(look)(x), jax.checkpoint(look)(x)
    jax.lax.scan(lambda x, _: (look(x), None), x, length=2)
    jax.jit(jax.grad(lambda x: jnp.sum(look(x))))(x), jax.jit(jax.vmap(look))(x)
    jax.vmap(jax.jit(look))(x)
    assert seen == [False] * len(seen) and len(seen) >= 6
    # The question itself leaves no trace.
    assert "runs_now" not in str(jax.make_jaxpr(look)(x))


def _describe(static, arguments):
    SEEN.append((static, runs_now()))
    graph, x, factor = arguments
    return factor * ops.spmm(graph, x), graph.uniform_degrees()[0]


SEEN = []


def test_a_program_knows_its_static_arguments_again():
    SEEN.clear()
    for scale in (1.0, 2.0, 3.0):
        _, degree = run_compiled(_describe, "a", (RING, scale * X, 2))
        assert degree == 1
    run_compiled(_describe, "a", (GRAPH, X, 2))  # of other sizes
    run_compiled(_describe, "b", (RING, X, 2))
    run_compiled(_describe, "b", (RING, X, 3))
    assert SEEN == [("a", False), ("a", False), ("b", False), ("b", False)]
    SEEN.clear()  # what has no hash can not be known again
    for _ in range(2):
        run_compiled(_describe, ["c"], (RING, X, 2))
    assert SEEN == [(["c"], True)] * 2


def _remember(static, arguments):
    SEEN.append(arguments[1])
    return arguments[0]


def test_equal_static_arguments_of_different_kinds_are_told_apart():
    SEEN.clear()
    kinds = [1, 1.0, True, np.int32(1), 0.0, -0.0, 0, False]
    for value in kinds + kinds:
        run_compiled(_remember, None, (X, value))
    assert [(type(v), str(v)) for v in SEEN] == [(type(v), str(v)) for v in kinds]


def test_no_cache_holds_a_graph_or_an_array():
    graph, x = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3), jnp.ones((3, 2)) * 2
    jax.block_until_ready(run_compiled(_describe, "a", (graph, x, 2))[0])
    jax.block_until_ready(jax.grad(lambda x: jnp.sum(ops.spmm(graph, x)))(x))
    SEEN.clear()
    watched = [weakref.ref(held) for held in (graph, graph.made_plan(), x)]
    del graph, x
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3


def test_inside_of_jit_a_graph_stays_a_constant():
    SEEN.clear()
    text = str(jax.make_jaxpr(lambda x: run_compiled(_describe, "a", (RING, x, 2))[0])(X))
    assert SEEN == [("a", False)] and "jit[name=_program" not in text
