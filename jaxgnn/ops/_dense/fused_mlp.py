"""Linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from jaxtyping import Array, Float

from jaxgnn.ops._dense import pallas
from jaxgnn.ops._dense.checks import check_layers, check_options
from jaxgnn.ops._dense.fused_linear import fused_linear
from jaxgnn.ops._dense.kernels import (
    backward_limits,
    forward_limits,
    gradient_request,
    kernel,
)
from jaxgnn.ops._dense.reference import fused_mlp as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.checks import check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp, differentiable_again, set_gradient
from jaxgnn.ops.core.precision import Precision

# The unfused formula, differentiated by JAX.
REFERENCE = dispatch.Kernel("fused_mlp", {"xla": dispatch.xla(reference.fused_mlp, scatters=False)})
FUSED_MLP = kernel("fused_mlp", reference.fused_mlp, pallas.fused_mlp, limits=forward_limits)
BACKWARD = kernel(
    "fused_mlp.backward",
    reference.fused_mlp_backward,
    pallas.fused_mlp_backward,
    limits=backward_limits,
    backward=True,
)


def fused_mlp(
    x: Float[Array, "*batch in"],
    kernels: Sequence[Float[Array, "in out"]],
    biases: Sequence[Float[Array, " out"] | None],
    *,
    activation: Activation | None,
    precision: Precision | None = None,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch out"]:
    """A multilayer perceptron: ``h ← activation(h @ kernel + bias)``, the last layer linear.

    Each layer accumulates in float32 (float64 for float64 input) and rounds its result once, to the
    dtype of ``x``, hidden layers included. Differentiable in every array.

    Layers for which the kernels of a GPU are chosen keep only ``x`` and the parameters for the
    backward pass, which recomputes the hidden layers. This takes about a quarter more products in a
    training step, but no hidden layer is read or written. Layers that are too wide, or too few
    rows, run one ``fused_linear`` a layer, which keeps the input of each layer.

    Args:
      x: features, any leading axes, also of length 0.
      kernels: weights of the layers, each as wide as the next is high, of the dtype of ``x``.
      biases: one for each layer, of the dtype of ``x``, or None.
      activation: function between the layers: ``"relu"``, ``"gelu"`` (by tanh), ``"gelu_exact"``
        (by erf), ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"`` or
        None.
      precision: precision of float32 products: None for JAX's setting, by default TF32 on recent
        NVIDIA GPUs and float32 on CPU; ``"highest"`` for float32; ``"tf32"`` or ``"bf16x3"`` (three
        products of bfloat16 parts), which on CPU are float32 as well. Ignored for other dtypes.
      implementation: ``"xla"``, ``"pallas"``, or None for the one measured to be fastest.

    Returns:
      The output of the last layer, of the dtype of ``x``.

    Raises:
      ValueError: if shapes or dtypes do not match, there is no layer, or an option is not as above.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> kernels = [jnp.array([[1.0, -1.0]]), jnp.array([[1.0], [1.0]])]
      >>> x = jnp.array([[-2.0], [3.0]])
      >>> ops.fused_mlp(x, kernels, [None, jnp.zeros(1)], activation="relu").tolist()  # |x|
      [[2.0], [3.0]]
    """
    x, kernels, biases = from_numpy(x, kernels, biases)
    check_float("fused_mlp", "x", x, 1)
    check_layers("fused_mlp", x, kernels, biases)
    check_options("fused_mlp", activation, precision)
    request = dispatch.resolve("fused_mlp", implementation)
    arguments = dispatch.match_varying(x, tuple(kernels), tuple(biases))
    options: dict[str, Any] = {"activation": activation, "precision": precision}
    if request.name == "xla":
        return REFERENCE(request, *arguments, **options)
    plan = FUSED_MLP.plan(request, *arguments, **options)
    if not plan.runs_kernels:
        return _layer_by_layer(*arguments, **options)
    return _fused_mlp(plan, *arguments)


def _layer_by_layer(x, kernels, biases, activation, precision):
    """Runs one ``fused_linear`` a layer, where the products take most of the time.

    Recomputing hidden layers would add a third more products.
    """
    *hidden, last = zip(kernels, biases, strict=True)
    for layer in hidden:
        x = fused_linear(x, *layer, activation=activation, precision=precision)
    return fused_linear(x, *last, precision=precision)


@partial(custom_vjp, nondiff_argnums=(0,))
def _fused_mlp(plan, x, kernels, biases):
    return plan(x, kernels, biases)


def _by_kernel(plan, x, kernels, biases, dy):
    options = dict(plan.options)
    request = gradient_request(plan.request, x, kernels, **options)
    return BACKWARD(request, x, kernels, biases, dy, **options)


def _by_formula(plan, *arrays):
    return reference.fused_mlp_backward(*arrays, **dict(plan.options))


_gradient = differentiable_again(_by_kernel, _by_formula)


set_gradient(_fused_mlp, _gradient, 1)
