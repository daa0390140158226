"""A layer between n streams as one op, with its hyper-connections before and after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.checks import check_coefficients, check_output, check_pre, check_streams
from jaxgnn.ops._mhc.kernels import of_streams
from jaxgnn.ops._mhc.mhc_post import MHC_POST, mhc_post
from jaxgnn.ops._mhc.mhc_pre import MHC_PRE, mhc_pre, pre_constants
from jaxgnn.ops._mhc.reference import mhc_layer as reference
from jaxgnn.ops._mhc.reference.sinkhorn import Last
from jaxgnn.ops._mhc.sinkhorn import BACKWARD as SINKHORN_BACKWARD
from jaxgnn.ops._mhc.sinkhorn import SINKHORN, sinkhorn, sinkhorn_options
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_choice, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams

PRE_BACKWARD = of_streams(
    "mhc_layer.pre_backward", reference.mhc_layer_pre_backward, pallas.mhc_layer_pre_backward
)
POST_BACKWARD = of_streams(
    "mhc_layer.post_backward", reference.mhc_layer_post_backward, pallas.mhc_layer_post_backward
)


def mhc_layer(
    layer: Callable[[Array], Array],
    x: Float[Array, "*batch n dim"],
    phi: Float[Array, "rows n*dim"],
    alpha: Float[Array, "3"],
    bias: Float[Array, " rows"],
    gamma: Float[Array, "n dim"] | None = None,
    *,
    transposed: bool = False,
    norm_eps: float = 1e-6,
    pre_eps: float = 1e-6,
    post_scale: float = 2.0,
    iterations: int = 20,
    eps: float = 1e-6,
    last: Last = "rows",
    gradient: Literal["exact", "implicit"] = "exact",
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch n dim"]:
    """A layer with a manifold-constrained hyper-connection around it, from streams to streams.

    All of a layer in https://arxiv.org/abs/2512.24880::

        h_in, h_post, logits = mhc_pre(x, phi, alpha, bias, gamma)
        y                    = mhc_post(x, layer(h_in), h_post, sinkhorn(logits))

    The value is the same as with the ops, both of which read ``x``. If this op has kernels, the
    backward pass computes the gradient of ``x`` in one place, from the gradient of ``y``: the part
    of ``mhc_post`` is never written to memory, and the sum is rounded once.

    This op does not support coefficients that are the same for every token, nor permutations
    (mHC-lite); use ``mhc_pre``, ``permutation_mixture`` and ``mhc_post`` for them.

    Args:
      layer: called once, with ``h_in [..., dim]`` of the dtype of ``x``; returns an array of the
        same shape and dtype. It may close over parameters, which get their gradients.
      x: the streams, any leading axes.
      phi: float32 projection from the flattened streams to the coefficients, [n² + 2n, n dim].
      alpha: float32 gains of the three parts of the coefficients: pre, post and res.
      bias: float32 numbers added to the coefficients, one for each row of ``phi``.
      gamma: float32 scale of the normalised streams, None for ones.
      transposed: whether the streams are mixed by the transposed matrix ``h_resᵀ``.
      norm_eps: added to the mean square of a token's streams.
      pre_eps: added to the sigmoid ``h_pre``, the weights of the streams in ``h_in``.
      post_scale: multiplies the sigmoid ``h_post``, the weights of the layer's output.
      iterations: pairs of divisions in ``sinkhorn``, at least 1.
      eps: added to the result of the first division in ``sinkhorn`` and to every later sum.
      last: the axis that an iteration of ``sinkhorn`` normalises last, ``"rows"`` or ``"columns"``.
      gradient: ``"exact"`` differentiates the iterations of ``sinkhorn``; ``"implicit"`` solves for
        the gradient at their limit.
      implementation: ``"xla"``; ``"pallas"`` on a GPU, for 2, 4 or 8 streams of a width that is a
        multiple of 64 up to 8192, float32 or bfloat16, with the exact gradient; or None for the
        one measured to be fastest.

    Returns:
      The new streams, of the shape and dtype of ``x``.

    Raises:
      ValueError: if shapes or dtypes of the arguments or of the layer's result do not match, or
        another argument is not as above.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> x = jnp.array([[[1.0, 3.0], [5.0, 7.0]]])  # one token, two streams
      >>> phi, alpha, bias = jnp.zeros((8, 4)), jnp.ones(3), jnp.zeros(8)
      >>> y = ops.mhc_layer(lambda h: 10 * h, x, phi, alpha, bias, pre_eps=0.0)
      >>> y.round().tolist()  # the mean of the streams, [3, 5], and 10 times that
      [[[33.0, 55.0], [33.0, 55.0]]]
    """
    x, phi, alpha, bias, gamma = from_numpy(x, phi, alpha, bias, gamma)
    _check(x, phi, alpha, bias, gamma)
    check_choice("mhc_layer", "transposed", transposed, True, False)
    check_choice("mhc_layer", "gradient", gradient, "exact", "implicit")
    constants = pre_constants("mhc_layer", norm_eps, pre_eps, post_scale)
    balance = sinkhorn_options("mhc_layer", iterations, eps, last)
    request = dispatch.resolve("mhc_layer", implementation)
    named = {"implementation": request.name}
    if gradient == "exact" and _is_linked(request, x):
        x, *arrays = dispatch.match_varying(x, phi, alpha, bias, gamma)
        options = _Options(transposed, constants, balance)
        link, h_in, h_post, h_res = _layer_input(request, options, x, MHCParams(*arrays))
    else:
        link = None
        x, h_in, h_post, logits = mhc_pre(
            x, phi, alpha, bias, gamma, **constants._asdict(), return_streams=True, **named
        )
        h_res = sinkhorn(logits, **dict(balance), gradient=gradient, **named)
    f = layer(h_in)
    check_output("mhc_layer", "layer(h_in)", f, x)
    if link is None:
        return mhc_post(x, f, h_post, h_res, transposed=transposed, **named)
    return _layer_output(request, transposed, *dispatch.match_varying(x, link, f, h_post, h_res))


def _check(x, phi, alpha, bias, gamma) -> None:
    """Raises ValueError unless these are arguments of ``mhc_pre``, for logits of a matrix."""
    n, dim = check_streams("mhc_layer", x)
    shape = (n * n + 2 * n, n * dim)
    if phi is None:
        raise bad_input("mhc_layer", "phi", f"of shape {shape}", "None")
    check_coefficients("mhc_layer", "phi", phi, shape)
    check_pre("mhc_layer", x, phi, alpha, bias, gamma)


class _Options(NamedTuple):
    """Static options of the ops around a layer: ``mhc_pre``, ``mhc_post`` and ``sinkhorn``."""

    transposed: bool
    constants: MHCConstants
    balance: tuple


def _is_linked(request: dispatch.Request, x: Array) -> bool:
    """Whether the backward pass computes the gradient of ``x`` in one place."""
    if request.name == "xla" or MHC_PRE.unavailable("pallas", "cuda") is not None:
        return False
    if dispatch.unknown_size((x,)) is not None:
        return False
    return pallas.has_paired_backward(x)


# The two ends of a layer. The first result of _layer_input is a link that only _layer_output takes:
# an array shaped like the streams that is never read, so that a compiler does not compute it. It is
# used only in the backward pass. The cotangent that _layer_output gives it is not a gradient, but
# dy, the cotangent of the layer's result. From dy and h_res, _layer_input computes the share of
# mhc_post in the gradient of x. So _layer_output gives no gradient to x itself.
#
# The link depends on every argument: jax.vmap sums the cotangents of an array that it does not map,
# and dy may be summed only where h_res is the same for all members. The forward rules call neither
# _layer_input nor _layer_output: a second differentiation takes the rules as they are written, with
# the link as an array that nothing depends on.
@partial(custom_vjp, nondiff_argnums=(0, 1))
def _layer_input(request, options, x, params):
    return _layer_input_forward(request, options, x, params)[0]


def _layer_input_forward(request, options, x, params):
    (h_in, h_post, logits), saved = MHC_PRE(request, x, params, constants=options.constants)
    h_res = SINKHORN(request, logits, **dict(options.balance))
    link = jnp.broadcast_to(h_post[..., None].astype(x.dtype), x.shape)
    return (link, h_in, h_post, h_res), ((x, params), saved, logits, h_post, h_res)


def _layer_input_backward(request, options, residuals, cotangents):
    inputs, saved, logits, h_post, h_res = residuals
    dy, dh_in, dh_post, dh_res = cotangents
    dlogits = SINKHORN_BACKWARD(request, logits, dh_res, **dict(options.balance))
    of_pre, of_post = (dh_in, dh_post, dlogits), (h_post, h_res)
    named = {"transposed": options.transposed, "constants": options.constants}
    return PRE_BACKWARD(request, *inputs, saved, of_pre, of_post, dy, **named)


_layer_input.defvjp(_layer_input_forward, _layer_input_backward)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _layer_output(request, transposed, x, link, f, h_post, h_res):
    return _layer_output_forward(request, transposed, x, link, f, h_post, h_res)[0]


def _layer_output_forward(request, transposed, x, link, *coefficients):
    del link
    inputs = (x, *coefficients)
    return MHC_POST(request, *inputs, transposed=transposed), inputs


def _layer_output_backward(request, transposed, inputs, dy):
    df, dh_post, dh_res = POST_BACKWARD(request, *inputs, dy, transposed=transposed)
    return None, dy, df, dh_post, dh_res


_layer_output.defvjp(_layer_output_forward, _layer_output_backward)
