"""What a softmax and its gradient sum of the edges of a row, and make of each of them with it."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

from pallas_kernels.simt.values import Value, fold_in_pairs
from pallas_kernels.simt.warp import LANES, Warp

_LOG2_E = math.log2(math.e)


class Rule(abc.ABC):
    """What is summed of the edges of a row, head by head, and what is made of them with it.

    Attributes:
      arrays: how many numbers an edge has.
      neutral: what numbers of an edge add nothing.
      sums: how many there are.
    """

    arrays: int
    neutral: tuple[float, ...]
    sums: int

    @abc.abstractmethod
    def start(self, warp: Warp) -> list[Value]:
        """Sums of no edges."""

    @abc.abstractmethod
    def add(self, warp: Warp, sums: list[Value], edges: list[list[Value]]) -> list[Value]:
        """Sums with some more edges, of each of which there are ``arrays`` numbers."""

    @abc.abstractmethod
    def reduce_lanes(self, warp: Warp, sums: list[Value], lanes: int) -> list[Value]:
        """Sums of all groups of ``lanes`` lanes together, in all of them."""

    @abc.abstractmethod
    def merge(self, warp: Warp, sums: list[Value], others: list[Value]) -> list[Value]:
        """Sums of both."""

    @abc.abstractmethod
    def finalize(self, warp: Warp, sums: list[Value]) -> list[Value]:
        """What ``result`` takes of the sums of a whole row."""

    @abc.abstractmethod
    def result(self, warp: Warp, finished: list[Value], numbers: list[Value]) -> Value:
        """Of an edge with these numbers."""


@dataclass(frozen=True)
class Softmax(Rule):
    """``exp(l - peak) / Σ exp(l' - peak)``: the peak and the sum, shifted anew when it grows."""

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
    """The greater of two; NaN if one of them is."""
    return a.warp.binary("maximum", a, b)


def _shift(warp: Warp, peak: Value) -> Value:
    """What logits are shifted by: of nothing but -inf by zero, since -inf + inf is no number."""
    return warp.select(peak == float("-inf"), 0.0, peak)


def _shifted(warp: Warp, peak: Value, total: Value, shift: Value) -> Value:
    """A sum that was shifted by its own peak, exactly as it was if that is still the highest."""
    # It was shifted by more than now only where its peak is -inf, by zero: of nothing, which zero
    # times infinity would not be.
    return total * _power(warp, warp.binary("minimum", _shift(warp, peak), shift), shift)


def _power(warp: Warp, logit: Value, shift: Value) -> Value:
    return warp.special("any_ex2", (logit - shift) * _LOG2_E)


@dataclass(frozen=True)
class SoftmaxGradient(Rule):
    """``p (dp - Σ p' dp')``."""

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
