"""verify= finds a rule that is wrong, whatever it gets wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.fusion import fused as fuse_module
from jaxgnn.fusion import verify
from jaxgnn.fusion.program.program import Program, is_variable
from jaxgnn.fusion.rules import neighbour_sum
from jaxgnn.fusion.rules.rule import Rewrite
from tests.fusion._cases import NODES, RECEIVERS, SENDERS, arrays, fuse


def _layer(x):
    return jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES)


@pytest.fixture
def wrong_rule(monkeypatch, request):
    """The rule of sums, whose results go through a function that makes them wrong."""

    def propose(view, equation):
        made = neighbour_sum.RULE.propose(view, equation)
        if not isinstance(made, Rewrite):
            return made
        right = made.function
        return dataclasses.replace(made, function=lambda *a: [request.param(right(*a)[0])])

    rule = dataclasses.replace(neighbour_sum.RULE, propose=propose)
    monkeypatch.setattr(fuse_module, "RULES", (rule,))


@jax.custom_jvp
def _with_a_wrong_slope(y):
    return y


_with_a_wrong_slope.defjvps(lambda t, _, y: 1.01 * t)

WRONG = pytest.mark.parametrize(
    "wrong_rule", [lambda y: 1.001 * y, _with_a_wrong_slope], indirect=True, ids=["value", "slope"]
)


def _assert_equal_up_to_order(actual, expected):
    """That arrays are equal, but for the order of sums, which on a GPU is another one each time."""
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@WRONG
def test_strict_warns_and_runs_the_function_as_it_is(wrong_rule):
    (x,) = arrays((NODES, 3))
    fused = fuse(_layer, verify="strict")
    with pytest.warns(UserWarning, match="_layer is not what it was: (output|gradient) 0"):
        _assert_equal_up_to_order(fused(x), _layer(x))
    _assert_equal_up_to_order(fused(x), _layer(x))  # and does not ask again
    _assert_equal_up_to_order(jax.jit(fused)(x), jax.jit(_layer)(x))


@WRONG
def test_warn_warns_and_goes_on(wrong_rule):
    (x,) = arrays((NODES, 3))
    fused = fuse(_layer, verify="warn")
    with pytest.warns(UserWarning, match="is not what it was"):
        fused(x)
    np.testing.assert_allclose(fused(x), _layer(x), rtol=0.002)


def test_right_rules_pass_in_both_precisions():
    for dtype in (jnp.float32, jnp.bfloat16):
        (x,) = arrays((NODES, 3))
        fused = fuse(_layer, verify="strict")
        np.testing.assert_allclose(fused(x.astype(dtype)), _layer(x), atol=0.1)


def test_inside_of_a_transformation_it_says_that_nothing_was_verified():
    (x,) = arrays((NODES, 3))
    with pytest.warns(UserWarning, match="not verified inside of a transformation"):
        jax.jit(fuse(_layer, verify="strict"))(x)


def test_a_sum_in_another_order_has_the_same_terms():
    """Of whole numbers, whose sums are exact."""
    x = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (40, 3)), jnp.float32)
    sums = (
        lambda x: jnp.sum(x, (0, 1)),
        lambda x: jnp.einsum("ij,ik->jk", x, x),
        lambda x: jax.ops.segment_sum(x, RECEIVERS, NODES),
        lambda x: jnp.sum(x[:0], 0),
        lambda x: jnp.maximum(x, 0).max(0),
    )
    for fn in sums:
        program = Program.from_jaxpr(jax.make_jaxpr(lambda x, fn=fn: [fn(x)])(x))
        known = dict(zip(program.inputs, [x], strict=True)) | dict(program.constants)
        for equation in program.equations:
            operands = [known[a] if is_variable(a) else a.val for a in equation.invars]
            expected = program.alone(equation)(*operands)
            for place in map(jnp.float32, (0, 0.3, 1)):
                moved = verify.reorder_terms(equation, place, *operands)
                np.testing.assert_array_equal(program.alone(equation)(*moved)[0], expected[0])
            known |= dict(zip(equation.outvars, expected, strict=True))


def test_the_order_of_a_long_sum_counts_as_rounding(monkeypatch):
    monkeypatch.setattr(verify, "_SIZE", 0.0)  # no other errors
    (x,) = arrays((1 << 14, 3))
    for fn, is_sum in ((lambda x: jnp.sum(x, 0), True), (lambda x: x * x, False)):
        results = [jax.jit(fn)(x)]
        (found,) = verify.spread(lambda x, fn=fn: [fn(x)], [x], results)
        assert (found.max() > 0) == is_sum and found.max() < 1e-3
