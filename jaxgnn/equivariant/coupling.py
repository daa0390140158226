"""Tables that couple two irreps to a third: real Clebsch-Gordan coefficients."""

from __future__ import annotations

import functools
from fractions import Fraction
from math import factorial, sqrt

import numpy as np
from jaxtyping import Float

from jaxgnn._errors import bad_input

MAX_DEGREE = 6
"""The largest degree of spherical harmonics and of irreps that are coupled."""


@functools.lru_cache(maxsize=None, typed=True)
def clebsch_gordan(
    first: int, second: int, third: int
) -> Float[np.ndarray, "2*first+1 2*second+1 2*third+1"]:
    """Returns the real Clebsch-Gordan coefficients of three degrees: Wigner's 3j symbols.

    ``z_k = Σ_ij C[i, j, k] x_i y_j`` is equivariant under rotations, and is the only such product
    up to a factor. The sum of the squares of all coefficients is 1. The basis and all signs are
    those of e3nn. Computed in exact integers and rounded to float64, once for each three degrees.

    Args:
      first: degree of the first factor.
      second: degree of the second factor.
      third: degree of the product, from ``|first - second|`` to ``first + second``.

    Returns:
      A read-only array.

    Raises:
      ValueError: if a degree is not an int from 0 to ``MAX_DEGREE``, or the three can not be
        coupled.

    Example:
      >>> from jaxgnn.equivariant import clebsch_gordan
      >>> clebsch_gordan(1, 1, 1)[:, :, 2].round(3).tolist()  # z of a cross product
      [[0.0, 0.408, 0.0], [-0.408, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    degrees = {"first": first, "second": second, "third": third}
    for name, degree in degrees.items():
        is_int = isinstance(degree, int) and not isinstance(degree, bool)
        if not is_int or not 0 <= degree <= MAX_DEGREE:
            expected = f"an int from 0 to {MAX_DEGREE}"
            raise bad_input("clebsch_gordan", name, expected, repr(degree))
    if not abs(first - second) <= third <= first + second:
        expected = f"from |first - second| = {abs(first - second)} to first + second"
        raise bad_input("clebsch_gordan", "third", f"{expected} = {first + second}", third)
    coupled = np.einsum(
        "abc,ai,bj,ck->ijk",
        _complex_coupling(first, second, third),
        _real_basis(first),
        _real_basis(second),
        _real_basis(third).conj(),
    )
    table = np.where(np.abs(coupled.real) < 1e-14, 0.0, coupled.real)  # zeros but for rounding
    table.setflags(write=False)
    return table


def _complex_coupling(first: int, second: int, third: int) -> np.ndarray:
    """Computes ``⟨first m, second n | third m + n⟩ / √(2 third + 1)`` at [m, n, m + n].

    Axes count from -degree.
    """
    table = np.zeros((2 * first + 1, 2 * second + 1, 2 * third + 1))
    for m in range(-first, first + 1):
        for n in range(-second, second + 1):
            if abs(m + n) <= third:
                coefficient = _racah(first, m, second, n, third)
                table[first + m, second + n, third + m + n] = coefficient / sqrt(2 * third + 1)
    return table


def _racah(first: int, m: int, second: int, n: int, third: int) -> float:
    """Racah's formula for ``⟨first m, second n | third m + n⟩`` with Condon and Shortley's signs.

    https://en.wikipedia.org/wiki/Table_of_Clebsch%E2%80%93Gordan_coefficients
    """
    total, spare = m + n, first + second - third
    square = Fraction(
        (2 * third + 1)
        * factorial(spare)
        * factorial(third + first - second)
        * factorial(third - first + second),
        factorial(first + second + third + 1),
    )
    for degree, order in ((first, m), (second, n), (third, total)):
        square *= factorial(degree + order) * factorial(degree - order)
    terms = Fraction(0)
    for k in range(spare + 1):
        left = spare - k, first - m - k, second + n - k
        left += third - second + m + k, third - first - n + k
        if min(left) >= 0:
            divisor = factorial(k)
            for number in left:
                divisor *= factorial(number)
            terms += Fraction((-1) ** k, divisor)
    sign = 1 if terms >= 0 else -1
    return sign * sqrt(square * terms**2)


def _real_basis(degree: int) -> np.ndarray:
    """Components of real harmonics (columns) in the complex ones (rows), each from -degree.

    The factor ``(-i)^degree`` makes the coefficients of odd sums of degrees real, too.
    """
    matrix = np.zeros((2 * degree + 1, 2 * degree + 1), complex)
    matrix[degree, degree] = 1
    for m in range(1, degree + 1):
        sign = (-1) ** m
        matrix[degree - m, [degree + m, degree - m]] = 1, -1j
        matrix[degree + m, [degree + m, degree - m]] = sign, 1j * sign
    matrix[np.arange(2 * degree + 1) != degree] /= sqrt(2)
    return (-1j) ** degree * matrix
