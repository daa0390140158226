"""The tables of implementations of the fused linear layers, and the limits of their GPU kernels.

On a GPU ``implementation=None`` chooses the Mosaic GPU kernels for sizes that were timed: layers so
narrow that reading and writing rows takes most of the time, and so many rows that this takes longer
than a launch. XLA runs all other layers. ``layer_limits`` and ``_not_worth`` implement this rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxgnn.ops._dense.pallas import products
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.precision import Precision

_DTYPES = ("bfloat16", "float16")
_LEAST_WIDTH, _MOST_WIDTH = 64, 256
_LEAST_ROWS = 2048  # an estimate: fewer were not timed
# Wider layers have other backward kernels, which were timed with some activations only, for a
# single layer and for several.
_MOST_TIMED_BACKWARD = 128
_TIMED_WIDE: dict[bool, tuple[str | None, ...]] = {True: ("relu", None), False: ("relu",)}
# In float32 two layers were timed, and their gradients with some activations only.
_MOST_TIMED_FLOAT32 = 128
_TIMED_FLOAT32_BACKWARD = ("relu", "gelu")
# Error after a few layers, relative to the largest entry: TF32 factors have 10 bits of mantissa.
_TF32_ERROR = 2e-3


def kernel(
    name: str,
    reference: Callable[..., Any],
    mosaic: Callable[..., Any],
    *,
    limits: Callable[..., str | None],
    backward: bool = False,
) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, which ``None`` chooses where it was timed."""
    not_worth = _backward_not_worth if backward else _not_worth
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(
                reference, scatters=False, cuda=partial(reference, round_products=True)
            ),
            # ``limits`` decides which float32 layers the kernels support.
            "pallas": dispatch.pallas(
                mosaic, dtypes=_DTYPES, limits=limits, not_worth=not_worth, tolerance=_tolerance
            ),
        },
        preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
    )


def layer_limits(x: Any, kernels: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason why kernels for 16 bits do not support these layers here, or None.

    As of the other limits, ``kernels`` are those of an MLP, or the one of a layer.
    """
    del arrays, options  # also the precision: products of 16-bit numbers are exact
    if x.dtype.name not in _DTYPES:
        return f"needs {' or '.join(_DTYPES)} values, got {x.dtype.name}"
    return _width_limits(x, kernels) or dispatch.no_warpgroup_products()


def forward_limits(
    x: Any, kernels: Any, *arrays: Any, precision: Precision | None, **options: Any
) -> str | None:
    """The reason why the kernels of the forward pass do not support these layers, or None."""
    del arrays, options
    if x.dtype.name != "float32":
        return layer_limits(x, kernels)
    reason = _width_limits(x, kernels) or _precision_limits(x, precision)
    return reason or _room_limits(x, kernels, precision) or dispatch.no_warpgroup_products()


def backward_limits(
    x: Any, kernels: Any, *arrays: Any, activation: str | None, precision: Precision | None
) -> str | None:
    """The reason why backward kernels, which rerun part of the forward, do not support these."""
    del arrays
    reason = forward_limits(x, kernels, precision=precision)
    if reason is not None or x.dtype.name != "float32":
        return reason
    from pallas_kernels.dense import fused_mlp

    widths = _widths(x, kernels)
    if fused_mlp.float32_gradients_fit(widths, activation):
        return None
    return f"needs float32 layers whose gradients fit registers, got widths {widths}"


def _precision_limits(x: Any, precision: Precision | None) -> str | None:
    if products(x.dtype, precision) is not None:
        return None
    got = precision or f"JAX's setting {jax.config.jax_default_matmul_precision}"
    return f"needs precision tf32 or bf16x3 for float32 values, got {got}"


def _widths(x: Any, kernels: Any) -> tuple[int, ...]:
    return x.shape[-1], *(kernel.shape[1] for kernel in jax.tree.leaves(kernels))


def _width_limits(x: Any, kernels: Any) -> str | None:
    for width in _widths(x, kernels):
        if width == 0 or width % _LEAST_WIDTH or width > _MOST_WIDTH:
            known = f"multiples of {_LEAST_WIDTH} up to {_MOST_WIDTH}"
            return f"needs widths that are {known}, got {width}"
    return None


def _room_limits(x: Any, kernels: Any, precision: Precision | None) -> str | None:
    """The reason if a float32 layer and a tile of rows together exceed the memory, or None."""
    from pallas_kernels.dense import fused_mlp

    widths, made = _widths(x, kernels), products(x.dtype, precision)
    if made is not None and fused_mlp.float32_fits(widths, made):
        return None
    return f"needs float32 layers that fit shared memory, got widths {widths}"


def gradient_request(
    request: dispatch.Request,
    x: Any,
    kernels: Any,
    *,
    activation: str | None,
    precision: Precision | None,
) -> dispatch.Request:
    """The request for the backward pass, as not all float32 layers have backward kernels.

    If the forward kernels of layers without them were requested by name, these layers get the
    gradients that ``None`` chooses.
    """
    if request.name != "pallas" or x.dtype.name != "float32":
        return request
    refused = backward_limits(x, kernels, activation=activation, precision=precision)
    return request._replace(name=None) if refused else request


def _tolerance(
    x: Any, *arrays: Any, precision: Precision | None = None, **options: Any
) -> float | None:
    """The error that TF32 products may have, relative to the largest entry, or None."""
    del arrays, options
    return _TF32_ERROR if products(x.dtype, precision) == "tf32" else None


def product_tolerance(x: Any, precision: Precision | None) -> float | None:
    """The tolerance for ``jaxgnn.verify`` where XLA multiplies ``x`` in TF32 here, or None."""
    return _tolerance(x, precision=precision) if dispatch.current_platform() == "cuda" else None


def _not_worth(x: Any, kernels: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason if a launch may outlast its work or such layers were not timed, or None."""
    del arrays, options
    if x.dtype.name == "float32":
        count, widest = len(jax.tree.leaves(kernels)), max(_widths(x, kernels))
        if count != 2 or widest > _MOST_TIMED_FLOAT32:
            known = f"for two layers up to {_MOST_TIMED_FLOAT32} wide"
            return f"was timed in float32 {known}, got {count} of {widest}"
    rows = math.prod(x.shape[:-1])
    return None if rows >= _LEAST_ROWS else f"is taken from {_LEAST_ROWS} rows on, got {rows}"


def _backward_not_worth(
    x: Any, kernels: Any, *arrays: Any, activation: str | None, **options: Any
) -> str | None:
    """The reason if backward kernels may be slower or were not timed with such layers, or None."""
    del arrays, options
    count, widest = len(jax.tree.leaves(kernels)), max(_widths(x, kernels))
    if x.dtype.name == "float32" and activation not in _TIMED_FLOAT32_BACKWARD:
        known = " or ".join(_TIMED_FLOAT32_BACKWARD)
        return f"was timed in float32 with {known}, got {activation}"
    timed = _TIMED_WIDE[count == 1]
    if widest > _MOST_TIMED_BACKWARD and activation not in timed:
        known = f"with {' or '.join(map(str, timed))}, or up to {_MOST_TIMED_BACKWARD} wide"
        return f"was timed {known}, got {activation} and {widest}"
    return _not_worth(x, kernels)
