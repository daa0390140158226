"""Spherical harmonics against e3nn-jax, and where they have no direction."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from jaxgnn.equivariant import MAX_DEGREE, Irreps, spherical_harmonics
from jaxgnn.testing import check_forward_mode, random_array

ALL = Irreps.harmonics(MAX_DEGREE)
VECTORS = random_array((40, 3), "float32", seed=0)


def _e3nn_harmonics(irreps, vectors, normalize):
    return e3nn.spherical_harmonics(e3nn.Irreps(str(irreps)), vectors, normalize).array


@pytest.mark.parametrize("normalize", [True, False])
def test_values_and_first_and_second_derivatives_are_those_of_e3nn(normalize):
    irreps = Irreps.harmonics(3)

    def curvature(harmonics):
        def energy(vectors):
            return jnp.sum(jnp.sin(harmonics(vectors)))

        def value_and_slopes(vectors):
            slope = jax.grad(energy)
            return (
                harmonics(vectors),
                slope(vectors),
                jax.grad(lambda v: jnp.sum(slope(v) ** 2))(vectors),
            )

        with jax.enable_x64(True):
            return jax.jit(value_and_slopes)(np.asarray(VECTORS, np.float64))

    ours = curvature(lambda v: spherical_harmonics(irreps, v, normalize=normalize))
    for actual, expected in zip(
        ours, curvature(lambda v: _e3nn_harmonics(irreps, v, normalize)), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_float32_values_are_those_of_e3nn():
    np.testing.assert_allclose(
        spherical_harmonics(ALL, VECTORS), _e3nn_harmonics(ALL, VECTORS, True), atol=1e-5
    )


@pytest.mark.parametrize("sign", [1, -1], ids=["rotation", "reflection"])
def test_each_degree_turns_by_its_own_matrix(sign):
    irreps = Irreps.harmonics(3)
    turn = sign * Rotation.random(random_state=0).as_matrix().astype(np.float32)
    matrix = e3nn.Irreps(str(irreps)).D_from_matrix(turn)
    turned = spherical_harmonics(irreps, VECTORS @ turn.T)
    np.testing.assert_allclose(turned, spherical_harmonics(irreps, VECTORS) @ matrix.T, atol=3e-5)


def test_squares_of_the_components_of_a_degree_add_up_to_their_number():
    squares = spherical_harmonics(ALL, VECTORS) ** 2
    for entry, columns in zip(ALL, ALL.slices, strict=True):
        np.testing.assert_allclose(squares[:, columns].sum(axis=1), entry.dim, rtol=1e-5)


def test_a_zero_vector_has_no_direction_and_a_zero_gradient_of_any_order():
    def energy(vector):
        return jnp.sum(jnp.sin(spherical_harmonics(3, vector)))

    zero = jnp.zeros(3)
    assert spherical_harmonics(3, zero).tolist() == [1.0] + 15 * [0.0]
    assert jax.grad(energy)(zero).tolist() == [0.0] * 3
    assert not jax.hessian(energy)(zero).any()


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_directions_of_tiny_and_huge_vectors_are_exact(length):
    expected = spherical_harmonics(3, VECTORS)
    np.testing.assert_allclose(
        spherical_harmonics(3, VECTORS * length), expected, rtol=1e-4, atol=1e-5
    )
    slope = jax.jacobian(lambda v: spherical_harmonics(2, v))
    near, far = slope(VECTORS[0]), slope(VECTORS[0] * length) * length
    np.testing.assert_allclose(far, near, rtol=1e-4, atol=1e-5)


def test_numbers_that_are_not_finite_stay_in_their_vector():
    spoiled = VECTORS.at[1, 2].set(jnp.nan).at[2, 0].set(jnp.inf)
    actual = spherical_harmonics("1o+2e", spoiled)
    assert np.isnan(actual[1:3]).any(axis=1).all()
    np.testing.assert_array_equal(actual[3:], spherical_harmonics("1o+2e", VECTORS)[3:])


def test_forward_mode_is_the_transpose_of_the_gradient():
    check_forward_mode(lambda v: spherical_harmonics(4, v), VECTORS)


def test_entries_may_be_in_any_order_and_arrays_of_any_shape_and_dtype():
    both = spherical_harmonics("2e+1o", VECTORS.reshape(5, 8, 3))
    assert both.shape == (5, 8, 8)
    np.testing.assert_allclose(both[..., 5:].reshape(40, 3), spherical_harmonics("1o", VECTORS))
    assert spherical_harmonics(2, VECTORS[:0]).shape == (0, 9)
    assert spherical_harmonics(2, VECTORS.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "irreps, vectors, named",
    [
        ("1e", VECTORS, r"irreps must be of parity \(-1\)\^degree, got 1x1e"),
        ("2x1o", VECTORS, "irreps must be of one channel each, got 2x1o"),
        ("7o", VECTORS, "irreps must be of degree at most 6, got 7"),
        (9, VECTORS, "irreps must be of degree at most 6, got 9"),
        (-1, VECTORS, "irreps must be irreps such as"),
        ("1z", VECTORS, "irreps must be irreps such as"),
        (1, VECTORS[:, :2], r"vectors must be of shape \[..., 3\], got shape \(40, 2\)"),
        (1, jnp.ones((4, 3), int), "vectors must be of a floating dtype"),
        (1, [0.0, 0.0, 1.0], "vectors must be an array, got list"),
    ],
)
def test_bad_input_is_named(irreps, vectors, named):
    with pytest.raises(ValueError, match=f"spherical_harmonics: {named}"):
        spherical_harmonics(irreps, vectors)
