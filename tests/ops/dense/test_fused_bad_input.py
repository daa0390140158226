"""The fused linear layers refuse bad input with op, argument, expectation and value."""

import jax
import jax.numpy as jnp
import pytest

from jaxgnn import ops
from tests.ops.dense._linear import features, layer, layers

X = features((5, 8))
KERNEL, BIAS = layer(8, 6)
KERNELS, BIASES = layers((8, 7, 6, 4))


def _linear(**changes):
    arguments = {"x": X, "kernel": KERNEL, "bias": BIAS}
    return lambda: ops.fused_linear(**arguments | changes)


def _mlp(**changes):
    arguments = {"x": X, "kernels": KERNELS, "biases": BIASES, "activation": "relu"}
    return lambda: ops.fused_mlp(**arguments | changes)


CASES = {
    "x int": (_linear(x=X.astype(int)), ["fused_linear: x", "floating", "int32"]),
    "x list": (_linear(x=[1.0]), ["fused_linear: x", "array", "list"]),
    "x scalar": (_linear(x=X[0, 0]), ["fused_linear: x", "1 axes", "()"]),
    "x no features": (_linear(x=X[:, :0]), ["fused_linear: x", "feature", "(5, 0)"]),
    "inner": (_linear(x=X[:, :3]), ["fused_linear: kernel", "(3, features)", "(5, 3)", "(8, 6)"]),
    "kernel int": (_linear(kernel=KERNEL.astype(int)), ["kernel", "floating", "int32"]),
    "kernel vector": (_linear(kernel=BIAS), ["fused_linear: kernel", "2 axes", "(6,)"]),
    "kernel batched": (_linear(kernel=KERNEL[None]), ["kernel", "(8, features)", "(1, 8, 6)"]),
    "kernel no outputs": (_linear(kernel=KERNEL[:, :0]), ["kernel", "feature", "(8, 0)"]),
    "kernel dtype": (
        _linear(kernel=KERNEL.astype(jnp.bfloat16)),
        ["fused_linear: kernel", "float32 of shape (8, features)", "bfloat16"],
    ),
    "bias length": (_linear(bias=BIAS[:5]), ["fused_linear: bias", "(6,)", "(8, 6)", "(5,)"]),
    "bias matrix": (_linear(bias=BIAS[None]), ["fused_linear: bias", "(6,)", "(1, 6)"]),
    "bias dtype": (
        _linear(bias=BIAS.astype(jnp.float16)),
        ["fused_linear: bias", "float32", "float16"],
    ),
    "bias number": (_linear(bias=1.0), ["fused_linear: bias", "an array", "float"]),
    "activation": (
        _linear(activation="softplus"),
        ["fused_linear: activation", "None or 'relu'", "'squared_relu'", "'softplus'"],
    ),
    "activation function": (_linear(activation=jax.nn.relu), ["activation", "'gelu_exact'"]),
    "precision": (
        _linear(precision="fp8"),
        ["fused_linear: precision", "'highest' or 'tf32' or 'bf16x3'", "'fp8'"],
    ),
    "precision of maxk": (
        _linear(precision="fp8", activation=ops.MaxK(2)),
        ["fused_linear: precision", "'fp8'"],
    ),
    "implementation": (_linear(implementation="cuda"), ["implementation", "'cuda'"]),
    "k": (_linear(activation=ops.MaxK(7)), ["fused_linear: activation.k", "1..6", "got 7"]),
    "k float": (_linear(activation=ops.MaxK(2.0)), ["activation.k", "an int", "2.0"]),
    "by": (_linear(activation=ops.MaxK(2, "size")), ["activation.by", "'magnitude'", "'size'"]),
    "mlp x": (_mlp(x=X.astype(int)), ["fused_mlp: x", "floating", "int32"]),
    "mlp inner": (_mlp(x=X[:, :3]), ["fused_mlp: kernels[0]", "(3, features)", "(5, 3)"]),
    "mlp no kernels": (_mlp(kernels=[], biases=[]), ["fused_mlp: kernels", "one layer", "none"]),
    "mlp one array": (_mlp(kernels=KERNEL), ["fused_mlp: kernels", "list or tuple"]),
    "mlp biases none": (_mlp(biases=None), ["fused_mlp: biases", "list or tuple", "NoneType"]),
    "mlp biases count": (_mlp(biases=BIASES[:2]), ["biases", "3 entries", "got 2"]),
    "mlp widths": (
        _mlp(kernels=[KERNELS[0], *KERNELS[2:]], biases=BIASES[:2]),
        ["fused_mlp: kernels[1]", "(7, features)", "layer before", "(6, 4)"],
    ),
    "mlp bias": (
        _mlp(biases=[*BIASES[:2], BIAS]),
        ["fused_mlp: biases[2]", "(4,)", "(6, 4)", "(6,)"],
    ),
    "mlp dtype": (
        _mlp(kernels=[*KERNELS[:2], KERNELS[2].astype(jnp.float16)]),
        ["fused_mlp: kernels[2]", "float32", "float16"],
    ),
    "mlp activation": (_mlp(activation="elu"), ["fused_mlp: activation", "'mish'", "'elu'"]),
    "mlp maxk": (_mlp(activation=ops.MaxK(2)), ["fused_mlp: activation", "MaxK(k=2"]),
    "mlp precision": (_mlp(precision="tf33"), ["fused_mlp: precision", "'tf32'", "'tf33'"]),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named(name):
    call, fragments = CASES[name]
    with pytest.raises(ValueError) as error:
        call()
    for fragment in fragments:
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"


def test_shapes_are_checked_at_trace_time():
    with pytest.raises(ValueError, match=r"fused_linear: kernel must be float32 of shape \(8, "):
        jax.jit(ops.fused_linear).lower(X, KERNEL[:3])
