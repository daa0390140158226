"""The backward pass of ``mhc_pre``: a kernel for each token's inputs, one for slices, one for sums.

``mhc.slices.tokens`` computes the inputs of each token, ``mhc.slices.backward`` the gradients, and
``mhc.slices.sums`` adds partial sums. Tokens are padded to a multiple of those that the copy engine
addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices.backward import FollowingPost, SlicesTile, slices_backward
from pallas_kernels.mhc.slices.shapes import Slices, padded_tokens
from pallas_kernels.mhc.slices.sums import Partial, add_up
from pallas_kernels.mhc.slices.tokens import token_parts


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
    tile: SlicesTile | None = None,
) -> Gradients:
    """Gradients of ``mhc_pre``; all sums in a fixed order.

    Args:
      x: the streams, [tokens, n, dim] bfloat16.
      params: parameters of ``mhc_pre``, ``gamma`` folded into ``phi``.
      saved: ``inv_rms`` and ``h_mix`` of the forward pass.
      cotangents: gradients of ``h_in``, ``h_post`` and ``h_res``.
      constants: constants of ``mhc_pre``.
      dx_streams: another gradient of the streams, [tokens, n, dim], added to that of this op before
        it is rounded; None for zero.
      following: instead of ``dx_streams``, the ``mhc_post`` whose backward pass gives it.
      tile: how blocks share the work; by default chosen for the shapes.

    Raises:
      NotImplementedError: if there is no tile for the shapes.
    """
    tokens, n, dim = x.shape
    if tokens == 0:
        return Gradients(*(jnp.zeros_like(a) for a in (x, *params[:3])))
    form = Slices(n, dim, adds=dx_streams is not None, mixes=following is not None)
    tile = tile or SlicesTile.choose(Chip.current(), tokens, form, x.dtype)
    if tile is None:
        raise NotImplementedError(f"mhc_pre_backward: no tile for x of {x.shape} {x.dtype}")
    if following is not None:
        following = FollowingPost(*padded_tokens(following[:3]), following.transposed)
    arrays = padded_tokens((x, tuple(saved), tuple(cotangents), dx_streams))
    x, saved, cotangents, dx_streams = arrays
    of_post = None
    if following is not None:
        of_post = following.h_post, following.h_res.reshape(len(x), n * n)
    parts, sums, _ = token_parts(
        x, params, saved, cotangents, constants, of_post, reverse=not tile.reverse
    )
    of_phi, dx = slices_backward(x, cotangents[0], dx_streams, params.phi, parts, tile, following)
    dphi, dalpha, dbias = add_up(Slices(n, dim), Partial(of_phi, sums))
    return Gradients(dx[:tokens], dphi, dalpha, dbias)
