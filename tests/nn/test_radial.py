"""Radial bases and the polynomial envelope: formulas, derivatives, and distances at the ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import nn
from jaxgnn.testing import assert_close

CUTOFF = 2.5
DISTANCES = np.array([0.3, 0.9, 1.7, 2.4, 2.5, 3.0])


def _bessel(distances, num):
    """The formula in float64, zero from the cutoff on."""
    angles = np.arange(1, num + 1) * np.pi * distances[:, None] / CUTOFF
    waves = np.sqrt(2 / CUTOFF) * np.sin(angles) / distances[:, None]
    return np.where(distances[:, None] < CUTOFF, waves, 0)


def _envelope(distances, p):
    x = np.minimum(distances / CUTOFF, 1)
    terms = (p + 1) * (p + 2) / 2, p * (p + 2), p * (p + 1) / 2
    return 1 - terms[0] * x**p + terms[1] * x ** (p + 1) - terms[2] * x ** (p + 2)


def _gaussians(distances, num):
    apart = distances[:, None] - np.linspace(0, CUTOFF, num)
    return np.exp(-0.5 * (apart * (num - 1) / CUTOFF) ** 2)


def test_values_are_those_of_the_formulas():
    near = np.array([1e-3, 0.02, 0.1])  # on both sides of the series of the sine
    distances = np.concatenate([near, DISTANCES])
    rounded = jnp.asarray(distances, jnp.float32)
    distances = np.asarray(rounded, np.float64)
    pairs = [
        (nn.BesselBasis(5, CUTOFF)(rounded), _bessel(distances, 5)),
        (nn.GaussianBasis(5, CUTOFF)(rounded), _gaussians(distances, 5)),
        *((nn.polynomial_envelope(rounded, CUTOFF, p), _envelope(distances, p)) for p in (2, 6)),
    ]
    for actual, expected in pairs:
        assert_close(actual, expected, reduction_length=8)


def test_float64_is_exact_to_rounding():
    with jax.enable_x64(True):
        distances = jnp.asarray(DISTANCES)
        np.testing.assert_allclose(
            nn.BesselBasis(5, CUTOFF)(distances), _bessel(DISTANCES, 5), atol=1e-14
        )
        np.testing.assert_allclose(
            nn.polynomial_envelope(distances, CUTOFF), _envelope(DISTANCES, 6), atol=1e-13
        )


def _derivatives(function, at):
    """The function and its first three derivatives at a distance, in float64."""
    with jax.enable_x64(True):
        values = []
        for _ in range(4):
            values.append(np.asarray(function(jnp.asarray(at))))
            function = jax.jacfwd(function)
        return values


def test_the_envelope_and_two_derivatives_vanish_at_the_cutoff():
    def envelope(distance):
        return nn.polynomial_envelope(distance, CUTOFF)

    np.testing.assert_array_equal(_derivatives(envelope, CUTOFF), 0)
    just_inside = _derivatives(envelope, CUTOFF - 1e-6)
    np.testing.assert_allclose(just_inside[:3], 0, atol=1e-4)
    assert abs(just_inside[3]) > 1  # the third jumps
    np.testing.assert_allclose(_derivatives(envelope, 0.0), [1, 0, 0, 0], atol=1e-14)


@pytest.mark.parametrize("distance", [0.0, 1e-7])
def test_waves_have_their_limit_and_exact_derivatives_near_zero(distance):
    frequencies = np.arange(1, 5) * np.pi / CUTOFF
    factor = np.sqrt(2 / CUTOFF) * frequencies
    actual = _derivatives(nn.BesselBasis(4, CUTOFF), distance)
    np.testing.assert_allclose(actual[0], factor, rtol=1e-12)
    np.testing.assert_allclose(actual[1], -factor * frequencies**2 * distance / 3, rtol=1e-6)
    np.testing.assert_allclose(actual[2], -factor * frequencies**2 / 3, rtol=1e-6)


def test_atoms_at_one_place_and_far_away_have_finite_gradients_and_nan_is_not_hidden():
    basis = nn.BesselBasis(3, CUTOFF)

    def features(distances):
        return basis(distances) * nn.polynomial_envelope(distances, CUTOFF)[:, None]

    ends = jnp.array([0.0, CUTOFF, jnp.inf])
    value, gradient = jax.value_and_grad(lambda d: jnp.sum(features(d)))(ends)
    assert np.isfinite(value) and not gradient.any()
    assert not features(ends)[1:].any()
    assert np.isnan(features(jnp.array([jnp.nan]))).all()


def test_dtypes_are_kept_and_integers_are_numbers():
    for function in (
        nn.BesselBasis(3, CUTOFF),
        nn.GaussianBasis(3, CUTOFF),
        lambda distances: nn.polynomial_envelope(distances, CUTOFF),
    ):
        assert function(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
        whole, floating = function(jnp.ones(2, int)), function(jnp.ones(2))
        np.testing.assert_array_equal(whole, floating)
        assert function(jnp.ones((2, 0))).shape[:2] == (2, 0)


@pytest.mark.parametrize(
    "options, message",
    [({"cutoff": 0.0}, "cutoff must be a finite number above 0"), ({"p": 1}, "p must be at least")],
)
def test_bad_options_of_the_envelope_are_named(options, message):
    with pytest.raises(ValueError, match=f"nn.polynomial_envelope: {message}"):
        nn.polynomial_envelope(jnp.ones(1), **({"cutoff": 1.0} | options))
