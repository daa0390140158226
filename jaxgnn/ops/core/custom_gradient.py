"""Custom gradients: functions with a backward pass of their own, which has derivatives again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxgnn._derivatives.custom_vjp import custom_vjp as custom_vjp


def set_gradient(function: custom_vjp, gradient: Callable[..., Any], statics: int = 0) -> None:
    """Gives ``function`` its gradient, which is a function of the arguments of the call.

    Args:
      function: a function whose first ``statics`` arguments are static.
      gradient: ``gradient(*arguments, slope)``, with the slope of the result, returns a gradient or
        None for each argument that is not static.
      statics: the number of static arguments.
    """

    def forward(*arguments):
        return function(*arguments), arguments[statics:]

    def backward(*arguments):
        *static, arrays, slope = arguments
        return gradient(*static, *arrays, slope)

    function.defvjp(forward, backward)


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
