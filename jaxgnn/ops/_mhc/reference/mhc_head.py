"""Expansion to n streams and their combination into one, in plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._mhc.reference.mhc_pre import (
    Saved,
    aggregate,
    project,
    project_backward,
    sum_tokens,
    widened,
)
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.mhc import MHCParams


def mhc_expand(x: Float[Array, "*batch dim"], *, num_streams: int) -> Float[Array, "*batch n dim"]:
    """Copies ``x`` to every stream. Its gradient is summed in the accumulation dtype."""
    wide = x.astype(accumulation_dtype(x.dtype))[..., None, :]
    shape = (*x.shape[:-1], num_streams, x.shape[-1])
    return jnp.broadcast_to(wide, shape).astype(x.dtype)


def mhc_expand_backward(dy: Float[Array, "*batch n dim"]) -> Float[Array, "*batch dim"]:
    """Sums the streams in the accumulation dtype and rounds once."""
    return jnp.sum(dy.astype(accumulation_dtype(dy.dtype)), axis=-2).astype(dy.dtype)


def mhc_head(
    x: Float[Array, "*batch n dim"],
    params: MHCParams,
    *,
    norm_eps: float,
    pre_eps: float,
) -> tuple[Float[Array, "*batch dim"], Saved]:
    """``Σ_i w_i x_i``, ``w = σ(alpha t + bias) + pre_eps``, and values for the backward pass."""
    v = widened(x, *params)
    saved = project(v, params, norm_eps)
    return aggregate(v, _sigmoid(saved, params)[0] + pre_eps).astype(x.dtype), saved


def mhc_head_backward(
    x: Float[Array, "*batch n dim"],
    params: MHCParams,
    saved: Saved,
    dy: Float[Array, "*batch dim"],
    *,
    norm_eps: float,
    pre_eps: float,
) -> tuple[Array, MHCParams]:
    """Gradients to ``x`` and ``params``, by the formulae for the part pre of ``mhc_pre``."""
    del norm_eps  # in saved.inv_rms
    s, normed = _sigmoid(saved, params)
    v, dy = x.astype(s.dtype), dy.astype(s.dtype)
    dlogits = jnp.einsum("...d,...nd->...n", dy, v, precision="highest") * s * (1 - s)
    dalpha = jnp.sum(dlogits * normed).astype(params.alpha.dtype)
    dbias = sum_tokens(dlogits).astype(params.bias.dtype)
    dt = params.alpha.astype(s.dtype) * dlogits
    dx, dphi, dgamma = project_backward(v, params, saved, dt)
    dx = dx + (s + pre_eps)[..., None] * dy[..., None, :]
    return dx.astype(x.dtype), MHCParams(dphi, dalpha, dbias, dgamma)


def _sigmoid(saved: Saved, params: MHCParams):
    """``σ(alpha t + bias)``, and ``t``."""
    normed = saved.h_mix * saved.inv_rms[..., None]
    alpha, bias = params.alpha.astype(normed.dtype), params.bias.astype(normed.dtype)
    return jax.nn.sigmoid(alpha * normed + bias), normed
