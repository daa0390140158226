"""Arrays and constants of hyper-connections that functions share."""

from __future__ import annotations

from typing import Any, NamedTuple


class MHCParams(NamedTuple):
    """The learned arrays of ``mhc_pre``, all float32.

    Attributes:
      phi: projection of the flattened streams to coefficients, [n n + 2 n, n dim]. Its first n rows
        give ``h_pre``, the next n ``h_post``, and the others ``h_res``.
      alpha: gains of these three parts, [3].
      bias: one number for each row of ``phi``.
      gamma: scale of the normalised streams, [n, dim], or None for ones.
    """

    phi: Any
    alpha: Any
    bias: Any
    gamma: Any = None

    def folded(self) -> MHCParams:
        """These parameters with ``gamma`` multiplied into ``phi``, as kernels take them."""
        phi = self.phi if self.gamma is None else self.phi * self.gamma.reshape(-1)
        return MHCParams(phi, self.alpha, self.bias)


class MHCConstants(NamedTuple):
    """The constants of ``mhc_pre``, static in every function.

    Attributes:
      norm_eps: added to the mean square of the streams.
      pre_eps: added to the sigmoid of ``h_pre``.
      post_scale: multiplies the sigmoid of ``h_post``.
    """

    norm_eps: float
    pre_eps: float
    post_scale: float


class PostInputs(NamedTuple):
    """The arrays of ``mhc_post``.

    Attributes:
      x: the residual streams, [tokens, n, dim].
      f: the layer's output, [tokens, dim], of the dtype of ``x``.
      h_post: weights of the layer's output in the new streams, [tokens, n] float32.
      h_res: matrices that mix the streams, [tokens, n, n] float32.
    """

    x: Any
    f: Any
    h_post: Any
    h_res: Any
