"""Known-wrong rules: verify="strict" catches each, by outputs or by gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.fusion import fused as fuse_module
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.fusion.rules.table import RULES
from tests.fusion._cases import NODES, RECEIVERS, SENDERS, arrays, fuse

X = arrays((NODES, 4))[0]
SCALED = 3.0 * X + 1.0


def _sum(x):
    return jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES)


def _first(*args):
    return args[0]


# Of each: the primitive, what is wrongly put in its place, and a function where that shows.
SIMPLER = {
    "tanh is its argument": ("tanh", _first, jnp.tanh),
    "x / x is one": ("div", lambda a, b: jnp.ones_like(a), lambda x: x / jnp.roll(x, 1)),
    "the root of a square is its argument": (
        "sqrt",
        _first,
        lambda x: jnp.sqrt(jnp.square(x) ** 2 + 1e-3),
    ),
    "a narrow cast is none": (
        "convert_element_type",
        lambda a: jnp.round(a).astype(jnp.int32),
        lambda x: x.astype(jnp.int32),
    ),
    "a norm of a norm is one": ("rsqrt", jnp.ones_like, lambda x: x * jax.lax.rsqrt(x**2 + 1)),
    "a residual is a bias": ("add", lambda a, b: a + b[:1], lambda x: jnp.sin(x) + x),
    "a difference is a sum": ("sub", lambda a, b: a + b, lambda x: jnp.sin(x) - x),
    "gelu in the place of relu": ("max", lambda a, b: jax.nn.gelu(a), lambda x: jnp.maximum(x, 0)),
    "the other branch": ("select_n", lambda p, a, b: a, lambda x: jnp.where(x > 0, x, 2 * x)),
    "exp without its shift": ("sub", _first, lambda x: jnp.exp(x - x.max())),
    "a product without its transpose": (
        "dot_general",
        lambda a, b: a @ b.T,
        lambda x: x[:4] @ jnp.roll(x, 1, 0)[:4],
    ),
    "a stop is none": ("stop_gradient", _first, lambda x: jax.lax.stop_gradient(x) * x),
    "a power is its argument": ("integer_pow", _first, lambda x: x**3),
    "a mean is a sum": ("reduce_sum", lambda a: a.sum(-1) / 4, lambda x: x.sum(-1)),
}
# Of rules of graphs: the rule, and what is done to its results.
SPOILED = {
    "a repeated edge counts once": ("neighbour_sum", lambda y: jnp.sign(y)),
    "rows without edges are one": ("neighbour_sum", lambda y: jnp.where(y == 0, 1, y)),
    "the gradient is that of the transpose": (
        "neighbour_sum",
        lambda y: y + jnp.roll(y, 1, 0) - jax.lax.stop_gradient(jnp.roll(y, 1, 0)),
    ),
    "the gradient is lost": ("neighbour_sum", jax.lax.stop_gradient),
    "the last row is left out": ("neighbour_sum", lambda y: y.at[NODES - 2].set(0)),
    "half precision": ("neighbour_sum", lambda y: y.astype(jnp.bfloat16).astype(y.dtype)),
    "ties count twice": ("neighbour_extreme", lambda y: y + 0.5 * (y - jax.lax.stop_gradient(y))),
    "empty segments are zero": ("neighbour_extreme", lambda y: jnp.where(jnp.isinf(y), 0, y)),
}


def _is_caught(rule, fn, x, monkeypatch):
    monkeypatch.setattr(fuse_module, "RULES", (rule,))
    fused = fuse(fn, verify="strict")
    with pytest.warns(UserWarning, match="is not what it was: (output|gradient)"):
        y = fused(x)
    # The function as it is; a GPU adds the terms of a scatter in another order each time.
    np.testing.assert_allclose(y, fn(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SIMPLER)
def test_a_wrong_simplification_is_caught(name, monkeypatch):
    primitive, wrong, fn = SIMPLER[name]

    def propose(view, equation):
        (made,) = equation.outvars

        def instead(*arrays):
            return [wrong(*arrays).astype(made.aval.dtype)]

        return Rewrite(equation, equation.invars, instead, name, 1, 1)

    _is_caught(Rule("wrong", frozenset((primitive,)), propose), fn, SCALED, monkeypatch)


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_rule_is_caught(name, monkeypatch):
    of, wrong = SPOILED[name]
    (right,) = [rule for rule in RULES if rule.name == of]

    def propose(view, equation):
        made = right.propose(view, equation)
        if not isinstance(made, Rewrite):
            return made
        old = made.function
        return dataclasses.replace(made, function=lambda *a: [wrong(old(*a)[0])])

    def fn(x):
        return (
            _sum(x) if of == "neighbour_sum" else jax.ops.segment_max(x[SENDERS], RECEIVERS, NODES)
        )

    _is_caught(dataclasses.replace(right, propose=propose), fn, X, monkeypatch)
