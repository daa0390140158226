"""verify= finds a rule that is wrong, whatever it gets wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.fusion import fused as fuse_module
from jaxgnn.fusion.rewrite import Rewrite
from jaxgnn.fusion.rules import neighbour_sum
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
