"""Linear layers with an activation between them.

Layers that fit into shared memory together are computed by one kernel, and two layers that fit into
that of two multiprocessors by another. Other layers are computed one after the other, and the rows
between them go through global memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels.chip import Chip
from pallas_kernels.dense import backward as dense_backward
from pallas_kernels.dense import forward as dense_forward
from pallas_kernels.dense import pair as dense_pair
from pallas_kernels.dense.activations import ACTIVATIONS
from pallas_kernels.dense.forward import DenseTile
from pallas_kernels.dense.pair import PairTile
from pallas_kernels.dense.stack import Stack

_Group = tuple[int, int]  # the first layer of a kernel, and one past the last


def fused_mlp(
    x: jax.Array,
    kernels: Sequence[jax.Array],
    biases: Sequence[jax.Array | None],
    activation: str | None,
    precision: str | None = None,
) -> jax.Array:
    """Computes ``h ← activation(h @ kernel + bias)`` for each layer; the last one is linear.

    Hidden rows are rounded to the dtype of ``x``.

    Args:
      x: [rows, in], bfloat16, float16 or float32.
      kernels: [in, out] each, of widths that are multiples of 64 up to 256.
      biases: [out] or None, each.
      activation: name of the activation between the layers, or None.
      precision: for float32 ``"tf32"`` or ``"bf16x3"``; else None.

    Returns:
      [rows, last out].
    """
    activations = (*[activation] * (len(kernels) - 1), None)
    return _forward(x, kernels, biases, activations, precision)


def fused_mlp_backward(
    x: jax.Array,
    kernels: Sequence[jax.Array],
    biases: Sequence[jax.Array | None],
    dy: jax.Array,
    activation: str | None,
    precision: str | None = None,
) -> tuple[jax.Array, Sequence[jax.Array], Sequence[jax.Array | None]]:
    """Computes the gradients to ``x``, the kernels and the biases, with sums in a fixed order.

    One kernel handles one or two layers, and recomputes the hidden rows that it needs.

    Args:
      x: [rows, in], bfloat16, float16 or float32.
      kernels: [in, out] each, of widths that are multiples of 64 up to 256.
      biases: [out] or None, each.
      dy: [rows, last out].
      activation: name of the activation between the layers, or None.
      precision: precision of the forward pass that recomputes hidden rows, ``"tf32"`` or
        ``"bf16x3"`` for float32. Gradients of float32 are computed with sums of two bfloat16 parts.

    Returns:
      The gradients, of the shapes and dtypes of the arguments.
    """
    last = len(kernels)
    groups = backward_groups(Stack.of(x, kernels, biases, [activation] * last))
    inputs = [x]
    for start, stop in groups[:-1]:
        layers = kernels[start:stop], biases[start:stop]
        inputs.append(_forward(inputs[-1], *layers, [activation] * (stop - start), precision))
    gated = activation is not None and ACTIVATIONS[activation].of_output
    dkernels, dbiases = [], []
    for h, (start, stop) in reversed(list(zip(inputs, groups, strict=True))):
        # If the activation is gated, the kernel of the layers above has already applied its
        # derivative: it has the activation's output as its own input.
        last_activation = None if gated or stop == last else activation
        activations = (*[activation] * (stop - start - 1), last_activation)
        below = activation if gated and start > 0 else None
        layers = kernels[start:stop], biases[start:stop]
        dy, *made = dense_backward.backward(h, *layers, None, dy, activations, below=below)
        dkernels[:0], dbiases[:0] = made
    return dy, tuple(dkernels), tuple(dbiases)


def forward_groups(stack: Stack) -> list[_Group]:
    """Groups the layers into kernels: from the first on, as many as fit; or two that fit a pair."""
    groups, start = [], 0
    while start < stack.layers:
        groups.append((start, _stop(stack, start)))
        _, start = groups[-1]
    return groups


def _stop(stack: Stack, start: int) -> int:
    """Returns one past the last layer of the kernel that begins with layer ``start``."""
    chip, stops = Chip.current(), range(start + 2, stack.layers + 1)
    fits = itertools.takewhile(lambda stop: DenseTile.choose(chip, stack.part(start, stop)), stops)
    stop = max(fits, default=start + 1)
    if stop == start + 1 < stack.layers and PairTile.choose(chip, stack.part(start, stop + 1)):
        return stop + 1
    return stop


def backward_groups(stack: Stack) -> list[_Group]:
    """Groups the layers into kernels of the backward pass, from the last on: two if they fit.

    A kernel of two layers can not start with the gradient of an activation of its second layer.
    """
    chip, groups, stop = Chip.current(), [], stack.layers
    while stop > 0:
        free = (
            stop == stack.layers or stack.last_activation is None or stack.last_activation.of_output
        )
        two = stack.part(stop - 2, stop).without_last_activation() if stop > 1 and free else None
        pair = two is not None and dense_backward.choose(chip, two)
        start = stop - 2 if pair else stop - 1
        groups.insert(0, (start, stop))
        stop = start
    return groups


def float32_fits(widths: tuple[int, ...], precision: str) -> bool:
    """Returns whether each float32 layer between these widths fits a kernel, with a bias."""
    for pair in itertools.pairwise(widths):
        layer = Stack(pair, (True,), (None,), jnp.dtype("float32"), precision)
        if DenseTile.choose(Chip.current(), layer) is None:
            return False
    return True


def float32_gradients_fit(widths: tuple[int, ...], activation: str | None) -> bool:
    """Returns whether kernels can compute the gradients of float32 layers of these widths.

    The layers have biases, and the ``activation`` between them, or after a single one.
    """
    for pair in itertools.pairwise(widths):
        layer = Stack(pair, (True,), (activation,), jnp.dtype("float32"))
        if not dense_backward.fits(layer):
            return False
    return True


def _forward(x, kernels, biases, activations, precision: str | None = None) -> jax.Array:
    """Runs the forward kernel of each group of layers."""
    stack = Stack.of(x, kernels, biases, activations, precision)
    for start, stop in forward_groups(stack):
        layers = [some[start:stop] for some in (kernels, biases, activations)]
        if stop - start == 2 and DenseTile.choose(Chip.current(), stack.part(start, stop)) is None:
            x = dense_pair.forward(x, *layers)
        else:
            x = dense_forward.forward(x, *layers, precision=precision)
    return x
