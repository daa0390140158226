"""The tables of implementations of the ops of hyper-connections that have GPU kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxgnn.ops._core import dispatch
from pallas_kernels.mhc.arguments import MHCParams

_STREAMS = (2, 4, 8)
_LEAST_WIDTH, _MOST_WIDTH = 64, 8192
# The sizes that were timed: layers and boundaries, forward and backward, against XLA
# (``experiments/benchmarks/results``).
_MEASURED_STREAMS, _LEAST_MEASURED_WIDTH = 4, 512
# An estimate: the layer was timed with 8,192 tokens and more. Under ``jax.vmap`` over tokens an op
# gets one token, for which a kernel would have its own block.
_LEAST_TOKENS = 1024


def kernel(
    name: str,
    reference: Callable[..., Any],
    mosaic: Callable[..., Any],
    *,
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    limits: Callable[..., str | None],
    unmeasured: Callable[..., str | None],
) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, which ``None`` chooses where it was measured.

    Args:
      name: name of the kernel in error messages.
      reference: the function in plain JAX.
      mosaic: the function that calls the kernel.
      dtypes: names of the dtypes of features that it supports.
      limits: returns the reason why the kernel can not run these arguments, or None.
      unmeasured: returns the reason why it is not known to be faster with them, or None.
    """
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(reference, scatters=False),
            "pallas": dispatch.pallas(mosaic, dtypes=dtypes, limits=limits, not_worth=unmeasured),
        },
        preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
    )


def unmeasured_streams(x: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason if kernels were not timed with streams like ``x``, or None."""
    del arrays, options
    n, dim = x.shape[-2:]
    if (n, x.dtype.name) == (_MEASURED_STREAMS, "bfloat16") and dim >= _LEAST_MEASURED_WIDTH:
        return _few_tokens(x)
    known = f"{_MEASURED_STREAMS} streams of bfloat16 from {_LEAST_MEASURED_WIDTH} wide on"
    return f"was measured with {known}, got {n} of {x.dtype.name}, {dim} wide"


def unmeasured_matrices(logits: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason if kernels were not timed with matrices like ``logits``, or None."""
    del arrays, options
    n = logits.shape[-1]
    if n == _MEASURED_STREAMS:
        return _few_tokens(logits)
    return f"was measured with {_MEASURED_STREAMS} streams, got {n}"


def _few_tokens(x: Any) -> str | None:
    tokens = math.prod(x.shape[:-2])
    return (
        None
        if tokens >= _LEAST_TOKENS
        else f"is taken from {_LEAST_TOKENS} tokens on, got {tokens}"
    )


def stream_limits(x: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason why kernels do not support the streams ``x`` [..., n, dim], or None."""
    del arrays, options
    n, dim = x.shape[-2:]
    return count_limits(n) or width_limits(dim)


def projection_limits(x: Any, params: MHCParams, *arrays: Any, **options: Any) -> str | None:
    """The reason why kernels do not support ``x`` and the projection ``params.phi``, or None."""
    del arrays, options
    n = x.shape[-2]
    reason, rows = stream_limits(x), n * n + 2 * n
    if reason is None and params.phi.shape[0] != rows:
        reason = f"needs phi of {rows} rows for {n} streams, got {params.phi.shape[0]}"
    return reason


def count_limits(n: int) -> str | None:
    """The reason why kernels do not support ``n`` streams, or None."""
    return None if n in _STREAMS else f"needs 2, 4 or 8 streams, got {n}"


def width_limits(dim: int) -> str | None:
    """The reason why kernels do not support streams of width ``dim``, or None."""
    if dim % _LEAST_WIDTH == 0 and 0 < dim <= _MOST_WIDTH:
        return None
    return f"needs a width that is a multiple of {_LEAST_WIDTH} up to {_MOST_WIDTH}, got {dim}"
