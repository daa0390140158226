"""Rewrites of numbers near the limits of their dtype, and of those that are not finite.

The page "Rewriting plain JAX" lists the conditions; ``explain`` names those of each rewrite.
"""

import html

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

import jaxgnn
from tests.fusion._cases import applied, arrays, fuse, refused
from tests.fusion._eager import one_by_one

# Two edges from either node to the first node, and one to the second.
SENDERS, RECEIVERS = jnp.array([0, 1, 0, 1]), jnp.array([0, 0, 0, 1])
NODES, EDGES = 2, 4
TWICE = jnp.concatenate([SENDERS, SENDERS])
ONES = jnp.ones((NODES, 2))
OF_EDGES = jnp.ones((EDGES, 1))
INF = jnp.inf


def _sum(data):
    return jax.ops.segment_sum(data, RECEIVERS, NODES)


def _max(data):
    return jax.ops.segment_max(data, RECEIVERS, NODES)


def _softmax(logits):
    return jraph.segment_softmax(logits, RECEIVERS, NODES)


def _guarded(logits):
    highest = jnp.where(jnp.isneginf(_max(logits)), 0.0, _max(logits))
    powers = jnp.exp(logits - highest[RECEIVERS])
    totals = _sum(powers)
    return powers / jnp.where(totals > 0, totals, 1.0)[RECEIVERS]


def _assumed(fn, *args):
    findings = jaxgnn.fuse.explain(fuse(fn), *args, measure=False).findings
    return "; ".join(text for one in findings.applied for text in one.assumes)


def _masked(x):
    columns = jax.lax.top_k(x, 1)[1]
    return x * jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], columns].set(1)


def _scattered(x):
    values, columns = jax.lax.top_k(x, 1)
    return jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], columns].set(values)


def _mlp(x):
    ends = jnp.concatenate([x[RECEIVERS], x[SENDERS]], -1)
    return jax.nn.relu(ends @ jnp.eye(4)) @ jnp.full((4, 1), 1e-10)


HUGE, TINY = jnp.full((EDGES, 1), 1e25), jnp.full((EDGES, 1), 1e-25)
KEPT = {
    "known weights whose product overflows": (lambda x: _sum(x[SENDERS] * HUGE * HUGE), 1e-30),
    "known weights whose product underflows": (lambda x: _sum(x[SENDERS] * TINY * TINY), 1e30),
    "a known constant below one": (lambda x: _sum(x[SENDERS] * 1e-20), 3e38),
    "a constant beside weights": (lambda x: _sum(x[SENDERS] * OF_EDGES * 1e-20), 3e38),
    "a quotient by a constant": (lambda x: _sum(x[SENDERS] / 1e20), 3e38),
    "a constant of the largest entries": (
        lambda x: _sum(_scattered(x)[SENDERS] * 1e-20)[:, :1],
        3e38,
    ),
    "the constant of a softmax": (
        lambda x: _sum(x[SENDERS] * _softmax(OF_EDGES) * 1e-20) * 1e20,
        3e37,
    ),
    "a sum by nodes, of factors in turn": (
        lambda x: (x[TWICE] * jnp.full(2, 1e25) * jnp.full(2, 1e25)).sum(-1),
        1e-30,
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_known_stays_in_range(name):
    fn, value = KEPT[name]
    x = value * ONES
    assert applied(fuse(fn), x)
    # One operation after the other: XLA multiplies constants with each other under ``jit``.
    made, expected = (one_by_one(jax.make_jaxpr(f)(x))(x)[0] for f in (fuse(fn), fn))
    assert jnp.isfinite(expected).all() and (expected != 0).all()
    np.testing.assert_allclose(made, expected, rtol=1e-5)


def test_a_constant_that_is_an_argument_multiplies_rows_before_they_are_summed():
    def run(x, c):
        return _sum(x[SENDERS] * c)

    x, c = 3e38 * ONES, jnp.float32(1e-20)
    assert applied(fuse(run), x, c) == ["spmm"] and _assumed(run, x, c) == ""
    np.testing.assert_allclose(fuse(run)(x, c), run(x, c), rtol=1e-5)


SHORT = {
    "weights": (lambda x, w: _sum(x[SENDERS] * w * w), 0.1, 300.0),
    "divisors": (lambda x, w: _sum(x[SENDERS] / w / w), 0.01, 1e-3),
    "rows of the receiver": (lambda x, w: _sum(x[SENDERS] * (w[:2] * x / x)[RECEIVERS]), 3e4, 0.1),
    "a constant": (lambda x, w: _sum(x[SENDERS] * w[0, 0]), 6e4, 0.1),
}


@pytest.mark.parametrize("name", SHORT)
def test_float16_is_multiplied_and_summed_in_the_range_of_float32(name):
    fn, value, weight = SHORT[name]
    args = (value * ONES).astype(jnp.float16), (weight * OF_EDGES).astype(jnp.float16)
    assert applied(fuse(fn), *args) == ["spmm"]
    made, expected = fuse(fn)(*args), fn(*args)
    assert made.dtype == jnp.float16 and jnp.isfinite(expected).all()
    np.testing.assert_allclose(made, expected, rtol=5e-3)


# Of each: a function, its arguments, and a part of what ``explain`` says that it assumes.
NOT_KEPT = {
    "weights whose product overflows": (
        lambda x, a, b: _sum(x[SENDERS] * a * b),
        (1e-30 * ONES, HUGE, HUGE),
        "products of weights that neither overflow nor underflow",
    ),
    "weights whose product underflows": (
        lambda x, a, b: _sum(x[SENDERS] * a * b),
        (1e30 * ONES, TINY, TINY),
        "products of weights that neither overflow nor underflow",
    ),
    "a sum that overflows before the receiver's rows": (
        lambda x, h: _sum(x[SENDERS] * h[RECEIVERS]),
        (3e38 * ONES, 0.25 * ONES),
        "sums that do not overflow before the receiver's rows",
    ),
    "infinite rows of the receiver": (
        lambda x, h: _sum(x[SENDERS] * h[RECEIVERS]),
        (jnp.array([[2.0, 2.0], [-1.0, -1.0]]), INF * ONES),
        "finite numbers",
    ),
    "a large scale of inner products": (
        lambda q, k: _sum(
            k[SENDERS] * _softmax((q[RECEIVERS] * k[SENDERS]).sum(-1) * 1e20)[:, None]
        ),
        (1e25 * ONES, 1e-30 * ONES),
        "queries times the scale",
    ),
    "a sum of hidden features that overflows": (
        lambda x: _sum(_mlp(x)),
        (2e38 * ONES,),
        "sums over edges that do not overflow before the last layer",
    ),
    "an order of a sum and a product": (
        lambda x, w: _sum(x[SENDERS] * OF_EDGES * 1e-3) @ w,
        (2 * ONES, jnp.array([[3e38], [-3e38]])),
        "sums and products that do not overflow in either order",
    ),
    "an infinite entry under a mask": (
        _masked,
        (jnp.array([[1.0, -INF, 3.0]]),),
        "rows of finite numbers",
    ),
    "an infinite entry under a mask, in a sum": (
        lambda x: _sum(_masked(x)[SENDERS]),
        (jnp.array([[1.0, -INF, 3.0], [1.0, 2.0, 3.0]]),),
        "rows of finite numbers",
    ),
    "a logit of +inf under a guard": (_guarded, (jnp.array([1.0, INF, 2.0, 3.0]),), "not +inf"),
    "logits of -inf alone": (
        lambda a, x: _sum(
            x[SENDERS] * _softmax(jax.nn.leaky_relu(a[RECEIVERS] + a[SENDERS]))[:, None]
        ),
        (jnp.array([-INF, 0.0]), ONES),
        "a finite logit at each row with edges",
    ),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_explain_names_what_is_not_kept(name):
    fn, args, assumed = NOT_KEPT[name]
    explanation = jaxgnn.fuse.explain(fuse(fn), *args, measure=False)
    assert any(assumed in text for one in explanation.findings.applied for text in one.assumes)
    assert assumed in str(explanation) and html.escape(assumed) in explanation._repr_html_()
    assert not np.array_equal(fuse(fn)(*args), fn(*args), equal_nan=True)


@pytest.mark.parametrize("fn", [_scattered, lambda x: jnp.where(_scattered(x) != 0, x, 0)])
def test_other_ways_to_keep_the_largest_entries_assume_nothing(fn):
    x = jnp.array([[1.0, -INF, 3.0]])
    assert _assumed(fn, x) == ""
    np.testing.assert_array_equal(fuse(fn)(x), fn(x))


@pytest.mark.parametrize("reduce", [jax.ops.segment_max, jax.ops.segment_min])
@pytest.mark.parametrize("of", ["rows", "edges"])
def test_ties_at_the_start_of_an_extreme_share_the_gradient_with_it(reduce, of):
    ids = jnp.array([0, 0, 1, 1, 1, 3])  # the third segment is empty
    end = -INF if reduce is jax.ops.segment_max else INF
    x = jnp.array([end, end, 1.0, 1.0, end, end])[:, None] * jnp.ones(2)
    x = x.at[3, 1].set(jnp.nan).at[2, 0].set(-end)

    def slopes(fuse):
        def run(x):
            return reduce(x[jnp.arange(6)[::-1]] if of == "rows" else x, ids, 4)

        y, back = jax.vjp(fuse(run), x)
        return y, *back(1 + jnp.arange(8.0).reshape(4, 2))

    for made, expected in zip(slopes(fuse), slopes(lambda fn: fn), strict=True):
        np.testing.assert_array_equal(made, expected)


def test_a_softmax_without_guards_spreads_infinities_as_the_code_does():
    logits = jnp.array([1.0, INF, 2.0, -INF])
    assert applied(fuse(_softmax), logits) == ["segment_softmax"]
    np.testing.assert_array_equal(fuse(_softmax)(logits), _softmax(logits))


def test_the_reason_is_named_where_known_weights_leave_the_range():
    fn, value = KEPT["known weights whose product underflows"]
    assert "a product of known weights overflows or underflows" in refused(fuse(fn), value * ONES)


def test_weights_that_are_zero_or_infinite_themselves_are_not_out_of_range():
    norms = jnp.array([INF, 0.0, 1.0, 2.0])[:, None]

    def run(x):
        return _sum(x[SENDERS] * norms * norms)

    (x,) = arrays((NODES, 2))
    assert applied(fuse(run), x) == ["spmm"]
    np.testing.assert_allclose(fuse(run)(x), run(x), rtol=1e-6)
