"""The boundary of two layers with hyper-connections: ``mhc_post`` of one, ``mhc_pre`` of the next.

Four streams have kernels of this op alone where ``mhc.cluster.post_pre`` or ``mhc.wide_sums``,
forward, and ``mhc.slices.post`` or ``mhc.tokens.backward`` have a tile. Otherwise the kernels
of the two ops run one after the other, and what lies between them is in memory, in the dtype of the
streams.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.cluster.post_pre import BoundaryForward, MhcPostPreClusterTile
from pallas_kernels.mhc.mhc_post import mhc_post, mhc_post_backward
from pallas_kernels.mhc.mhc_pre import mhc_pre, mhc_pre_backward
from pallas_kernels.mhc.pre_backward import token_backward
from pallas_kernels.mhc.pre_mixing import Constants, mix_streams
from pallas_kernels.mhc.slices.post import SlicesPostTile, slices_post_backward
from pallas_kernels.mhc.slices.shapes import Slices
from pallas_kernels.mhc.slices.sums import Partial, add_up
from pallas_kernels.mhc.slices.tokens import token_parts
from pallas_kernels.mhc.tokens.backward import streams_backward
from pallas_kernels.mhc.tokens.columns import Post
from pallas_kernels.mhc.tokens.tile import Form, StreamsTile
from pallas_kernels.mhc.wide_sums import WideTile, wide_sums


def mhc_post_pre(
    x: jax.Array,
    f: jax.Array,
    h_post: jax.Array,
    h_res: jax.Array,
    weight: jax.Array,
    alpha: jax.Array,
    bias: jax.Array,
    *,
    transposed: bool,
    norm_eps: float,
    pre_eps: float,
    post_scale: float,
    tile: MhcPostPreClusterTile | WideTile | None = None,
) -> tuple[jax.Array, ...]:
    """New streams, and the next layer's input and coefficients: see ``jaxgnn.ops.mhc_post_pre``.

    Args:
      x: as in ``mhc_post``.
      f: as in ``mhc_post``.
      h_post: as in ``mhc_post``.
      h_res: as in ``mhc_post``.
      weight: as in ``mhc_pre``.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      transposed: as in ``mhc_post``.
      norm_eps: as in ``mhc_pre``.
      pre_eps: as in ``mhc_pre``.
      post_scale: as in ``mhc_pre``.
      tile: of the kernel of this op alone, by default what suits the shapes.

    Returns:
      ``y``, like ``x``, and what ``mhc_pre`` makes of it: ``h_in``, ``h_post`` and ``h_res``, then
      ``inv_rms`` and ``h_mix`` for the backward pass.
    """
    tokens, n, dim = x.shape
    tile = tile or MhcPostPreClusterTile.choose(Chip.current(), tokens, n, dim, x.dtype)
    tile = tile or WideTile.choose(Chip.current(), tokens, n, dim, x.dtype, posts=True)
    if tokens == 0 or tile is None:
        y = mhc_post(x, f, h_post, h_res, transposed=transposed)
        constants = {"norm_eps": norm_eps, "pre_eps": pre_eps, "post_scale": post_scale}
        return y, *mhc_pre(y, weight, alpha, bias, **constants)
    if isinstance(tile, WideTile):
        y, sums = wide_sums(x, weight, (f, h_post, h_res), tile, transposed=transposed)
        constants = Constants(norm_eps, pre_eps, post_scale)
        return y, *mix_streams(y, sums, alpha, bias, constants)
    f32 = jnp.dtype(jnp.float32)
    of_token = [(n,), (n, n), (), (n * n + 2 * n,)]
    outputs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, f)]
    outputs += [jax.ShapeDtypeStruct((tokens, *shape), f32) for shape in of_token]
    flat = x.reshape(tokens, n * dim), f, h_post, h_res.reshape(tokens, n * n)
    return simt.launch(
        BoundaryForward(tile, n, norm_eps, pre_eps, post_scale, transposed),
        (*flat, weight, alpha, bias),
        outputs,
        name="mhc_post_pre",
        grid=tile.grid,
        block_shared=tile.shared(n),
    )


def mhc_post_pre_backward(
    x: jax.Array,
    f: jax.Array,
    h_post: jax.Array,
    h_res: jax.Array,
    weight: jax.Array,
    alpha: jax.Array,
    bias: jax.Array,
    y: jax.Array,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    *,
    transposed: bool,
    pre_eps: float,
    post_scale: float,
    deterministic: bool = True,
    tile: SlicesPostTile | StreamsTile | None = None,
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Gradients; all sums in a fixed order, with one exception unless ``deterministic``.

    The two that meet at ``y`` are added in float32. Where the kernels of the two ops run one
    after the other, their sum goes through memory, rounded once to the dtype of ``y``.

    Args:
      x: as in ``mhc_post``.
      f: as in ``mhc_post``.
      h_post: as in ``mhc_post``.
      h_res: as in ``mhc_post``.
      weight: as in ``mhc_pre``.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      y: the new streams.
      saved: ``inv_rms`` and ``h_mix``.
      cotangents: of ``y``, ``h_in``, ``h_post`` and ``h_res``.
      transposed: as in ``mhc_post``.
      pre_eps: as in ``mhc_pre``.
      post_scale: as in ``mhc_pre``.
      deterministic: whether kernels by slices also add up those to ``h_post`` and ``h_res`` in a
        fixed order. For that they go through memory once for each 64 columns: of 7168 wide tokens
        73 MB for 8192.
      tile: of a kernel of this op alone, by default what suits the shapes.

    Returns:
      Gradients to the first four arguments, and to ``weight``, ``alpha`` and ``bias``.
    """
    dy, *of_pre = cotangents
    constants = {"pre_eps": pre_eps, "post_scale": post_scale}
    tokens, n, dim = x.shape
    tile = tile or SlicesPostTile.choose(Chip.current(), tokens, Slices(n, dim), x.dtype)
    form = Form(n, dim, x.dtype.itemsize, adds=True, posts=True)
    tile = tile or StreamsTile.choose(Chip.current(), tokens, form)
    if tile is None:
        dy, *parameters = mhc_pre_backward(y, weight, alpha, bias, saved, of_pre, dy, **constants)
        through_post = mhc_post_backward(x, f, h_post, h_res, dy, transposed=transposed)
        return through_post, tuple(parameters)
    of_token, given = (y, alpha, bias, saved, of_pre), (y, of_pre[0], dy, weight)
    options = {"transposed": transposed}
    if isinstance(tile, SlicesPostTile):
        of_post = h_post, h_res.reshape(tokens, n * n)
        turned = not tile.backwards
        of_tokens = {"backwards": turned, "zeros": not deterministic, **constants}
        parts, sums, zeros = token_parts(*of_token, of_post, **of_tokens)
        given = *given, parts, (x, f), tile, zeros
        of_phi, *old, products = slices_post_backward(*given, **options)
        made = add_up(Slices(n, dim), Partial(of_phi, sums, products))
        dweight, dalpha, dbias, *coefficients = made
        through_post = [*old, *coefficients]
    else:
        token, dalpha, dbias = token_backward(*of_token, **constants)
        post = Post(x, f, h_post, h_res)
        dweight, *through_post = streams_backward(*given, token, post, tile=tile, **options)
    return tuple(through_post), (dweight, dalpha, dbias)
