"""The fused linear layers on a GPU: every implementation against float64, and known hazards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops.fused_linear import FUSED_LINEAR
from jaxgnn.ops.fused_mlp import FUSED_MLP
from jaxgnn.testing import random_array
from tests.ops._linear import DTYPES, VALUES, check, features, layer, layers, linear, mlp
from tests.ops._table import usable

pytestmark = pytest.mark.gpu

# Rows and widths that no kernel tiles evenly, and those that all do.
SHAPES = [(1, 64, 64), (1000, 48, 130), (1024, 256, 256)]
# What the products of float32 numbers may err by, relative to the largest result.
ERRORS = {"highest": 2e-6, "bf16x3": 5e-5, "tf32": 2e-3, None: 2e-3}


@pytest.fixture(scope="module", autouse=True)
def needs_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip(f"reason: needs a CUDA device, got {jax.default_backend()}")


@pytest.mark.parametrize("implementation", [*usable(FUSED_LINEAR), None])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, before, after", SHAPES)
def test_linear_agrees_with_float64(rows, before, after, dtype, implementation):
    inputs = features((rows, before), dtype), *layer(before, after, dtype)
    options = {"precision": "highest", "implementation": implementation}
    functions = {a: functools.partial(ops.fused_linear, activation=a, **options) for a in VALUES}
    oracles = {a: functools.partial(linear, activation=a) for a in VALUES}
    check(functions, oracles, inputs, dtype, max(rows, before, after))


@pytest.mark.parametrize("implementation", [*usable(FUSED_MLP), None])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, widths", [(1, (64, 64)), (1000, (48, 130, 7)), (512, (64,) * 4)])
def test_mlp_agrees_with_float64(rows, widths, dtype, implementation):
    inputs = features((rows, widths[0]), dtype), *layers(widths, dtype)
    options = {"precision": "highest", "implementation": implementation}
    functions = {a: functools.partial(ops.fused_mlp, activation=a, **options) for a in VALUES}
    oracles = {a: functools.partial(mlp, activation=a, rounded_to=dtype) for a in VALUES}
    check(functions, oracles, inputs, dtype, max(rows, *widths))


@pytest.mark.parametrize("precision", ERRORS)
def test_precision_is_what_it_says(precision):
    x, (kernel, bias) = features((300, 512)), layer(512, 256)
    with jax.default_matmul_precision("default"):
        y = jax.jit(functools.partial(ops.fused_linear, precision=precision))(x, kernel, bias)
    exact = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64) + np.asarray(bias)
    error = np.abs(np.asarray(y) - exact).max() / np.abs(exact).max()
    assert error < ERRORS[precision]


# XLA's rewriting into calls of cuBLAS has scaled the product without the bias, and added the bias
# along the wrong axis where the output is square (openxla/xla issues 46110 and 46897).
@pytest.mark.parametrize("cublaslt", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("implementation", [*usable(FUSED_LINEAR), None])
def test_scaled_sums_and_biases_of_square_outputs_are_right(implementation, dtype, cublaslt):
    n = 256
    x, kernel = features((n, n), dtype), layer(n, n, dtype)[0]
    bias = random_array((n,), dtype, seed=5, scale=30.0)

    def scaled_and_plain(x, kernel, bias):
        call = functools.partial(ops.fused_linear, implementation=implementation)
        y, again = call(x, kernel, bias), call(x.T, kernel, bias, activation="relu")
        return 0.25 * y, -3 * again, call(x, kernel, bias).T

    compiled = jax.jit(scaled_and_plain, compiler_options={"xla_gpu_enable_cublaslt": cublaslt})
    wide = [np.asarray(a).astype(np.float64) for a in (x, kernel, bias)]
    y = wide[0] @ wide[1] + wide[2]
    expected = 0.25 * y, -3 * np.maximum(wide[0].T @ wide[1] + wide[2], 0), y.T
    for a, e in zip(compiled(x, kernel, bias), expected, strict=True):
        rounding = 2 * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(
            np.asarray(a).astype(np.float64), e, rtol=rounding, atol=1e-5 * np.abs(e).max()
        )
