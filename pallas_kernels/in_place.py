"""Calls of kernels that change arrays in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax


def call_in_place(call: Callable[..., Any], inputs: Sequence[Any], changed: Any) -> tuple[Any, Any]:
    """Calls ``call(*inputs, references)`` with a reference to a copy of each array of ``changed``.

    XLA fuses a custom call with slices that it reads and with updates of slices that it writes. The
    fusion does not say which operands the call changes, so XLA shares their memory with others that
    are equal, such as the zeros of another call (jaxlib 0.11.2: sums of two calls in one program
    were added together). Neither inputs nor results are fused behind barriers.

    Args:
      call: the kernel; it takes pytrees of arrays, and references at last.
      inputs: pytrees of arrays that it reads.
      changed: a pytree of arrays.

    Returns:
      The results of the call, and the changed arrays.
    """
    inputs = lax.optimization_barrier(tuple(inputs))
    references = jax.tree.map(jax.new_ref, changed)
    made = call(*inputs, references)
    return lax.optimization_barrier((made, jax.tree.map(jax.freeze, references)))
