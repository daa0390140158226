"""Custom gradients: functions with a backward pass of their own, which has derivatives again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn.graph import is_concrete


class reverse_vjp(jax.custom_vjp):
    """``jax.custom_vjp`` whose error in forward mode names the implementation that supports it.

    JAX raises its error where a function is called on the arrays that ``jax.jvp`` follows. If they
    reach it through a function that ``jax.jit`` has traced before, the error is that of JAX.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function with its custom gradient, or raises the error of forward mode."""
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            if "forward-mode" not in str(error) or "custom_vjp function" not in str(error):
                raise
        raise TypeError(
            'ops: implementation must be "xla" for forward-mode derivatives (jax.jvp, jax.jacfwd, '
            "jax.hessian), got kernels, which have reverse mode alone; pass "
            'implementation="xla", or set it for all ops by jaxgnn.default_implementation("xla")'
        )


class custom_vjp(reverse_vjp):
    """``reverse_vjp`` whose residuals are never the arguments themselves.

    JAX does not store a residual that is an argument: it stores the position of the argument. When
    JAX moves constant parts out of the body of a ``lax.scan``, it inserts constants before the
    arguments of such a function, and does not update the stored positions. A second derivative
    through the scan then reads other arrays instead of the residuals, for example a scalar instead
    of the offsets of a graph. Here each argument among the residuals of a traced function is
    copied. Inside of one compiled program XLA can remove the copy; across two programs it is stored
    in addition to the argument. Therefore the ops of mHC, whose arguments are large and whose
    second derivatives through a scan are right without this, use ``reverse_vjp``.
    """

    def defvjp(
        self,
        fwd: Callable[..., tuple[Any, Any]],
        bwd: Callable[..., tuple[Any, ...]],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Sets the forward pass and the backward pass, as ``jax.custom_vjp.defvjp`` does.

        Args:
          fwd: returns the result and the residuals.
          bwd: returns a gradient for each argument.
          symbolic_zeros: whether ``bwd`` gets zero gradients as symbols.
          optimize_remat: whether ``fwd`` is replaced by the function where residuals are unused.
        """

        @wraps(fwd)
        def forward(*arguments):
            result, residuals = fwd(*arguments)
            given = {id(leaf) for leaf in jax.tree.leaves(arguments)}
            return result, jax.tree.map(lambda kept: _apart(kept, given), residuals)

        super().defvjp(forward, bwd, symbolic_zeros, optimize_remat)


def _apart(kept: Any, given: set[int]) -> Any:
    """A residual, copied if it is an argument and traced."""
    is_argument = not is_concrete(kept) and id(kept) in given
    return jnp.copy(kept) if is_argument else kept


def set_gradient(function: reverse_vjp, gradient: Callable[..., Any], statics: int = 0) -> None:
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
