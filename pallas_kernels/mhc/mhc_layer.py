"""The backward pass of a layer with hyper-connections, as a pair of kernels.

``mhc_pre`` and ``mhc_post`` of the layer read the same streams. The kernel of ``mhc_pre`` computes
the whole gradient of the streams from the gradient of the result of ``mhc_post``, so that no part
of it is written by one kernel and read by the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.mhc_post import mhc_post_backward
from pallas_kernels.mhc.mhc_pre import mhc_pre_backward
from pallas_kernels.mhc.pre_backward import Gradients
from pallas_kernels.mhc.slices.backward import FollowingPost, SlicesTile
from pallas_kernels.mhc.slices.shapes import Slices


def has_paired_backward(tokens: int, n: int, dim: int, dtype) -> bool:
    """Whether this pair of kernels supports streams of this shape and dtype."""
    form = Slices(n, dim, adds=False, mixes=True)
    return SlicesTile.choose(Chip.current(), tokens, form, dtype) is not None


def post_backward(inputs: PostInputs, dy: jax.Array, *, transposed: bool) -> tuple[jax.Array, ...]:
    """Gradients of ``mhc_post`` to ``f``, ``h_post`` and ``h_res``, without that to the streams.

    Args:
      inputs: the arrays of ``mhc_post``.
      dy: gradient of the new streams, [tokens, n, dim].
      transposed: whether the matrices ``h_res`` are transposed.
    """
    return mhc_post_backward(*inputs, dy, transposed=transposed, mixes=False)


def pre_backward(
    x: jax.Array,
    params: MHCParams,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    following: FollowingPost,
    constants: MHCConstants,
) -> Gradients:
    """Gradients of a layer to the streams, through ``mhc_pre`` and ``mhc_post``, and to ``params``.

    Args:
      x: the streams, [tokens, n, dim].
      params: parameters of ``mhc_pre``, ``gamma`` folded into ``phi``.
      saved: ``inv_rms`` and ``h_mix`` of the forward pass.
      cotangents: gradients of ``h_in``, ``h_post`` and the logits of ``h_res``.
      following: the coefficients of ``mhc_post``, and the gradient of its result.
      constants: constants of ``mhc_pre``.
    """
    return mhc_pre_backward(x, params, saved, cotangents, constants, following=following)
