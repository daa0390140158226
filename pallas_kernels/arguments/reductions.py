"""The reductions of a row of numbers: one table that ops, references, kernels and layers read.

A reduction is computed from totals, which are accumulated over the edges of the row: ``"sum"``,
``"mean"``, ``"variance"``, ``"max"``, ``"min"``; with exponentials of the numbers, their mean by a
softmax, ``"soft"``, and the logarithm of their sum, ``"log_total"``; ``"count"``, the number of
edges, at least one; and ``"each"``, the sum of the reduction's own function of each number. A new
reduction of these is an entry of this table, such as the root of the mean square::

    "rms": summed(
        lambda maths, x: x * x,
        slope=lambda maths, x: x * 2.0,
        result=lambda maths, total, count: maths.root(total / count),
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

Shifted = Literal["along", "times count", "not at all"]


class Maths(Protocol):
    """Functions of arrays, or of the values of a warp, which share the operators."""

    def root(self, x: Any) -> Any:
        """The root of a number from zero on; zero has a gradient of zero."""
        ...

    def exp(self, x: Any) -> Any:
        """The exponential."""
        ...

    def log(self, x: Any) -> Any:
        """The natural logarithm."""
        ...

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Returns ``x`` where the condition is true, ``y`` elsewhere."""
        ...


class ArrayMaths:
    """Functions of arrays."""

    def root(self, x: Any) -> jax.Array:
        """The root of a number from zero on; zero has a gradient of zero."""
        is_some = x > 0
        return jnp.where(is_some, jnp.sqrt(jnp.where(is_some, x, 1)), 0)

    def exp(self, x: Any) -> jax.Array:
        """The exponential."""
        return jnp.exp(x)

    def log(self, x: Any) -> jax.Array:
        """The natural logarithm."""
        return jnp.log(x)

    def where(self, condition: Any, x: Any, y: Any) -> jax.Array:
        """Returns ``x`` where the condition is true, ``y`` elsewhere."""
        return jnp.where(condition, x, y)


ARRAYS = ArrayMaths()


@dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction of the numbers of a row.

    Attributes:
      totals: names of the totals from which it is computed.
      result: returns the result from ``Maths`` and the totals.
      keeps: fields of ``Statistics`` that its gradient needs.
      gradient: returns parts of ``Terms`` by their names, from the gradient of the result, the
        number of edges and ``Statistics``; None for extremes and sums of functions.
      value: a function of each number, whose sum is the total ``"each"``; None if there is none.
      slope: the derivative of ``value``.
      shifted: how the result changes with a number added to all numbers: by that number, by that
        number for each edge, or not at all; None if this is not known.
      is_weighted: whether ``neighbour_reduce`` applies the weights and scales of a graph.
      has_temperature: whether ``temperature`` divides the numbers.
      is_compiled: whether kernels that are compiled at install time have it.
    """

    totals: tuple[str, ...]
    result: Callable[..., Any]
    keeps: tuple[str, ...] = ()
    gradient: Callable[..., dict[str, Any]] | None = None
    value: Callable[[Maths, Any], Any] | None = None
    slope: Callable[[Maths, Any], Any] | None = None
    shifted: Shifted | None = "along"
    is_weighted: bool = False
    has_temperature: bool = False
    is_compiled: bool = True

    def of_totals(self, maths: Maths, totals: Mapping[str, Any]) -> Any:
        """The result from totals by their names."""
        return self.result(maths, *(totals[name] for name in self.totals))

    def of_sum(self, total: Any, count: Any) -> Any:
        """The result from arrays: the sum of its function, and the number of summands."""
        return self.of_totals(ARRAYS, {"each": total, "count": count})

    def of_each(self, x: Any, maths: Maths = ARRAYS) -> Any:
        """Its function of a number, or of each number of an array."""
        assert self.value is not None
        return self.value(maths, x)

    def slope_at(self, x: Any, maths: Maths = ARRAYS) -> Any:
        """The derivative of its function at a number, or at each number of an array."""
        assert self.slope is not None
        return self.slope(maths, x)


def summed(
    value: Callable[[Maths, Any], Any],
    *,
    slope: Callable[[Maths, Any], Any],
    result: Callable[..., Any],
    shifted: Shifted | None = None,
) -> Reduction:
    """A reduction that is computed from the sum of a function of each number.

    Args:
      value: the function, of ``Maths`` and a number.
      slope: its derivative.
      result: returns the result from ``Maths``, the sum, and the number of edges, at least one.
      shifted: how the result changes with a number added to all numbers.
    """
    return Reduction(
        ("each", "count"), result, value=value, slope=slope, shifted=shifted, is_compiled=False
    )


def _same(maths: Maths, total: Any) -> Any:
    return total


def _of_root(dy: Any, count: Any, statistics: Any) -> dict[str, Any]:
    """The gradient of the root of a variance by x is (x - mean) / (n root)."""
    is_some = statistics.variance > 0
    root = jnp.sqrt(jnp.where(is_some, statistics.variance, 1))
    return {"linear": jnp.where(is_some, dy / (count * root), 0)}


def _share_of_total(statistics: Any) -> Any:
    # The peak alone adds one to the total, unless all numbers of the row are -inf.
    return 1 / jnp.maximum(statistics.total, 1)


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(
        ("sum",),
        _same,
        gradient=lambda dy, count, statistics: {"constant": dy},
        shifted="times count",
        is_weighted=True,
    ),
    "mean": Reduction(
        ("mean",),
        _same,
        gradient=lambda dy, count, statistics: {"constant": dy / count},
        is_weighted=True,
    ),
    "max": Reduction(("max",), _same, ("highest",)),
    "min": Reduction(("min",), _same, ("lowest",)),
    "std": Reduction(
        ("variance",),
        lambda maths, variance: maths.root(variance),
        ("mean", "mean_rest", "variance"),
        _of_root,
        shifted="not at all",
    ),
    # The gradient of a variance by x is 2 (x - mean) / n.
    "var": Reduction(
        ("variance",),
        _same,
        ("mean", "mean_rest"),
        lambda dy, count, statistics: {"linear": 2 * dy / count},
        shifted="not at all",
    ),
    # With y = Σ p x, dy/dx = p (1 + x - y).
    "softmax": Reduction(
        ("soft",),
        _same,
        ("peak", "total", "soft"),
        lambda dy, count, statistics: {"exp_linear": dy * _share_of_total(statistics)},
        has_temperature=True,
    ),
    "logsumexp": Reduction(
        ("log_total",),
        _same,
        ("peak", "total"),
        lambda dy, count, statistics: {"exp_constant": dy * _share_of_total(statistics)},
        has_temperature=True,
    ),
}
"""Every reduction by its name."""
