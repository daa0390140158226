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
    """``activation(x @ kernel + bias)``, summed in float32 and rounded once.

    Args:
      x: [rows, in], bfloat16, float16 or float32, in a multiple of 64 up to 256.
      kernel: [in, out], of the same dtype, out likewise.
      bias: [out], or None.
      activation: a name, or None.
      tile: by default what suits the shapes.
      precision: of float32, ``"tf32"`` or ``"bf16x3"``; else None.

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
    """Gradients to ``x``, ``kernel`` and ``bias``; sums in a fixed order.

    Args:
      x: as in ``fused_linear``; float32 numbers are multiplied as the sums of two bfloat16 ones.
      kernel: likewise.
      bias: likewise.
      y: the result, for activations whose derivative is made of it; for others not used.
      dy: [rows, out].
      activation: as in ``fused_linear``.
      tile: by default what suits the shapes.

    Returns:
      Of the shapes and dtypes of the arguments.
    """
    made = dense_backward.backward(x, (kernel,), (bias,), y, dy, (activation,), tile)
    dx, (dkernel,), (dbias,) = made
    return dx, dkernel, dbias
