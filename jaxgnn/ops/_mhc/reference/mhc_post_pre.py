"""The boundary of two layers with hyper-connections, in plain JAX: post of one, pre of the next."""

from __future__ import annotations

from jax import lax
from jaxtyping import Array, Float

from jaxgnn.ops._mhc.reference import mhc_pre as pre
from jaxgnn.ops._mhc.reference.mhc_post import mhc_post, mhc_post_backward


def mhc_post_pre(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None,
    *,
    transposed: bool,
    norm_eps: float,
    pre_eps: float,
    post_scale: float,
) -> tuple[tuple[Array, ...], pre.Saved]:
    """``(y, h_in, h_post, h_res)`` of ``y = mhc_post(...)``, as stored, and ``mhc_pre(y, ...)``."""
    # XLA for GPUs would leave out the rounding of what it need not read from memory.
    y = lax.optimization_barrier(mhc_post(x, f, h_post, h_res, transposed=transposed))
    constants = {"norm_eps": norm_eps, "pre_eps": pre_eps, "post_scale": post_scale}
    return pre.mhc_pre(y, phi, alpha, bias, gamma, **constants, return_streams=True)


def mhc_post_pre_backward(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None,
    y: Float[Array, "*batch n dim"],
    saved: pre.Saved,
    cotangents: tuple[Array, Array, Array, Array],
    *,
    transposed: bool,
    norm_eps: float,
    **options: float,
) -> tuple[Array | None, ...]:
    """Gradients to the first eight arguments.

    The two gradients that meet at ``y`` are added before they are rounded, and their sum is not.
    """
    del norm_eps  # in saved.inv_rms
    dy, *pre_cotangents = cotangents
    dy, *parameters = pre.gradients(
        y, phi, alpha, bias, gamma, saved, pre_cotangents, dy, **options
    )
    through_post = mhc_post_backward(x, f, h_post, h_res, dy, transposed=transposed)
    return *through_post, *parameters
