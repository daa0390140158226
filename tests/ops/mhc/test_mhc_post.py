"""mhc_post against float64 autodiff of its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops._mhc.mhc_post import MHC_POST
from jaxgnn.ops._mhc.reference import mhc_post as reference
from jaxgnn.testing import DTYPES, check_against_float64, check_numerical_gradients
from tests.ops._table import usable
from tests.ops.mhc._mhc import SHAPES, length, outputs, streams, width

IMPLEMENTATIONS = [*usable(MHC_POST), None]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_and_every_gradient_equal_float64(dtype, transposed, implementation):
    _check(((7,), 4, width(implementation)), dtype, transposed, implementation)


@pytest.mark.parametrize("shape", SHAPES)
def test_value_and_every_gradient_equal_float64_at_every_shape(shape):
    _check(shape, "float32", True, None)


def _check(shape, dtype, transposed, implementation):
    options = {"transposed": transposed}
    check_against_float64(
        lambda *args: ops.mhc_post(*args, **options, implementation=implementation),
        jax.jit(lambda *args: reference.mhc_post(*args, **options)),
        streams(*shape, dtype, scale=3.0),
        *outputs(*shape, dtype),
        reduction_length=length(*shape),
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_reference_is_the_formula_token_by_token(transposed):
    x, (f, h_post, h_res) = streams((3,), 2, 5), outputs((3,), 2, 5)
    y = ops.mhc_post(x, f, h_post, h_res, transposed=transposed)
    for token in range(3):
        matrix = np.asarray(h_res[token], np.float64)
        expected = (matrix.T if transposed else matrix) @ np.asarray(x[token], np.float64)
        expected += np.outer(h_post[token], f[token])
        np.testing.assert_allclose(y[token], expected, rtol=1e-5, atol=1e-6)


def test_gradients_agree_with_finite_differences():
    check_numerical_gradients(ops.mhc_post, streams((3,), 2, 4), *outputs((3,), 2, 4))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_static_coefficients_are_shared_by_all_tokens(implementation):
    sizes = (2, 3), 4, width(implementation)
    x, (f, h_post, h_res) = streams(*sizes), outputs(*sizes)

    def per_token(x, f, h_post, h_res):
        h_post, h_res = jnp.broadcast_to(h_post, (2, 3, 4)), jnp.broadcast_to(h_res, (2, 3, 4, 4))
        return reference.mhc_post(x, f, h_post, h_res, transposed=False)

    check_against_float64(
        lambda *args: ops.mhc_post(*args, implementation=implementation),
        jax.jit(per_token),
        x,
        f,
        h_post[0, 0],
        h_res[0, 0],
        reduction_length=6 * width(implementation),
    )


def test_identity_and_a_weight_of_one_are_a_plain_residual():
    x, (f, _, _) = streams((3,), 4, 8, "bfloat16"), outputs((3,), 4, 8, "bfloat16")
    y = ops.mhc_post(x, f, jnp.ones(4), jnp.eye(4))
    np.testing.assert_array_equal(y, x + f[:, None])
