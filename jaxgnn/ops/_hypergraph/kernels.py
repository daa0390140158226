"""The tables of implementations of a small hypergraph's mixing, and limits of their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxgnn.ops._core import dispatch

_DTYPES = ("float32", "bfloat16", "float16")
_MOST_NODES = 8
_LEAST_WIDTH, _MOST_WIDTH = 32, 8192
# An estimate. With 8 nodes of width 256, kernels were faster at 32,768 tokens, and with the
# backward pass already at 256, where launches dominate. No token count between was timed without
# launches.
_LEAST_TOKENS = 1024


def kernel(name: str, reference: Callable[..., Any], mosaic: Callable[..., Any]) -> dispatch.Kernel:
    """The reference and a Mosaic GPU kernel, which ``None`` chooses for many tokens."""
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(reference, scatters=False),
            "pallas": dispatch.pallas(mosaic, dtypes=_DTYPES, limits=_limits, not_worth=_not_worth),
        },
        preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
    )


def _limits(x: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason why kernels do not support ``x`` [..., nodes, width], or None."""
    del arrays, options
    nodes, width = x.shape[-2:]
    if nodes > _MOST_NODES:
        return f"needs at most {_MOST_NODES} nodes, got {nodes}"
    if width % _LEAST_WIDTH or width > _MOST_WIDTH:
        known = f"a multiple of {_LEAST_WIDTH} up to {_MOST_WIDTH}"
        return f"needs a width that is {known}, got {width}"
    return None


def _not_worth(x: Any, *arrays: Any, **options: Any) -> str | None:
    """The reason if launching kernels may take longer than their work, or None."""
    del arrays, options
    tokens = math.prod(x.shape[:-2])
    if tokens >= _LEAST_TOKENS:
        return None
    return f"is taken from {_LEAST_TOKENS} tokens on, got {tokens}"
