"""What the backward pass of a whole layer with hyper-connections runs, in plain JAX."""

from __future__ import annotations

from jaxtyping import Array, Float

from jaxgnn.ops._mhc.reference.mhc_post import mhc_post_backward, mixed
from jaxgnn.ops._mhc.reference.mhc_pre import Saved, mhc_pre_backward


def mhc_layer_post_backward(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    dy: Float[Array, "*batch n dim"],
    *,
    transposed: bool,
) -> tuple[Array, Array, Array]:
    """Gradients of ``mhc_post`` to ``f``, ``h_post`` and ``h_res``; that to ``x`` comes later."""
    _, *gradients = mhc_post_backward(x, f, h_post, h_res, dy, transposed=transposed)
    df, dh_post, dh_res = gradients
    return df, dh_post, dh_res


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
    **constants: float,
) -> tuple[Array, Array, Array, Array, Array | None]:
    """Gradients of a layer to ``x``, ``phi``, ``alpha``, ``bias`` and ``gamma``.

    That of ``mhc_pre`` to ``x``, plus ``Σ_o h_res[o, i] dy_o`` of ``mhc_post``, rounded together.

    Args:
      x: as ``phi``, ``alpha``, ``bias`` and ``gamma``, an argument of ``mhc_pre``.
      phi: see ``x``.
      alpha: see ``x``.
      bias: see ``x``.
      gamma: see ``x``.
      saved: what its forward pass kept.
      cotangents: of its results.
      of_post: the ``h_post`` and ``h_res`` that ``mhc_post`` had; here only the latter is of use.
      dy: cotangent of what ``mhc_post`` gave.
      transposed: as in ``mhc_post``.
      **constants: those of ``mhc_pre``.
    """
    _, h_res = of_post
    accumulator = saved.h_mix.dtype
    dx = mixed(h_res.astype(accumulator), dy.astype(accumulator), transposed=not transposed)
    return mhc_pre_backward(x, phi, alpha, bias, gamma, saved, cotangents, dx, **constants)
