"""Comparison of a rewritten function with the original function, on the arrays of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn.fusion._constants import Jitted
from jaxgnn.testing import assert_close


def difference(
    original: Callable[..., Sequence[Any]],
    rewritten: Callable[..., Sequence[Any]],
    arrays: Sequence[Any],
    longest: int,
) -> str | None:
    """Describes a difference of outputs or gradients beyond rounding, or returns None.

    Gradients are those of the sum of all finite floating outputs, each times its own slope, to
    every floating array.

    Args:
      original: takes the arrays, returns a list of arrays.
      rewritten: function that should do the same.
      arrays: the arguments.
      longest: terms in the longest sum, for the tolerance of ``jaxgnn.testing``.
    """
    found = _first_difference(
        "output", Jitted(rewritten)(*arrays), Jitted(original)(*arrays), longest
    )
    floats = tuple(i for i, a in enumerate(arrays) if _is_float(a))
    if found is not None or not floats:
        return found
    actual, expected = (
        Jitted(jax.grad(_weighted_sum(f), argnums=floats))(*arrays) for f in (rewritten, original)
    )
    return _first_difference("gradient", actual, expected, longest)


def _first_difference(what: str, actual: Any, expected: Any, longest: int) -> str | None:
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not _is_float(a):
            if not bool(jnp.all(a == e)):
                return f"{what} {i} differs"
            continue
        short = a.dtype if a.dtype.itemsize < 4 else None  # intermediate sums were rounded, too
        try:
            assert_close(a, e, reduction_length=longest, operands=short, roundings=4)
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"{what} {i}: {'; '.join(lines[:3])}"
    return None


def _weighted_sum(function: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    def total(*arrays: Any) -> Any:
        terms = [jnp.zeros((), jnp.float32)]
        for output in filter(_is_float, function(*arrays)):
            slopes = 1 + jnp.arange(output.size, dtype=jnp.float32) / max(output.size, 1)
            finite = jnp.where(jnp.isfinite(output), output, 0).astype(jnp.float32)
            terms.append(jnp.sum(finite.ravel() * slopes))
        return sum(terms)

    return total


def _is_float(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))
