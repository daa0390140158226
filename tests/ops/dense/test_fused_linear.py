"""fused_linear against float64 autodiff of its formula; what its backward pass keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops._dense.fused_linear import BACKWARD, FUSED_LINEAR
from jaxgnn.ops._dense.fused_mlp import BACKWARD as MLP_BACKWARD
from jaxgnn.ops._dense.fused_mlp import FUSED_MLP
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.precision import PRECISIONS
from jaxgnn.testing import assert_bit_equal, check_against_float64, check_numerical_gradients
from tests.ops.dense._linear import DTYPES, VALUES, check, features, layer, linear

ROWS, IN, OUT = 11, 13, 9
LENGTH = 13


def _call(activation, **options):
    return functools.partial(ops.fused_linear, activation=activation, **options)


ORACLES = {a: functools.partial(linear, activation=a) for a in VALUES}
OF_OUTPUT = ("squared_relu", "tanh", "sigmoid")  # with the derivative from the rounded value
# The value and dbias; the other gradients are sums of rounded dz.
STRICT = {a: (0,) if a in OF_OUTPUT else (0, 3) for a in VALUES}


def _inputs(dtype="float32"):
    return features((ROWS, IN), dtype), *layer(IN, OUT, dtype)


@pytest.mark.usefixtures("rounded_once")
@pytest.mark.parametrize(
    "dtype, implementation",
    [*((d, None) for d in DTYPES), ("float32", "xla")],
)
def test_value_and_every_gradient_equal_float64(dtype, implementation):
    functions = {a: _call(a, implementation=implementation) for a in VALUES}
    check(functions, ORACLES, _inputs(dtype), dtype, LENGTH, STRICT)


def test_float64_is_computed_in_float64():
    with jax.enable_x64(True):
        inputs = tuple(a.astype(jnp.float64) for a in _inputs())
        functions = {(a, p): _call(a, precision=p) for a in ("relu", "mish") for p in PRECISIONS}
        oracles = {(a, p): ORACLES[a] for a, p in functions}
        check(functions, oracles, inputs, jnp.float64, LENGTH)


def test_every_shape_and_no_bias():
    kernel, bias = layer(IN, OUT)
    narrow, _ = layer(1, 1)
    cases = {
        "no leading axis": (features((IN,)), kernel, bias),
        "no row": (features((0, IN)), kernel, bias),
        "one row": (features((1, IN)), kernel, bias),
        "two leading axes": (features((2, 3, IN)), kernel, bias),
        "an empty one of two": (features((2, 0, IN)), kernel, bias),
        "no bias": (features((5, IN)), kernel, None),
        "width one": (features((5, 1)), narrow, None),
    }

    for name, (x, kernel, bias) in cases.items():
        y = ops.fused_linear(x, kernel, bias, activation="gelu")
        assert (y.shape, y.dtype) == ((*x.shape[:-1], kernel.shape[1]), x.dtype), name

    def each(call):
        return {n: lambda *all_cases, i=i: call(*all_cases[i]) for i, n in enumerate(cases)}

    for activation in ("relu", "gelu"):
        functions = each(_call(activation)), each(ORACLES[activation])
        check(*functions, tuple(cases.values()), "float32", LENGTH)


def test_gradients_agree_with_finite_differences():
    check_numerical_gradients(_call("silu"), *_inputs())


POINTS = np.array([0.0, 1e-3, 0.1, 0.7, 1.0, 2.5, 7.0, 15.9, 16.1, 39.9, 40.1, 300.0, 1e4])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivative_is_that_of_the_value(name):
    activation = ACTIVATIONS[name]
    with jax.enable_x64(True):
        z = jnp.asarray(np.concatenate([-POINTS, POINTS]))
        y = activation.value(z)
        np.testing.assert_allclose(y, VALUES[name](z), rtol=1e-15)
        derivative = activation.derivative(y if activation.of_output else z)
        expected = jax.vmap(jax.grad(VALUES[name]))(z)
    np.testing.assert_allclose(derivative, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype, largest", [("float32", 3e38), ("float64", 1e308)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivative_of_large_inputs_is_that_of_relu_or_of_its_square_or_zero(name, dtype, largest):
    activation = ACTIVATIONS[name]
    with jax.enable_x64(True):
        z = jnp.asarray([1e3, 1e7, 1e13, 1e18, largest**0.5 / 2, largest], dtype)
        # The square of the largest overflows, as it does in JAX.
        z = z[:-1] if name == "squared_relu" else z
        known = [activation.value(s * z) if activation.of_output else s * z for s in (1, -1)]
        above, below = (activation.derivative(k) for k in known)
    assert above.dtype == dtype
    expected = np.full(z.shape, 0.0 if name in ("tanh", "sigmoid") else 1.0)
    if name == "squared_relu":
        expected = 2 * np.asarray(z)
    np.testing.assert_allclose(above, expected, rtol=1e-6)
    np.testing.assert_array_equal(below, np.full(z.shape, 1.0 if name is None else 0.0))


@pytest.mark.parametrize("name", ["relu", "squared_relu"])
def test_a_unit_that_is_off_passes_nothing_on_as_in_jax(name):
    kernel, dy = jnp.eye(3), jnp.array([jnp.inf, jnp.nan, 1.0])
    x = jnp.array([-1.0, 0.0, 2.0])
    _, pull_back = jax.vjp(lambda x: ops.fused_linear(x, kernel, activation=name), x)
    z = jax.vjp(VALUES["relu"], x)[1](dy)[0]  # 0, 0, 1
    np.testing.assert_array_equal(pull_back(dy)[0], z * (1 if name == "relu" else 4))


def _saved(function, *args):
    """Shapes of the floating arrays that are kept for the backward pass, sorted."""
    leaves = jax.tree.leaves(jax.vjp(function, *args)[1])
    arrays = [a for a in leaves if hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.floating)]
    return sorted(a.shape for a in arrays if a.ndim)


@pytest.mark.parametrize("name", VALUES)
def test_only_the_input_and_for_relu_and_the_like_the_output_are_kept(name):
    kept = [(ROWS, IN), (IN, OUT), (OUT,)]
    if name in ("relu", *OF_OUTPUT):
        kept.append((ROWS, OUT))
    # Of the bias, what tells that there is one may be all that is kept.
    assert _saved(_call(name), *_inputs()) in (sorted(kept), sorted(set(kept) - {(OUT,)}))


def test_what_is_recomputed_is_not_merged_with_the_forward_pass():
    loss = jax.jit(lambda *inputs: jnp.sum(ops.fused_linear(*inputs, activation="gelu")))
    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(loss))(*_inputs()))


# What a compiler may get wrong behind a product: scaling a sum with a bias as if it were the
# product alone, and adding the bias to rows instead of columns where there are as many.
@pytest.mark.usefixtures("rounded_once")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scaled_sums_and_biases_of_square_outputs_are_right(dtype):
    x, (kernel, bias) = features((64, 64), dtype), layer(64, 64, dtype)
    functions = {
        "scaled": lambda *i: 0.25 * ops.fused_linear(*i),
        "scaled below zero": lambda *i: -3 * ops.fused_linear(*i, activation="relu"),
        "square": ops.fused_linear,
        "transposed": lambda x, k, b: ops.fused_linear(x.T, k.T, b).T,
    }
    oracles = {
        "scaled": lambda *i: 0.25 * linear(*i, None),
        "scaled below zero": lambda *i: -3 * linear(*i, "relu"),
        "square": ORACLES[None],
        "transposed": lambda x, k, b: linear(x.T, k.T, b, None).T,
    }
    check(functions, oracles, (x, kernel, bias), dtype, 64)


@pytest.mark.lowers
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_lowers_everywhere_and_is_float32_on_cpu(precision):
    call = jax.jit(_call("relu", precision=precision))
    for platform in ("cpu", "cuda"):
        call.trace(*_inputs()).lower(lowering_platforms=(platform,))
    if jax.default_backend() == "cpu":
        expected = ops.fused_linear(*_inputs(), activation="relu")
        np.testing.assert_allclose(call(*_inputs()), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_maxk_is_that_of_the_linear_layer(dtype, by):
    inputs = _inputs(dtype)
    kept = ops.fused_linear(*inputs, activation=ops.MaxK(3, by))
    expected = ops.maxk(ops.fused_linear(*inputs), 3, by=by)
    assert_bit_equal(kept, expected)
    assert kept.dim == OUT


@pytest.mark.parametrize("shape", [(ROWS, IN), (2, 3, IN), (0, IN)])
def test_gradients_of_maxk_equal_float64(shape):
    def values(*inputs, implementation):
        activation = ops.MaxK(4)
        return ops.fused_linear(
            *inputs, activation=activation, implementation=implementation
        ).values

    check_against_float64(
        functools.partial(values, implementation=None),
        functools.partial(values, implementation="xla"),
        features(shape),
        *layer(IN, OUT),
        reduction_length=LENGTH,
    )


def test_maxk_keeps_no_dense_activation():
    def values(*inputs):
        return ops.fused_linear(*inputs, activation=ops.MaxK(2)).values

    assert (ROWS, OUT) not in _saved(values, *_inputs())


@pytest.mark.parametrize(
    "rows, width, activation, forward, backward, of_two",
    [
        (2048, 256, "relu", "pallas", "pallas", "pallas"),
        (2048, 256, "gelu", "pallas", "xla", "xla"),
        (2048, 256, None, "pallas", "pallas", "xla"),
        (2048, 128, "gelu", "pallas", "pallas", "pallas"),
        (2047, 128, "relu", "xla", "xla", "xla"),
        (2048, 320, "relu", "xla", "xla", "xla"),
    ],
)
def test_none_takes_kernels_on_a_gpu_where_they_were_timed(
    rows, width, activation, forward, backward, of_two
):
    if FUSED_LINEAR.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FUSED_LINEAR.unavailable('pallas', 'cuda')}")
    x, kernel = (jax.ShapeDtypeStruct((n, width), "bfloat16") for n in (rows, width))
    options = {"activation": activation, "precision": None}
    assert FUSED_LINEAR.choose("cuda", x, kernel, None, **options) == forward
    assert BACKWARD.choose("cuda", x, kernel, None, x, x, **options) == backward
    layers = (kernel, kernel), (None, None)
    assert MLP_BACKWARD.choose("cuda", x, *layers, x, **options) == of_two


@pytest.mark.parametrize(
    "width, activation, precision, forward, backward",
    [
        (128, "relu", "tf32", "pallas", "pallas"),
        (64, "relu", "bf16x3", "pallas", "pallas"),
        (128, "gelu", "tf32", "pallas", "pallas"),
        (128, "silu", "tf32", "pallas", "xla"),
        (192, "relu", "tf32", "xla", "xla"),
        (128, "relu", "highest", "xla", "xla"),
    ],
)
def test_none_takes_float32_kernels_of_two_layers_on_a_gpu_where_they_were_timed(
    width, activation, precision, forward, backward
):
    if FUSED_MLP.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FUSED_MLP.unavailable('pallas', 'cuda')}")
    x, kernel = (jax.ShapeDtypeStruct((n, width), "float32") for n in (2048, width))
    layers, options = ((kernel, kernel), (None, None)), {"activation": activation}
    assert FUSED_MLP.choose("cuda", x, *layers, precision=precision, **options) == forward
    chosen = MLP_BACKWARD.choose("cuda", x, *layers, x, precision=precision, **options)
    assert chosen == backward
