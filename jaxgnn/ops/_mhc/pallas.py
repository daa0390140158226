"""Calls of the Mosaic GPU kernels of hyper-connections: leading axes become one of tokens."""

from __future__ import annotations

import math
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._core.pallas_call import compiled, flat_tokens, vary_like
from jaxgnn.ops._mhc.kernels import stream_limits
from jaxgnn.ops._mhc.reference.mhc_pre import Saved


@partial(compiled, static_argnames=("transposed",))
def mhc_post(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    *,
    transposed: bool,
) -> Float[Array, "*batch n dim"]:
    """Mixes the streams of every token and adds the layer's output to them."""
    from pallas_kernels.mhc import mhc_post as kernels

    tokens = flat_tokens(x.ndim - 2, (x, f, h_post, h_res))
    return vary_like(x, kernels.mhc_post(*tokens, transposed=transposed).reshape(x.shape))


@partial(compiled, static_argnames=("transposed",))
def mhc_post_backward(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    dy: Float[Array, "*batch n dim"],
    *,
    transposed: bool,
) -> tuple[Array, Array, Array, Array]:
    """Gradients to ``x``, ``f``, ``h_post`` and ``h_res``."""
    from pallas_kernels.mhc import mhc_post as kernels

    inputs = (x, f, h_post, h_res)
    tokens = flat_tokens(x.ndim - 2, (*inputs, dy))
    made = kernels.mhc_post_backward(*tokens, transposed=transposed)
    dx, df, dh_post, dh_res = (
        vary_like(x, gradient.reshape(a.shape)) for gradient, a in zip(made, inputs, strict=True)
    )
    return dx, df, dh_post, dh_res


@partial(compiled, static_argnames=("iterations", "eps", "last"))
def sinkhorn(
    logits: Float[Array, "*batch n n"], *, iterations: int, eps: float, last: str
) -> Float[Array, "*batch n n"]:
    """See ``jaxgnn.ops.sinkhorn``."""
    from pallas_kernels.mhc import sinkhorn as kernels

    flat = flat_tokens(logits.ndim - 2, logits)
    h = kernels.sinkhorn(flat, iterations=iterations, eps=eps, last=last)
    return vary_like(logits, h.reshape(logits.shape))


@partial(compiled, static_argnames=("iterations", "eps", "last"))
def sinkhorn_backward(
    logits: Float[Array, "*batch n n"],
    dh: Float[Array, "*batch n n"],
    *,
    iterations: int,
    eps: float,
    last: str,
) -> Float[Array, "*batch n n"]:
    """The exact gradient to ``logits``."""
    from pallas_kernels.mhc import sinkhorn as kernels

    flat = flat_tokens(logits.ndim - 2, (logits, dh))
    dlogits = kernels.sinkhorn_backward(*flat, iterations=iterations, eps=eps, last=last)
    return vary_like(logits, dlogits.reshape(logits.shape))


def most_sinkhorn_iterations(n: int) -> int:
    """Iterations that ``sinkhorn_backward`` can undo."""
    from pallas_kernels.mhc import sinkhorn as kernels

    return kernels.most_iterations(n)


@partial(compiled, static_argnames=("norm_eps", "pre_eps", "post_scale"))
def mhc_pre(
    x: Float[Array, "*batch n dim"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None,
    *,
    norm_eps: float,
    pre_eps: float,
    post_scale: float,
) -> tuple[tuple[Array, Array, Array], Saved]:
    """See ``jaxgnn.ops.mhc_pre``: ``(h_in, h_post, h_res)`` and what the backward pass needs."""
    from pallas_kernels.mhc import mhc_pre as kernels

    flat = flat_tokens(x.ndim - 2, x)
    made = kernels.mhc_pre(
        flat,
        _scaled(phi, gamma),
        alpha,
        bias,
        norm_eps=norm_eps,
        pre_eps=pre_eps,
        post_scale=post_scale,
    )
    h_in, h_post, h_res, inv_rms, h_mix = (
        vary_like(x, a.reshape(*x.shape[:-2], *a.shape[1:])) for a in made
    )
    return (h_in, h_post, h_res), Saved(inv_rms, h_mix)


@partial(compiled, static_argnames=("norm_eps", "pre_eps", "post_scale"))
def mhc_pre_backward(
    x: Float[Array, "*batch n dim"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None,
    saved: Saved,
    cotangents: tuple[Array, Array, Array],
    dx_streams: Float[Array, "*batch n dim"] | None = None,
    *,
    norm_eps: float,
    pre_eps: float,
    post_scale: float,
) -> tuple[Array, Array, Array, Array, Array | None]:
    """Gradients to ``x``, ``phi``, ``alpha``, ``bias`` and ``gamma``."""
    del norm_eps  # in saved.inv_rms
    from pallas_kernels.mhc import mhc_pre as kernels

    flat, saved, cotangents, dx_streams = flat_tokens(
        x.ndim - 2, (x, saved, cotangents, dx_streams)
    )
    made = kernels.mhc_pre_backward(
        flat,
        _scaled(phi, gamma),
        alpha,
        bias,
        saved,
        cotangents,
        dx_streams,
        pre_eps=pre_eps,
        post_scale=post_scale,
    )
    dx, g, dalpha, dbias = (vary_like(x, gradient) for gradient in made)
    dphi, dgamma = _unscaled(g, phi, gamma)
    return dx.reshape(x.shape), dphi, dalpha, dbias, dgamma


@partial(compiled, static_argnames=("transposed", "norm_eps", "pre_eps", "post_scale"))
def mhc_post_pre(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None,
    *,
    transposed: bool,
    norm_eps: float,
    pre_eps: float,
    post_scale: float,
) -> tuple[tuple[Array, Array, Array, Array], Saved]:
    """See ``jaxgnn.ops.mhc_post_pre``: its results, and what the backward pass needs."""
    from pallas_kernels.mhc import mhc_post_pre as kernels

    made = kernels.mhc_post_pre(
        *flat_tokens(x.ndim - 2, (x, f, h_post, h_res)),
        _scaled(phi, gamma),
        alpha,
        bias,
        transposed=transposed,
        norm_eps=norm_eps,
        pre_eps=pre_eps,
        post_scale=post_scale,
    )
    y, h_in, h_post, h_res, inv_rms, h_mix = (
        vary_like(x, a.reshape(*x.shape[:-2], *a.shape[1:])) for a in made
    )
    return (y, h_in, h_post, h_res), Saved(inv_rms, h_mix)


@partial(
    compiled, static_argnames=("transposed", "norm_eps", "pre_eps", "post_scale", "deterministic")
)
def mhc_post_pre_backward(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None,
    y: Float[Array, "*batch n dim"],
    saved: Saved,
    cotangents: tuple[Array, Array, Array, Array],
    *,
    transposed: bool,
    norm_eps: float,
    pre_eps: float,
    post_scale: float,
    deterministic: bool,
) -> tuple[Array | None, ...]:
    """Gradients to the first eight arguments; see ``pallas_kernels.mhc.mhc_post_pre``."""
    del norm_eps  # in saved.inv_rms
    from pallas_kernels.mhc import mhc_post_pre as kernels

    inputs = (x, f, h_post, h_res)
    flat, flat_y, saved, cotangents = flat_tokens(x.ndim - 2, (inputs, y, saved, cotangents))
    through_post, (g, dalpha, dbias) = kernels.mhc_post_pre_backward(
        *flat,
        _scaled(phi, gamma),
        alpha,
        bias,
        flat_y,
        saved,
        cotangents,
        transposed=transposed,
        pre_eps=pre_eps,
        post_scale=post_scale,
        deterministic=deterministic,
    )
    through_post = [
        vary_like(x, gradient.reshape(a.shape))
        for gradient, a in zip(through_post, inputs, strict=True)
    ]
    g, dalpha, dbias = (vary_like(x, gradient) for gradient in (g, dalpha, dbias))
    dphi, dgamma = _unscaled(g, phi, gamma)
    return *through_post, dphi, dalpha, dbias, dgamma


def layer_links(x: Float[Array, "*batch n dim"]) -> bool:
    """Whether there are kernels for the two backward passes of ``mhc_layer`` as a pair."""
    from pallas_kernels.mhc import mhc_layer as kernels

    *batch, n, dim = x.shape
    return stream_limits(x) is None and kernels.links(math.prod(batch), n, dim, x.dtype)


@partial(compiled, static_argnames=("transposed",))
def mhc_layer_post_backward(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    dy: Float[Array, "*batch n dim"],
    *,
    transposed: bool,
) -> tuple[Array, Array, Array]:
    """Gradients to ``f``, ``h_post`` and ``h_res``."""
    from pallas_kernels.mhc import mhc_layer as kernels

    inputs = (f, h_post, h_res)
    tokens = flat_tokens(x.ndim - 2, (x, *inputs, dy))
    made = kernels.post_backward(*tokens, transposed=transposed)
    df, dh_post, dh_res = (
        vary_like(x, gradient.reshape(a.shape)) for gradient, a in zip(made, inputs, strict=True)
    )
    return df, dh_post, dh_res


@partial(compiled, static_argnames=("transposed", "norm_eps", "pre_eps", "post_scale"))
def mhc_layer_pre_backward(
    x: Float[Array, "*batch n dim"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None,
    saved: Saved,
    cotangents: tuple[Array, Array, Array],
    of_post: tuple[Array, Array],
    dy: Float[Array, "*batch n dim"],
    *,
    transposed: bool,
    norm_eps: float,
    pre_eps: float,
    post_scale: float,
) -> tuple[Array, Array, Array, Array, Array | None]:
    """Gradients to ``x``, ``phi``, ``alpha``, ``bias`` and ``gamma``."""
    del norm_eps  # in saved.inv_rms
    from pallas_kernels.mhc import mhc_layer as kernels

    given = flat_tokens(x.ndim - 2, (x, saved, cotangents, of_post, dy))
    flat, saved, cotangents, of_post, dy = given
    made = kernels.pre_backward(
        flat,
        _scaled(phi, gamma),
        alpha,
        bias,
        saved,
        cotangents,
        of_post,
        dy,
        transposed=transposed,
        pre_eps=pre_eps,
        post_scale=post_scale,
    )
    dx, g, dalpha, dbias = (vary_like(x, gradient) for gradient in made)
    dphi, dgamma = _unscaled(g, phi, gamma)
    return dx.reshape(x.shape), dphi, dalpha, dbias, dgamma


def _scaled(phi: Array, gamma: Array | None) -> Array:
    """``phi`` times ``gamma``."""
    return phi if gamma is None else phi * gamma.reshape(-1)


def _unscaled(g: Array, phi: Array, gamma: Array | None) -> tuple[Array, Array | None]:
    """Gradients to ``phi`` and ``gamma`` from ``g``, that to ``_scaled(phi, gamma)``."""
    if gamma is None:
        return g, None
    return g * gamma.reshape(-1), jnp.sum(phi * g, axis=0).reshape(gamma.shape)
