"""A linear layer with its activation, narrow enough that its weights stay in shared memory."""

from __future__ import annotations

import jax

from pallas_kernels.dense import backward as dense_backward
from pallas_kernels.dense import forward as dense_forward
from pallas_kernels.dense.forward import DenseTile
from pallas_kernels.dense.plan import BackwardTile


def fused_linear(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    activation: str | None,
    tile: DenseTile | None = None,
    precision: str | None = None,
) -> jax.Array:
    """Computes ``activation(x @ kernel + bias)``, summed in float32 and rounded once.

    Args:
      x: [rows, in], bfloat16, float16 or float32; in is a multiple of 64 up to 256.
      kernel: [in, out], of the dtype of ``x``; out is a multiple of 64 up to 256.
      bias: [out], or None.
      activation: name of the activation, or None.
      tile: how the work is divided; chosen by the shapes if None.
      precision: for float32 ``"tf32"`` or ``"bf16x3"``; else None.

    Returns:
      [rows, out].
    """
    return dense_forward.forward(x, (kernel,), (bias,), (activation,), tile, precision)


def fused_linear_backward(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    y: jax.Array | None,
    dy: jax.Array,
    activation: str | None,
    tile: BackwardTile | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Computes the gradients to ``x``, ``kernel`` and ``bias``, with sums in a fixed order.

    Args:
      x: [rows, in], bfloat16, float16 or float32; float32 numbers are multiplied as sums of two
        bfloat16 parts.
      kernel: [in, out], of the dtype of ``x``.
      bias: [out], or None.
      y: [rows, out], the output, for activations whose derivative is computed from it; else not
        used.
      dy: [rows, out].
      activation: name of the activation, or None.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      The gradients, of the shapes and dtypes of the arguments.
    """
    made = dense_backward.backward(x, (kernel,), (bias,), y, dy, (activation,), tile)
    dx, (dkernel,), (dbias,) = made
    return dx, dkernel, dbias
