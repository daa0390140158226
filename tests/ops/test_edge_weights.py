"""Weights of edges: every op applies those of its graph, or refuses the graph."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from tests.ops._calls import GRAPH, WEIGHTED_CALLS

WEIGHTS = jnp.array([0.5, 2.0, 3.0, 0.25, 1.5])
ALL = [
    pytest.param(op, call, id=f"{op}-{case or 'plain'}")
    for op, calls in WEIGHTED_CALLS.items()
    for case, call in calls.items()
]


def _takes_a_graph(function) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any("CSRGraph" in str(each.annotation) for each in parameters)


def test_the_table_has_every_op_that_takes_a_graph():
    functions = {name for name, f in vars(ops).items() if inspect.isfunction(f)}
    found = {name for name in functions if _takes_a_graph(getattr(ops, name))}
    # sparse_implementation names kernels, and computes nothing.
    assert found - {"sparse_implementation"} == set(WEIGHTED_CALLS)


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
