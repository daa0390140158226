"""Biases with which a hyper-connection begins as a plain residual connection."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

# A sigmoid reaches neither 0 nor 1, and close to them it hardly learns.
_CLOSEST = 1e-3

# What a layer reads of the one stream that it mostly reads.
_SHARE = 0.9


def initial_bias(
    n: int, *, post_scale: float, permutations: bool, stream: int | None, identity: float
) -> Float[Array, " rows"]:
    """The bias of ``ops.mhc_pre``, parts pre | post | res.

    Weights pre add up to 1, weights post are 1, and the mixing matrix has ``identity`` on its
    diagonal, so equal streams each become ``x + layer(x)``.

    Args:
      n: streams.
      post_scale: of the convention.
      permutations: whether the part res are logits of the n! permutations, or [n, n].
      stream: the one that is mostly read, None to read all alike.
      identity: see above.
    """
    share = _SHARE if n > 1 else 1.0
    others = (1 - share) / max(n - 1, 1)
    read = [1 / n if stream is None else (share if i == stream else others) for i in range(n)]
    pre = [logit(weight) for weight in read]
    post = [logit(1 / post_scale if post_scale else 0.5)] * n
    res = _permutation_logits(n, identity) if permutations else _matrix_logits(n, identity)
    return jnp.asarray([*pre, *post, *res], jnp.float32)


def logit(p: float) -> float:
    """The inverse of the sigmoid, ``p`` kept away from 0 and 1."""
    p = min(max(p, _CLOSEST), 1 - _CLOSEST)
    return math.log(p / (1 - p))


def _matrix_logits(n: int, identity: float) -> list[float]:
    """``c I``: its Sinkhorn limit has ``e^c / (e^c + n - 1)`` on the diagonal."""
    c = math.log(identity * (n - 1) / (1 - identity)) if n > 1 else 0.0
    return [c if i == j else 0.0 for i in range(n) for j in range(n)]


def _permutation_logits(n: int, identity: float) -> list[float]:
    """The identity permutation, which comes first, with more weight than the others alike.

    The others have ``(n! / n - 1) / (n! - 1)`` on their mean diagonal.
    """
    count = math.factorial(n)
    if n == 1:
        return [0.0]
    rest = (count / n - 1) / (count - 1)
    p = (identity - rest) / (1 - rest)
    return [math.log(p * (count - 1) / (1 - p)), *[0.0] * (count - 1)]
