"""The fused linear layers on a GPU: every implementation against float64, and known hazards."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import deterministic, ops
from jaxgnn.ops.fused_linear import FUSED_LINEAR
from jaxgnn.testing import assert_bit_equal, random_array, to_float64
from pallas_kernels import _dense_forward, _dense_pair, fused_mlp
from pallas_kernels._dense_forward import DenseTile
from pallas_kernels._dense_pair import PairTile
from pallas_kernels._dense_stack import Stack
from pallas_kernels.fused_linear import fused_linear
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


def _as_rounded(dtype, implementation, layers=1):
    """Activations to be tested with random numbers, and how often terms are rounded.

    Left to XLA's library, products of 16-bit numbers are rounded, then sums with the bias, and then
    results; or some of this is left out. That moves the sign of sums that are about zero, and so
    does the rounding of hidden layers that differ in their last bit: then relu is tested with
    numbers that need no rounding alone.
    """
    if dtype == "float32":
        return list(VALUES), 1
    by_library = implementation is None
    names = [name for name in VALUES if name != "relu" or not (by_library or layers > 2)]
    return names, 3 if by_library else 1


@pytest.mark.parametrize("implementation", GENERAL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, before, after", SHAPES)
def test_linear_agrees_with_float64(rows, before, after, dtype, implementation):
    random = features((rows, before), dtype), *layer(before, after, dtype)
    exact = _integers((rows, before), 2, 0, dtype), *_integer_layer(before, after, 1, dtype)
    options = {"precision": "highest", "implementation": implementation}
    smooth, roundings = _as_rounded(dtype, implementation)
    for names, inputs in ((smooth, random), (["relu"], exact)):
        functions = {a: functools.partial(ops.fused_linear, activation=a, **options) for a in names}
        oracles = {a: functools.partial(linear, activation=a) for a in names}
        length = max(rows, before, after)
        check(functions, oracles, inputs, dtype, length, roundings=roundings)


@pytest.mark.parametrize("implementation", GENERAL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, widths", [(1, (64, 64)), (1000, (48, 130, 7)), (512, (64,) * 4)])
def test_mlp_agrees_with_float64(rows, widths, dtype, implementation):
    random = features((rows, widths[0]), dtype), *layers(widths, dtype)
    x, parameters = _integer_layers(rows, widths, dtype)
    exact = x, *parameters
    options = {"precision": "highest", "implementation": implementation}
    smooth, roundings = _as_rounded(dtype, implementation, len(widths) - 1)
    for names, inputs in ((smooth, random), (["relu"], exact)):
        functions = {a: functools.partial(ops.fused_mlp, activation=a, **options) for a in names}
        oracles = {a: functools.partial(mlp, activation=a, rounded_to=dtype) for a in names}
        check(functions, oracles, inputs, dtype, max(rows, *widths), roundings=roundings)


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
    # All results are integers that no rounding changes.
    x, kernel, bias = (_integers(s, m, m, dtype) for s, m in (((n, n), 1), ((n, n), 2), ((n,), 30)))

    def scaled_and_plain(x, kernel, bias):
        call = functools.partial(ops.fused_linear, implementation=implementation)
        y, again = call(x, kernel, bias), call(x.T, kernel, bias, activation="relu")
        return 0.25 * y, -3 * again, call(x, kernel, bias).T

    compiled = jax.jit(scaled_and_plain, compiler_options={"xla_gpu_enable_cublaslt": cublaslt})
    wide = [np.asarray(a).astype(np.float64) for a in (x, kernel, bias)]
    y = wide[0] @ wide[1] + wide[2]
    expected = 0.25 * y, -3 * np.maximum(wide[0].T @ wide[1] + wide[2], 0), y.T
    for a, e in zip(compiled(x, kernel, bias), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(e).astype(dtype))


def _needs_kernels():
    if FUSED_LINEAR.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FUSED_LINEAR.unavailable('pallas', 'cuda')}")


def _integers(shape, most, seed, dtype):
    """Small ones: sums of their products are exact, whatever their order, and many are equal."""
    numbers = np.random.default_rng(seed).integers(-most, most + 1, shape)
    return jnp.asarray(numbers, jnp.float32).astype(dtype)


def _integer_layer(before, after, seed, dtype):
    """So few entries that what some layers make of integers are such that 8 bits hold."""
    generator = np.random.default_rng(seed)
    few = generator.random((before, after)) < 4 / before
    kernel = np.where(few, generator.choice([-1.0, 1.0], few.shape), 0.0)
    return jnp.asarray(kernel, dtype), _integers((after,), 1, seed, dtype)


def _integer_layers(rows, widths, dtype):
    """Inputs and parameters of layers behind each other: ``(x, (kernels, biases))``."""
    made = [_integer_layer(*pair, i, dtype) for i, pair in enumerate(itertools.pairwise(widths))]
    return _integers((rows, widths[0]), 2, 0, dtype), tuple(zip(*made, strict=True))


def _on_grid(tree):
    """The arrays in steps of at least a 256th of their largest: sums are exact in float32.

    So the signs of z, and with them the slopes of relu, are those of float64 whatever the order.
    """

    def rounded(array):
        wide = np.asarray(array).astype(np.float32)
        step = 2.0 ** (np.ceil(np.log2(np.abs(wide).max())) - 7)
        return jnp.asarray(np.round(wide / step) * step, array.dtype)

    return jax.tree.map(rounded, tree)


def _poison(*arrays):
    """What the allocator hands out next holds NaN."""
    jax.block_until_ready([jnp.full(a.shape, jnp.nan, a.dtype) for a in arrays for _ in VALUES])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows, widths", KERNEL_SHAPES)
def test_kernels_agree_with_float64(rows, widths, dtype):
    _needs_kernels()
    random = _on_grid((features((rows, widths[0]), dtype), layers(widths, dtype)))
    smooth, _ = _as_rounded(dtype, "pallas", len(widths) - 1)
    cases = [(smooth, random), (["relu"], _integer_layers(rows, widths, dtype))]
    partial_sums = [jnp.zeros((132, *pair)) for pair in itertools.pairwise(widths)]
    for names, (x, (kernels, biases)) in cases:
        if len(widths) == 2:
            inputs, op, oracle = (x, kernels[0], biases[0]), ops.fused_linear, linear
        else:
            inputs, op = (x, kernels, biases), ops.fused_mlp
            oracle = functools.partial(mlp, rounded_to=dtype)
        functions = {a: functools.partial(op, activation=a, **PALLAS) for a in names}
        oracles = {a: functools.partial(oracle, activation=a) for a in names}
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


def _repeats_poisoned(call, inputs, expected):
    """Also under load, where warpgroups and blocks wait for each other differently."""
    _poison(jax.eval_shape(call, *inputs))
    for made in [call(*inputs) for _ in range(10)]:
        assert_bit_equal(made, expected)


# Rows that are no whole tiles, fewer than there are blocks, and many for each of them.
DIRECT = [(1, (64, 192)), (203, (256, 256)), (8449, (128, 128, 128)), (232_965, (256, 256))]


@pytest.mark.parametrize("rows, widths", DIRECT)
def test_results_have_the_same_bits_from_registers(rows, widths):
    _needs_kernels()
    inputs = features((rows, widths[0]), "bfloat16"), *layers(widths, "bfloat16")
    activations = ("gelu",) * (len(widths) - 1)
    usual = DenseTile.choose(Stack.of(*inputs, activations))
    copied, direct = (
        jax.jit(functools.partial(_dense_forward.forward, activations=activations, tile=tile))
        for tile in (dataclasses.replace(usual, direct=direct) for direct in (False, True))
    )
    _repeats_poisoned(direct, inputs, copied(*inputs))


PAIRS = [(1, (256, 256, 256), "float16"), (203, (192, 256, 256), "bfloat16")]
PAIRS += [(8449, (256, 256, 256, 64), "float16"), (232_965, (256, 256, 256), "bfloat16")]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("rows, widths, dtype", PAIRS)
def test_layers_in_pairs_of_blocks_have_the_bits_of_a_kernel_for_each(
    rows, widths, dtype, activation
):
    _needs_kernels()
    x, *parameters = inputs = features((rows, widths[0]), dtype), *layers(widths, dtype)
    behind = [*[activation] * (len(widths) - 2), None]
    expected = x
    for kernel, bias, name in zip(*parameters, behind, strict=True):
        expected = jax.jit(functools.partial(fused_linear, activation=name))(expected, kernel, bias)
    together = jax.jit(functools.partial(fused_mlp.fused_mlp, activation=activation))
    _repeats_poisoned(together, inputs, expected)


@pytest.mark.parametrize("tile", [PairTile(66, 3, 3), PairTile(5, 1, 2)])
def test_pairs_of_blocks_have_the_same_bits_with_every_tile(tile):
    _needs_kernels()
    inputs = features((100_003, 256), "bfloat16"), *layers((256,) * 3, "bfloat16")
    usual, other = (
        jax.jit(functools.partial(_dense_pair.forward, activations=("relu", None), tile=t))
        for t in (None, tile)
    )
    _repeats_poisoned(other, inputs, usual(*inputs))


# Of float32: one to three layers, also more than one kernel holds.
FLOAT32_SHAPES = [(1, (64, 64)), (203, (128, 128)), (8449, (64, 256)), (100_000, (256, 64))]
FLOAT32_SHAPES += [(203, (64, 64, 64)), (8449, (128, 64, 192)), (100_000, (128, 128, 128))]
FLOAT32_SHAPES += [(8449, (64, 64, 64, 64)), (20_003, (128, 128, 128, 128))]
FLOAT32_PRECISIONS = ("tf32", "bf16x3")


def _float32_call(widths, **options):
    """The op for so many layers, by kernels, of x, kernels and biases."""
    options |= PALLAS
    if len(widths) > 2:
        return functools.partial(ops.fused_mlp, **options)

    def layer(x, kernels, biases):
        return ops.fused_linear(x, *kernels, *biases, **options)

    return layer


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
@pytest.mark.parametrize("rows, widths", FLOAT32_SHAPES)
def test_float32_kernels_are_exact_where_no_sum_is_rounded(rows, widths, precision):
    _needs_kernels()
    x = _integers((rows, widths[0]), 2, 0, "float32")
    pairs = enumerate(itertools.pairwise(widths))
    made = [_integer_layer(*pair, i, "float32") for i, pair in pairs]
    kernels, biases = zip(*made, strict=True)
    call = _float32_call(widths, activation="relu", precision=precision)
    expected = np.asarray(x, np.float64)
    for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        expected = expected @ np.asarray(kernel, np.float64) + np.asarray(bias, np.float64)
        if i + 2 < len(widths) or len(widths) == 2:
            expected = np.maximum(expected, 0)
    _poison(x, jnp.asarray(expected, jnp.float32))
    np.testing.assert_array_equal(jax.jit(call)(x, kernels, biases), expected)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
@pytest.mark.parametrize("rows, widths", FLOAT32_SHAPES)
def test_float32_kernels_err_by_what_their_precision_says(rows, widths, precision):
    _needs_kernels()
    inputs = features((rows, widths[0])), *layers(widths)
    # All of them for one shape of one layer and one of two, which need the most registers.
    names = VALUES if widths in ((128, 128), (128, 128, 128)) else ("gelu",)
    for name in names:
        y = jax.jit(_float32_call(widths, activation=name, precision=precision))(*inputs)
        with jax.enable_x64(True):
            wide = to_float64(inputs)
            if len(widths) == 2:
                exact = linear(wide[0], *wide[1], *wide[2], activation=name)
            else:
                exact = mlp(*wide, activation=name, rounded_to="float64")
            error, largest = (float(jnp.abs(a).max()) for a in (exact - y.astype("float64"), exact))
        assert error < ERRORS[precision] * largest, name


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
def test_gradients_of_float32_layers_made_by_kernels_are_those_of_xla(precision):
    _needs_kernels()
    inputs = features((8449, 128)), *layers((128,) * 3)
    dy = random_array((8449, 128), "float32", seed=9)

    def gradients(implementation):
        options = {"precision": precision, "implementation": implementation}
        mlp = functools.partial(ops.fused_mlp, activation="gelu", **options)
        return jax.jit(lambda *inputs: jax.vjp(mlp, *inputs)[1](dy))(*inputs)

    both = (jax.tree.leaves(gradients(name)) for name in ("pallas", None))
    for made, expected in zip(*both, strict=True):
        largest = float(jnp.abs(expected).max())
        np.testing.assert_allclose(made, expected, rtol=0, atol=ERRORS[precision] * largest)


# What has kernels for gradients as well; the last are of several.
FLOAT32_GRADIENTS = [(1, (64, 64)), (203, (128, 128)), (8449, (64, 128)), (100_000, (128, 64))]
FLOAT32_GRADIENTS += [(203, (64, 64, 64)), (8449, (64, 128, 64)), (100_000, (128, 128, 128))]
FLOAT32_GRADIENTS += [(1, (128, 128, 128)), (8449, (128, 64, 128)), (20_003, (64, 128, 128))]
FLOAT32_GRADIENTS += [(20_003, (128, 128, 128, 128)), (8449, (64, 64, 64, 64))]


def _gradients(call, inputs, dy):
    return jax.jit(lambda *inputs: jax.vjp(call, *inputs)[1](dy))(*inputs)


def _exact_gradients(widths, name, inputs, dy):
    def call(x, kernels, biases):
        if len(widths) == 2:
            return linear(x, *kernels, *biases, activation=name)
        return mlp(x, kernels, biases, activation=name, rounded_to="float64")

    with jax.enable_x64(True):
        wide, dy = to_float64((inputs, dy))
        return [np.asarray(a) for a in jax.tree.leaves(_gradients(call, wide, dy))]


# Blocks share the columns of the widest.
@pytest.mark.parametrize("rows, widths", [*FLOAT32_GRADIENTS, (8449, (256, 64))])
def test_gradients_by_float32_kernels_are_exact_where_no_sum_is_rounded(rows, widths):
    _needs_kernels()
    inputs = _integer_layers(rows, widths, "float32")
    inputs = inputs[0], *inputs[1]
    dy = _integers((rows, widths[-1]), 2, 7, "float32")
    expected = _exact_gradients(widths, "relu", inputs, dy)
    call = _float32_call(widths, activation="relu", precision="tf32")
    partial_sums = [jnp.zeros((132, *pair)) for pair in itertools.pairwise(widths)]
    _poison(inputs[0], *partial_sums)
    made = jax.tree.leaves(_gradients(call, inputs, dy))
    for a, e in zip(made, expected, strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
@pytest.mark.parametrize("rows, widths", FLOAT32_GRADIENTS)
def test_gradients_by_float32_kernels_err_by_what_their_precision_says(rows, widths, precision):
    _needs_kernels()
    inputs = features((rows, widths[0])), *layers(widths)
    dy = random_array((rows, widths[-1]), "float32", seed=9)
    # Those that are smooth: where signs are in doubt, slopes of relu differ by one.
    all_names = [name for name in VALUES if name not in ("relu", "squared_relu")]
    names = all_names if widths in ((128, 128), (64, 64, 64), (128, 128, 128)) else ["gelu"]
    for name in names:
        call = _float32_call(widths, activation=name, precision=precision)
        made = jax.tree.leaves(_gradients(call, inputs, dy))
        for a, e in zip(made, _exact_gradients(widths, name, inputs, dy), strict=True):
            error = np.abs(np.asarray(a, np.float64) - e).max()
            assert error < ERRORS[precision] * np.abs(e).max(), name


@pytest.mark.parametrize("widths", [(64, 64, 64), (128, 128, 128), (128, 128)])
def test_gradients_by_float32_kernels_repeat_to_the_bit(widths):
    _needs_kernels()
    inputs = features((50_000, widths[0])), *layers(widths)
    dy = random_array((50_000, widths[-1]), "float32", seed=9)
    call = _float32_call(widths, activation="silu", precision="tf32")
    gradients = jax.jit(lambda *inputs: jax.vjp(call, *inputs)[1](dy))
    first = gradients(*inputs)
    for _ in range(20):
        assert_bit_equal(gradients(*inputs), first)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
def test_float32_kernels_repeat_to_the_bit_in_batches_and_under_load(precision):
    _needs_kernels()
    x, parameters = features((3, 20_003, 128)), layers((128,) * 3)
    options = {"activation": "silu", "precision": precision, **PALLAS}
    call = jax.jit(lambda x: ops.fused_mlp(x, *parameters, **options))
    first = call(x)
    assert_bit_equal(jax.jit(jax.vmap(call))(x), first)
    for made in [call(x) for _ in range(20)]:
        assert_bit_equal(made, first)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
def test_what_is_not_finite_stays_with_its_row_in_float32_kernels(precision):
    _needs_kernels()
    x, parameters = features((203, 64)), layers((64, 64, 64))
    bad = x.at[3, 0].set(jnp.nan).at[202, 63].set(jnp.inf)
    kept = np.delete(np.arange(203), [3, 202])
    options = {"activation": "gelu", "precision": precision, **PALLAS}
    call = jax.jit(functools.partial(ops.fused_mlp, **options))
    good, made = (np.asarray(call(a, *parameters)) for a in (x, bad))
    np.testing.assert_array_equal(made[kept], good[kept])
    assert np.isnan(made[3]).all()
    assert not np.isfinite(made[202]).any()


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


# Rows that are no whole tiles, and many tiles for each block; all widths, also such as need few
# of the warps' registers; k that is one, odd, and all.
MAXK_SHAPES = [(1, (64, 64), 1), (203, (128, 192), 7), (8449, (64, 256), 256)]
MAXK_SHAPES += [(100_003, (256, 256), 32), (60_000, (256, 64), 16), (232_965, (128, 128), 16)]


@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows, widths, k", MAXK_SHAPES)
def test_maxk_kernel_has_the_bits_of_two_ops(rows, widths, k, dtype, by):
    _needs_kernels()
    x = _integers((rows, widths[0]), 2, 0, dtype)
    kernel, bias = _integers(widths, 2, 1, dtype), _integers(widths[1:], 9, 2, dtype)
    call = functools.partial(ops.fused_linear, activation=ops.MaxK(k, by), **PALLAS)
    z = ops.fused_linear(x, kernel, bias, precision="highest", implementation="xla")
    expected = jax.block_until_ready(ops.maxk(z, k, by=by, implementation="xla"))
    _poison(expected.values)
    assert_bit_equal(jax.jit(call)(x, kernel, bias), expected)
    assert_bit_equal(call(x, kernel).values, call(x, kernel, 0 * bias).values)


def test_maxk_kernel_keeps_the_largest_of_numbers_of_all_sizes():
    _needs_kernels()
    x, (kernel, bias) = features((50_003, 256), "bfloat16"), layer(256, 256, "bfloat16")
    x = x * jnp.exp(3 * random_array((50_003, 1), "bfloat16", seed=7))
    kept = ops.fused_linear(x, kernel, bias, activation=ops.MaxK(32), **PALLAS)
    z = ops.fused_linear(x, kernel, bias, implementation="xla").astype(jnp.float32)
    columns = np.asarray(kept.indices).astype(int)
    assert (np.diff(columns, axis=1) > 0).all()
    # Sums in another order are rounded differently, which moves the border between rows' entries.
    error = 0.02 * jnp.abs(z).max(axis=1, keepdims=True)
    least = jnp.sort(z, axis=1)[:, -32, None]
    values = kept.values.astype(jnp.float32)
    assert (jnp.abs(values - jnp.take_along_axis(z, columns, axis=1)) <= error).all()
    assert (values >= least - error).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_searches_of_the_maxk_kernel_end_wherever_they_begin(dtype):
    """Rows of any normal numbers: no bell curve, and neighbours of all sizes."""
    _needs_kernels()
    bits = np.random.default_rng(0).integers(0, 2**16, (1000, 256), np.uint16)
    x = bits.view(jnp.dtype(dtype))
    # Times one and plus zero they stay what they are, but for -0; units may take others for zero.
    size = np.abs(x.astype(np.float32))
    normal = (size >= jnp.finfo(dtype).tiny) & (size < np.inf)
    x = np.where(normal, x, np.zeros_like(x))
    identity = jnp.eye(256, dtype=dtype)
    for k, by in itertools.product((1, 32, 255), ("value", "magnitude")):
        made = ops.fused_linear(jnp.asarray(x), identity, activation=ops.MaxK(k, by), **PALLAS)
        assert_bit_equal(made, ops.maxk(jnp.asarray(x), k, by=by, implementation="pallas"))


def test_what_is_not_finite_stays_with_its_row_in_the_maxk_kernel():
    _needs_kernels()
    x, (kernel, bias) = features((203, 64), "bfloat16"), layer(64, 64, "bfloat16")
    bad = x.at[3, 0].set(jnp.nan).at[202, 63].set(jnp.inf)
    call = jax.jit(functools.partial(ops.fused_linear, activation=ops.MaxK(5), **PALLAS))
    good, made = call(x, kernel, bias), call(bad, kernel, bias)
    others = np.delete(np.arange(203), [3, 202])
    assert_bit_equal(
        (made.values[others], made.indices[others]), (good.values[others], good.indices[others])
    )
    assert np.isnan(np.asarray(made.values[3], np.float32)).all()
    assert made.indices[3].tolist() == [0, 1, 2, 3, 4]
    assert np.isposinf(np.asarray(made.values[202], np.float32)).all()


@pytest.mark.parametrize(
    "rows, widths, k",
    [(203, (64, 64), 64), (50_003, (128, 128), 16), (8449, (256, 256), 32)],
)
def test_gradients_of_the_maxk_kernel_are_those_of_two_ops(rows, widths, k):
    _needs_kernels()
    inputs = [_integers((rows, widths[0]), 2, 0, "bfloat16"), _integers(widths, 2, 1, "bfloat16")]
    inputs.append(_integers(widths[1:], 9, 2, "bfloat16"))
    dy = random_array((rows, k), "bfloat16", seed=3)

    def gradients(implementation):
        def values(*inputs):
            activation = ops.MaxK(k)
            call = functools.partial(ops.fused_linear, implementation=implementation)
            return call(*inputs, activation=activation).values

        return jax.jit(lambda *inputs: jax.vjp(values, *inputs)[1](dy))(*inputs)

    for made, expected in zip(gradients("pallas"), gradients("xla"), strict=True):
        made, expected = (np.asarray(a).astype(np.float32) for a in (made, expected))
        np.testing.assert_allclose(made, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def test_the_maxk_kernel_repeats_to_the_bit_under_load():
    """Parts of a block race for nothing: many launches, one behind the other, agree."""
    _needs_kernels()
    x, parameters = features((232_965, 256), "bfloat16"), layer(256, 256, "bfloat16")
    call = jax.jit(functools.partial(ops.fused_linear, activation=ops.MaxK(32), **PALLAS))
    first = call(x, *parameters)
    for made in [call(x, *parameters) for _ in range(20)]:
        assert_bit_equal(made, first)
