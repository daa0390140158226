"""Calls of the Mosaic GPU kernels of hyper-connections: leading axes become one of tokens.

The functions are those of the references, by the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._mhc.kernels import projection_limits
from jaxgnn.ops._mhc.reference.mhc_pre import Saved
from jaxgnn.ops.core.pallas_call import compiled, flat_tokens, vary_like
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs


def _by_token(x: Array, run: Callable[..., Any], *arrays: Any) -> Any:
    """Runs a kernel on arrays of tokens, and gives its results the leading axes of ``x``."""
    batch = x.shape[:-2]
    results = run(*flat_tokens(len(batch), arrays))
    return jax.tree.map(lambda a: vary_like(x, a.reshape(*batch, *a.shape[1:])), results)


@partial(compiled, static_argnames=("transposed",))
def mhc_post(x, f, h_post, h_res, *, transposed: bool) -> Float[Array, "*batch n dim"]:
    """Mixes the streams of every token and adds the layer's output to them."""
    from pallas_kernels.mhc import mhc_post as kernels

    run = partial(kernels.mhc_post, transposed=transposed)
    return _by_token(x, run, x, f, h_post, h_res)


@partial(compiled, static_argnames=("transposed",))
def mhc_post_backward(x, f, h_post, h_res, dy, *, transposed: bool) -> tuple[Array, ...]:
    """Gradients to ``x``, ``f``, ``h_post`` and ``h_res``."""
    from pallas_kernels.mhc import mhc_post as kernels

    run = partial(kernels.mhc_post_backward, transposed=transposed)
    return tuple(_by_token(x, run, x, f, h_post, h_res, dy))


@partial(compiled, static_argnames=("iterations", "eps", "last"))
def sinkhorn(logits, **options) -> Float[Array, "*batch n n"]:
    """Brings ``exp(logits)`` near doubly stochastic matrices, one matrix a token."""
    from pallas_kernels.mhc import sinkhorn as kernels

    return _by_token(logits, partial(kernels.sinkhorn, **options), logits)


@partial(compiled, static_argnames=("iterations", "eps", "last"))
def sinkhorn_backward(logits, dh, **options) -> Float[Array, "*batch n n"]:
    """The exact gradient to ``logits``."""
    from pallas_kernels.mhc import sinkhorn as kernels

    return _by_token(logits, partial(kernels.sinkhorn_backward, **options), logits, dh)


def most_sinkhorn_iterations(n: int) -> int:
    """The largest number of iterations that ``sinkhorn_backward`` can undo."""
    from pallas_kernels.mhc import sinkhorn as kernels

    return kernels.most_iterations(n)


@partial(compiled, static_argnames=("constants",))
def mhc_pre(
    x: Float[Array, "*batch n dim"], params: MHCParams, *, constants: MHCConstants
) -> tuple[tuple[Array, Array, Array], Saved]:
    """``(h_in, h_post, h_res)`` of ``mhc_pre``, and the numbers that its backward pass needs."""
    from pallas_kernels.mhc import mhc_pre as kernels

    results = _by_token(x, lambda x: kernels.mhc_pre(x, params.folded(), constants), x)
    h_in, h_post, h_res, inv_rms, h_mix = results
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
    dx, *folded = kernels.mhc_pre_backward(
        flat, params.folded(), saved, cotangents, constants, dx_streams=dx_streams
    )
    return vary_like(x, dx).reshape(x.shape), _unfolded(x, params, *folded)


@partial(compiled, static_argnames=("transposed", "constants"))
def mhc_post_pre(
    inputs: PostInputs, params: MHCParams, *, transposed: bool, constants: MHCConstants
) -> tuple[tuple[Array, Array, Array, Array], Saved]:
    """``(y, h_in, h_post, h_res)``, and the numbers that the backward pass needs."""
    from pallas_kernels.mhc import mhc_post_pre as kernels

    def run(inputs):
        return kernels.mhc_post_pre(inputs, params.folded(), constants, transposed=transposed)

    y, h_in, h_post, h_res, inv_rms, h_mix = _by_token(inputs.x, run, inputs)
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
    of_inputs = (
        vary_like(x, g).reshape(a.shape) for g, a in zip(through_post, inputs, strict=True)
    )
    return PostInputs(*of_inputs), _unfolded(x, params, *folded)


def has_paired_backward(x: Float[Array, "*batch n dim"]) -> bool:
    """Whether there are kernels for the two backward passes of ``mhc_layer`` as a pair."""
    from pallas_kernels.mhc import mhc_layer as kernels

    *batch, n, dim = x.shape
    return projection_limits(x) is None and kernels.has_paired_backward(
        math.prod(batch), n, dim, x.dtype
    )


@partial(compiled, static_argnames=("transposed",))
def mhc_layer_post_backward(x, f, h_post, h_res, dy, *, transposed: bool) -> tuple[Array, ...]:
    """Gradients to ``f``, ``h_post`` and ``h_res``."""
    from pallas_kernels.mhc import mhc_layer as kernels

    def run(*arrays):
        *inputs, dy = arrays
        return kernels.post_backward(PostInputs(*inputs), dy, transposed=transposed)

    return tuple(_by_token(x, run, x, f, h_post, h_res, dy))


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

    arrays = flat_tokens(x.ndim - 2, (x, saved, cotangents, of_post, dy))
    flat, saved, cotangents, of_post, dy = arrays
    following = kernels.FollowingPost(*of_post, dy, transposed)
    dx, *folded = kernels.pre_backward(
        flat, params.folded(), saved, cotangents, following, constants
    )
    return vary_like(x, dx).reshape(x.shape), _unfolded(x, params, *folded)


def _unfolded(x: Array, params: MHCParams, *folded: Array) -> MHCParams:
    """Gradients to ``params`` from those to ``params.folded()``."""
    dphi, dalpha, dbias = (vary_like(x, gradient) for gradient in folded)
    phi, gamma = params.phi, params.gamma
    if gamma is None:
        return MHCParams(dphi, dalpha, dbias)
    unfolded = dphi * gamma.reshape(-1)
    return MHCParams(unfolded, dalpha, dbias, jnp.sum(phi * dphi, axis=0).reshape(gamma.shape))
