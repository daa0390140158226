"""Divisions in turn are the iterations of ``sinkhorn``, in exact arithmetic."""

from fractions import Fraction
from random import Random

import pytest

from jaxgnn.fusion.rules.sinkhorn import iterations_of


def _matrix(random, n):
    return [
        [Fraction(random.randint(1, 99), random.randint(1, 99)) for _ in range(n)] for _ in range(n)
    ]


def _transposed(m):
    return [list(column) for column in zip(*m, strict=True)]


def _divided(m, axis, eps):
    """``m / (sum + eps)`` along an axis: the sums of rows are those along -1."""
    if axis == -2:
        return _transposed(_divided(_transposed(m), -1, eps))
    return [[entry / (sum(row) + eps) for entry in row] for row in m]


def _softmax(exponentials, axis, eps):
    """The softmax of numbers whose exponentials are given, plus eps."""
    return [[entry + eps for entry in row] for row in _divided(exponentials, axis, 0)]


def _op(exponentials, iterations, eps, first, second):
    """``ops.sinkhorn`` by its definition: a softmax, and then divisions along both axes in turn."""
    h = _divided(_softmax(exponentials, first, eps), second, eps)
    for _ in range(iterations - 1):
        h = _divided(_divided(h, first, eps), second, eps)
    return h


@pytest.mark.parametrize("eps", [Fraction(0), Fraction(1, 1000)])
@pytest.mark.parametrize("axes", [(-1, -2), (-2, -1)])
def test_divisions_in_turn_are_iterations_and_one_more_if_their_number_is_even(eps, axes):
    first, second = axes
    exponentials = _matrix(Random(3), 3)
    h = _softmax(exponentials, first, eps)
    for count in range(1, 7):
        h = _divided(h, second if count % 2 else first, eps)
        iterations, is_one_more = iterations_of(count)
        made = _op(exponentials, iterations, eps, first, second)
        assert h == (_divided(made, first, eps) if is_one_more else made)


def test_a_shift_along_the_axis_of_the_first_division_cancels_and_one_along_the_other_does_not():
    """A difference of logits is a factor of their exponentials; so is that of a ``logsumexp``."""
    m, factors = _matrix(Random(4), 3), (Fraction(2), Fraction(1, 7), Fraction(5))
    of_rows = [[f * entry for entry in row] for f, row in zip(factors, m, strict=True)]
    assert _op(of_rows, 2, 0, -1, -2) == _op(m, 2, 0, -1, -2)
    assert _op(of_rows, 2, 0, -2, -1) != _op(m, 2, 0, -2, -1)
