"""Runs programs on concrete arrays, also while another program is being traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jaxtyping import Array, Int


def run_now(program: Callable[..., Any], *arguments: Any, **static: Any) -> Any:
    """Calls a function on concrete arrays, even while another function is being traced.

    Inside of ``jax.ensure_compile_time_eval`` JAX would also compute what depends on no argument,
    such as ``jnp.arange``, while it traces: a program would have constants as large as the graph.
    """
    with jax.core.eval_context():
        return program(*arguments, **static)


class _BeingRecorded(Exception):
    """Raised by the primitive below where operations are recorded and not run."""


def _refuse_to_be_recorded():
    raise _BeingRecorded


# A primitive that detects whether the current trace records operations. The traces of an eager
# gradient and of an eager vmap pass it on, as it has no operands. A trace that records operations
# evaluates its abstract result, which raises.
_RUNS_NOW = Primitive("jaxgnn_runs_now")
_RUNS_NOW.def_impl(lambda: True)
_RUNS_NOW.def_abstract_eval(_refuse_to_be_recorded)


def runs_now() -> bool:
    """Returns whether operations run when they are called, also in an eager gradient or ``vmap``.

    False inside of ``jit``, ``scan`` and the like, which record them, and inside an eager
    ``shard_map``, which compiles each operation as a program.
    """
    try:
        return _RUNS_NOW.bind()
    except _BeingRecorded:
        return False


def is_read_in_place(array: Any) -> bool:
    """Returns whether the host reads a concrete array without a copy: NumPy's, or one on a CPU."""
    if not isinstance(array, jax.Array):
        return True
    return array.is_fully_addressable and all(d.platform == "cpu" for d in array.devices())


def least_and_most(ids: Any) -> tuple[int, int]:
    """Returns the smallest and the largest of at least one concrete id.

    Ids on an accelerator are reduced there. All processes that share an array have to call this.
    """
    if is_read_in_place(ids):
        ids = np.asarray(ids)
        return int(ids.min()), int(ids.max())
    least, most = np.asarray(run_now(_least_and_most, ids))
    return int(least), int(most)


@jax.jit
def _least_and_most(ids: Int[Array, "..."]) -> Int[Array, " 2"]:
    return jnp.stack([jnp.min(ids), jnp.max(ids)])
