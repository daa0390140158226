"""The softmax over the edges of a row, online: sums that are rescaled whenever the peak grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pallas_kernels.simt.values import Value, fold_in_pairs
from pallas_kernels.simt.warp import LANES, Warp

_LOG2_E = math.log2(math.e)


def highest(peaks: Sequence[Value]) -> Value:
    """Returns the largest value; NaN if one of them is."""
    return fold_in_pairs(peaks, lambda a, b: a.warp.binary("maximum", a, b))


def highest_of_groups(peak: Value, lanes: int) -> Value:
    """Returns the largest value over the lanes of equal position in all groups of ``lanes``."""
    while lanes < LANES:
        peak = highest([peak, peak.warp.shuffle_xor(peak, lanes)])
        lanes *= 2
    return peak


def shift_of(warp: Warp, peak: Value) -> Value:
    """Returns what scores are shifted by: their peak, or zero if all of them are -inf."""
    return warp.select(peak == float("-inf"), 0.0, peak)


def power(warp: Warp, score: Value, shift: Value) -> Value:
    """Returns ``exp(score - shift)``."""
    return warp.special("any_ex2", (score - shift) * _LOG2_E)


def rescaling(warp: Warp, peak: Value, shift: Value) -> Value:
    """Returns the factor that takes sums from the shift of ``peak`` to another, higher one."""
    # The shift of an empty sum is zero, which may be more than the new one. The minimum avoids an
    # infinite factor, of which the product with the empty sum would be NaN.
    return power(warp, warp.binary("minimum", shift_of(warp, peak), shift), shift)


def divisor(warp: Warp, total: Value) -> Value:
    """Returns one over a sum of exponentials, and zero for a row that attends to nothing."""
    return warp.select(total == 0.0, 0.0, warp.reciprocal(total))


def log_sum(warp: Warp, peak: Value, total: Value) -> Value:
    """Returns the logarithm of the sum of the scores' exponentials."""
    return warp.select(total == 0.0, float("-inf"), peak + warp.log(total))
