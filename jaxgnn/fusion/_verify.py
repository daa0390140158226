"""Comparison of a rewritten function with the original function, on the arrays of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.fusion._constants import Jitted
from jaxgnn.fusion._rounding import spread
from jaxgnn.testing import assert_close


def difference(
    original: Callable[..., Sequence[Any]],
    rewritten: Callable[..., Sequence[Any]],
    arrays: Sequence[Any],
    longest: int,
) -> str | None:
    """Describes a difference of outputs or gradients beyond rounding, or returns None.

    Gradients are those of the sum of all finite floating outputs, each times its own slope, to
    every floating array. A difference beyond the tolerance for sums of this length is compared with
    the spread of the original under errors of the size of rounding, which has to explain it.

    Args:
      original: takes the arrays, returns a list of arrays.
      rewritten: function that should do the same.
      arrays: the arguments.
      longest: terms in the longest sum, for the tolerance of ``jaxgnn.testing``.
    """
    floats = tuple(i for i, a in enumerate(arrays) if _is_float(a))
    functions: dict[str, Sequence[Callable[..., Sequence[Any]]]]
    functions = {"output": (rewritten, original)}
    if floats:
        functions["gradient"] = [
            jax.grad(_weighted_sum(f), argnums=floats) for f in (rewritten, original)
        ]
    for what, (new, old) in functions.items():
        actual, expected = list(Jitted(new)(*arrays)), list(Jitted(old)(*arrays))
        found = _first_difference(what, actual, expected, longest)
        if found is None:
            continue
        spreads = spread(lambda *a, old=old: list(old(*a)), arrays, expected)
        if not all(map(_is_explained, actual, expected, spreads)):
            return found
    return None


def _is_explained(actual: Any, expected: Any, by_rounding: np.ndarray) -> bool:
    """Whether the change of an array is at most what errors of the size of rounding make of it.

    A few samples of errors underestimate the change of some entries, so four times that of the
    entry and the largest one of the array are allowed.
    """
    if not _is_float(actual):
        return bool(jnp.all(actual == expected))
    a, e = (np.asarray(x).astype(np.float64) for x in (actual, expected))
    is_finite = np.isfinite(e)
    if not np.array_equal(a[~is_finite], e[~is_finite], equal_nan=True):
        return False
    change = np.abs(a - e)[is_finite]  # not a number where only the new one is not finite
    allowed = 4 * by_rounding[is_finite] + by_rounding.max(initial=0)
    return bool((change <= allowed).all())


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
