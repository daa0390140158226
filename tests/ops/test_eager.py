"""Outside of ``jit`` an op is compiled once, whatever it is made of, and leaves nothing behind."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, deterministic, ops, verify
from jaxgnn.ops.core.eager import run_compiled, runs_now
from jaxgnn.ops.core.registry import OPS
from tests._eager_costs import assert_costs_nothing_again
from tests.ops._calls import EAGER, GRAPH, RING, SQUARE, X

ALL = [
    pytest.param(op, case, implementation, id=f"{op}-{case or 'plain'}-{implementation}")
    for op, cases in EAGER.items()
    for case in cases
    for implementation in (None, "xla")
]


def test_the_table_has_every_op():
    assert {name for op in OPS for name in op.functions} == set(EAGER)


def _total(tree):
    parts = [jnp.sum(y) for y in jax.tree.leaves(tree) if jnp.issubdtype(y.dtype, jnp.floating)]
    return jnp.sum(jnp.stack(parts))


@pytest.mark.costly
@pytest.mark.parametrize("op, case, implementation", ALL)
def test_eager_values_and_gradients_are_compiled_once_and_leave_nothing(op, case, implementation):
    function, tree = EAGER[op][case]
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
    function, tree = EAGER[op][case]

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
