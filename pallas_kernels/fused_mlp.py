"""Linear layers with an activation between them, whose weights all fit shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from pallas_kernels import _dense_backward, _dense_stack
from pallas_kernels._dense_backward import BackwardTile
from pallas_kernels._dense_stack import DenseTile, Stack


def tiles(
    x, kernels, biases, activation: str | None
) -> tuple[DenseTile | None, BackwardTile | None]:
    """What ``fused_mlp`` and ``fused_mlp_backward`` choose, None where nothing fits."""
    stack = Stack.of(x, kernels, biases, _activations(kernels, activation))
    return DenseTile.choose(stack), BackwardTile.choose(stack)


def fused_mlp(
    x: jax.Array,
    kernels: Sequence[jax.Array],
    biases: Sequence[jax.Array | None],
    activation: str | None,
    tile: DenseTile | None = None,
) -> jax.Array:
    """``h ← activation(h @ kernel + bias)``, the last layer linear; hidden ones rounded too.

    Args:
      x: [rows, in], bfloat16 or float16.
      kernels: [in, out] each, multiples of 64.
      biases: [out] or None, each.
      activation: between the layers, a name or None.
      tile: by default what suits the shapes.

    Returns:
      [rows, last out].
    """
    return _dense_stack.forward(x, kernels, biases, _activations(kernels, activation), tile)


def fused_mlp_backward(
    x: jax.Array,
    kernels: Sequence[jax.Array],
    biases: Sequence[jax.Array | None],
    dy: jax.Array,
    activation: str | None,
    tile: BackwardTile | None = None,
) -> tuple[jax.Array, Sequence[jax.Array], Sequence[jax.Array | None]]:
    """Gradients to the first three arguments, in one pass; sums in a fixed order.

    Args:
      x: as in ``fused_mlp``.
      kernels: one or two.
      biases: as in ``fused_mlp``.
      dy: [rows, last out].
      activation: as in ``fused_mlp``.
      tile: by default what suits the shapes.

    Returns:
      Of the shapes and dtypes of the arguments.
    """
    activations = _activations(kernels, activation)
    return _dense_backward.backward(x, kernels, biases, None, dy, activations, tile)


def _activations(kernels, activation: str | None) -> tuple[str | None, ...]:
    return (*[activation] * (len(kernels) - 1), None)
