"""Arguments that the functions of aggregation share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Form(NamedTuple):
    """The static part of an aggregation.

    Attributes:
      reductions: ``"sum"``, ``"mean"``, ``"max"``, ``"min"``, ``"std"``, ``"var"``, ``"softmax"``,
        ``"logsumexp"``, in the order of their columns in the result.
      by_edge: whether the numbers are those of edges, [edges, dim], or of senders, [cols, dim].
      ties: which of several equal extremes get the gradient: all in equal parts, ``"share"``, or
        the ``"first"``.
    """

    reductions: tuple[str, ...]
    by_edge: bool
    ties: str = "share"

    def has(self, *names: str) -> bool:
        """Whether any of these reductions is wanted."""
        return any(name in self.reductions for name in names)

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
        """The fields of ``Statistics`` that gradients need, with the kind of their numbers."""
        tie = "float" if self.keeps == "count" else "int"
        needs: dict[str, tuple[str, tuple[str, ...]]] = {
            "mean": ("float", ("var", "std")),
            "mean_rest": ("float", ("var", "std")),
            "variance": ("float", ("std",)),
            "highest": (tie, ("max",)),
            "lowest": (tie, ("min",)),
            "peak": ("float", ("softmax", "logsumexp")),
            "total": ("float", ("softmax", "logsumexp")),
            "soft": ("float", ("softmax",)),
        }
        return {field: kind for field, (kind, names) in needs.items() if self.has(*names)}


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
    """

    mean: Any = None
    mean_rest: Any = None
    variance: Any = None
    highest: Any = None
    lowest: Any = None
    peak: Any = None
    total: Any = None
    soft: Any = None


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

    def without_extremes(self) -> Terms:
        """The terms that are the same for all edges of a row."""
        named = ("constant", "linear", "centre", "peak", "soft", "exp_constant", "exp_linear")
        return Terms(**{name: getattr(self, name) for name in named})
