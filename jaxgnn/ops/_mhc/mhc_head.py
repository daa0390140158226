"""Expansion to the n streams of hyper-connections, and their combination into one."""

from __future__ import annotations

from functools import partial

from jaxtyping import Array, Float

from jaxgnn.ops._mhc.checks import check_coefficients, check_count, check_number, check_streams
from jaxgnn.ops._mhc.kernels import plain, with_backward
from jaxgnn.ops._mhc.reference import mhc_head as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp
from pallas_kernels.arguments.mhc import MHCParams

MHC_EXPAND = plain("mhc_expand", reference.mhc_expand)
EXPAND_BACKWARD = plain("mhc_expand.backward", reference.mhc_expand_backward)
MHC_HEAD = plain("mhc_head", reference.mhc_head)
HEAD_BACKWARD = plain("mhc_head.backward", reference.mhc_head_backward)
_mhc_head = with_backward(MHC_HEAD, HEAD_BACKWARD, saves=True)


def mhc_expand(
    x: Float[Array, "*batch dim"],
    num_streams: int,
    *,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch n dim"]:
    """Copies features to the n streams of hyper-connections (https://arxiv.org/abs/2512.24880).

    The gradient sums the streams in float32 and is rounded once.

    Args:
      x: features, any leading axes.
      num_streams: number of copies, at least 1.
      implementation: ``"xla"``, or None for the one measured to be fastest.

    Returns:
      ``num_streams`` copies along a new axis before the last, of the dtype of ``x``.

    Raises:
      ValueError: if ``x`` is not a floating array or ``num_streams`` is no int of at least 1.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> ops.mhc_expand(jnp.array([1.0, 2.0]), 3).tolist()
      [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    """
    (x,) = from_numpy(x)
    check_float("mhc_expand", "x", x, 1)
    num_streams = check_count("mhc_expand", "num_streams", num_streams)
    request = dispatch.resolve("mhc_expand", implementation)
    if request.name == "xla":
        return MHC_EXPAND(request, x, num_streams=num_streams)
    return _mhc_expand(request, num_streams, x)


def mhc_head(
    x: Float[Array, "*batch n dim"],
    phi: Float[Array, "n n*dim"],
    alpha: Float[Array, ""],
    bias: Float[Array, " n"],
    gamma: Float[Array, "n dim"] | None = None,
    *,
    norm_eps: float = 1e-6,
    pre_eps: float = 1e-6,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch dim"]:
    """Combines the n streams into one after the last layer with hyper-connections.

    ``y = Σ_i w_i x_i`` with ``w = σ(alpha t + bias) + pre_eps``, where ``t`` is the projection by
    ``phi`` of a token's normalised streams: ``((v gamma) phiᵀ) / √(mean(v²) + norm_eps)`` of the
    flattened streams ``v``. It equals the layer's input that ``mhc_pre`` computes
    (https://arxiv.org/abs/2512.24880). Differentiable in every array.

    Args:
      x: the streams, any leading axes.
      phi: float32 projection from the flattened streams to their n weights.
      alpha: float32 gain, a scalar.
      bias: float32, one for each stream.
      gamma: float32 scale of the normalised streams, None for ones.
      norm_eps: added to the mean square of a token's streams.
      pre_eps: added to the sigmoid in the weights.
      implementation: ``"xla"``, or None for the one measured to be fastest.

    Returns:
      Features, of the dtype of ``x``.

    Raises:
      ValueError: if shapes or dtypes do not match, or a constant is negative.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> x = jnp.array([[[1.0], [5.0]]])
      >>> ops.mhc_head(x, jnp.zeros((2, 2)), jnp.ones(()), jnp.zeros(2), pre_eps=0.0).tolist()
      [[3.0]]
    """
    x, phi, alpha, bias, gamma = from_numpy(x, phi, alpha, bias, gamma)
    n, dim = check_streams("mhc_head", x)
    check_coefficients("mhc_head", "phi", phi, (n, n * dim))
    check_coefficients("mhc_head", "alpha", alpha, ())
    check_coefficients("mhc_head", "bias", bias, (n,))
    if gamma is not None:
        check_coefficients("mhc_head", "gamma", gamma, (n, dim))
    options = (
        ("norm_eps", check_number("mhc_head", "norm_eps", norm_eps)),
        ("pre_eps", check_number("mhc_head", "pre_eps", pre_eps)),
    )
    request = dispatch.resolve("mhc_head", implementation)
    x, *arrays = dispatch.match_varying(x, phi, alpha, bias, gamma)
    params = MHCParams(*arrays)
    if request.name == "xla":
        return MHC_HEAD(request, x, params, **dict(options))[0]
    return _mhc_head(request, options, x, params)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _mhc_expand(request, num_streams, x):
    return MHC_EXPAND(request, x, num_streams=num_streams)


def _mhc_expand_forward(request, num_streams, x):
    return _mhc_expand(request, num_streams, x), None


def _mhc_expand_backward(request, num_streams, residuals, dy):
    return (EXPAND_BACKWARD(request, dy),)


_mhc_expand.defvjp(_mhc_expand_forward, _mhc_expand_backward)
