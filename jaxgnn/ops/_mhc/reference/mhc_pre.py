"""The part of hyper-connections before a layer, in plain JAX."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams


class Saved(NamedTuple):
    """Values that the backward pass needs besides the inputs; O(n²) a token.

    Attributes:
      inv_rms: ``1 / √(mean(x²) + norm_eps)`` of a token, over all its streams.
      h_mix: ``(x γ) φᵀ``, not yet multiplied by ``inv_rms``.
    """

    inv_rms: Float[Array, "*batch"]
    h_mix: Float[Array, "*batch rows"]


def mhc_pre(
    x: Float[Array, "*batch n dim"],
    params: MHCParams,
    *,
    constants: MHCConstants,
    return_streams: bool = False,
) -> tuple[tuple[Array, ...], Saved]:
    """``(h_in, h_post, h_res)`` of a layer, and the numbers that the backward pass needs."""
    v = widened(x, *params)
    saved = project(v, params, constants.norm_eps)
    normed, alphas, biases = _parts(saved, params, x.shape[-2])
    logits = [a * t + b for a, t, b in zip(alphas, normed, biases, strict=True)]
    outputs = _apply(v, logits, constants)
    return _stored(v, outputs, x.dtype, return_streams), saved


def mhc_pre_static(
    x: Float[Array, "*batch n dim"],
    bias: Float[Array, " rows"],
    *,
    constants: MHCConstants,
    return_streams: bool = False,
) -> tuple[Array, ...]:
    """``mhc_pre`` with coefficients that do not depend on ``x`` and have no leading axes."""
    v = widened(x, bias)
    logits = split_rows(bias.astype(v.dtype), x.shape[-2])
    outputs = _apply(v, logits, constants)
    return _stored(v, outputs, x.dtype, return_streams)


def mhc_pre_backward(
    x: Float[Array, "*batch n dim"],
    params: MHCParams,
    saved: Saved,
    cotangents: tuple[Array, Array, Array],
    dx_streams: Float[Array, "*batch n dim"] | None = None,
    *,
    constants: MHCConstants,
) -> tuple[Array, MHCParams]:
    """Gradients to ``x`` and to ``params``.

    ``dx_streams`` is the cotangent of the streams where they were returned; it is added to ``dx``
    before that is rounded.
    """
    dx, dparams = gradients(x, params, saved, cotangents, dx_streams, constants)
    return dx.astype(x.dtype), dparams


def gradients(
    x, params: MHCParams, saved: Saved, cotangents, dx_streams, constants: MHCConstants
) -> tuple[Array, MHCParams]:
    """The gradients of ``mhc_pre_backward``, with ``dx`` not yet rounded to the dtype of ``x``.

    In the order of the names below, with ``t = h_mix inv_rms`` and ``s`` the sigmoids::

        dlogits = (dh_pre s (1 - s), dh_post post_scale s (1 - s), dh_res),  dh_pre_i = ⟨dh_in, x_i⟩
        dalpha  = Σ dlogits t  over tokens and rows of a part,  dbias = Σ dlogits  over tokens
        dt      = alpha dlogits
        dx_i    = h_pre_i dh_in + dv of project_backward, the gradient of the projection,
                  + dx_streams_i
    """
    v, dh_in, dh_post, dh_res = (a.astype(saved.h_mix.dtype) for a in (x, *cotangents))
    normed, alphas, biases = _parts(saved, params, x.shape[-2])
    s_pre, s_post = (jax.nn.sigmoid(alphas[k] * normed[k] + biases[k]) for k in (0, 1))
    dh_pre = jnp.einsum("...d,...nd->...n", dh_in, v, precision="highest")
    dlogits = (
        dh_pre * s_pre * (1 - s_pre),
        dh_post * constants.post_scale * s_post * (1 - s_post),
        dh_res.reshape(normed[2].shape),
    )
    dalpha = jnp.stack([jnp.sum(d * t) for d, t in zip(dlogits, normed, strict=True)])
    dbias = sum_tokens(jnp.concatenate(dlogits, axis=-1))
    dt = jnp.concatenate([a * d for a, d in zip(alphas, dlogits, strict=True)], axis=-1)
    dx, dphi, dgamma = project_backward(v, params, saved, dt)
    dx = dx + (s_pre + constants.pre_eps)[..., None] * dh_in[..., None, :]
    if dx_streams is not None:
        dx = dx + dx_streams.astype(dx.dtype)
    dalpha, dbias = dalpha.astype(params.alpha.dtype), dbias.astype(params.bias.dtype)
    return dx, MHCParams(dphi, dalpha, dbias, dgamma)


def widened(x, *parameters):
    """``x`` in the accumulation dtype, cast once so that its gradient is rounded once."""
    dtypes = (p.dtype for p in (x, *parameters) if p is not None)
    return x.astype(accumulation_dtype(*dtypes))


def project(v, params: MHCParams, norm_eps: float) -> Saved:
    """One over the root mean square of a token, of ``v`` itself, and ``(v γ) φᵀ``."""
    inv_rms = lax.rsqrt(jnp.mean(v * v, axis=(-2, -1)) + norm_eps)
    h_mix = jnp.einsum("...nd,mnd->...m", v, _weight(params, v), precision="highest")
    return Saved(inv_rms, h_mix)


def project_backward(v, params: MHCParams, saved: Saved, dt):
    """Gradients to ``v``, ``phi`` and ``gamma`` from ``dt``, the gradient to ``t = h_mix inv_rms``.

    In formulae::

        dh_mix = dt inv_rms,  dinv_rms = ⟨dt, h_mix⟩
        dv     = (dh_mix φ) γ - dinv_rms inv_rms³ / (n dim) v
        G      = Σ_tokens dh_mixᵀ v,  dphi = G γ,  dgamma = Σ_rows φ G
    """
    phi, gamma = params.phi, params.gamma
    inv_rms, h_mix = saved
    size = v.shape[-2] * v.shape[-1]
    dh_mix = dt * inv_rms[..., None]
    dinv_rms = jnp.sum(dt * h_mix, axis=-1)
    through_phi = jnp.einsum("...m,mnd->...nd", dh_mix, _weight(params, v), precision="highest")
    dv = through_phi - (dinv_rms * inv_rms**3 / size)[..., None, None] * v
    g = jnp.einsum("...m,...nd->mnd", dh_mix, v, precision="highest")
    if gamma is None:
        return dv, g.reshape(phi.shape).astype(phi.dtype), None
    dphi = (g * gamma.astype(g.dtype)).reshape(phi.shape).astype(phi.dtype)
    dgamma = jnp.sum(phi.reshape(g.shape).astype(g.dtype) * g, axis=0).astype(gamma.dtype)
    return dv, dphi, dgamma


def aggregate(v, weights):
    """``Σ_i weights_i v_i`` over the streams."""
    return jnp.einsum("...n,...nd->...d", weights, v, precision="highest")


def split_rows(rows, n: int) -> list[Array]:
    """The parts pre [n], post [n] and res of an array [..., rows]."""
    return jnp.split(rows, [n, 2 * n], axis=-1)


def sum_tokens(per_token):
    """The sum over all axes but the last."""
    return jnp.sum(per_token, axis=tuple(range(per_token.ndim - 1)))


def _parts(saved: Saved, params: MHCParams, n: int):
    """``t``, alpha and bias, each as a list of the parts pre, post and res."""
    normed = saved.h_mix * saved.inv_rms[..., None]
    return (
        split_rows(normed, n),
        list(params.alpha.astype(normed.dtype)),
        split_rows(params.bias.astype(normed.dtype), n),
    )


def _apply(v, logits, constants: MHCConstants):
    """``h_in``, ``h_post`` and ``h_res`` from the logits of the parts pre, post and res."""
    pre, post, res = logits
    n = v.shape[-2]
    h_pre = jax.nn.sigmoid(pre) + constants.pre_eps
    if res.shape[-1] == n * n:
        res = res.reshape(*res.shape[:-1], n, n)
    h_in = aggregate(v, jnp.broadcast_to(h_pre, v.shape[:-1]))
    return h_in, constants.post_scale * jax.nn.sigmoid(post), res


def _stored(v, outputs, dtype, return_streams: bool) -> tuple[Array, ...]:
    """Rounds ``h_in`` to ``dtype``, and prepends the streams with ``return_streams``.

    The streams are cast from wide ones, so that their gradient is added before it is rounded.
    """
    h_in, *coefficients = outputs
    streams = (v.astype(dtype),) if return_streams else ()
    return *streams, h_in.astype(dtype), *coefficients


def _weight(params: MHCParams, v):
    """``φ γ`` as [rows, n, dim]."""
    gamma = params.gamma
    weight = params.phi.reshape(-1, *v.shape[-2:]).astype(v.dtype)
    return weight if gamma is None else weight * gamma.astype(v.dtype)
