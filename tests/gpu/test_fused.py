"""The fused linear layers on a GPU: every implementation against float64, and known hazards."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import deterministic, ops
from jaxgnn.ops.fused_linear import FUSED_LINEAR
from jaxgnn.testing import assert_bit_equal, random_array
from tests.ops._linear import DTYPES, VALUES, check, features, layer, layers, linear, mlp

pytestmark = pytest.mark.gpu

# Rows and widths that no kernel tiles evenly, and those that all do.
SHAPES = [(1, 64, 64), (1000, 48, 130), (1024, 256, 256)]
# Those that take everything.
GENERAL = ["xla", None]
PALLAS = {"implementation": "pallas"}
# What the kernels take: a lone row, rows that are no whole tiles nor eights, more tiles than
# multiprocessors, and many for each of them.
KERNEL_SHAPES = [(1, (64, 64)), (203, (128, 128)), (8449, (64, 256)), (100_000, (256, 64))]
KERNEL_SHAPES += [(203, (64, 64, 64)), (8449, (128, 64, 192)), (100_000, (128, 128, 128))]
# Blocks that share columns, in two parts and in three; layers of several kernels.
KERNEL_SHAPES += [(8449, (256, 256)), (203, (192, 256)), (20_003, (256, 128))]
KERNEL_SHAPES += [(8449, (256, 256, 256)), (203, (64, 256, 64)), (20_003, (128, 64, 64, 128))]
# What the products of float32 numbers may err by, relative to the largest result.
ERRORS = {"highest": 2e-6, "bf16x3": 5e-5, "tf32": 2e-3, None: 2e-3}


@pytest.fixture(scope="module", autouse=True)
def needs_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip(f"reason: needs a CUDA device, got {jax.default_backend()}")


@pytest.mark.parametrize("implementation", GENERAL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, before, after", SHAPES)
def test_linear_agrees_with_float64(rows, before, after, dtype, implementation):
    inputs = features((rows, before), dtype), *layer(before, after, dtype)
    options = {"precision": "highest", "implementation": implementation}
    functions = {a: functools.partial(ops.fused_linear, activation=a, **options) for a in VALUES}
    oracles = {a: functools.partial(linear, activation=a) for a in VALUES}
    check(functions, oracles, inputs, dtype, max(rows, before, after))


@pytest.mark.parametrize("implementation", GENERAL)
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
@pytest.mark.parametrize(
    "implementation, dtype",
    [*itertools.product(GENERAL, ["float32", "bfloat16"]), ("pallas", "bfloat16")],
)
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


def _needs_kernels():
    if FUSED_LINEAR.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FUSED_LINEAR.unavailable('pallas', 'cuda')}")


def _on_grid(tree):
    """The arrays in steps of at least a 256th of their largest: sums are exact in float32.

    So the signs of z, and with them the slopes of relu, are those of float64 whatever the order.
    """

    def rounded(array):
        step = 2.0 ** (np.ceil(np.log2(np.abs(array).max())) - 7)
        return (jnp.round(array.astype(jnp.float32) / step) * step).astype(array.dtype)

    return jax.tree.map(rounded, tree)


def _poison(*arrays):
    """What the allocator hands out next holds NaN."""
    jax.block_until_ready([jnp.full(a.shape, jnp.nan, a.dtype) for a in arrays for _ in VALUES])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows, widths", KERNEL_SHAPES)
def test_kernels_agree_with_float64(rows, widths, dtype):
    _needs_kernels()
    x, (kernels, biases) = _on_grid((features((rows, widths[0]), dtype), layers(widths, dtype)))
    if len(widths) == 2:
        inputs, op, oracle = (x, kernels[0], biases[0]), ops.fused_linear, linear
    else:
        inputs, op = (x, kernels, biases), ops.fused_mlp
        oracle = functools.partial(mlp, rounded_to=dtype)
    functions = {a: functools.partial(op, activation=a, **PALLAS) for a in VALUES}
    oracles = {a: functools.partial(oracle, activation=a) for a in VALUES}
    partial_sums = [jnp.zeros((132, *kernel.shape)) for kernel in kernels]
    _poison(x, x[:, :1] * kernels[-1][0], *partial_sums)
    check(functions, oracles, inputs, dtype, max(rows, *widths))


@pytest.mark.parametrize("widths", [(64, 128, 128, 64), (256, 128, 256)])
def test_kernels_of_wide_and_deep_layers_agree_with_the_reference(widths):
    _needs_kernels()
    inputs = features((20_003, widths[0]), "bfloat16"), *layers(widths, "bfloat16")
    calls = (
        functools.partial(ops.fused_mlp, activation="gelu", implementation=name)
        for name in ("pallas", "xla")
    )
    y, expected = (np.asarray(jax.jit(call)(*inputs)).astype(np.float32) for call in calls)
    np.testing.assert_allclose(y, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def test_what_is_not_finite_stays_with_its_row_in_kernels():
    _needs_kernels()
    x, parameters = features((203, 64), "bfloat16"), layers((64, 64, 64), "bfloat16")
    bad = x.at[3, 0].set(jnp.nan).at[202, 63].set(jnp.inf)
    kept = np.delete(np.arange(203), [3, 202])
    call = jax.jit(functools.partial(ops.fused_mlp, activation="gelu", **PALLAS))
    good, made = (np.asarray(call(a, *parameters)).astype(np.float32) for a in (x, bad))
    np.testing.assert_array_equal(made[kept], good[kept])
    assert np.isnan(made[3]).all()


def test_gradients_of_kernels_repeat_to_the_bit():
    _needs_kernels()
    x, parameters = features((50_000, 128), "bfloat16"), layers((128,) * 3, "bfloat16")

    def loss(x, kernels, biases):
        y = ops.fused_mlp(x, kernels, biases, activation="silu", **PALLAS)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    with deterministic():
        first = gradient(x, *parameters)
        for _ in range(5):
            assert_bit_equal(gradient(x, *parameters), first)


def test_batches_and_captured_graphs_of_many_kernels():
    _needs_kernels()
    x, parameters = features((3, 203, 64), "bfloat16"), layers((64,) * 3, "bfloat16")

    @jax.jit
    def network(x):
        for _ in range(6):
            x = ops.fused_mlp(x, *parameters, activation="silu", **PALLAS)
        return x

    together = network(x)
    assert_bit_equal(jax.jit(jax.vmap(network))(x), together)
    assert_bit_equal(network(x), together)
