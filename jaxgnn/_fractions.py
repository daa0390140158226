"""Shares of a size that are given as floats."""

from __future__ import annotations

from fractions import Fraction


def exact_fraction(value: float) -> Fraction:
    """The number that is meant by a float, so that its product with a size is not rounded.

    A decimal of at most nine digits after the point is itself: 0.29 is 29/100, though the float
    next to it is less, and ``int(0.29 * 100)`` is 28. A float that is next to a fraction is the
    fraction, since the result has a denominator of at most 10^9: ``1 / 3`` is 1/3, and
    ``1 - 0.7``, which Python writes as 0.30000000000000004, is 3/10.

    Args:
      value: a finite number.

    Returns:
      The fraction. It is zero for numbers nearer to zero than to 10^-9.
    """
    return Fraction(str(value)).limit_denominator(10**9)
