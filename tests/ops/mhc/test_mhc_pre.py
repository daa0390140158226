"""mhc_pre against float64 autodiff of its formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops._mhc.mhc_pre import BACKWARD, MHC_PRE, STATIC
from jaxgnn.ops._mhc.reference import mhc_pre as reference
from jaxgnn.testing import DTYPES, check_against_float64, check_numerical_gradients
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from tests.ops._table import usable
from tests.ops.mhc._mhc import SHAPES, length, parameters, streams, width

IMPLEMENTATIONS = [*usable(MHC_PRE), None]
CONSTANTS = {"norm_eps": 1e-3, "pre_eps": 1e-2, "post_scale": 1.7}


@functools.cache  # one function for each, so that JAX compiles it once
def _oracle(return_streams):
    def apply(x, phi, alpha, bias, gamma=None):
        params, constants = MHCParams(phi, alpha, bias, gamma), MHCConstants(**CONSTANTS)
        outputs = reference.mhc_pre(x, params, constants=constants)[0]
        return (x, *outputs) if return_streams else outputs

    return jax.jit(apply)


@functools.cache
def _op(return_streams, implementation):
    options = {"return_streams": return_streams, "implementation": implementation}
    return functools.partial(ops.mhc_pre, **CONSTANTS, **options)


def _check(x, *params, implementation, return_streams=False):
    check_against_float64(
        _op(return_streams, implementation),
        _oracle(return_streams),
        x,
        *params,
        reduction_length=length(x.shape[:-2], *x.shape[-2:]),
    )


@pytest.mark.costly
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("return_streams", [False, True])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_value_and_every_gradient_equal_float64_at_every_scale_of_x(
    scale, return_streams, dtype, implementation
):
    if implementation == "pallas" and dtype != "bfloat16":
        pytest.skip("reason: kernels of projections need bfloat16")
    dim, options = width(implementation), {"return_streams": return_streams}
    x = streams((6,), 4, dim, dtype, scale)
    _check(x, *parameters(4, dim), implementation=implementation, **options)


@pytest.mark.costly
@pytest.mark.parametrize(("batch", "n", "dim"), SHAPES)
def test_value_and_every_gradient_equal_float64_at_every_shape(batch, n, dim):
    _check(streams(batch, n, dim), *parameters(n, dim), implementation=None)


@pytest.mark.parametrize("implementation", ["xla", None])
def test_without_gamma_and_with_a_row_for_each_permutation(implementation):
    x = streams((5,), 3, 10)
    params = parameters(3, 10, rows=6 + 6)[:3]
    _check(x, *params, implementation=implementation)
    assert ops.mhc_pre(x, *params, implementation=implementation)[2].shape == (5, 6)


def test_reference_is_the_formula_token_by_token():
    x, (phi, alpha, bias, gamma) = streams((3,), 2, 5, scale=3.0), parameters(2, 5)
    h_in, h_post, h_res = ops.mhc_pre(x, phi, alpha, bias, gamma, **CONSTANTS)
    wide = [np.asarray(a, np.float64) for a in (x, phi, alpha, bias, gamma)]
    for token, (streams_, phi, alpha, bias, gamma) in enumerate(
        (row, *wide[1:]) for row in wide[0]
    ):
        t = phi @ (streams_ * gamma).ravel() / np.sqrt(np.mean(streams_**2) + 1e-3)
        logits = np.repeat(alpha, [2, 2, 4]) * t + bias
        sigmoids = 1 / (1 + np.exp(-logits[:4]))
        np.testing.assert_allclose(h_in[token], (sigmoids[:2] + 1e-2) @ streams_, rtol=1e-5)
        np.testing.assert_allclose(h_post[token], 1.7 * sigmoids[2:], rtol=1e-5)
        np.testing.assert_allclose(h_res[token].ravel(), logits[4:], rtol=1e-4, atol=1e-5)


def test_gradients_agree_with_finite_differences():
    check_numerical_gradients(ops.mhc_pre, streams((3,), 2, 4), *parameters(2, 4))


def test_dtypes_of_the_results():
    x = streams((3,), 4, 8, "bfloat16")
    h_in, h_post, h_res = ops.mhc_pre(x, *parameters(4, 8))
    assert (h_in.dtype, h_post.dtype, h_res.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)


@pytest.mark.parametrize("return_streams", [False, True])
def test_backward_keeps_the_inputs_and_a_few_numbers_a_token(return_streams):
    x, params = streams((32,), 4, 64, "bfloat16"), parameters(4, 64)
    saved = jax.tree.leaves(jax.vjp(_op(return_streams, None), x, *params)[1])
    inputs = x.nbytes + sum(p.nbytes for p in params)
    assert sum(leaf.nbytes for leaf in saved) <= inputs + 32 * 4 * (24 + 1)


@pytest.mark.parametrize("implementation", [*usable(STATIC), None])
def test_static_coefficients_are_those_of_a_projection_of_zero(implementation):
    x, (phi, _, bias, _) = streams((5,), 3, 8, "bfloat16"), parameters(3, 8)

    def static(x, bias):
        x, h_in, h_post, h_res = _op(True, implementation)(x, None, None, bias)
        assert (h_post.shape, h_res.shape) == ((3,), (3, 3))
        return x, h_in, jnp.broadcast_to(h_post, (5, 3)), jnp.broadcast_to(h_res, (5, 3, 3))

    def oracle(x, bias):
        return _oracle(True)(x, jnp.zeros(phi.shape, x.dtype), jnp.ones(3, x.dtype), bias)

    check_against_float64(static, oracle, x, bias, reduction_length=5 * 24)


@pytest.mark.parametrize(
    "tokens, n, dim, dtype, expected",
    [
        (1024, 4, 512, "bfloat16", "pallas"),
        (1023, 4, 512, "bfloat16", "xla"),
        (1024, 4, 448, "bfloat16", "xla"),
        (1024, 2, 512, "bfloat16", "xla"),
        (1024, 4, 512, "float32", "xla"),
    ],
)
def test_none_takes_kernels_on_a_gpu_where_they_were_measured(tokens, n, dim, dtype, expected):
    if MHC_PRE.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {MHC_PRE.unavailable('pallas', 'cuda')}")
    x = jax.ShapeDtypeStruct((tokens, n, dim), dtype)
    phi = jax.ShapeDtypeStruct((n * n + 2 * n, n * dim), "float32")
    assert MHC_PRE.choose("cuda", x, MHCParams(phi, None, None)) == expected
    assert BACKWARD.choose("cuda", x, MHCParams(phi, None, None)) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_token(value):
    x, params = streams((4,), 2, 8).at[1, 0, 3].set(value), parameters(2, 8)
    outputs, pull_back = jax.vjp(lambda x: ops.mhc_pre(x, *params), x)
    dx = pull_back(outputs)[0]
    for array in (*outputs, dx):
        finite = np.isfinite(np.asarray(array).reshape(4, -1)).all(axis=1)
        assert finite[[0, 2, 3]].all()
    assert np.isnan(outputs[1][1]).all()
