"""The part of hyper-connections before a layer: coefficients, and the layer's input."""

from __future__ import annotations

from functools import partial
from typing import Literal, overload

from jaxtyping import Array, Float

from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.checks import check_number, check_pre
from jaxgnn.ops._mhc.kernels import of_projections, plain
from jaxgnn.ops._mhc.reference import mhc_pre as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_choice, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams

MHC_PRE = of_projections("mhc_pre", reference.mhc_pre, pallas.mhc_pre)
BACKWARD = of_projections("mhc_pre.backward", reference.mhc_pre_backward, pallas.mhc_pre_backward)
STATIC = plain("mhc_pre.static", reference.mhc_pre_static)


@overload
def mhc_pre(
    x: Array,
    phi: Array | None,
    alpha: Array | None,
    bias: Array,
    gamma: Array | None = None,
    *,
    norm_eps: float = 1e-6,
    pre_eps: float = 1e-6,
    post_scale: float = 2.0,
    return_streams: Literal[False] = False,
    implementation: dispatch.Name | None = None,
) -> tuple[Array, Array, Array]: ...
@overload
def mhc_pre(
    x: Array,
    phi: Array | None,
    alpha: Array | None,
    bias: Array,
    gamma: Array | None = None,
    *,
    norm_eps: float = 1e-6,
    pre_eps: float = 1e-6,
    post_scale: float = 2.0,
    return_streams: Literal[True],
    implementation: dispatch.Name | None = None,
) -> tuple[Array, Array, Array, Array]: ...
def mhc_pre(
    x: Float[Array, "*batch n dim"],
    phi: Float[Array, "rows n*dim"] | None,
    alpha: Float[Array, "3"] | None,
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None = None,
    *,
    norm_eps: float = 1e-6,
    pre_eps: float = 1e-6,
    post_scale: float = 2.0,
    return_streams: bool = False,
    implementation: dispatch.Name | None = None,
) -> tuple[Array, ...]:
    """The input of a layer from its n streams, and the coefficients that return its output to them.

    The first half of a manifold-constrained hyper-connection (https://arxiv.org/abs/2512.24880).
    For each token, with ``x`` flattened to ``v [n dim]``::

        t      = ((v γ) φᵀ) / √(mean(v²) + norm_eps)      rows pre [n] | post [n] | res [n²]
        h_pre  = σ(alpha_0 t_pre + bias_pre) + pre_eps
        h_post = post_scale σ(alpha_1 t_post + bias_post)
        h_res  = alpha_2 t_res + bias_res                 logits, for ``sinkhorn``
        h_in   = Σ_i h_pre[i] x_i

    The root mean square is that of ``x`` itself, without ``γ``. Sums are accumulated in float32
    (float64 for float64 input). Differentiable in every array; the backward pass keeps ``rows + 1``
    numbers a token besides the inputs.

    ``mhc_post`` also reads the streams. Pass it the streams that ``return_streams`` adds to the
    results: their gradient is then added in the backward pass of this op, in float32, and the sum
    is rounded once. If two ops read ``x`` itself, each gradient is rounded before JAX adds them,
    which takes another pass between kernels.

    Args:
      x: the streams, any leading axes.
      phi: projection to the coefficients, [n² + 2n, n dim] float32. With [n! + 2n, n dim] the last
        part of the rows are logits of permutations (mHC-lite), for ``permutation_mixture``. None
        for coefficients that are the same for every token: ``t`` is zero.
      alpha: float32 gains of the parts pre, post and res; None if ``phi`` is.
      bias: float32 numbers added to the coefficients, one for each row of ``phi``.
      gamma: float32 scale of the normalised streams, None for ones.
      norm_eps: added to the mean square of a token's streams.
      pre_eps: added to the sigmoid of ``h_pre``.
      post_scale: multiplies the sigmoid of ``h_post``.
      return_streams: whether to return ``x`` as well, for other ops that read the streams.
      implementation: ``"xla"``; ``"pallas"`` on a GPU, with ``phi`` of [n² + 2n, n dim], for 2, 4
        or 8 streams of a width that is a multiple of 64 up to 8192, float32 or bfloat16; or None
        for the one measured to be fastest.

    Returns:
      ``(h_in, h_post, h_res)``: the layer's input [..., dim], of the dtype of ``x``; float32
      weights of its output [..., n]; float32 logits [..., n, n], or [..., n!] for mHC-lite. Without
      ``phi`` the last two have no leading axes. With ``return_streams`` the result is
      ``(x, h_in, h_post, h_res)``.

    Raises:
      ValueError: if shapes or dtypes do not match, or a constant is negative.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> x = jnp.array([[[1.0, 3.0], [5.0, 7.0]]])  # one token, two streams
      >>> phi, alpha, bias = jnp.zeros((8, 4)), jnp.ones(3), jnp.zeros(8)
      >>> h_in, h_post, h_res = ops.mhc_pre(x, phi, alpha, bias, pre_eps=0.0)
      >>> h_in.tolist(), h_post.tolist(), h_res.shape
      ([[3.0, 5.0]], [[1.0, 1.0]], (1, 2, 2))
      >>> x, h_in, h_post, h_res = ops.mhc_pre(x, phi, alpha, bias, return_streams=True)
      >>> ops.mhc_post(x, h_in, h_post, ops.sinkhorn(h_res)).shape
      (1, 2, 2)
    """
    x, phi, alpha, bias, gamma = from_numpy(x, phi, alpha, bias, gamma)
    check_pre("mhc_pre", x, phi, alpha, bias, gamma)
    check_choice("mhc_pre", "return_streams", return_streams, True, False)
    constants = pre_constants("mhc_pre", norm_eps, pre_eps, post_scale)
    request = dispatch.resolve("mhc_pre", implementation)
    if phi is None:
        x, bias = dispatch.match_varying(x, bias)
        return STATIC(request, x, bias, return_streams=return_streams, constants=constants)
    x, *arrays = dispatch.match_varying(x, phi, alpha, bias, gamma)
    params = MHCParams(*arrays)
    if request.name == "xla":
        options = {"return_streams": return_streams, "constants": constants}
        return MHC_PRE(request, x, params, **options)[0]
    return _mhc_pre(request, return_streams, constants, x, params)


def pre_constants(op: str, norm_eps: float, pre_eps: float, post_scale: float) -> MHCConstants:
    """The constants of ``mhc_pre``, checked for an op."""
    return MHCConstants(
        norm_eps=check_number(op, "norm_eps", norm_eps),
        pre_eps=check_number(op, "pre_eps", pre_eps),
        post_scale=check_number(op, "post_scale", post_scale),
    )


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _mhc_pre(request, return_streams, constants, x, params):
    return _mhc_pre_forward(request, return_streams, constants, x, params)[0]


def _mhc_pre_forward(request, return_streams, constants, x, params):
    outputs, saved = MHC_PRE(request, x, params, constants=constants)
    if not return_streams:
        return outputs, (x, params, saved)
    # The returned streams do not pass through the kernel, so that they and the streams kept for the
    # backward pass stay one array.
    x = dispatch.mapped_with(x, outputs[1][..., None])
    return (x, *outputs), (x, params, saved)


def _mhc_pre_backward(request, return_streams, constants, residuals, cotangents):
    dx_streams, *rest = cotangents if return_streams else (None, *cotangents)
    return BACKWARD(request, *residuals, tuple(rest), dx_streams, constants=constants)


_mhc_pre.defvjp(_mhc_pre_forward, _mhc_pre_backward)
