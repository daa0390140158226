"""Initial biases that make a hyper-connection start as a plain residual connection."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

# A sigmoid never reaches 0 or 1, and its gradient almost vanishes close to them.
_CLOSEST = 1e-3

# Initial weight of the stream that a layer with a ``layer_index`` mostly reads.
_SHARE = 0.9


def initial_bias(
    n: int, *, post_scale: float, permutations: bool, stream: int | None, identity: float
) -> Float[Array, " rows"]:
    """Returns the initial bias of ``ops.mhc_pre``, concatenated from the parts pre | post | res.

    Weights pre add up to 1, weights post are 1, and the mixing matrix has ``identity`` on its
    diagonal, so equal streams each become ``x + layer(x)``.

    Args:
      n: number of streams.
      post_scale: factor of the sigmoid in the output weights, from the convention.
      permutations: whether the part res holds logits of the n! permutations, or an [n, n] matrix.
      stream: the stream that is read most; None to read all with equal weights.
      identity: value on the diagonal of the mixing matrix.
    """
    share = _SHARE if n > 1 else 1.0
    others = (1 - share) / max(n - 1, 1)
    read = [1 / n if stream is None else (share if i == stream else others) for i in range(n)]
    pre = [logit(weight) for weight in read]
    post = [logit(1 / post_scale if post_scale else 0.5)] * n
    res = _permutation_logits(n, identity) if permutations else _matrix_logits(n, identity)
    return jnp.asarray([*pre, *post, *res], jnp.float32)


def logit(p: float) -> float:
    """Inverse of the sigmoid, with ``p`` clipped away from 0 and 1."""
    p = min(max(p, _CLOSEST), 1 - _CLOSEST)
    return math.log(p / (1 - p))


def _matrix_logits(n: int, identity: float) -> list[float]:
    """``c I``: its Sinkhorn limit has ``e^c / (e^c + n - 1)`` on the diagonal."""
    c = math.log(identity * (n - 1) / (1 - identity)) if n > 1 else 0.0
    return [c if i == j else 0.0 for i in range(n) for j in range(n)]


def _permutation_logits(n: int, identity: float) -> list[float]:
    """Logits that favour the identity permutation, the first, and are equal for all others.

    The mean diagonal of the other permutations is ``(n! / n - 1) / (n! - 1)``.
    """
    count = math.factorial(n)
    if n == 1:
        return [0.0]
    rest = (count / n - 1) / (count - 1)
    p = (identity - rest) / (1 - rest)
    return [math.log(p * (count - 1) / (1 - p)), *[0.0] * (count - 1)]
