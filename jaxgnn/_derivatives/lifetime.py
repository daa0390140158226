"""Parameters of operations that JAX does not keep alive."""

from __future__ import annotations

from typing import Any

import jax

_EMPTY = jax.make_jaxpr(lambda: ())().jaxpr


def lifetime() -> Any:
    """A new parameter for an operation that has a function as another parameter.

    JAX caches the types of the results of an operation by its parameters. Functions that are
    created for each call would stay in that cache, with all that they refer to. An entry ends with
    the life of a program among the parameters, and this is an empty program.
    """
    return _EMPTY.replace()
