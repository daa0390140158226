"""Calls of the Mosaic GPU kernels of hyper-connections: leading axes become one of tokens."""

from __future__ import annotations

import math
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._core.pallas_call import compiled, flat_tokens, vary_like
from jaxgnn.ops._mhc.kernels import stream_limits
from jaxgnn.ops._mhc.reference.mhc_pre import Saved
from pallas_kernels.mhc.arguments import MHCConstants, MHCParams, PostInputs


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
    """Brings ``exp(logits)`` near doubly stochastic matrices, one matrix a token."""
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
    """The largest number of iterations that ``sinkhorn_backward`` can undo."""
    from pallas_kernels.mhc import sinkhorn as kernels

    return kernels.most_iterations(n)


@partial(compiled, static_argnames=("constants",))
def mhc_pre(
    x: Float[Array, "*batch n dim"],
    params: MHCParams,
    *,
    constants: MHCConstants,
) -> tuple[tuple[Array, Array, Array], Saved]:
    """``(h_in, h_post, h_res)`` of ``mhc_pre``, and the numbers that its backward pass needs."""
    from pallas_kernels.mhc import mhc_pre as kernels

    flat = flat_tokens(x.ndim - 2, x)
    made = kernels.mhc_pre(flat, params.folded(), constants)
    h_in, h_post, h_res, inv_rms, h_mix = (
        vary_like(x, a.reshape(*x.shape[:-2], *a.shape[1:])) for a in made
    )
    return (h_in, h_post, h_res), Saved(inv_rms, h_mix)


@partial(compiled, static_argnames=("constants",))
def mhc_pre_backward(
    x: Float[Array, "*batch n dim"],
    params: MHCParams,
    saved: Saved,
    cotangents: tuple[Array, Array, Array],
    dx_streams: Float[Array, "*batch n dim"] | None = None,
    *,
    constants: MHCConstants,
) -> tuple[Array, MHCParams]:
    """Gradients to ``x`` and to ``params``."""
    from pallas_kernels.mhc import mhc_pre as kernels

    flat, saved, cotangents, dx_streams = flat_tokens(
        x.ndim - 2, (x, saved, cotangents, dx_streams)
    )
    made = kernels.mhc_pre_backward(
        flat, params.folded(), saved, cotangents, constants, dx_streams=dx_streams
    )
    dx, *folded = (vary_like(x, gradient) for gradient in made)
    dparams = _unfolded(params, *folded)
    return dx.reshape(x.shape), dparams


@partial(compiled, static_argnames=("transposed", "constants"))
def mhc_post_pre(
    inputs: PostInputs, params: MHCParams, *, transposed: bool, constants: MHCConstants
) -> tuple[tuple[Array, Array, Array, Array], Saved]:
    """``(y, h_in, h_post, h_res)``, and the numbers that the backward pass needs."""
    from pallas_kernels.mhc import mhc_post_pre as kernels

    x = inputs.x
    made = kernels.mhc_post_pre(
        flat_tokens(x.ndim - 2, inputs), params.folded(), constants, transposed=transposed
    )
    y, h_in, h_post, h_res, inv_rms, h_mix = (
        vary_like(x, a.reshape(*x.shape[:-2], *a.shape[1:])) for a in made
    )
    return (y, h_in, h_post, h_res), Saved(inv_rms, h_mix)


@partial(compiled, static_argnames=("transposed", "constants", "deterministic"))
def mhc_post_pre_backward(
    inputs: PostInputs,
    params: MHCParams,
    y: Float[Array, "*batch n dim"],
    saved: Saved,
    cotangents: tuple[Array, Array, Array, Array],
    *,
    transposed: bool,
    constants: MHCConstants,
    deterministic: bool,
) -> tuple[PostInputs, MHCParams]:
    """Gradients to ``inputs`` and to ``params``, reproducible if ``deterministic``."""
    from pallas_kernels.mhc import mhc_post_pre as kernels

    x = inputs.x
    flat, flat_y, saved, cotangents = flat_tokens(x.ndim - 2, (inputs, y, saved, cotangents))
    through_post, folded = kernels.mhc_post_pre_backward(
        flat,
        params.folded(),
        kernels.PostPreSaved(flat_y, *saved),
        cotangents,
        constants,
        transposed=transposed,
        deterministic=deterministic,
    )
    through_post = [
        vary_like(x, gradient.reshape(a.shape))
        for gradient, a in zip(through_post, inputs, strict=True)
    ]
    folded = (vary_like(x, gradient) for gradient in folded)
    return PostInputs(*through_post), _unfolded(params, *folded)


def has_paired_backward(x: Float[Array, "*batch n dim"]) -> bool:
    """Whether there are kernels for the two backward passes of ``mhc_layer`` as a pair."""
    from pallas_kernels.mhc import mhc_layer as kernels

    *batch, n, dim = x.shape
    return stream_limits(x) is None and kernels.has_paired_backward(
        math.prod(batch), n, dim, x.dtype
    )


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
    *arrays, flat_dy = tokens
    made = kernels.post_backward(PostInputs(*arrays), flat_dy, transposed=transposed)
    df, dh_post, dh_res = (
        vary_like(x, gradient.reshape(a.shape)) for gradient, a in zip(made, inputs, strict=True)
    )
    return df, dh_post, dh_res


@partial(compiled, static_argnames=("transposed", "constants"))
def mhc_layer_pre_backward(
    x: Float[Array, "*batch n dim"],
    params: MHCParams,
    saved: Saved,
    cotangents: tuple[Array, Array, Array],
    of_post: tuple[Array, Array],
    dy: Float[Array, "*batch n dim"],
    *,
    transposed: bool,
    constants: MHCConstants,
) -> tuple[Array, MHCParams]:
    """Gradients to ``x`` and to ``params``."""
    from pallas_kernels.mhc import mhc_layer as kernels

    given = flat_tokens(x.ndim - 2, (x, saved, cotangents, of_post, dy))
    flat, saved, cotangents, of_post, dy = given
    following = kernels.FollowingPost(*of_post, dy, transposed)
    made = kernels.pre_backward(flat, params.folded(), saved, cotangents, following, constants)
    dx, *folded = (vary_like(x, gradient) for gradient in made)
    dparams = _unfolded(params, *folded)
    return dx.reshape(x.shape), dparams


def _unfolded(params: MHCParams, dphi: Array, dalpha: Array, dbias: Array) -> MHCParams:
    """Gradients to ``params`` from those to ``params.folded()``."""
    phi, gamma = params.phi, params.gamma
    if gamma is None:
        return MHCParams(dphi, dalpha, dbias)
    unfolded = dphi * gamma.reshape(-1)
    return MHCParams(unfolded, dalpha, dbias, jnp.sum(phi * dphi, axis=0).reshape(gamma.shape))
