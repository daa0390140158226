"""Gradients that can be differentiated again, whatever kernels compute them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxgnn.ops.core.custom_gradient import custom_vjp


def differentiable_again(
    gradient: Callable[..., Any], plain: Callable[..., Any]
) -> Callable[..., Any]:
    """Makes a gradient differentiable, by a plain function with the same result.

    Second derivatives are rare enough to need no kernels of their own, and JAX can not
    differentiate a compiled kernel.

    Args:
      gradient: ``gradient(static, *arrays)``, the kernels, where ``static`` has a hash.
      plain: the same function in plain JAX, or in ops that can be differentiated twice.

    Returns:
      ``gradient``, differentiable by the formula of ``plain``.
    """

    @partial(custom_vjp, nondiff_argnums=(0,))
    def run(static, *arrays):
        return gradient(static, *arrays)

    def forward(static, *arrays):
        return run(static, *arrays), arrays

    def backward(static, arrays, slopes):
        return jax.vjp(partial(plain, static), *arrays)[1](slopes)

    run.defvjp(forward, backward)
    return run
