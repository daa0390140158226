"""The part of hyper-connections after a layer: mixes the streams and adds its output."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.checks import check_post
from jaxgnn.ops._mhc.kernels import of_streams, with_backward
from jaxgnn.ops._mhc.reference import mhc_post as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_choice, from_numpy

MHC_POST = of_streams("mhc_post", reference.mhc_post, pallas.mhc_post)
BACKWARD = of_streams("mhc_post.backward", reference.mhc_post_backward, pallas.mhc_post_backward)
_mhc_post = with_backward(MHC_POST, BACKWARD)


def mhc_post(
    x: Float[Array, "*batch n dim"],
    f: Float[Array, "*batch dim"],
    h_post: Float[Array, "*batch n"],
    h_res: Float[Array, "*batch n n"],
    *,
    transposed: bool = False,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch n dim"]:
    """Mixes the streams and adds a layer's output: ``y_o = Σ_i h_res[o, i] x_i + h_post[o] f``.

    The second half of a manifold-constrained hyper-connection (https://arxiv.org/abs/2512.24880).
    Sums are accumulated in float32 (float64 for float64 input) and rounded once. Differentiable in
    every array.

    Args:
      x: the streams, any leading axes; best the streams that ``mhc_pre`` returns, whose gradient is
        rounded once.
      f: output of the layer, of the dtype of ``x``.
      h_post: float32 weights of ``f``, one for each stream; without leading axes, the same for
        every token.
      h_res: float32 matrix that mixes the streams, doubly stochastic as from ``sinkhorn``;
        without leading axes, the same for every token.
      transposed: whether the streams are mixed by the transposed matrix, ``Σ_i h_res[i, o] x_i``.
      implementation: ``"xla"``; ``"pallas"`` on a GPU, for 2, 4 or 8 streams of a width that is a
        multiple of 64 up to 8192, float32 or bfloat16; or None for the one measured to be fastest.

    Returns:
      The new streams, of the shape and dtype of ``x``.

    Raises:
      ValueError: if shapes or dtypes do not match.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> x = jnp.array([[[1.0], [5.0]]])  # one token, two streams, width 1
      >>> swap = jnp.array([[[0.0, 1.0], [1.0, 0.0]]])
      >>> ops.mhc_post(x, jnp.array([[10.0]]), jnp.array([[1.0, 2.0]]), swap).tolist()
      [[[15.0], [21.0]]]
    """
    x, f, h_post, h_res = from_numpy(x, f, h_post, h_res)
    check_post("mhc_post", x, f, h_post, h_res)
    check_choice("mhc_post", "transposed", transposed, True, False)
    request = dispatch.resolve("mhc_post", implementation)
    arguments = dispatch.match_varying(x, f, *for_each_token(x, h_post, h_res))
    if request.name == "xla":
        return MHC_POST(request, *arguments, transposed=transposed)
    return _mhc_post(request, (("transposed", transposed),), *arguments)


def for_each_token(x: Array, h_post: Array, h_res: Array) -> tuple[Array, Array]:
    """Gives the coefficients the leading axes of ``x``, which static coefficients do not have."""
    batch, n = x.shape[:-2], x.shape[-2]
    return jnp.broadcast_to(h_post, (*batch, n)), jnp.broadcast_to(h_res, (*batch, n, n))
