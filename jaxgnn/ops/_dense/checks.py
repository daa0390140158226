"""Checks of the arguments of the fused linear layers at trace time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxgnn._errors import bad_input
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.checks import check_choice, check_float
from jaxgnn.ops.core.precision import PRECISIONS


def check_layer(
    op: str,
    x: Any,
    kernel: Any,
    bias: Any,
    *,
    index: int | None = None,
    in_features: int,
    source: str | None = None,
) -> None:
    """Raises ValueError unless a layer takes ``in_features`` and has the dtype of ``x``.

    With an ``index`` messages call the arguments ``kernels[index]`` and ``biases[index]``.
    ``source`` names the input of the first layer in messages, if it is not ``x`` alone.
    """
    names = ("kernel", "bias") if index is None else (f"kernels[{index}]", f"biases[{index}]")
    check_float(op, names[0], kernel, 2)
    if kernel.ndim != 2 or kernel.shape[0] != in_features or kernel.dtype != x.dtype:
        if source is None:
            before = f"the layer before, {in_features} wide"
            source = before if index else f"x of shape {x.shape}"
        expected = f"{x.dtype} of shape ({in_features}, features), behind {source}"
        raise bad_input(op, names[0], expected, f"{kernel.dtype} of shape {kernel.shape}")
    if bias is None:
        return
    check_float(op, names[1], bias, 1)
    if bias.shape != kernel.shape[1:] or bias.dtype != x.dtype:
        expected = f"{x.dtype} of shape {kernel.shape[1:]}, for a kernel of shape {kernel.shape}"
        raise bad_input(op, names[1], expected, f"{bias.dtype} of shape {bias.shape}")


def check_layers(op: str, x: Any, kernels: Any, biases: Any) -> None:
    """Raises ValueError unless each layer fits the one before and has its entry in ``biases``."""
    for argument, value in (("kernels", kernels), ("biases", biases)):
        if not isinstance(value, Sequence):
            expected = "a list or tuple, an entry for each layer"
            raise bad_input(op, argument, expected, type(value).__name__)
    if not kernels:
        raise bad_input(op, "kernels", "of at least one layer", "none")
    if len(biases) != len(kernels):
        expected = f"of {len(kernels)} entries, one for each kernel, None for no bias"
        raise bad_input(op, "biases", expected, f"{len(biases)} entries")
    width = x.shape[-1]
    for index, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        check_layer(op, x, kernel, bias, index=index, in_features=width)
        width = kernel.shape[1]


def check_options(op: str, activation: Any, precision: Any) -> None:
    """Raises ValueError unless the activation and the precision are known names."""
    check_choice(op, "activation", activation, *ACTIVATIONS)
    check_choice(op, "precision", precision, *PRECISIONS)
