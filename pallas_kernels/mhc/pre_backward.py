"""The backward pass of ``mhc_pre``: a kernel for each token's coefficients, then one for streams.

If ``mhc.slices.backward`` has a tile for the shapes, it is the second kernel and
``mhc.slices.tokens`` the first. Otherwise the first kernel only computes inner products, plain JAX
computes the small arrays, and ``mhc.tokens.backward`` is the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices.backward import FollowingPost, SlicesTile, slices_backward
from pallas_kernels.mhc.slices.shapes import Slices
from pallas_kernels.mhc.slices.sums import Partial, add_up
from pallas_kernels.mhc.slices.tokens import token_parts
from pallas_kernels.mhc.streams import READ_BYTES
from pallas_kernels.mhc.tokens.backward import Token, streams_backward
from pallas_kernels.mhc.tokens.tile import StreamsTile
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array
from pallas_kernels.simt.warp import LANES, Warp

_WARPS = 8


class Gradients(NamedTuple):
    """Gradients of ``mhc_pre``.

    Attributes:
      x: gradient to the streams, [tokens, n, dim], of their dtype.
      phi: gradient to ``phi`` with ``gamma`` folded into it, [n n + 2 n, n dim] float32.
      alpha: gradient to ``alpha``, [3] float32.
      bias: gradient to ``bias``, [n n + 2 n] float32.
    """

    x: jax.Array
    phi: jax.Array
    alpha: jax.Array
    bias: jax.Array


def mhc_pre_backward(
    x: jax.Array,
    params: MHCParams,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    constants: MHCConstants,
    *,
    dx_streams: jax.Array | None = None,
    following: FollowingPost | None = None,
    tile: SlicesTile | StreamsTile | None = None,
) -> Gradients:
    """Gradients of ``mhc_pre``; all sums in a fixed order.

    Args:
      x: the streams, [tokens, n, dim].
      params: parameters of ``mhc_pre``, ``gamma`` folded into ``phi``.
      saved: ``inv_rms`` and ``h_mix`` of the forward pass.
      cotangents: gradients of ``h_in``, ``h_post`` and ``h_res``.
      constants: constants of ``mhc_pre``.
      dx_streams: another gradient of the streams, [tokens, n, dim], added to that of this op before
        it is rounded; None for zero.
      following: instead of ``dx_streams``, the ``mhc_post`` whose backward pass gives it. Only
        kernels by slices support it.
      tile: how blocks share the work; by default chosen for the shapes.
    """
    if x.shape[0] == 0:
        return Gradients(*(jnp.zeros_like(a) for a in (x, *params[:3])))
    given, arrays = (params, saved, cotangents, constants), (x, cotangents[0], dx_streams)
    tokens, n, dim = x.shape
    form = Slices(n, dim, adds=dx_streams is not None, mixes=following is not None)
    tile = tile or SlicesTile.choose(Chip.current(), tokens, form, x.dtype)
    if isinstance(tile, SlicesTile):
        of_post = None
        if following is not None:
            of_post = following.h_post, following.h_res.reshape(tokens, n * n)
        parts, sums, _ = token_parts(x, *given, of_post, reverse=not tile.reverse)
        of_phi, dx = slices_backward(*arrays, params.phi, parts, tile, following)
        dphi, dalpha, dbias = add_up(Slices(n, dim), Partial(of_phi, sums))
    elif following is not None:
        raise ValueError(f"mhc_pre_backward: needs a tile by slices to mix, got x of {x.shape}")
    else:
        token, dalpha, dbias = token_backward(x, *given)
        dphi, dx = streams_backward(*arrays, params.phi, token, tile=tile)
    return Gradients(dx, dphi, dalpha, dbias)


def token_backward(
    x: jax.Array,
    params: MHCParams,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    constants: MHCConstants,
) -> tuple[Token, jax.Array, jax.Array]:
    """Coefficients of each token in the backward pass, and the gradients to ``alpha`` and ``bias``.

    Args:
      x: the streams, [tokens, n, dim].
      params: parameters of ``mhc_pre``.
      saved: ``inv_rms`` and ``h_mix`` of the forward pass.
      cotangents: gradients of ``h_in``, ``h_post`` and ``h_res``.
      constants: constants of ``mhc_pre``.
    """
    inv_rms, h_mix = saved
    alpha, bias = params.alpha, params.bias
    dh_in, dh_post, dh_res = cotangents
    tokens, n, dim = x.shape
    normed = h_mix * inv_rms[:, None]
    parts = jnp.split(normed, [n, 2 * n], axis=1)
    biases = jnp.split(bias, [n, 2 * n])
    s_pre, s_post = (jax.nn.sigmoid(alpha[k] * parts[k] + biases[k]) for k in (0, 1))
    dlogits = (
        _dots(x, dh_in) * s_pre * (1 - s_pre),
        dh_post * constants.post_scale * s_post * (1 - s_post),
        dh_res.reshape(tokens, n * n),
    )
    dalpha = jnp.stack([jnp.sum(d * t) for d, t in zip(dlogits, parts, strict=True)])
    dbias = jnp.sum(jnp.concatenate(dlogits, axis=1), axis=0)
    dt = jnp.concatenate([alpha[k] * d for k, d in enumerate(dlogits)], axis=1)
    scale = -jnp.sum(dt * h_mix, axis=1) * inv_rms**3 / (n * dim)
    return Token(s_pre + constants.pre_eps, scale, dt * inv_rms[:, None]), dalpha, dbias


# -- inner products of the gradient of h_in and the streams --------------------------------------


def _dots(x: jax.Array, dh_in: jax.Array) -> jax.Array:
    """Inner products ``⟨dh_in, x_i⟩`` of the gradient of ``h_in`` and each stream, [tokens, n]."""
    tokens, n, dim = x.shape
    lanes = math.gcd(dim // (READ_BYTES // x.dtype.itemsize), LANES)
    return simt.launch(
        _Dots(lanes),
        (x, dh_in),
        [jax.ShapeDtypeStruct((tokens, n), jnp.float32)],
        name="mhc_pre_backward_dots",
        grid=simt.Grid(striding_blocks(tokens, LANES // lanes * _WARPS), _WARPS),
    )[0]


@dataclass(frozen=True)
class _Dots:
    """Computes the inner products, each token by a group of ``lanes`` neighbouring lanes."""

    lanes: int

    def __call__(self, warp: Warp, inputs, dots: Array) -> None:
        x, dh_in = inputs
        (tokens, n, dim), entries, step = x.shape, READ_BYTES // x.itemsize, LANES // self.lanes

        def take(first, _):
            # Groups past the last token repeat it and store nothing.
            mine = first + warp.lane // self.lanes
            token = mine.at_most(tokens - 1)

            def add(column, sums):
                row = x.row(token)
                words = [row.load_words(column + i * dim, entries) for i in range(n)]
                cotangent = dh_in.row(token).load_words(column, entries)
                for e in range(entries):
                    d = dh_in.unpack(cotangent, e)
                    pairs = zip(words, sums, strict=True)
                    sums = [warp.fma(d, x.unpack(part, e), total) for part, total in pairs]
                return sums

            zeros = [warp.f32(0.0)] * n
            begin = warp.lane % self.lanes * entries
            sums = warp.loop(begin, dim, self.lanes * entries, zeros, add)
            for i, total in warp.sum_scatter(sums, self.lanes):
                store = (mine < tokens) & (i < n)
                warp.when(store, lambda i=i, total=total: dots.row(token).store(i, total))

        warp.loop(warp.number * step, tokens, warp.count * step, (), take)
