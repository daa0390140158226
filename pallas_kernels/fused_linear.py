"""A linear layer with its activation, narrow enough that its weights stay in shared memory."""

from __future__ import annotations

import jax

from pallas_kernels import _dense_backward, _dense_stack
from pallas_kernels._dense_backward import BackwardTile
from pallas_kernels._dense_stack import DenseTile, Stack


def tiles(x, kernel, bias, activation: str | None) -> tuple[DenseTile | None, BackwardTile | None]:
    """What ``fused_linear`` and ``fused_linear_backward`` choose, None where nothing fits."""
    stack = Stack.of(x, (kernel,), (bias,), (activation,))
    return DenseTile.choose(stack), BackwardTile.choose(stack)


def fused_linear(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    activation: str | None,
    tile: DenseTile | None = None,
) -> jax.Array:
    """``activation(x @ kernel + bias)``, summed in float32 and rounded once.

    Args:
      x: [rows, in], bfloat16 or float16, in a multiple of 64.
      kernel: [in, out], of the same dtype, out a multiple of 64.
      bias: [out], or None.
      activation: a name, or None.
      tile: by default what suits the shapes.

    Returns:
      [rows, out].
    """
    return _dense_stack.forward(x, (kernel,), (bias,), (activation,), tile)


def fused_linear_backward(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    y: jax.Array | None,
    dy: jax.Array,
    activation: str | None,
    tile: BackwardTile | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Gradients to ``x``, ``kernel`` and ``bias``, in one pass; sums in a fixed order.

    Args:
      x: as in ``fused_linear``.
      kernel: likewise.
      bias: likewise.
      y: the result, for activations whose derivative is made of it; for others not used.
      dy: [rows, out].
      activation: as in ``fused_linear``.
      tile: by default what suits the shapes.

    Returns:
      Of the shapes and dtypes of the arguments.
    """
    made = _dense_backward.backward(x, (kernel,), (bias,), y, dy, (activation,), tile)
    dx, (dkernel,), (dbias,) = made
    return dx, dkernel, dbias
