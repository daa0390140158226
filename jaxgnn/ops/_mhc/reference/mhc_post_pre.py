"""The boundary of two layers with hyper-connections, in plain JAX: post of one, pre of the next."""

from __future__ import annotations

from jax import lax
from jaxtyping import Array, Float

from jaxgnn.ops._mhc.reference import mhc_pre as pre
from jaxgnn.ops._mhc.reference.mhc_post import mhc_post, mhc_post_backward
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs


def mhc_post_pre(
    inputs: PostInputs, params: MHCParams, *, transposed: bool, constants: MHCConstants
) -> tuple[tuple[Array, ...], pre.Saved]:
    """``(y, h_in, h_post, h_res)`` of ``y = mhc_post(...)``, as stored, and ``mhc_pre(y, ...)``."""
    # Without the barrier XLA for GPUs would remove the rounding of y.
    y = lax.optimization_barrier(mhc_post(*inputs, transposed=transposed))
    return pre.mhc_pre(y, params, constants=constants, return_streams=True)


def mhc_post_pre_backward(
    inputs: PostInputs,
    params: MHCParams,
    y: Float[Array, "*batch n dim"],
    saved: pre.Saved,
    cotangents: tuple[Array, Array, Array, Array],
    *,
    transposed: bool,
    constants: MHCConstants,
) -> tuple[PostInputs, MHCParams]:
    """Gradients to ``inputs`` and to ``params``.

    The two gradients to ``y`` are added before they are rounded, and their sum is not rounded.
    """
    dy, *pre_cotangents = cotangents
    dy, dparams = pre.gradients(y, params, saved, pre_cotangents, dy, constants)
    return PostInputs(*mhc_post_backward(*inputs, dy, transposed=transposed)), dparams
