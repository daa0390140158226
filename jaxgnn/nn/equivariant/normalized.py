"""Activations whose result has the second moment one, as e3nn normalises them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.ops.core.activations import ACTIVATIONS

SECOND_MOMENTS: Mapping[ops.Activation | None, float] = {
    None: 1.0,
    "relu": 0.5,
    "gelu": 0.42519371103309944,
    "gelu_exact": 0.4252214825702987,
    "silu": 0.3557755198173522,
    "mish": 0.45234219237588275,
    "squared_relu": 1.5,
    "tanh": 0.3942944903978412,
    "sigmoid": 0.293379035858093,
}
"""``E[act(z)²]`` for a standard normal z, integrated numerically."""


def normalized(
    x: Float[Array, "*shape"], activation: ops.Activation | None
) -> Float[Array, "*shape"]:
    """``act(x) / √E[act(z)²]`` for a standard normal z, in the dtype of ``x``."""
    scale = 1 / math.sqrt(SECOND_MOMENTS[activation])
    return (ACTIVATIONS[activation].activate(x) * scale).astype(x.dtype)
