"""The fused linear layers on a GPU: every implementation against float64, and known hazards.

Kernels of float32 numbers are in ``test_fused_float32``.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import deterministic, ops
from jaxgnn.testing import assert_bit_equal, random_array
from pallas_kernels.chip import Chip
from pallas_kernels.dense import forward as dense_forward
from pallas_kernels.dense import fused_mlp
from pallas_kernels.dense import pair as dense_pair
from pallas_kernels.dense.forward import DenseTile
from pallas_kernels.dense.fused_linear import fused_linear
from pallas_kernels.dense.pair import PairTile
from pallas_kernels.dense.stack import Stack
from tests.gpu._fused import (
    ERRORS,
    PALLAS,
    integer_layer,
    integer_layers,
    integers,
    needs_kernels,
    poison,
)
from tests.ops.dense._linear import DTYPES, VALUES, check, features, layer, layers, linear, mlp

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

# Rows and widths that no kernel tiles evenly, and those that all do.
SHAPES = [(1, 64, 64), (1000, 48, 130), (1024, 256, 256)]
# Those that take everything.
GENERAL = ["xla", None]
# What the kernels take: a lone row, rows that are no whole tiles nor eights, more tiles than
# multiprocessors, and many for each of them.
KERNEL_SHAPES = [(1, (64, 64)), (203, (128, 128)), (8449, (64, 256)), (100_000, (256, 64))]
KERNEL_SHAPES += [(203, (64, 64, 64)), (8449, (128, 64, 192)), (100_000, (128, 128, 128))]
# Blocks that share columns, in two parts and in three; layers of several kernels.
KERNEL_SHAPES += [(8449, (256, 256)), (203, (192, 256)), (20_003, (256, 128))]
KERNEL_SHAPES += [(8449, (256, 256, 256)), (203, (64, 256, 64)), (20_003, (128, 64, 64, 128))]


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
    exact = integers((rows, before), 2, 0, dtype), *integer_layer(before, after, 1, dtype)
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
    x, parameters = integer_layers(rows, widths, dtype)
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
    x, kernel, bias = (integers(s, m, m, dtype) for s, m in (((n, n), 1), ((n, n), 2), ((n,), 30)))

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


def _on_grid(tree):
    """The arrays in steps of at least a 256th of their largest: sums are exact in float32.

    So the signs of z, and with them the slopes of relu, are those of float64 whatever the order.
    """

    def rounded(array):
        wide = np.asarray(array).astype(np.float32)
        step = 2.0 ** (np.ceil(np.log2(np.abs(wide).max())) - 7)
        return jnp.asarray(np.round(wide / step) * step, array.dtype)

    return jax.tree.map(rounded, tree)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows, widths", KERNEL_SHAPES)
def test_kernels_agree_with_float64(rows, widths, dtype):
    needs_kernels()
    random = _on_grid((features((rows, widths[0]), dtype), layers(widths, dtype)))
    smooth, _ = _as_rounded(dtype, "pallas", len(widths) - 1)
    cases = [(smooth, random), (["relu"], integer_layers(rows, widths, dtype))]
    partial_sums = [jnp.zeros((132, *pair)) for pair in itertools.pairwise(widths)]
    for names, (x, (kernels, biases)) in cases:
        if len(widths) == 2:
            inputs, op, oracle = (x, kernels[0], biases[0]), ops.fused_linear, linear
        else:
            inputs, op = (x, kernels, biases), ops.fused_mlp
            oracle = functools.partial(mlp, rounded_to=dtype)
        functions = {a: functools.partial(op, activation=a, **PALLAS) for a in names}
        oracles = {a: functools.partial(oracle, activation=a) for a in names}
        poison(x, x[:, :1] * kernels[-1][0], *partial_sums)
        check(functions, oracles, inputs, dtype, max(rows, *widths))


@pytest.mark.parametrize("widths", [(64, 128, 128, 64), (256, 128, 256)])
def test_kernels_of_wide_and_deep_layers_agree_with_the_reference(widths):
    needs_kernels()
    inputs = features((20_003, widths[0]), "bfloat16"), *layers(widths, "bfloat16")
    calls = (
        functools.partial(ops.fused_mlp, activation="gelu", implementation=name)
        for name in ("pallas", "xla")
    )
    y, expected = (np.asarray(jax.jit(call)(*inputs)).astype(np.float32) for call in calls)
    np.testing.assert_allclose(y, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def _repeats_poisoned(call, inputs, expected):
    """Also under load, where warpgroups and blocks wait for each other differently."""
    poison(jax.eval_shape(call, *inputs))
    for made in [call(*inputs) for _ in range(10)]:
        assert_bit_equal(made, expected)


# Rows that are no whole tiles, fewer than there are blocks, and many for each of them.
DIRECT = [(1, (64, 192)), (203, (256, 256)), (8449, (128, 128, 128)), (232_965, (256, 256))]


@pytest.mark.parametrize("rows, widths", DIRECT)
def test_results_have_the_same_bits_from_registers(rows, widths):
    needs_kernels()
    inputs = features((rows, widths[0]), "bfloat16"), *layers(widths, "bfloat16")
    activations = ("gelu",) * (len(widths) - 1)
    usual = DenseTile.choose(Chip.current(), Stack.of(*inputs, activations))
    copied, direct = (
        jax.jit(functools.partial(dense_forward.forward, activations=activations, tile=tile))
        for tile in (dataclasses.replace(usual, direct=direct) for direct in (False, True))
    )
    _repeats_poisoned(direct, inputs, copied(*inputs))


# So many rows that blocks come in waves, the last tile cut.
WAVES = [(600_011, (64, 64), None), (300_011, (128, 128), None), (600_011, (64, 64, 64), None)]
WAVES += [(300_011, (128, 128, 128), None), (300_011, (64, 64, 64), "tf32")]


@pytest.mark.parametrize("rows, widths, precision", WAVES)
def test_blocks_in_waves_have_the_bits_of_blocks_that_stay(rows, widths, precision):
    needs_kernels()
    dtype = "float32" if precision else "bfloat16"
    inputs = features((rows, widths[0]), dtype), *layers(widths, dtype)
    activations = (*["relu"] * (len(widths) - 2), "relu" if len(widths) == 2 else None)
    stack = Stack.of(*inputs, activations, precision)
    tiles = DenseTile.choose(Chip.current(), stack), DenseTile.choose(Chip.current(), stack, rows)
    assert tiles[0].blocks < tiles[1].blocks
    stay, waves = (
        jax.jit(
            functools.partial(
                dense_forward.forward, activations=activations, tile=tile, precision=precision
            )
        )
        for tile in tiles
    )
    _repeats_poisoned(waves, inputs, stay(*inputs))


PAIRS = [(1, (256, 256, 256), "float16"), (203, (192, 256, 256), "bfloat16")]
PAIRS += [(8449, (256, 256, 256, 64), "float16"), (232_965, (256, 256, 256), "bfloat16")]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("rows, widths, dtype", PAIRS)
def test_layers_in_pairs_of_blocks_have_the_bits_of_a_kernel_for_each(
    rows, widths, dtype, activation
):
    needs_kernels()
    x, *parameters = inputs = features((rows, widths[0]), dtype), *layers(widths, dtype)
    behind = [*[activation] * (len(widths) - 2), None]
    expected = x
    for kernel, bias, name in zip(*parameters, behind, strict=True):
        expected = jax.jit(functools.partial(fused_linear, activation=name))(expected, kernel, bias)
    together = jax.jit(functools.partial(fused_mlp.fused_mlp, activation=activation))
    _repeats_poisoned(together, inputs, expected)


@pytest.mark.parametrize("tile", [PairTile(66, 3, 3), PairTile(5, 1, 2)])
def test_pairs_of_blocks_have_the_same_bits_with_every_tile(tile):
    needs_kernels()
    inputs = features((100_003, 256), "bfloat16"), *layers((256,) * 3, "bfloat16")
    usual, other = (
        jax.jit(functools.partial(dense_pair.forward, activations=("relu", None), tile=t))
        for t in (None, tile)
    )
    _repeats_poisoned(other, inputs, usual(*inputs))


def test_what_is_not_finite_stays_with_its_row_in_kernels():
    needs_kernels()
    x, parameters = features((203, 64), "bfloat16"), layers((64, 64, 64), "bfloat16")
    bad = x.at[3, 0].set(jnp.nan).at[202, 63].set(jnp.inf)
    kept = np.delete(np.arange(203), [3, 202])
    call = jax.jit(functools.partial(ops.fused_mlp, activation="gelu", **PALLAS))
    good, made = (np.asarray(call(a, *parameters)).astype(np.float32) for a in (x, bad))
    np.testing.assert_array_equal(made[kept], good[kept])
    assert np.isnan(made[3]).all()


def test_gradients_of_kernels_repeat_to_the_bit():
    needs_kernels()
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
    needs_kernels()
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
    needs_kernels()
    x = integers((rows, widths[0]), 2, 0, dtype)
    kernel, bias = integers(widths, 2, 1, dtype), integers(widths[1:], 9, 2, dtype)
    call = functools.partial(ops.fused_linear, activation=ops.MaxK(k, by), **PALLAS)
    z = ops.fused_linear(x, kernel, bias, precision="highest", implementation="xla")
    expected = jax.block_until_ready(ops.maxk(z, k, by=by, implementation="xla"))
    poison(expected.values)
    assert_bit_equal(jax.jit(call)(x, kernel, bias), expected)
    assert_bit_equal(call(x, kernel).values, call(x, kernel, 0 * bias).values)


def test_maxk_kernel_keeps_the_largest_of_numbers_of_all_sizes():
    needs_kernels()
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
    needs_kernels()
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
    needs_kernels()
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
    needs_kernels()
    inputs = [integers((rows, widths[0]), 2, 0, "bfloat16"), integers(widths, 2, 1, "bfloat16")]
    inputs.append(integers(widths[1:], 9, 2, "bfloat16"))
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
    needs_kernels()
    x, parameters = features((232_965, 256), "bfloat16"), layer(256, 256, "bfloat16")
    call = jax.jit(functools.partial(ops.fused_linear, activation=ops.MaxK(32), **PALLAS))
    first = call(x, *parameters)
    for made in [call(x, *parameters) for _ in range(20)]:
        assert_bit_equal(made, first)
