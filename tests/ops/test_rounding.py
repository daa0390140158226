"""Quotients and exponentials of float32 that are rounded well whatever the device divides with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.ops.core import rounding

NUMBERS = 100_000


def _floats(draws):
    """Numbers of many sizes."""
    return draws.standard_normal(NUMBERS) * 10.0 ** draws.integers(-9, 9, NUMBERS)


def _members(draws):
    return draws.integers(1, 2000, NUMBERS)


@pytest.mark.parametrize("divisors", [_floats, _members])
def test_a_quotient_wrong_by_up_to_two_units_becomes_the_nearest(divisors):
    draws = np.random.default_rng(0)
    a, b = (numbers(draws).astype(np.float32) for numbers in (_floats, divisors))
    q = (a / b).view(np.int32) + draws.integers(-2, 3, NUMBERS, np.int32)
    exact = (a.astype(np.float64) / b).astype(np.float32)
    assert (q.view(np.float32) != exact).mean() > 0.5
    np.testing.assert_array_equal(jax.jit(rounding.corrected)(a, b, q.view(np.float32)), exact)


def test_quotients_of_numbers_that_are_not_finite_or_tiny_are_those_of_xla():
    numbers = [0.0, -0.0, np.inf, -np.inf, np.nan, 2e-38, 1e-30, 7e-23]
    pairs = np.meshgrid([1.0, -3.0, *numbers], numbers)
    few, many = (jnp.asarray(array, jnp.float32) for array in pairs)
    for a, b in ((few, many), (many, few)):
        expected, made = a / b, rounding.divided(a, b)
        np.testing.assert_array_equal(made, expected)
        np.testing.assert_array_equal(jnp.signbit(made), jnp.signbit(expected))


def test_a_quotient_of_the_largest_numbers_is_the_nearest():
    a, b = np.float32([3e38, 3e38, -3.4e38]), np.float32([3, 2.9e38, 1.5])
    exact = (a.astype(np.float64) / b).astype(np.float32)
    np.testing.assert_array_equal(rounding.divided(jnp.asarray(a), jnp.asarray(b)), exact)


def test_an_exponential_is_wrong_by_two_thirds_of_a_unit_at_most():
    x = np.random.default_rng(0).uniform(-87, 88.7, NUMBERS).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    units = np.spacing(exact.astype(np.float32))
    made = np.asarray(jax.jit(rounding.exponential_in_parts)(x))
    assert np.abs((made - exact) / units).max() < 2 / 3
    edges = jnp.array([-np.inf, -1e30, 0, np.inf, 1e30, np.nan], jnp.float32)
    expected = [0, 0, 1, np.inf, np.inf, np.nan]
    np.testing.assert_array_equal(rounding.exponential_in_parts(edges), np.float32(expected))


@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_derivatives_are_those_of_the_plain_functions(mode):
    a, b = jnp.float32(3), jnp.float32(7)
    both = mode(rounding.quotient, (0, 1))(a, b), mode(jax.lax.div, (0, 1))(a, b)
    np.testing.assert_allclose(*map(jnp.array, both), rtol=1e-6)
    assert mode(mode(rounding.exponential))(a) == rounding.exponential(a)
