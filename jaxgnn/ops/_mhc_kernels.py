"""The tables of implementations of the ops of hyper-connections that have GPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxgnn.ops import _dispatch as dispatch

_STREAMS = (2, 4, 8)
_LEAST_WIDTH, _MOST_WIDTH = 64, 8192


def kernel(
    name: str,
    reference: Callable[..., Any],
    mosaic: Callable[..., Any],
    *,
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    limits: Callable[..., str | None],
) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, which only its name chooses until it is measured."""
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(reference, scatters=False),
            "pallas": dispatch.pallas(mosaic, dtypes=dtypes, limits=limits),
        },
        preference={"cpu": ("xla",), "cuda": ("xla", "pallas")},
    )


def stream_limits(x: Any) -> str | None:
    """Why kernels do not take the streams ``x``, [..., n, dim]."""
    n, dim = x.shape[-2:]
    return count_limits(n) or width_limits(dim)


def projection_limits(x: Any, phi: Any) -> str | None:
    """Why kernels do not take the streams ``x`` and their projection ``phi``, [rows, n dim]."""
    n = x.shape[-2]
    reason, rows = stream_limits(x), n * n + 2 * n
    if reason is None and phi.shape[0] != rows:
        reason = f"needs phi of {rows} rows for {n} streams, got {phi.shape[0]}"
    return reason


def count_limits(n: int) -> str | None:
    """Why kernels do not take ``n`` streams."""
    return None if n in _STREAMS else f"needs 2, 4 or 8 streams, got {n}"


def width_limits(dim: int) -> str | None:
    """Why kernels do not take streams of width ``dim``."""
    if dim % _LEAST_WIDTH == 0 and 0 < dim <= _MOST_WIDTH:
        return None
    return f"needs a width that is a multiple of {_LEAST_WIDTH} up to {_MOST_WIDTH}, got {dim}"
