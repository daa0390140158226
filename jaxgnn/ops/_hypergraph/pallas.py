"""Mosaic GPU kernels of small hypergraphs: their calls, tables of them, and their limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.pallas_call import compiled, flat_tokens, vary_like

_DTYPES = ("float32", "bfloat16", "float16")
_MOST_NODES = 8
_LEAST_WIDTH, _MOST_WIDTH = 32, 8192
# An estimate. With 8 nodes of width 256, kernels were faster at 32,768 tokens, and with the
# backward pass already at 256, where launches dominate. No token count between was timed without
# launches.
_LEAST_TOKENS = 1024


def table(name: str, reference: Callable[..., Any], mosaic: Callable[..., Any]) -> dispatch.Kernel:
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


@partial(compiled, static_argnames=("activation",))
def mix(
    x: Float[Array, "*batch nodes width"],
    mixing: Float[Array, "nodes nodes"],
    bias: Float[Array, " width"] | None,
    residual: Float[Array, "*batch nodes width"] | None,
    *,
    activation: str | None,
) -> Float[Array, "*batch nodes width"]:
    """``residual + activation(M x + b)`` with one small matrix M for all leading axes."""
    from pallas_kernels.hypergraph import hypergraph_conv as kernels

    flat, residual = flat_tokens(x.ndim - 2, (x, residual))
    y = kernels.mix(flat, mixing, _as_float32(bias), residual, activation)
    return vary_like(x, y.reshape(x.shape))


@partial(compiled, static_argnames=("activation",))
def mix_backward(
    x: Float[Array, "*batch nodes width"],
    mixing: Float[Array, "nodes nodes"],
    bias: Float[Array, " width"] | None,
    dy: Float[Array, "*batch nodes width"],
    *,
    activation: str | None,
) -> tuple[Array, Array, Array | None]:
    """Gradients to ``x``, ``mixing`` and ``bias``."""
    from pallas_kernels.hypergraph import hypergraph_conv as kernels

    flat, dy = flat_tokens(x.ndim - 2, (x, dy))
    made = kernels.mix_backward(flat, mixing, _as_float32(bias), dy, activation)
    dx, dmixing, dbias = (vary_like(x, gradient) for gradient in made)
    return dx.reshape(x.shape), dmixing, None if bias is None else dbias.astype(bias.dtype)


def _as_float32(bias: Float[Array, " width"] | None) -> Float[Array, " width"] | None:
    return None if bias is None else bias.astype(jnp.float32)
