"""Rules that compute the score of an edge from its two ends, and the gradients to both.

All of these scores treat both ends alike, so one rule serves passes along the rows, where the own
end is the receiver, and along the columns, where it is the sender.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_kernels.simt.values import Value, fold_in_pairs
from pallas_kernels.simt.warp import Warp

Values = Sequence[Value]


class Rule(abc.ABC):
    """Computes the score of an edge and its gradients from a lane's numbers of both ends.

    The total of an edge and a head is the sum of ``part`` over the lanes, plus the edge's logit.
    """

    def own(self, warp: Warp, values: Values) -> Values:
        """Returns the numbers of the own end in the form that the other methods take."""
        del warp
        return values

    @abc.abstractmethod
    def part(self, warp: Warp, own: Values, other: Values, vector: Values) -> Value:
        """Returns the lane's part of the total; ``vector`` has the weights of GATv2's columns."""

    def score(self, warp: Warp, total: Value) -> Value:
        """Returns the score of an edge and a head, from its total over the lanes."""
        del warp
        return total

    def slope(self, warp: Warp, total: Value, dscore: Value) -> Value:
        """Returns the gradient to the total, which is also that to the edge's logit."""
        del warp, total
        return dscore

    def start(self, warp: Warp, count: int) -> list[Value]:
        """Returns the sums over no edges, for ``count`` numbers of an end."""
        return [warp.f32(0.0) for _ in range(count)]

    @abc.abstractmethod
    def add(
        self, warp: Warp, sums: Values, dtotal: Value, own: Values, other: Values
    ) -> list[Value]:
        """Adds an edge to the sums from which the gradient to the own end is computed."""

    @abc.abstractmethod
    def finish(self, warp: Warp, sums: Values) -> list[Value]:
        """Returns the gradient to the own end, without the factor of ``vector`` in GATv2's.

        It is linear in the sums.
        """


@dataclass(frozen=True)
class Gat(Rule):
    """``s = leaky_relu(a + c + b)``: each end has one number, which all lanes of a team have.

    Attributes:
      negative_slope: slope of the leaky ReLU below zero.
    """

    negative_slope: float

    def part(self, warp, own, other, vector):
        return own[0] + other[0]

    def score(self, warp, total):
        return _leaky_relu(warp, total, self.negative_slope)

    def slope(self, warp, total, dscore):
        return warp.select(total >= 0.0, dscore, dscore * self.negative_slope)

    def add(self, warp, sums, dtotal, own, other):
        return [sums[0] + dtotal]

    def finish(self, warp, sums):
        return list(sums)


@dataclass(frozen=True)
class GatV2(Rule):
    """``s = Σ_c a_c leaky_relu(x_c + z_c) + b``.

    The gradient to an end is ``a_c Σ ds leaky_relu'(x_c + z_c)``. The sums are those of ``ds`` over
    the edges where the number is not negative, one for each column, and over all edges.

    The gradient to the vector needs no sums of its own, since ``leaky_relu(t) = leaky_relu'(t) t``:
    ``Σ ds leaky_relu(x_c + z_c)`` over all edges is ``Σ x_c (Σ ds leaky_relu'(x_c + z_c))`` over
    the receivers plus the same over the senders. The bracket is the gradient to the end
    without its factor ``a_c``.

    Attributes:
      negative_slope: slope of the leaky ReLU below zero.
    """

    negative_slope: float

    def part(self, warp, own, other, vector):
        ends = zip(own, other, strict=True)
        activated = [_leaky_relu(warp, x + z, self.negative_slope) for x, z in ends]
        return inner_product(warp, vector, activated)

    def start(self, warp, count):
        return super().start(warp, count + 1)

    def add(self, warp, sums, dtotal, own, other):
        *positive, whole = sums
        ends = zip(positive, own, other, strict=True)
        return [*(s + warp.select(x + z >= 0.0, dtotal, 0.0) for s, x, z in ends), whole + dtotal]

    def finish(self, warp, sums):
        *positive, whole = sums
        low, rise = whole * self.negative_slope, warp.f32(1.0 - self.negative_slope)
        return [warp.fma(rise, s, low) for s in positive]


@dataclass(frozen=True)
class Dot(Rule):
    """``s = scale ⟨q, k⟩ + b``: the own end is multiplied with the scale when it is read.

    Attributes:
      scale: factor of the inner product.
    """

    scale: float

    def own(self, warp, values):
        return [value * self.scale for value in values]

    def part(self, warp, own, other, vector):
        return inner_product(warp, own, other)

    def add(self, warp, sums, dtotal, own, other):
        return [warp.fma(dtotal, x, s) for s, x in zip(sums, other, strict=True)]

    def finish(self, warp, sums):
        return [s * self.scale for s in sums]


def inner_product(warp: Warp, a: Values, b: Values) -> Value:
    """Returns the lane's part of an inner product."""
    parts = [x * y for x, y in zip(a[:2], b[:2], strict=True)]
    for i in range(2, len(a)):
        parts[i % 2] = warp.fma(a[i], b[i], parts[i % 2])
    return fold_in_pairs(parts, lambda a, b: a + b)


def _leaky_relu(warp: Warp, x: Value, negative_slope: float) -> Value:
    """Returns ``x`` where at least 0 or -inf, which masks an edge; elsewhere the slope times it."""
    low = x * negative_slope
    if 0.0 <= negative_slope <= 1.0:
        return warp.binary("max", x, low)  # also where 0 * inf is NaN
    return warp.select((x >= 0.0) | (x == float("-inf")), x, low)
