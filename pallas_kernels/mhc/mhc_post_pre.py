"""The boundary of two layers with hyper-connections: ``mhc_post`` of one, ``mhc_pre`` of the next.

Forward, a fused kernel runs if there is a tile for the shapes, in ``mhc.cluster.post_pre`` or
``mhc.wide_sums``. Otherwise the kernels of the two ops run one after the other, and the streams
between them go through memory. Backward, one kernel runs: ``mhc.slices.post``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.cluster.post_pre import BoundaryForward, MhcPostPreClusterTile
from pallas_kernels.mhc.mhc_post import mhc_post
from pallas_kernels.mhc.mhc_pre import mhc_pre
from pallas_kernels.mhc.pre_mixing import mix_streams
from pallas_kernels.mhc.slices.post import PrecedingPost, SlicesPostTile, slices_post_backward
from pallas_kernels.mhc.slices.shapes import Slices, padded_tokens
from pallas_kernels.mhc.slices.sums import Partial, add_up
from pallas_kernels.mhc.slices.tokens import token_parts
from pallas_kernels.mhc.wide_sums import WideTile, wide_sums


class PostPreSaved(NamedTuple):
    """Results of the forward pass of ``mhc_post_pre`` that the backward pass reads.

    Attributes:
      y: the new streams, [tokens, n, dim].
      inv_rms: one over the root mean square of each token, [tokens] float32.
      h_mix: products of the new streams with the rows of phi, [tokens, n n + 2 n] float32.
    """

    y: jax.Array
    inv_rms: jax.Array
    h_mix: jax.Array


def mhc_post_pre(
    inputs: PostInputs,
    params: MHCParams,
    constants: MHCConstants,
    *,
    transposed: bool,
    tile: MhcPostPreClusterTile | WideTile | None = None,
) -> tuple[jax.Array, ...]:
    """New streams, and the next layer's input and coefficients: see ``jaxgnn.ops.mhc_post_pre``.

    Args:
      inputs: the arrays of ``mhc_post`` of four bfloat16 streams, dim a multiple of 64.
      params: parameters of ``mhc_pre``, ``gamma`` folded into ``phi``.
      constants: constants of ``mhc_pre``.
      transposed: whether the matrices ``h_res`` are transposed.
      tile: tile of a fused kernel, by default chosen for the shapes.

    Returns:
      ``y``, like ``x``, and the results of ``mhc_pre`` for it: ``h_in``, ``h_post`` and ``h_res``,
      then ``inv_rms`` and ``h_mix`` for the backward pass.
    """
    x, f, h_post, h_res = inputs
    tokens, n, dim = x.shape
    tile = tile or MhcPostPreClusterTile.choose(Chip.current(), tokens, n, dim, x.dtype)
    tile = tile or WideTile.choose(Chip.current(), tokens, n, dim, x.dtype, posts=True)
    if tokens == 0 or tile is None:
        y = mhc_post(*inputs, transposed=transposed)
        return y, *mhc_pre(y, params, constants)
    if isinstance(tile, WideTile):
        y, sums = wide_sums(x, params.phi, (f, h_post, h_res), tile, transposed=transposed)
        return y, *mix_streams(y, sums, params, constants)
    f32 = jnp.dtype(jnp.float32)
    shapes = [(n,), (n, n), (), (n * n + 2 * n,)]
    outputs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, f)]
    outputs += [jax.ShapeDtypeStruct((tokens, *shape), f32) for shape in shapes]
    flat = x.reshape(tokens, n * dim), f, h_post, h_res.reshape(tokens, n * n)
    return simt.launch(
        BoundaryForward(tile, n, constants, transposed),
        (*flat, params.phi, params.alpha, params.bias),
        outputs,
        name="mhc_post_pre",
        grid=tile.grid,
        block_shared=tile.shared(n),
    )


def mhc_post_pre_backward(
    inputs: PostInputs,
    params: MHCParams,
    saved: PostPreSaved,
    cotangents: Sequence[jax.Array],
    constants: MHCConstants,
    *,
    transposed: bool,
    deterministic: bool = True,
    tile: SlicesPostTile | None = None,
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Gradients of ``mhc_post_pre``; all sums in a fixed order if ``deterministic``.

    The two gradients of ``y`` are added in float32. Tokens are padded to a multiple of 8.

    Args:
      inputs: the arrays of ``mhc_post``.
      params: parameters of ``mhc_pre``, ``gamma`` folded into ``phi``.
      saved: the new streams, and the results that ``mhc_pre`` kept.
      cotangents: gradients of ``y``, ``h_in``, ``h_post`` and ``h_res``.
      constants: constants of ``mhc_pre``.
      transposed: whether the matrices ``h_res`` are transposed.
      deterministic: whether kernels by slices also add up the gradients of ``h_post`` and ``h_res``
        in a fixed order. The inner products of each slice of 64 columns then go through memory: 73
        MB for 8192 tokens, 7168 wide.
      tile: tile of a fused kernel, by default chosen for the shapes.

    Returns:
      Gradients to ``inputs``, and to ``phi``, ``alpha`` and ``bias``.

    Raises:
      NotImplementedError: if there is no tile for the shapes.
    """
    tokens, n, dim = inputs.x.shape
    if tokens == 0:
        return tuple(map(jnp.zeros_like, inputs)), tuple(map(jnp.zeros_like, params[:3]))
    tile = tile or SlicesPostTile.choose(Chip.current(), tokens, Slices(n, dim), inputs.x.dtype)
    if tile is None:
        shape = f"{inputs.x.shape} {inputs.x.dtype}"
        raise NotImplementedError(f"mhc_post_pre_backward: no tile for x of {shape}")
    inputs, saved, cotangents = padded_tokens((inputs, saved, tuple(cotangents)))
    of_inputs, of_params = _backward_by_slices(
        inputs, params, saved, cotangents, constants, transposed, deterministic, tile
    )
    return tuple(gradient[:tokens] for gradient in of_inputs), of_params


def _backward_by_slices(
    inputs, params, saved, cotangents, constants, transposed: bool, deterministic: bool, tile
):
    """The backward pass by ``mhc.slices``, whose partial sums another kernel adds up."""
    dy, *of_pre = cotangents
    y, *of_token = saved
    tokens, n, dim = inputs.x.shape
    coefficients = inputs.h_post, inputs.h_res.reshape(tokens, n * n)
    options = {"reverse": not tile.reverse, "zeros": not deterministic}
    parts, sums, zeros = token_parts(
        y, params, of_token, of_pre, constants, coefficients, **options
    )
    post = PrecedingPost(inputs.x, inputs.f, transposed)
    of_phi, *old, products = slices_post_backward(
        y, of_pre[0], dy, params.phi, parts, post, tile, zeros
    )
    dphi, dalpha, dbias, *dcoefficients = add_up(Slices(n, dim), Partial(of_phi, sums, products))
    return (*old, *dcoefficients), (dphi, dalpha, dbias)
