"""mhc_expand and mhc_head against float64 autodiff of their formulae."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops._mhc.mhc_head import MHC_HEAD
from jaxgnn.ops._mhc.reference import mhc_head as reference
from jaxgnn.testing import DTYPES, assert_close, check_against_float64, random_array
from pallas_kernels.arguments.mhc import MHCParams
from tests.ops._table import usable
from tests.ops.mhc._mhc import SHAPES, length, parameters, streams

IMPLEMENTATIONS = [*usable(MHC_HEAD), None]
CONSTANTS = {"norm_eps": 1e-3, "pre_eps": 1e-2}


@functools.cache  # one function for each, so that JAX compiles it once
def _op(implementation):
    return functools.partial(ops.mhc_head, **CONSTANTS, implementation=implementation)


@jax.jit
def _oracle(*args):
    x, *params = args
    return reference.mhc_head(x, MHCParams(*params), **CONSTANTS)[0]


def _check(shape, dtype, scale, implementation):
    phi, alpha, bias, gamma = parameters(*shape[1:], rows=shape[1])
    check_against_float64(
        _op(implementation),
        _oracle,
        streams(*shape, dtype, scale),
        phi,
        alpha[0],
        bias,
        gamma,
        reduction_length=length(*shape),
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_head_value_and_every_gradient_equal_float64(scale, dtype, implementation):
    _check(((6,), 4, 24), dtype, scale, implementation)


@pytest.mark.parametrize("shape", SHAPES[::3])
def test_head_value_and_every_gradient_equal_float64_at_every_shape(shape):
    _check(shape, "float32", 1.0, None)


def test_head_is_the_input_that_mhc_pre_makes():
    x, (phi, alpha, bias, gamma) = streams((5,), 3, 8), parameters(3, 8)
    head = ops.mhc_head(x, phi[:3], alpha[0], bias[:3], gamma)
    h_in = ops.mhc_pre(x, phi, alpha, bias, gamma)[0]
    assert_close(head, np.asarray(h_in, np.float64), reduction_length=3 * 8)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_expand_copies_and_its_gradient_sums_in_float32(dtype, implementation):
    x = random_array((5, 6), dtype, seed=0)
    y, pull_back = jax.vjp(lambda x: ops.mhc_expand(x, 7, implementation=implementation), x)
    assert y.shape == (5, 7, 6)
    np.testing.assert_array_equal(y, jnp.repeat(x[:, None], 7, axis=1))
    dy = random_array(y.shape, dtype, seed=1)
    expected = np.asarray(dy).astype(np.float64).sum(axis=1).astype(dtype)
    actual = pull_back(dy)[0]
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(actual.astype(jnp.float32), expected.astype(jnp.float32), rtol=1e-2)
