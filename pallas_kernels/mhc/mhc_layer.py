"""The backward pass of a layer with hyper-connections, whose two ends know of each other.

The gradient to what ``mhc_post`` makes of the streams is mixed where ``mhc_pre`` needs it: it is
not made by one kernel for another to read.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from pallas_kernels.chip import Chip
from pallas_kernels.mhc.mhc_post import mhc_post_backward
from pallas_kernels.mhc.mhc_pre import mhc_pre_backward
from pallas_kernels.mhc.pre_backward import Gradients
from pallas_kernels.mhc.slices.backward import Behind, SlicesTile
from pallas_kernels.mhc.slices.shapes import Slices


def links(tokens: int, n: int, dim: int, dtype) -> bool:
    """Whether there are such kernels for these streams."""
    return (
        SlicesTile.choose(Chip.current(), tokens, Slices(n, dim, adds=False, mixes=True), dtype)
        is not None
    )


def post_backward(
    x: jax.Array,
    f: jax.Array,
    h_post: jax.Array,
    h_res: jax.Array,
    dy: jax.Array,
    *,
    transposed: bool,
) -> tuple[jax.Array, ...]:
    """Gradients to ``f``, ``h_post`` and ``h_res``: see ``mhc_post_backward``."""
    return mhc_post_backward(x, f, h_post, h_res, dy, transposed=transposed, mixes=False)


def pre_backward(
    x: jax.Array,
    weight: jax.Array,
    alpha: jax.Array,
    bias: jax.Array,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    of_post: tuple[jax.Array, jax.Array],
    dy: jax.Array,
    *,
    transposed: bool,
    pre_eps: float,
    post_scale: float,
) -> Gradients:
    """Gradients to the first four arguments, that to ``x`` with what comes through ``mhc_post``.

    Args:
      x: as in ``mhc_pre``.
      weight: as in ``mhc_pre``.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      saved: ``inv_rms`` and ``h_mix``.
      cotangents: of ``h_in``, ``h_post`` and the logits of ``h_res``.
      of_post: ``h_post`` and ``h_res``.
      dy: the gradient to the new streams.
      transposed: as in ``mhc_post``.
      pre_eps: as in ``mhc_pre``.
      post_scale: as in ``mhc_pre``.
    """
    given, constants = (x, weight, alpha, bias, saved), {"pre_eps": pre_eps}
    behind = Behind(*of_post, dy, transposed)
    return mhc_pre_backward(*given, cotangents, None, behind, **constants, post_scale=post_scale)
