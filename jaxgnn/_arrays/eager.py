"""Runs programs on concrete arrays, also while another program is being traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def run_now(program: Callable[..., Any], *arguments: Any, **static: Any) -> Any:
    """Calls a function on concrete arrays, even while another function is being traced.

    ``jax.ensure_compile_time_eval`` would do so too, but inside of it JAX immediately computes all
    operations that depend on no argument, such as ``jnp.arange``, even while it traces a jitted
    function. A program would be compiled with arrays of the size of the graph as constants, which
    takes seconds.

    Args:
      program: a jitted function, or one that places arrays.
      *arguments: its arguments, pytrees of concrete arrays and None.
      **static: its static arguments, by name.
    """
    with jax.core.eval_context():
        return program(*arguments, **static)
