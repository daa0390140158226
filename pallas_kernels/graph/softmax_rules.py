"""The sums over the edges of a row that a softmax and its gradient need, and their results."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

from pallas_kernels.simt.values import Value, fold_in_pairs
from pallas_kernels.simt.warp import LANES, Warp

_LOG2_E = math.log2(math.e)


class Rule(abc.ABC):
    """Sums over the edges of a row for each head, and the results computed from the sums.

    Attributes:
      arrays: how many numbers each edge has, one from each input array.
      neutral: numbers of an edge that add nothing to the sums.
      sums: how many sums each head has.
    """

    arrays: int
    neutral: tuple[float, ...]
    sums: int

    @abc.abstractmethod
    def start(self, warp: Warp) -> list[Value]:
        """Returns the sums over no edges."""

    @abc.abstractmethod
    def add(self, warp: Warp, sums: list[Value], edges: list[list[Value]]) -> list[Value]:
        """Adds edges to the sums; each edge is a list of ``arrays`` numbers."""

    @abc.abstractmethod
    def reduce_lanes(self, warp: Warp, sums: list[Value], lanes: int) -> list[Value]:
        """Combines the sums of all groups of ``lanes`` lanes; all lanes get the result."""

    @abc.abstractmethod
    def merge(self, warp: Warp, sums: list[Value], others: list[Value]) -> list[Value]:
        """Combines the sums of two disjoint sets of edges."""

    @abc.abstractmethod
    def finalize(self, warp: Warp, sums: list[Value]) -> list[Value]:
        """Turns the sums of a whole row into what ``result`` takes."""

    @abc.abstractmethod
    def result(self, warp: Warp, finished: list[Value], numbers: list[Value]) -> Value:
        """Returns the result of an edge with these numbers."""


@dataclass(frozen=True)
class Softmax(Rule):
    """The softmax ``exp(l - peak) / Σ exp(l' - peak)``, computed online.

    The sums are the peak, and the sum of exponentials, which is rescaled whenever the peak grows.
    """

    arrays = 1
    neutral = (float("-inf"),)
    sums = 2

    def start(self, warp):
        return [warp.f32(float("-inf")), warp.f32(0.0)]

    def add(self, warp, sums, edges):
        peak, total = sums
        logits = [logit for (logit,) in edges]
        highest = fold_in_pairs([peak, *logits], _maximum)
        shift = _shift(warp, highest)
        parts = [_shifted(warp, peak, total, shift), *(_power(warp, x, shift) for x in logits)]
        return [highest, fold_in_pairs(parts, lambda a, b: a + b)]

    def reduce_lanes(self, warp, sums, lanes):
        peak, total = sums
        highest, apart = peak, lanes
        while apart < LANES:
            highest = _maximum(highest, warp.shuffle_xor(highest, apart))
            apart *= 2
        total = _shifted(warp, peak, total, _shift(warp, highest))
        return [highest, warp.sum_groups(total, lanes)]

    def merge(self, warp, sums, others):
        highest = _maximum(sums[0], others[0])
        shift = _shift(warp, highest)
        totals = [_shifted(warp, peak, total, shift) for peak, total in (sums, others)]
        return [highest, totals[0] + totals[1]]

    def finalize(self, warp, sums):
        peak, total = sums
        return [_shift(warp, peak), warp.reciprocal(total)]

    def result(self, warp, finished, numbers):
        shift, factor = finished
        return _power(warp, numbers[0], shift) * factor


def _maximum(a: Value, b: Value) -> Value:
    """Returns the larger of two; NaN if one of them is."""
    return a.warp.binary("maximum", a, b)


def _shift(warp: Warp, peak: Value) -> Value:
    """Returns what logits are shifted by: their peak, or zero if all of them are -inf.

    Shifting by -inf would give -inf + inf, which is NaN.
    """
    return warp.select(peak == float("-inf"), 0.0, peak)


def _shifted(warp: Warp, peak: Value, total: Value, shift: Value) -> Value:
    """Rescales a sum of exponentials from its own peak to a shift; exact if they are equal."""
    # The shift of an empty sum, whose peak is -inf, is zero, which may be more than the new shift.
    # The minimum avoids an infinite factor, whose product with zero would be NaN.
    return total * _power(warp, warp.binary("minimum", _shift(warp, peak), shift), shift)


def _power(warp: Warp, logit: Value, shift: Value) -> Value:
    """Returns ``exp(logit - shift)``."""
    return warp.special("any_ex2", (logit - shift) * _LOG2_E)


@dataclass(frozen=True)
class SoftmaxGradient(Rule):
    """The gradient ``p (dp - Σ p' dp')`` of a softmax ``p``, where ``dp`` is the gradient to it."""

    arrays = 2
    neutral = (0.0, 0.0)
    sums = 1

    def start(self, warp):
        return [warp.f32(0.0)]

    def add(self, warp, sums, edges):
        (total,) = sums
        for probability, slope in edges:
            total = warp.fma(probability, slope, total)
        return [total]

    def reduce_lanes(self, warp, sums, lanes):
        return [warp.sum_groups(sums[0], lanes)]

    def merge(self, warp, sums, others):
        return [sums[0] + others[0]]

    def finalize(self, warp, sums):
        return sums

    def result(self, warp, finished, numbers):
        probability, slope = numbers
        return probability * (slope - finished[0])
