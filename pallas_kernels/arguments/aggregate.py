"""Arguments that the functions of aggregation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.arguments.reductions import REDUCTIONS


class Form(NamedTuple):
    """The static part of an aggregation.

    Attributes:
      reductions: names in ``REDUCTIONS``, in the order of their columns in the result.
      by_edge: whether the numbers are those of edges, [edges, dim], or of senders, [cols, dim].
      ties: which of several equal extremes get the gradient: all in equal parts, ``"share"``, or
        the ``"first"``.
    """

    reductions: tuple[str, ...]
    by_edge: bool
    ties: str = "share"

    @property
    def totals(self) -> frozenset[str]:
        """The totals from which the reductions are computed."""
        return frozenset(total for name in self.reductions for total in REDUCTIONS[name].totals)

    @property
    def sums_of_functions(self) -> tuple[str, ...]:
        """The reductions that are computed from sums of functions of each number."""
        return tuple(name for name in self.reductions if REDUCTIONS[name].value is not None)

    @property
    def keeps(self) -> str:
        """The information about an extreme that gradients need.

        ``"count"``, how many edges have it; ``"slot"``, that of the first edge that has it; or
        ``"holder"``, the sender of the only edge that has it.
        """
        if self.ties == "first":
            return "slot"
        return "count" if self.by_edge else "holder"

    def is_holder(self, field: str) -> bool:
        """Whether a field of ``Statistics`` has holders."""
        return self.keeps == "holder" and field in ("highest", "lowest")

    def kept(self) -> dict[str, str]:
        """The statistics that gradients need, by their names, with the kind of their numbers.

        Those are fields of ``Statistics``, and the reductions whose sums ``Statistics.each`` has.
        """
        tie = "float" if self.keeps == "count" else "int"
        needed = {field for name in self.reductions for field in REDUCTIONS[name].keeps}
        fields = {
            field: tie if field in ("highest", "lowest") else "float"
            for field in STATISTICS
            if field in needed
        }
        return fields | dict.fromkeys(self.sums_of_functions, "float")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Statistics:
    """Numbers of each row that the backward pass needs besides the result, [rows, dim] or None.

    Floats are of the accumulation dtype; those of rows without edges are undefined, but not NaN.

    Attributes:
      mean: the mean, rounded.
      mean_rest: the mean minus ``mean``. Numbers may differ from their mean by less than its
        rounding error, and then gradients need this difference.
      variance: the variance.
      highest: how many edges have the maximum; or, int32, the slot of the first that has it, or its
        holder: the sender of the only edge that has it, and ``~n`` if n others than one have it,
        also where there are no edges.
      lowest: the same of the minimum.
      peak: the maximum, or zero if it is -inf: exponentials are those of ``x - peak``.
      total: the sum of these exponentials.
      soft: the mean weighted by a softmax.
      each: for reductions that are computed from it, the sum of a function of each number, by the
        name of the reduction.
    """

    mean: Any = None
    mean_rest: Any = None
    variance: Any = None
    highest: Any = None
    lowest: Any = None
    peak: Any = None
    total: Any = None
    soft: Any = None
    each: Any = None

    @classmethod
    def of_kept(cls, kept: Mapping[str, Any]) -> Statistics:
        """The statistics from arrays with the names of ``Form.kept``."""
        fields = {name: array for name, array in kept.items() if name in STATISTICS}
        each = {name: array for name, array in kept.items() if name not in STATISTICS}
        return cls(**fields, each=each or None)


STATISTICS = tuple(name for name in Statistics.__dataclass_fields__ if name != "each")
"""The fields of ``Statistics`` that are arrays."""


def count_of(holder: jax.Array) -> jax.Array:
    """The number of edges with an extreme, by its holder in ``Statistics``, float32."""
    return jnp.where(holder < 0, ~holder, 1).astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Terms:
    """The gradient to the number ``x`` of an edge, as a function of arrays [rows, dim] of its row.

    The gradient is a sum of these terms, without those that are None::

        constant + linear (x - centre)
        + top_gradient     where x == top,       or where the edge's slot is top
        + bottom_gradient  where x == bottom,    or where the edge's slot is bottom
        + exp(x - peak) (exp_constant + exp_linear (1 + (x - soft)))
        + each[name] slope(x)                for each name, by the slope in REDUCTIONS

    Numbers far from zero are close to ``centre``, ``peak`` and ``soft``. So differences come first:
    products of the numbers themselves would lose the digits that differ.

    The holder of an extreme says the same as the extreme, faster, where it names a sender.

    Attributes:
      constant: of the accumulation dtype, as all that are not mentioned.
      linear: factor of the distance from the centre; comes with ``constant``.
      centre: the mean, rounded; its rest is part of ``constant``.
      top: the maximum, of the dtype of the numbers, or a slot, int32.
      top_gradient: the gradient to those that are the maximum.
      top_holder: the sender that gets the whole gradient of the maximum, int32; negative if there
        are several, or none. None if the numbers are those of edges.
      bottom: the minimum, or a slot.
      bottom_gradient: the gradient to those that are the minimum.
      bottom_holder: the same of the minimum.
      peak: the shift of the exponentials.
      soft: the mean weighted by a softmax.
      exp_constant: factor of the exponential, divided by the sum of all.
      exp_linear: factor of the exponential and of the distance, divided by the sum as well.
      each: factors of slopes, by the names of reductions; None if there are none.
    """

    constant: Any = None
    linear: Any = None
    centre: Any = None
    top: Any = None
    top_gradient: Any = None
    top_holder: Any = None
    bottom: Any = None
    bottom_gradient: Any = None
    bottom_holder: Any = None
    peak: Any = None
    soft: Any = None
    exp_constant: Any = None
    exp_linear: Any = None
    each: Any = None

    def without_extremes(self) -> Terms:
        """The terms that are the same for all edges of a row."""
        named = (
            "constant",
            "linear",
            "centre",
            "peak",
            "soft",
            "exp_constant",
            "exp_linear",
            "each",
        )
        return Terms(**{name: getattr(self, name) for name in named})
