"""The backward pass of ``mhc_pre``: two kernels, the first of which makes inner products.

Where ``mhc.slices.backward`` has a tile, they are that of ``mhc.slices.tokens`` and that one. Else
the second is in ``mhc.tokens.backward``, and plain JAX makes what is small between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices.backward import Behind, SlicesTile, slices_backward
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
      x: like ``x``.
      weight: to ``phi gamma``, float32.
      alpha: like ``alpha``.
      bias: like ``bias``.
    """

    x: jax.Array
    weight: jax.Array
    alpha: jax.Array
    bias: jax.Array


def mhc_pre_backward(
    x: jax.Array,
    weight: jax.Array,
    alpha: jax.Array,
    bias: jax.Array,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    dx_streams: jax.Array | None = None,
    behind: Behind | None = None,
    *,
    pre_eps: float,
    post_scale: float,
    tile: SlicesTile | StreamsTile | None = None,
) -> Gradients:
    """Gradients; all sums in a fixed order.

    Args:
      x: as in ``mhc_pre``.
      weight: as in ``mhc_pre``.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      saved: ``inv_rms`` and ``h_mix``.
      cotangents: of ``h_in``, ``h_post`` and ``h_res``.
      dx_streams: like ``x``, added to its gradient before that is rounded; None for zero.
      behind: instead of ``dx_streams``, what they are to be made of, where kernels go by slices.
      pre_eps: as in ``mhc_pre``.
      post_scale: as in ``mhc_pre``.
      tile: by default what suits the shapes.
    """
    if x.shape[0] == 0:
        return Gradients(*(jnp.zeros_like(a) for a in (x, weight, alpha, bias)))
    constants = {"pre_eps": pre_eps, "post_scale": post_scale}
    of_token, given = (x, alpha, bias, saved, cotangents), (x, cotangents[0], dx_streams, weight)
    tokens, n, dim = x.shape
    form = Slices(n, dim, adds=dx_streams is not None, mixes=behind is not None)
    tile = tile or SlicesTile.choose(Chip.current(), tokens, form, x.dtype)
    if isinstance(tile, SlicesTile):
        of_post = None
        if behind is not None:
            of_post = behind.h_post, behind.h_res.reshape(tokens, n * n)
        parts, sums, _ = token_parts(*of_token, of_post, backwards=not tile.backwards, **constants)
        of_phi, dx = slices_backward(*given, parts, tile, behind)
        dweight, dalpha, dbias = add_up(Slices(n, dim), Partial(of_phi, sums))
    elif behind is not None:
        raise ValueError(f"mhc_pre_backward: needs a tile by slices to mix, got x of {x.shape}")
    else:
        token, dalpha, dbias = token_backward(*of_token, **constants)
        dweight, dx = streams_backward(*given, token, tile=tile)
    return Gradients(dx, dweight, dalpha, dbias)


def token_backward(
    x: jax.Array,
    alpha: jax.Array,
    bias: jax.Array,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    *,
    pre_eps: float,
    post_scale: float,
) -> tuple[Token, jax.Array, jax.Array]:
    """What there is of each token, and the gradients to ``alpha`` and ``bias``."""
    inv_rms, h_mix = saved
    dh_in, dh_post, dh_res = cotangents
    tokens, n, dim = x.shape
    normed = h_mix * inv_rms[:, None]
    parts = jnp.split(normed, [n, 2 * n], axis=1)
    biases = jnp.split(bias, [n, 2 * n])
    s_pre, s_post = (jax.nn.sigmoid(alpha[k] * parts[k] + biases[k]) for k in (0, 1))
    dlogits = (
        _dots(x, dh_in) * s_pre * (1 - s_pre),
        dh_post * post_scale * s_post * (1 - s_post),
        dh_res.reshape(tokens, n * n),
    )
    dalpha = jnp.stack([jnp.sum(d * t) for d, t in zip(dlogits, parts, strict=True)])
    dbias = jnp.sum(jnp.concatenate(dlogits, axis=1), axis=0)
    dt = jnp.concatenate([alpha[k] * d for k, d in enumerate(dlogits)], axis=1)
    scale = -jnp.sum(dt * h_mix, axis=1) * inv_rms**3 / (n * dim)
    return Token(s_pre + pre_eps, scale, dt * inv_rms[:, None]), dalpha, dbias


# -- inner products of the layer's cotangent and the streams -------------------------------------


def _dots(x: jax.Array, dh_in: jax.Array) -> jax.Array:
    """``⟨dh_in, x_i⟩``, [tokens, n]."""
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
    """A group of lanes takes a token."""

    lanes: int

    def __call__(self, warp: Warp, inputs, dots: Array) -> None:
        x, dh_in = inputs
        (tokens, n, dim), entries, step = x.shape, READ_BYTES // x.itemsize, LANES // self.lanes

        def take(first, _):
            # Groups behind the last token repeat it and store nothing.
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
