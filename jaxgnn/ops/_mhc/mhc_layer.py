"""A layer between n streams as one op: what hyper-connections do in front of it and behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.checks import check_choice
from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.checks import check_coefficients, check_output, check_pre, check_streams
from jaxgnn.ops._mhc.kernels import kernel, projection_limits, stream_limits, unmeasured_streams
from jaxgnn.ops._mhc.mhc_post import MHC_POST, mhc_post
from jaxgnn.ops._mhc.mhc_pre import MHC_PRE, mhc_pre, pre_constants
from jaxgnn.ops._mhc.reference import mhc_layer as reference
from jaxgnn.ops._mhc.reference.sinkhorn import Last
from jaxgnn.ops._mhc.sinkhorn import BACKWARD as SINKHORN_BACKWARD
from jaxgnn.ops._mhc.sinkhorn import SINKHORN, sinkhorn, sinkhorn_options
from pallas_kernels.mhc.arguments import MHCConstants, MHCParams

PRE_BACKWARD = kernel(
    "mhc_layer.pre_backward",
    reference.mhc_layer_pre_backward,
    pallas.mhc_layer_pre_backward,
    limits=projection_limits,
    unmeasured=unmeasured_streams,
)
POST_BACKWARD = kernel(
    "mhc_layer.post_backward",
    reference.mhc_layer_post_backward,
    pallas.mhc_layer_post_backward,
    limits=stream_limits,
    unmeasured=unmeasured_streams,
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

    The value is that of the ops. Both of them read ``x``. Where this op has kernels for it, the
    backward pass makes the gradient of ``x`` in one place, from that of ``y`` itself: the share of
    ``mhc_post`` is never written to memory, and the sum is rounded once.

    Coefficients that are the same for every token, and the permutations of mHC-lite, are left to
    ``mhc_pre``, ``permutation_mixture`` and ``mhc_post``.

    Args:
      layer: called once, with ``h_in [..., dim]`` of the dtype of ``x``; returns an array of the
        same shape and dtype. It may close over parameters, which get their gradients.
      x: the streams, any leading axes.
      phi: projection to the coefficients, [n² + 2n, n dim] float32, as in ``mhc_pre``.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      gamma: as in ``mhc_pre``.
      transposed: as in ``mhc_post``.
      norm_eps: as in ``mhc_pre``.
      pre_eps: as in ``mhc_pre``.
      post_scale: as in ``mhc_pre``.
      iterations: as in ``sinkhorn``.
      eps: as in ``sinkhorn``.
      last: as in ``sinkhorn``.
      gradient: as in ``sinkhorn``.
      implementation: ``"xla"``; ``"pallas"`` on a GPU, for 2, 4 or 8 streams of a width that is a
        multiple of 64 up to 8192, float32 or bfloat16, with the exact gradient; or None for what
        was measured to be fastest.

    Returns:
      The new streams, of the shape and dtype of ``x``.

    Raises:
      ValueError: if shapes or dtypes do not match, those of the layer's result included, or another
        argument is not as above.
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
        link, h_in, h_post, h_res = _before(request, options, x, MHCParams(*arrays))
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
    return _behind(request, transposed, *dispatch.match_varying(x, link, f, h_post, h_res))


def _check(x, phi, alpha, bias, gamma) -> None:
    """Raises ValueError unless these are arguments of ``mhc_pre``, for logits of a matrix."""
    n, dim = check_streams("mhc_layer", x)
    shape = (n * n + 2 * n, n * dim)
    if phi is None:
        raise bad_input("mhc_layer", "phi", f"of shape {shape}", "None")
    check_coefficients("mhc_layer", "phi", phi, shape)
    check_pre("mhc_layer", x, phi, alpha, bias, gamma)


class _Options(NamedTuple):
    """Static options of the front end of a layer: of both halves, and of ``sinkhorn``."""

    transposed: bool
    constants: MHCConstants
    balance: tuple


def _is_linked(request: dispatch.Request, x: Array) -> bool:
    """Whether the backward passes of both ends go hand in hand, as below."""
    if request.name == "xla" or MHC_PRE.unavailable("pallas", "cuda") is not None:
        return False
    if dispatch.unknown_size((x,)) is not None:
        return False
    return pallas.has_paired_backward(x)


# The two ends of a layer. What _before returns first is a link to _behind, which goes there and
# nowhere else: an array like the streams that is not read, so that a compiler does not make it.
# Its only use is the way back. What _behind gives as its cotangent is not a gradient, but dy, the
# cotangent of the layer's result; _before, which has h_res, makes the share of mhc_post in the
# gradient of x from it. So _behind gives none to x itself.
#
# The link is made of what depends on every argument: where jax.vmap does not map an array it sums
# its cotangents, and dy may be summed only where h_res is the same for all. The forward rules call
# neither _before nor _behind: a second differentiation takes the rules as they are written, with
# the link as an array that nothing depends on.
@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _before(request, options, x, params):
    return _before_forward(request, options, x, params)[0]


def _before_forward(request, options, x, params):
    (h_in, h_post, logits), saved = MHC_PRE(request, x, params, constants=options.constants)
    h_res = SINKHORN(request, logits, **dict(options.balance))
    link = jnp.broadcast_to(h_post[..., None].astype(x.dtype), x.shape)
    return (link, h_in, h_post, h_res), ((x, params), saved, logits, h_post, h_res)


def _before_backward(request, options, residuals, cotangents):
    inputs, saved, logits, h_post, h_res = residuals
    dy, dh_in, dh_post, dh_res = cotangents
    dlogits = SINKHORN_BACKWARD(request, logits, dh_res, **dict(options.balance))
    of_pre, of_post = (dh_in, dh_post, dlogits), (h_post, h_res)
    named = {"transposed": options.transposed, "constants": options.constants}
    return PRE_BACKWARD(request, *inputs, saved, of_pre, of_post, dy, **named)


_before.defvjp(_before_forward, _before_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _behind(request, transposed, x, link, f, h_post, h_res):
    return _behind_forward(request, transposed, x, link, f, h_post, h_res)[0]


def _behind_forward(request, transposed, x, link, *coefficients):
    del link
    inputs = (x, *coefficients)
    return MHC_POST(request, *inputs, transposed=transposed), inputs


def _behind_backward(request, transposed, inputs, dy):
    df, dh_post, dh_res = POST_BACKWARD(request, *inputs, dy, transposed=transposed)
    return None, dy, df, dh_post, dh_res


_behind.defvjp(_behind_forward, _behind_backward)
