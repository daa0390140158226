"""A linear layer with its activation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, overload

from jaxtyping import Array, Float

from jaxgnn.graph import CBSR
from jaxgnn.ops._dense import pallas
from jaxgnn.ops._dense.checks import check_layer, check_options
from jaxgnn.ops._dense.kernels import (
    backward_limits,
    forward_limits,
    gradient_request,
    layer_limits,
)
from jaxgnn.ops._dense.kernels import kernel as kernel_table
from jaxgnn.ops._dense.reference import fused_linear as reference
from jaxgnn.ops._maxk.maxk import TODENSE, check_k, maxk
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.checks import check_choice, check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp, differentiable_again
from jaxgnn.ops.core.precision import Precision

# The unfused formula, differentiated by JAX.
REFERENCE = dispatch.Kernel(
    "fused_linear", {"xla": dispatch.xla(reference.fused_linear, scatters=False)}
)
FUSED_LINEAR = kernel_table(
    "fused_linear", reference.fused_linear, pallas.fused_linear, limits=forward_limits
)
BACKWARD = kernel_table(
    "fused_linear.backward",
    reference.fused_linear_backward,
    pallas.fused_linear_backward,
    limits=backward_limits,
    backward=True,
)

MAXK = kernel_table(
    "fused_linear.maxk",
    reference.fused_linear_maxk,
    pallas.fused_linear_maxk,
    limits=layer_limits,
)


@dataclass(frozen=True)
class MaxK:
    """Names the ``maxk`` nonlinearity as the activation of ``fused_linear``.

    Attributes:
      k: entries kept of each row.
      by: rank by ``"value"`` or ``"magnitude"``.

    Example:
      >>> from jaxgnn import ops
      >>> ops.MaxK(32)
      MaxK(k=32, by='value')
    """

    k: int
    by: Literal["value", "magnitude"] = "value"


@overload
def fused_linear(
    x: Array,
    kernel: Array,
    bias: Array | None = None,
    *,
    activation: Activation | None = None,
    precision: Precision | None = None,
    implementation: dispatch.Name | None = None,
) -> Array: ...
@overload
def fused_linear(
    x: Array,
    kernel: Array,
    bias: Array | None = None,
    *,
    activation: MaxK,
    precision: Precision | None = None,
    implementation: dispatch.Name | None = None,
) -> CBSR: ...
def fused_linear(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None = None,
    *,
    activation: Activation | MaxK | None = None,
    precision: Precision | None = None,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch out"] | CBSR:
    """``activation(x @ kernel + bias)``.

    Sums are accumulated in float32 (float64 for float64 input), bias and activation are applied to
    them, and the result is rounded once. Except where ``implementation=None`` chooses XLA for
    16-bit numbers on a GPU: there the product is also rounded. Differentiable in all arrays::

        dz = dy activation'(z),  dx = dz kernelᵀ,  dkernel = xᵀ dz,  dbias = Σ_rows dz

    The preactivation z is not kept for the backward pass: ``"relu"``, ``"squared_relu"``,
    ``"tanh"`` and ``"sigmoid"`` use the result, the others recompute z from ``x``. ``dz`` is
    rounded as an operand of the products.

    Args:
      x: features, any leading axes, also of length 0.
      kernel: weights, of the dtype of ``x``.
      bias: one number for each output feature, of the dtype of ``x``, or None for zeros.
      activation: ``"relu"``, ``"gelu"`` (by tanh), ``"gelu_exact"`` (by erf), ``"silu"``,
        ``"mish"``, ``"squared_relu"`` (https://arxiv.org/abs/2109.08668), ``"tanh"``,
        ``"sigmoid"`` or None. The derivative of
        relu at 0 is 0. ``ops.MaxK(k)`` for the k largest entries of each row, compressed.
      precision: precision of float32 products: None for JAX's setting, by default TF32 on recent
        NVIDIA GPUs and float32 on CPU; ``"highest"`` for float32; ``"tf32"`` or ``"bf16x3"`` (three
        products of bfloat16 parts), which on CPU are float32 as well. Ignored for other dtypes.
        ``"pallas"`` has kernels for the last two, and for None where JAX's setting means one of
        them; XLA still computes the gradients of wide float32 layers.
      implementation: ``"xla"``, ``"pallas"``, or None for the one measured to be fastest.

    Returns:
      The activated features, of the dtype of ``x``. For ``ops.MaxK`` the k largest entries of each
      row of the rounded ``x @ kernel + bias``, as CBSR.

    Raises:
      ValueError: if shapes or dtypes do not match, or an option is not as above.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> x, kernel = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, -1.0, 0.0], [1.0, 0.0, 2.0]])
      >>> ops.fused_linear(x, kernel, jnp.array([0.5, 0.0, 0.0]), activation="relu").tolist()
      [[3.5, 0.0, 4.0]]
      >>> kept = ops.fused_linear(x, kernel, activation=ops.MaxK(1))
      >>> kept.values.tolist(), kept.indices.tolist()
      ([[4.0]], [[2]])
    """
    x, kernel, bias = from_numpy(x, kernel, bias)
    check_float("fused_linear", "x", x, 1)
    check_layer("fused_linear", x, kernel, bias, in_features=x.shape[-1])
    request = dispatch.resolve("fused_linear", implementation)
    arguments = dispatch.match_varying(x, kernel, bias)
    if isinstance(activation, MaxK):
        return _keep_largest(request, activation, precision, *arguments)
    check_options("fused_linear", activation, precision)
    options = {"activation": activation, "precision": precision}
    if request.name == "xla":
        return REFERENCE(request, *arguments, **options)
    return _fused_linear(FUSED_LINEAR.plan(request, *arguments, **options), *arguments)


def _keep_largest(request, epilogue: MaxK, precision, x, kernel, bias) -> CBSR:
    """Runs one kernel or two ops; both keep ``x`` and the columns for the backward pass."""
    check_k("fused_linear", "activation.k", epilogue.k, kernel.shape[1])
    check_choice("fused_linear", "activation.by", epilogue.by, "value", "magnitude")
    # Implementations that round differently may keep different entries: only the two ops can be
    # verified.
    if request.verify.mode == "off" and request.name in (None, "pallas"):
        options = {"k": int(epilogue.k), "by": epilogue.by, "precision": precision}
        plan = MAXK.plan(request, x, kernel, bias, **options)
        if plan.here == "pallas":
            values, indices = _linear_maxk(plan, x, kernel, bias)
            return CBSR(values, indices, kernel.shape[1], in_range=True)
    options = {"precision": precision, "implementation": request.name}
    z = fused_linear(x, kernel, bias, **options)
    return maxk(z, epilogue.k, by=epilogue.by, implementation=request.name)


@partial(custom_vjp, nondiff_argnums=(0,))
def _linear_maxk(plan, x, kernel, bias):
    kept = plan(x, kernel, bias)
    return kept.values, kept.indices


def _linear_maxk_forward(plan, *inputs):
    values, indices = _linear_maxk(plan, *inputs)
    return (values, indices), (inputs, indices)


def _linear_maxk_backward(plan, residuals, cotangents):
    inputs, indices = residuals
    dz = TODENSE(plan.request, CBSR(cotangents[0], indices, inputs[1].shape[1]))
    precision = dict(plan.options)["precision"]
    return BACKWARD(plan.request, *inputs, None, dz, activation=None, precision=precision)


_linear_maxk.defvjp(_linear_maxk_forward, _linear_maxk_backward)


@partial(custom_vjp, nondiff_argnums=(0,))
def _fused_linear(plan, x, kernel, bias):
    return plan(x, kernel, bias)


def _fused_linear_forward(plan, *inputs):
    y = _fused_linear(plan, *inputs)
    return y, (inputs, y if reference.saves_output(dict(plan.options)["activation"]) else None)


def _fused_linear_backward(plan, residuals, dy):
    inputs, y = residuals
    return _gradient(plan, *inputs, y, dy)


def _by_kernel(plan, x, kernel, *arrays):
    options = dict(plan.options)
    request = gradient_request(plan.request, x, kernel, **options)
    return BACKWARD(request, x, kernel, *arrays, **options)


def _by_formula(plan, *arrays):
    return reference.fused_linear_backward(*arrays, **dict(plan.options))


_gradient = differentiable_again(_by_kernel, _by_formula)


_fused_linear.defvjp(_fused_linear_forward, _fused_linear_backward)
