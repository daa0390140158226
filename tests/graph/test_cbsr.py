"""CBSR: the dense matrix it stands for, its dtypes and its life as a pytree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgnn.graph import CBSR, column_dtype
from tests.graph._oracles import assert_same_tree

PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)


todense = jax.jit(CBSR.todense)


def random_rows(seed, dim, k, batch=(3,)):
    """Random values at random ascending columns, and the dense matrix."""
    rng = np.random.default_rng(seed)
    columns = np.stack(
        [np.sort(rng.choice(dim, k, replace=False)) for _ in range(np.prod(batch, dtype=int))]
    ).reshape(*batch, k)
    values = rng.normal(size=columns.shape).astype(np.float32)
    matrix = np.zeros((*batch, dim), np.float32)
    np.put_along_axis(matrix, columns, values, axis=-1)
    return CBSR(jnp.asarray(values), jnp.asarray(columns.astype(column_dtype(dim))), dim), matrix


@PROPERTY
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([(1, 1), (9, 1), (9, 9), (300, 33)]))
def test_todense_puts_each_value_in_its_column(seed, size):
    cbsr, matrix = random_rows(seed, *size)
    np.testing.assert_array_equal(todense(cbsr.validate()), matrix)


@pytest.mark.parametrize("dim", [255, 256, 257, 65_536, 65_537])
def test_the_last_column_is_reached_at_every_width_of_ids(dim):
    ids = jnp.array([[0, dim - 1]], column_dtype(dim))
    cbsr = CBSR(jnp.array([[1.0, 2.0]]), ids, dim).validate()
    dense = np.asarray(todense(cbsr))
    assert (dense[0, 0], dense[0, dim - 1], np.count_nonzero(dense)) == (1, 2, 2)


@pytest.mark.parametrize(
    ("dim", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")],
)
def test_ids_have_the_smallest_dtype_that_holds_them(dim, dtype):
    assert column_dtype(dim) == np.dtype(dtype)
    assert np.iinfo(column_dtype(dim)).max >= dim - 1


def test_leading_axes_are_a_batch():
    cbsr, matrix = random_rows(0, 9, 4, batch=(2, 5, 3))
    assert (cbsr.shape, cbsr.k, cbsr.dtype) == ((2, 5, 3, 9), 4, jnp.float32)
    np.testing.assert_array_equal(todense(cbsr.validate()), matrix)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_dense_matrix_has_the_dtype_of_the_values(dtype):
    cbsr, matrix = random_rows(0, 9, 4)
    cbsr = CBSR(cbsr.values.astype(dtype), cbsr.indices, 9)
    assert todense(cbsr).dtype == cbsr.dtype == dtype
    np.testing.assert_array_equal(todense(cbsr), matrix.astype(dtype))


def test_no_rows():
    cbsr = CBSR(jnp.zeros((0, 2)), jnp.zeros((0, 2), jnp.uint8), 4).validate()
    assert todense(cbsr).shape == (0, 4)


def test_values_need_not_be_finite():
    """They are features, and a diverged network should show that it is."""
    cbsr = CBSR(jnp.array([[jnp.nan, jnp.inf]]), jnp.array([[0, 2]], jnp.uint8), 3).validate()
    np.testing.assert_array_equal(todense(cbsr), [[np.nan, 0, np.inf]])


def test_the_gradient_of_todense_picks_the_kept_entries():
    cbsr, _ = random_rows(1, 9, 4)
    factors = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)

    @jax.jit
    @jax.grad
    def gradient(values):
        return jnp.sum(CBSR(values, cbsr.indices, 9).todense() * factors)

    expected = np.take_along_axis(factors, np.asarray(cbsr.indices).astype(int), axis=-1)
    np.testing.assert_array_equal(gradient(cbsr.values), expected)


def test_is_a_pytree_with_a_static_width():
    cbsr, matrix = random_rows(2, 9, 4, batch=(2, 3))
    assert len(jax.tree.leaves(cbsr)) == 2
    assert_same_tree(jax.jit(lambda c: c)(cbsr), cbsr)
    np.testing.assert_array_equal(todense(cbsr), matrix)
    np.testing.assert_array_equal(jax.jit(jax.vmap(CBSR.todense))(cbsr), matrix)
    assert jax.tree.structure(cbsr) != jax.tree.structure(CBSR(cbsr.values, cbsr.indices, 10))
