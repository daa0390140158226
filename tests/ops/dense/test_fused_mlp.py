"""fused_mlp against float64 autodiff of its formula; what its backward pass keeps."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops.core import dispatch
from tests.ops.dense._linear import DTYPES, VALUES, check, features, layers, mlp

ROWS, WIDTHS = 10, (7, 33, 16, 5)
LENGTH = 33


def _inputs(dtype="float32", rows=(ROWS,), widths=WIDTHS):
    return features((*rows, widths[0]), dtype), *layers(widths, dtype)


ORACLES = {
    dtype: {a: functools.partial(mlp, activation=a, rounded_to=dtype) for a in VALUES}
    for dtype in DTYPES
}


def _call(activation, **options):
    return functools.partial(ops.fused_mlp, activation=activation, **options)


@pytest.mark.costly
@pytest.mark.usefixtures("rounded_once")
@pytest.mark.parametrize(
    "dtype, implementation",
    [*((d, None) for d in DTYPES), ("float32", "xla")],
)
def test_value_and_every_gradient_equal_float64(dtype, implementation):
    functions = {a: _call(a, implementation=implementation) for a in VALUES}
    check(functions, ORACLES[dtype], _inputs(dtype), dtype, LENGTH)


@pytest.mark.parametrize("rows", [(), (0,), (1,), (2, 3)])
@pytest.mark.parametrize("widths", [(3, 4), (1, 1, 1)])
def test_every_shape_has_that_of_the_formula(rows, widths):
    inputs = _inputs(rows=rows, widths=widths)
    y = ops.fused_mlp(*inputs, activation="silu")
    expected = mlp(*inputs, "silu", "float32")
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_no_row_has_gradients_of_zero_and_one_layer_no_activation():
    functions, oracles = {"relu": _call("relu")}, {"relu": ORACLES["float32"]["relu"]}
    check(functions, oracles, _inputs(rows=(0,)), "float32", LENGTH)
    check(functions, oracles, _inputs(widths=(7, 5)), "float32", LENGTH)


# For which kernels of all layers are taken on a GPU.
ON_CHIP = {"dtype": "bfloat16", "rows": (2048,), "widths": (64, 128, 64)}


def test_layers_for_one_kernel_agree_with_float64():
    dtype = ON_CHIP["dtype"]
    functions, oracles = {"silu": _call("silu")}, {"silu": ORACLES[dtype]["silu"]}
    check(functions, oracles, _inputs(**ON_CHIP), dtype, 2048)


def test_of_layers_for_one_kernel_only_the_input_and_the_parameters_are_kept():
    inputs = _inputs(**ON_CHIP)
    _, pull_back = jax.vjp(_call("relu"), *inputs)
    kept = [leaf.shape for leaf in jax.tree.leaves(pull_back) if hasattr(leaf, "shape")]
    assert sorted(kept) == sorted(a.shape for a in jax.tree.leaves(inputs))


def test_hidden_layers_are_recomputed_behind_a_barrier_and_take_no_memory_meanwhile():
    x, kernels, biases = _inputs("bfloat16", rows=(65536,), widths=(64,) * 4)

    def memory(implementation):
        def loss(x, kernels, biases):
            for _ in range(6):
                x = _call("gelu", implementation=implementation)(x, kernels, biases)
            return jnp.sum(x * x)

        gradient = jax.jit(jax.grad(loss, argnums=1))
        return gradient.lower(x, kernels, biases).compile().memory_analysis().temp_size_in_bytes

    assert memory(None) < memory("xla") / 2


@pytest.mark.parametrize("rows, widths", [(2048, (320, 64, 64)), (2047, (64, 64, 64))])
def test_of_other_layers_no_product_is_made_twice(rows, widths):
    inputs = _inputs("bfloat16", rows=(rows,), widths=widths)
    y, pull_back = jax.vjp(_call("relu"), *inputs)
    assert str(jax.make_jaxpr(pull_back)(y)).count("dot_general") == 2 * (len(widths) - 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows, widths", [(512, (784, 2048, 1000)), (64, (784, 256, 256, 10))])
def test_what_is_left_to_xla_on_a_gpu_is_the_program_as_one_writes_it(
    monkeypatch, dtype, rows, widths
):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    x = jax.ShapeDtypeStruct((rows, widths[0]), dtype)
    kernels = [jax.ShapeDtypeStruct(shape, dtype) for shape in itertools.pairwise(widths)]
    biases = [jax.ShapeDtypeStruct((width,), dtype) for width in widths[1:]]

    def plain(x, kernels, biases):
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            x = jax.nn.relu(x @ kernel + bias)
        return x @ kernels[-1] + biases[-1]

    def program(layers):
        def network(*arrays):
            return layers(*arrays)

        return jax.jit(network).trace(x, kernels, biases).lower(lowering_platforms=("cuda",))

    assert program(_call("relu")).as_text() == program(plain).as_text()
