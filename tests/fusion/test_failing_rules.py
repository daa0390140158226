"""A rule that fails leaves the function as it was, and says so."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxgnn
from jaxgnn.fusion import fused as fuse_module
from jaxgnn.fusion.rules import neighbour_sum
from jaxgnn.fusion.rules.rule import Rewrite
from tests.fusion._cases import NODES, RECEIVERS, SENDERS, arrays

(X,) = arrays((NODES, 3))
ERRORS = [TypeError("wrong"), KeyError("gone"), ValueError("bad"), ZeroDivisionError("none")]


def _layer(x):
    return jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES)


def _in_propose(view, equation, error):
    raise error


def _in_function(view, equation, error):
    made = neighbour_sum.RULE.propose(view, equation)
    if not isinstance(made, Rewrite):
        return made

    def function(*arrays):
        raise error

    return dataclasses.replace(made, function=function)


def _of_another_type(view, equation, error):
    made = neighbour_sum.RULE.propose(view, equation)
    if not isinstance(made, Rewrite):
        return made
    right = made.function
    return dataclasses.replace(made, function=lambda *a: [right(*a)[0].astype("bfloat16")])


PLACES = {"propose": _in_propose, "function": _in_function, "type": _of_another_type}


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_rule_that_raises_leaves_the_function_as_it_was(place, error, monkeypatch):
    def propose(view, equation):
        return PLACES[place](view, equation, error)

    rule = dataclasses.replace(neighbour_sum.RULE, propose=propose)
    monkeypatch.setattr(fuse_module, "RULES", (rule,))
    fused = jaxgnn.fuse(_layer, only_if_faster=False)
    name = "TypeError" if place == "type" else type(error).__name__
    message = f"the rule neighbour_sum failed with {name}"
    with pytest.warns(UserWarning, match=f"_layer is left as it is: {message}.*report it"):
        y = fused(X)
    np.testing.assert_allclose(y, _layer(X), rtol=1e-6)
    with pytest.warns(UserWarning, match=message):
        g = jax.grad(lambda x: fused(x).sum())(X)
    np.testing.assert_allclose(g, jax.grad(lambda x: _layer(x).sum())(X), rtol=1e-6)
    found = jaxgnn.fuse.explain(fused, X, measure=False)
    assert message in str(found) and not found.findings.applied


class Panic(BaseException):
    """An error as code in Rust raises it, which is no Exception."""


@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_a_fault_outside_of_the_rules_leaves_the_function_as_it_was(error, monkeypatch):
    def fail(*args):
        raise error("no program")

    monkeypatch.setattr(fuse_module, "transformed", fail)
    fused = jaxgnn.fuse(_layer)
    with pytest.warns(UserWarning, match=f"rewriting failed: {error.__name__}: no program"):
        np.testing.assert_allclose(fused(X), _layer(X), rtol=1e-6)


def test_an_interrupt_is_not_caught(monkeypatch):
    def propose(view, equation):
        raise KeyboardInterrupt

    rule = dataclasses.replace(neighbour_sum.RULE, propose=propose)
    monkeypatch.setattr(fuse_module, "RULES", (rule,))
    with pytest.raises(KeyboardInterrupt):
        jaxgnn.fuse(_layer)(X)
