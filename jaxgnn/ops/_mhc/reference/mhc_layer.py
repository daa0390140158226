"""The backward pass of a whole layer with hyper-connections, in plain JAX."""

from __future__ import annotations

from jaxtyping import Array, Float

from jaxgnn.ops._mhc.reference.mhc_post import mhc_post_backward, mixed
from jaxgnn.ops._mhc.reference.mhc_pre import Saved, mhc_pre_backward
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams


def mhc_layer_post_backward(*inputs_and_dy: Array, transposed: bool) -> tuple[Array, ...]:
    """Gradients of ``mhc_post`` to all arguments but ``x``, whose gradient comes later."""
    return mhc_post_backward(*inputs_and_dy, transposed=transposed)[1:]


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
    """Gradients of a layer to ``x`` and to ``params``.

    The gradient to ``x`` is that of ``mhc_pre`` plus ``Σ_o h_res[o, i] dy_o`` of ``mhc_post``,
    whose coefficients are ``of_post``; it is rounded once.
    """
    _, h_res = of_post
    accumulator = saved.h_mix.dtype
    dx = mixed(h_res.astype(accumulator), dy.astype(accumulator), transposed=not transposed)
    return mhc_pre_backward(x, params, saved, cotangents, dx, constants=constants)
