"""The boundary of two layers with hyper-connections as one op: post of one, pre of the next."""

from __future__ import annotations

from functools import partial

from jaxtyping import Array, Float

from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.checks import check_post, check_pre
from jaxgnn.ops._mhc.kernels import of_projections
from jaxgnn.ops._mhc.mhc_post import for_each_token, mhc_post
from jaxgnn.ops._mhc.mhc_pre import mhc_pre, pre_constants
from jaxgnn.ops._mhc.reference import mhc_post_pre as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_choice, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp
from pallas_kernels.arguments.mhc import MHCParams, PostInputs


def _pallas_backward(*arrays, **options):
    deterministic = dispatch.is_deterministic()
    return pallas.mhc_post_pre_backward(*arrays, deterministic=deterministic, **options)


MHC_POST_PRE = of_projections("mhc_post_pre", reference.mhc_post_pre, pallas.mhc_post_pre)
BACKWARD = of_projections(
    "mhc_post_pre.backward", reference.mhc_post_pre_backward, _pallas_backward
)


def mhc_post_pre(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    phi: Float[Array, "rows n*dim"] | None,
    alpha: Float[Array, "3"] | None,
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None = None,
    *,
    transposed: bool = False,
    norm_eps: float = 1e-6,
    pre_eps: float = 1e-6,
    post_scale: float = 2.0,
    implementation: dispatch.Name | None = None,
) -> tuple[
    Float[Array, "*batch n dim"],
    Float[Array, "*batch dim"],
    Float[Array, "*batch n"],
    Float[Array, "*batch n n"],
]:
    """``mhc_post`` of one layer and ``mhc_pre`` of the next, one after the other.

    The boundary of two layers in https://arxiv.org/abs/2512.24880::

        y                     = mhc_post(x, f, h_post, h_res)
        h_in, h_post', h_res' = mhc_pre(y, phi, alpha, bias, gamma)

    The value is the same as with the two ops. In the backward pass the two gradients to ``y`` are
    added in float32. Their sum is rounded at most once, to the dtype of ``y``, if it is stored in
    memory between kernels of ``"pallas"``.

    Args:
      x: the streams before the layer that computed ``f``, any leading axes.
      f: the output of that layer, of the dtype of ``x``.
      h_post: float32 weights of ``f``, one for each stream; without leading axes, the same for
        every token.
      h_res: float32 matrix that mixes the streams, doubly stochastic as from ``sinkhorn``;
        without leading axes, the same for every token.
      phi: float32 projection from the flattened streams to the coefficients of the next layer,
        [n² + 2n, n dim], or [n! + 2n, n dim] for logits of permutations. None for coefficients that
        are the same for every token.
      alpha: float32 gains of the next layer's coefficients pre, post and res; None if ``phi`` is.
      bias: float32 numbers added to the next layer's coefficients, one for each of them.
      gamma: float32 scale of the normalised streams in the next layer, None for ones.
      transposed: whether the streams are mixed by the transposed matrix ``h_resᵀ``.
      norm_eps: added to the mean square of a token's streams.
      pre_eps: added to the sigmoid that weights the streams in ``h_in``.
      post_scale: multiplies the sigmoid of the returned ``h_post``.
      implementation: ``"xla"``; ``"pallas"`` on a GPU, with ``phi`` of [n² + 2n, n dim], for 2, 4
        or 8 streams of a width that is a multiple of 64 up to 8192, float32 or bfloat16; or None
        for the one measured to be fastest.

    Returns:
      ``(y, h_in, h_post, h_res)``, the last three for the next layer.

    Raises:
      ValueError: if shapes or dtypes do not match, or a constant is negative.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> x, f = jnp.array([[[1.0], [5.0]]]), jnp.array([[10.0]])
      >>> h_post, h_res = jnp.ones((1, 2)), jnp.eye(2)[None]
      >>> phi, alpha, bias = jnp.zeros((8, 2)), jnp.ones(3), jnp.zeros(8)
      >>> y, h_in, *_ = ops.mhc_post_pre(x, f, h_post, h_res, phi, alpha, bias, pre_eps=0.0)
      >>> y.tolist(), h_in.tolist()
      ([[[11.0], [15.0]]], [[13.0]])
    """
    x, f, h_post, h_res = from_numpy(x, f, h_post, h_res)
    phi, alpha, bias, gamma = from_numpy(phi, alpha, bias, gamma)
    check_post("mhc_post_pre", x, f, h_post, h_res)
    check_pre("mhc_post_pre", x, phi, alpha, bias, gamma)
    check_choice("mhc_post_pre", "transposed", transposed, True, False)
    request = dispatch.resolve("mhc_post_pre", implementation)
    if phi is None:  # without a projection there is little to fuse
        y = mhc_post(x, f, h_post, h_res, transposed=transposed, implementation=request.name)
        return mhc_pre(
            y,
            None,
            None,
            bias,
            norm_eps=norm_eps,
            pre_eps=pre_eps,
            post_scale=post_scale,
            return_streams=True,
            implementation=request.name,
        )
    per_token = for_each_token(x, h_post, h_res)
    arrays = dispatch.match_varying(x, f, *per_token, phi, alpha, bias, gamma)
    inputs, params = PostInputs(*arrays[:4]), MHCParams(*arrays[4:])
    constants = pre_constants("mhc_post_pre", norm_eps, pre_eps, post_scale)
    options = (("transposed", transposed), ("constants", constants))
    if request.name == "xla":
        return MHC_POST_PRE(request, inputs, params, **dict(options))[0]
    return _mhc_post_pre(request, options, inputs, params)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _mhc_post_pre(request, options, inputs, params):
    return _mhc_post_pre_forward(request, options, inputs, params)[0]


def _mhc_post_pre_forward(request, options, inputs, params):
    (y, h_in, h_post, h_res), saved = MHC_POST_PRE(request, inputs, params, **dict(options))
    y = dispatch.mapped_with(y, h_post[..., None])
    return (y, h_in, h_post, h_res), (inputs, params, y, saved)


def _mhc_post_pre_backward(request, options, residuals, cotangents):
    return BACKWARD(request, *residuals, cotangents, **dict(options))


_mhc_post_pre.defvjp(_mhc_post_pre_forward, _mhc_post_pre_backward)
