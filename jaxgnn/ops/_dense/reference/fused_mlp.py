"""Linear layers with an activation between them, in plain JAX."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Array, Float

from jaxgnn.ops._dense.reference.fused_linear import (
    behind_barrier,
    fused_linear,
    gradients,
    preactivation,
)
from jaxgnn.ops.core.activations import ACTIVATIONS, Name
from jaxgnn.ops.core.dtypes import stored
from jaxgnn.ops.core.precision import Precision


def fused_mlp(
    x: Float[Array, "*batch in"],
    kernels: Sequence[Array],
    biases: Sequence[Array | None],
    *,
    activation: Name | None,
    precision: Precision | None,
    round_products: bool = False,
) -> Float[Array, "*batch out"]:
    """Applies ``fused_linear`` for each layer, with the activation for all but the last."""
    inputs, _ = _hidden_layers(x, kernels, biases, activation, precision, round_products)
    options = {"precision": precision, "round_products": round_products}
    return fused_linear(inputs[-1], kernels[-1], biases[-1], activation=None, **options)


def fused_mlp_backward(
    x: Float[Array, "*batch in"],
    kernels: Sequence[Array],
    biases: Sequence[Array | None],
    dy: Float[Array, "*batch out"],
    *,
    activation: Name | None,
    precision: Precision | None,
    round_products: bool = False,
) -> tuple[Array, tuple[Array, ...], tuple[Array | None, ...]]:
    """Gradients to ``x``, ``kernels`` and ``biases``.

    Recomputes the hidden layers from ``x``, then computes gradients from the last layer on. Layer i
    reads h_i and computes z_i, with ``h_0 = x``, ``h_{i+1} = activation(z_i)``, last ``dz = dy``::

        dkernel_i = h_iᵀ dz_i,  dbias_i = Σ_rows dz_i,  dh_i = dz_i kernel_iᵀ
        dz_{i-1}  = dh_i activation'(z_{i-1})
    """
    x, kernels, biases, dy = behind_barrier(x, tuple(kernels), tuple(biases), dy)
    inputs, known = _hidden_layers(x, kernels, biases, activation, precision, round_products)
    dkernels, dbiases, dh = [], [], dy
    for h, kernel, bias, z in reversed(list(zip(inputs, kernels, biases, known, strict=True))):
        dz = dh if z is None else ACTIVATIONS[activation].pull_back(z, dh)
        dh, dkernel, dbias = gradients(h, kernel, bias, dz, precision, round_products)
        dkernels.insert(0, dkernel)
        dbiases.insert(0, dbias)
    return dh.astype(x.dtype), tuple(dkernels), tuple(dbiases)


def _hidden_layers(x, kernels, biases, activation, precision, round_products):
    """The input of each layer, and the y or z from which the derivative after it is computed.

    The latter is None for the last layer.
    """
    layer, inputs, known = ACTIVATIONS[activation], [x], []
    for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
        z = preactivation(inputs[-1], kernel, bias, precision, round_products)
        inputs.append(stored(layer.activate(z), x.dtype))
        known.append(inputs[-1] if layer.of_output else z)
    return inputs, [*known, None]
