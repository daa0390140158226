"""Custom gradients that can be differentiated again inside of a ``lax.scan``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn.graph import is_concrete


class custom_vjp(jax.custom_vjp):
    """``jax.custom_vjp`` whose residuals are never the arguments themselves.

    JAX does not store a residual that is an argument: it stores the position of the argument. When
    JAX moves constant parts out of the body of a ``lax.scan``, it inserts constants before the
    arguments of such a function, and does not update the stored positions. A second derivative
    through the scan then reads other arrays instead of the residuals, for example a scalar instead
    of the offsets of a graph. Here each argument among the residuals of a traced function is
    copied. Inside of one compiled program XLA can remove the copy; across two programs it is stored
    in addition to the argument. Therefore the ops of mHC, whose arguments are large and whose
    second derivatives through a scan are right without this, use ``jax.custom_vjp``.
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
