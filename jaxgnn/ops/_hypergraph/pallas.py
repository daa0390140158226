"""Calls of the Mosaic GPU kernels of small hypergraphs: leading axes become one of tokens."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._core.pallas_call import compiled, flat_tokens, vary_like


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
