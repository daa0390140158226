"""The kernels of fused linear layers of float32 numbers on a GPU: exact sums, errors, same bits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.testing import assert_bit_equal, random_array, to_float64
from tests.gpu._fused import (
    ERRORS,
    PALLAS,
    integer_layer,
    integer_layers,
    integers,
    needs_kernels,
    poison,
)
from tests.ops.dense._linear import VALUES, features, layers, linear, mlp

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

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
    needs_kernels()
    x = integers((rows, widths[0]), 2, 0, "float32")
    pairs = enumerate(itertools.pairwise(widths))
    made = [integer_layer(*pair, i, "float32") for i, pair in pairs]
    kernels, biases = zip(*made, strict=True)
    call = _float32_call(widths, activation="relu", precision=precision)
    expected = np.asarray(x, np.float64)
    for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        expected = expected @ np.asarray(kernel, np.float64) + np.asarray(bias, np.float64)
        if i + 2 < len(widths) or len(widths) == 2:
            expected = np.maximum(expected, 0)
    poison(x, jnp.asarray(expected, jnp.float32))
    np.testing.assert_array_equal(jax.jit(call)(x, kernels, biases), expected)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
@pytest.mark.parametrize("rows, widths", FLOAT32_SHAPES)
def test_float32_kernels_err_by_what_their_precision_says(rows, widths, precision):
    needs_kernels()
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
    needs_kernels()
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
    needs_kernels()
    inputs = integer_layers(rows, widths, "float32")
    inputs = inputs[0], *inputs[1]
    dy = integers((rows, widths[-1]), 2, 7, "float32")
    expected = _exact_gradients(widths, "relu", inputs, dy)
    call = _float32_call(widths, activation="relu", precision="tf32")
    partial_sums = [jnp.zeros((132, *pair)) for pair in itertools.pairwise(widths)]
    poison(inputs[0], *partial_sums)
    made = jax.tree.leaves(_gradients(call, inputs, dy))
    for a, e in zip(made, expected, strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
@pytest.mark.parametrize("rows, widths", FLOAT32_GRADIENTS)
def test_gradients_by_float32_kernels_err_by_what_their_precision_says(rows, widths, precision):
    needs_kernels()
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
    needs_kernels()
    inputs = features((50_000, widths[0])), *layers(widths)
    dy = random_array((50_000, widths[-1]), "float32", seed=9)
    call = _float32_call(widths, activation="silu", precision="tf32")
    gradients = jax.jit(lambda *inputs: jax.vjp(call, *inputs)[1](dy))
    first = gradients(*inputs)
    for _ in range(20):
        assert_bit_equal(gradients(*inputs), first)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
def test_float32_kernels_repeat_to_the_bit_in_batches_and_under_load(precision):
    needs_kernels()
    x, parameters = features((3, 20_003, 128)), layers((128,) * 3)
    options = {"activation": "silu", "precision": precision, **PALLAS}
    call = jax.jit(lambda x: ops.fused_mlp(x, *parameters, **options))
    first = call(x)
    assert_bit_equal(jax.jit(jax.vmap(call))(x), first)
    for made in [call(x) for _ in range(20)]:
        assert_bit_equal(made, first)


@pytest.mark.parametrize("precision", FLOAT32_PRECISIONS)
def test_what_is_not_finite_stays_with_its_row_in_float32_kernels(precision):
    needs_kernels()
    x, parameters = features((203, 64)), layers((64, 64, 64))
    bad = x.at[3, 0].set(jnp.nan).at[202, 63].set(jnp.inf)
    kept = np.delete(np.arange(203), [3, 202])
    options = {"activation": "gelu", "precision": precision, **PALLAS}
    call = jax.jit(functools.partial(ops.fused_mlp, **options))
    good, made = (np.asarray(call(a, *parameters)) for a in (x, bad))
    np.testing.assert_array_equal(made[kept], good[kept])
    assert np.isnan(made[3]).all()
    assert not np.isfinite(made[202]).any()
