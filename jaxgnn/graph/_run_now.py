"""Runs programs on concrete arrays, also while another program is being traced."""

from __future__ import annotations

import functools
from typing import Any

import jax

# So many compiled programs are kept; those of sizes that nobody uses any more are forgotten.
_MOST_PROGRAMS = 256


def run_now(program: Any, *arrays: Any, **static: Any) -> Any:
    """Calls a jitted function on concrete arrays, whatever is being traced around it.

    Inside of ``jax.ensure_compile_time_eval``, JAX computes at once what depends on no argument,
    such as ``jnp.arange``, even where it traces a function. A program would be compiled with arrays
    of the size of the graph as constants in it, which takes seconds. So it is traced outside of
    that context, and called within.

    Args:
      program: a jitted function.
      *arrays: its arguments, pytrees of concrete arrays and None.
      **static: its static arguments, by name.
    """
    leaves, structure = jax.tree.flatten(arrays)
    kinds = tuple((leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)) for leaf in leaves)
    device = jax.config.jax_default_device
    compiled = _compiled(program, structure, kinds, tuple(sorted(static.items())), device)
    with jax.ensure_compile_time_eval():
        return compiled(*arrays)


@functools.lru_cache(maxsize=_MOST_PROGRAMS)
def _compiled(program, structure, kinds, static, device):
    del device  # where the program is compiled for
    shapes = [jax.ShapeDtypeStruct(*kind[:2], sharding=kind[2]) for kind in kinds]
    return program.lower(*structure.unflatten(shapes), **dict(static)).compile()
