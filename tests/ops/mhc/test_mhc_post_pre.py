"""mhc_post_pre against float64 autodiff, and against the two ops that it fuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgnn import ops
from jaxgnn.ops._mhc.mhc_post_pre import MHC_POST_PRE
from jaxgnn.ops._mhc.reference import mhc_post as reference_post
from jaxgnn.ops._mhc.reference import mhc_pre as reference_pre
from jaxgnn.testing import check_against_float64
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from tests.ops._table import usable
from tests.ops.mhc._mhc import SHAPES, length, outputs, parameters, rounded, streams, width

IMPLEMENTATIONS = [*usable(MHC_POST_PRE), None]
CONSTANTS = {"norm_eps": 1e-3, "pre_eps": 1e-2, "post_scale": 1.7}


@functools.cache
def _oracle(dtype, transposed):
    """The two formulae. What lies between them is rounded, as it is stored; its gradient not."""

    def apply(x, f, h_post, h_res, *params):
        y = reference_post.mhc_post(x, f, h_post, h_res, transposed=transposed)
        y = y + lax.stop_gradient(rounded(y, dtype) - y)
        constants = MHCConstants(**CONSTANTS)
        return y, *reference_pre.mhc_pre(y, MHCParams(*params), constants=constants)[0]

    return jax.jit(apply)


@functools.cache  # one function for each, so that JAX compiles it once
def _op(transposed, implementation):
    options = {"transposed": transposed, "implementation": implementation, **CONSTANTS}
    return functools.partial(ops.mhc_post_pre, **options)


def _check(shape, dtype, transposed, implementation, scale=1.0):
    check_against_float64(
        _op(transposed, implementation),
        _oracle(dtype, transposed),
        streams(*shape, dtype, scale),
        *outputs(*shape, dtype, scale),
        *parameters(*shape[1:]),
        reduction_length=4 * length(*shape),
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_value_and_every_gradient_equal_float64_at_every_scale(scale, implementation):
    dtype = "bfloat16" if implementation == "pallas" else "float32"  # Kernels need bfloat16.
    _check(((6,), 4, width(implementation)), dtype, True, implementation, scale)


@pytest.mark.parametrize("shape", SHAPES[::3])
def test_value_and_every_gradient_equal_float64_at_every_shape(shape):
    _check(shape, "float32", False, None)


def test_only_the_last_gradient_is_rounded_in_bfloat16():
    _check(((6,), 4, 24), "bfloat16", False, None)


@pytest.mark.parametrize("static", [False, True])
def test_value_is_that_of_the_two_ops(static):
    if static and jax.default_backend() == "gpu":
        pytest.skip("reason: XLA for GPUs leaves out the rounding of y between the two formulae")
    x, between = streams((5,), 3, 10, "bfloat16"), outputs((5,), 3, 10, "bfloat16")
    phi, alpha, bias, gamma = parameters(3, 10)
    params = (None, None, bias, None) if static else (phi, alpha, bias, gamma)
    fused = jax.jit(lambda *args: ops.mhc_post_pre(*args, *params))(x, *between)
    y = jax.jit(ops.mhc_post)(x, *between)
    apart = (y, *jax.jit(lambda y: ops.mhc_pre(y, *params))(y))
    assert fused[0].dtype == jnp.bfloat16
    for actual, expected in zip(fused, apart, strict=True):
        np.testing.assert_allclose(
            actual.astype(jnp.float32), expected.astype(jnp.float32), rtol=1e-2, atol=1e-5
        )
