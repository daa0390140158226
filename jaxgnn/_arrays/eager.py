"""Runs programs on concrete arrays, also while another program is being traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


def run_now(program: Callable[..., Any], *arguments: Any, **static: Any) -> Any:
    """Calls a function on concrete arrays, even while another function is being traced.

    Inside of ``jax.ensure_compile_time_eval`` JAX would also compute what depends on no argument,
    such as ``jnp.arange``, while it traces: a program would have constants as large as the graph.
    """
    with jax.core.eval_context():
        return program(*arguments, **static)


def is_read_in_place(array: Any) -> bool:
    """Whether the host reads a concrete array in place: a numpy array, or one on a CPU."""
    if not isinstance(array, jax.Array):
        return True
    return array.is_fully_addressable and all(d.platform == "cpu" for d in array.devices())


def least_and_most(ids: Any) -> tuple[int, int]:
    """The smallest and the largest of concrete ids, of which there is at least one.

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
