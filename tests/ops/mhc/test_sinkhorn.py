"""sinkhorn and permutation_mixture against float64 autodiff, and against what they promise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops._mhc.reference import sinkhorn as reference
from jaxgnn.ops._mhc.sinkhorn import PERMUTATION_MIXTURE, SINKHORN
from jaxgnn.testing import DTYPES, check_against_float64, random_array
from tests.ops._table import usable

IMPLEMENTATIONS = [*usable(SINKHORN), None]
OPTIONS = {
    "default": {},
    "columns last": {"last": "columns"},
    "one iteration": {"iterations": 1},
    "no eps": {"eps": 0.0},
    "no eps, columns last": {"eps": 0.0, "last": "columns", "iterations": 3},
    "large eps": {"eps": 0.1, "iterations": 4},
}
DEFAULTS = {"iterations": 20, "eps": 1e-6, "last": "rows"}


def _logits(*shape, scale=2.0, dtype="float32", seed=0):
    return random_array(shape, dtype, seed, scale)


@functools.cache  # one function for each, so that JAX compiles it once
def _op(name, implementation=None):
    return jax.jit(functools.partial(ops.sinkhorn, **OPTIONS[name], implementation=implementation))


@functools.cache
def _oracle(name):
    return jax.jit(functools.partial(reference.sinkhorn, **DEFAULTS | OPTIONS[name]))


def _check(logits, name="default", implementation=None):
    check_against_float64(
        _op(name, implementation),
        _oracle(name),
        logits,
        reduction_length=40 * logits.shape[-1],
    )


@pytest.mark.costly
@pytest.mark.parametrize("name", OPTIONS)
def test_value_and_gradient_equal_float64_whatever_the_options(name):
    _check(_logits(5, 4, 4), name)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_value_and_gradient_equal_float64_by_every_implementation(implementation):
    _check(_logits(5, 4, 4), "default", implementation)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 3, 3), (4, 8, 8), (0, 4, 4)])
def test_value_and_gradient_equal_float64_at_every_shape(shape):
    _check(_logits(*shape))


def test_accumulates_in_float32_for_bfloat16_logits():
    _check(_logits(5, 4, 4, dtype="bfloat16"))


def _iterate(logits, iterations, eps, last):
    """One matrix in float64, a division at a time."""
    first, second = {"rows": (0, 1), "columns": (1, 0)}[last]
    m = np.exp(logits - logits.max(axis=first, keepdims=True))
    m = m / m.sum(axis=first, keepdims=True) + eps
    m = m / (m.sum(axis=second, keepdims=True) + eps)
    for _ in range(iterations - 1):
        for axis in (first, second):
            m = m / (m.sum(axis=axis, keepdims=True) + eps)
    return m


@pytest.mark.parametrize("name", OPTIONS)
def test_reference_is_the_iteration_one_division_after_the_other(name):
    logits = _logits(5, 4, 4)
    h = _op(name)(logits)
    for one, matrix in zip(np.asarray(logits, np.float64), h, strict=True):
        expected = _iterate(one, **DEFAULTS | OPTIONS[name])
        np.testing.assert_allclose(matrix, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["default", "columns last", "no eps"])
def test_result_is_doubly_stochastic(name):
    h = np.asarray(_op(name)(_logits(50, 4, 4, scale=1.0)))
    assert (h >= 0).all()
    exact, other = (-2, -1) if name == "columns last" else (-1, -2)
    np.testing.assert_allclose(h.sum(axis=exact), 1, atol=3e-6)
    np.testing.assert_allclose(h.sum(axis=other), 1, atol=1e-3)


def test_without_eps_no_entry_underflows_on_the_way():
    logits = jnp.array([[0.0, -300.0], [-300.0, -500.0]])
    h = _op("no eps")(logits)
    expected = _iterate(np.asarray(logits, np.float64), 20, 0.0, "rows")
    np.testing.assert_allclose(h, expected, atol=1e-5)
    # Far from its limit after 20 iterations, with a gradient that is not nearly zero.
    _check(jnp.array([[0.0, -50.0], [-50.0, -300.0]]), "no eps")
    row_far_below = jnp.zeros((4, 4)).at[0].set(-200.0)
    np.testing.assert_allclose(_op("no eps")(row_far_below), 0.25, rtol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("scale", [100.0, 1e30])
def test_huge_logits_neither_overflow_nor_give_nan(scale, implementation):
    h, pull_back = jax.vjp(_op("default", implementation), _logits(5, 4, 4, scale=scale))
    for array in (h, pull_back(h)[0]):
        assert np.isfinite(array).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["default", "no eps"])
def test_nan_and_infinities_fill_their_token_and_no_other(name, implementation):
    logits = _logits(5, 4, 4).at[:3, 2, 0].set(jnp.array([jnp.nan, jnp.inf, -jnp.inf]))
    h, pull_back = jax.vjp(_op(name, implementation), logits)
    for array in (np.asarray(h), np.asarray(pull_back(jnp.ones_like(h))[0])):
        assert np.isnan(array[:3]).all()
        assert np.isfinite(array[3:]).all()


def _gradients(logits, **options):
    weights = random_array(logits.shape, "float32", seed=9)
    exact, implicit = (
        jax.jit(jax.grad(lambda x, g=g: jnp.sum(weights * ops.sinkhorn(x, gradient=g, **options))))(
            logits
        )
        for g in ("exact", "implicit")
    )
    return np.asarray(exact), np.asarray(implicit)


def test_implicit_gradient_is_the_exact_one_where_the_iteration_has_converged():
    exact, implicit = _gradients(_logits(20, 4, 4, scale=0.5), last="columns")
    np.testing.assert_allclose(implicit, exact, atol=2e-5 * np.abs(exact).max())


def test_implicit_gradient_is_finite_at_a_permutation_and_for_one_stream():
    for logits in (60 * jnp.eye(4), jnp.ones((1, 1))):
        exact, implicit = _gradients(logits)
        np.testing.assert_allclose(implicit, exact, atol=1e-5)


def test_implicit_gradient_keeps_only_the_result():
    logits = _logits(8, 4, 4)
    pull_back = jax.vjp(lambda x: ops.sinkhorn(x, gradient="implicit"), logits)[1]
    assert [leaf.shape for leaf in jax.tree.leaves(pull_back)] == [(8, 4, 4)]


@pytest.mark.parametrize("last", ["rows", "columns"])
def test_implicit_gradient_by_the_reference_is_that_of_both_modes(last):
    """Also where few iterations leave it far from the exact one."""
    options = {"iterations": 2, "last": last, "gradient": "implicit"}
    logits, dlogits, dh = (_logits(5, 4, 4, seed=seed) for seed in range(3))
    by_jax = functools.partial(ops.sinkhorn, **options, implementation="xla")
    expected = jax.vjp(functools.partial(ops.sinkhorn, **options), logits)[1](dh)[0]
    _, pull_back = jax.vjp(by_jax, logits)
    _, along = jax.jvp(by_jax, (logits,), (dlogits,))
    np.testing.assert_allclose(pull_back(dh)[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jnp.vdot(along, dh), jnp.vdot(dlogits, expected), rtol=1e-4)


def test_backward_keeps_only_the_logits():
    logits = _logits(8, 4, 4)
    pull_back = jax.vjp(ops.sinkhorn, logits)[1]
    assert [leaf.shape for leaf in jax.tree.leaves(pull_back)] == [(8, 4, 4)]


@pytest.mark.parametrize("implementation", [*usable(PERMUTATION_MIXTURE), None])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 24])
def test_permutation_mixture_value_and_gradient_equal_float64(count, dtype, implementation):
    check_against_float64(
        functools.partial(ops.permutation_mixture, implementation=implementation),
        jax.jit(reference.permutation_mixture),
        _logits(5, count, dtype=dtype),
        reduction_length=count,
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_permutation_mixture_is_exactly_doubly_stochastic(n):
    count = len(reference.permutation_matrices(n))
    h = np.asarray(ops.permutation_mixture(_logits(7, count, scale=10.0)))
    assert h.shape == (7, n, n)
    for axis in (-1, -2):
        np.testing.assert_allclose(h.sum(axis=axis), 1, atol=1e-6)


def test_permutations_are_in_lexicographic_order():
    matrices = reference.permutation_matrices(3)
    columns = [tuple(matrix.argmax(axis=1).tolist()) for matrix in matrices]
    assert columns == sorted(columns)
    assert columns[0] == (0, 1, 2)
    assert len(set(columns)) == 6
