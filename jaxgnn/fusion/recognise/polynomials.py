"""Arrays of polynomials in numbered columns, and operations on them, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxgnn.fusion.program.matching import need

MOST_FACTORS = 4
"""The largest number of columns that are multiplied."""
_MOST_TERMS = 1 << 22


@dataclass(frozen=True)
class Polynomials:
    """Array of edges whose entries are sums of ``coefficient · column · column ⋯``.

    The axis of edges is left out: entries are those of one edge.
    """

    shape: tuple[int, ...]  # Shape without the axis of edges.
    entries: np.ndarray  # Flat position of each term's entry, int64 [terms].
    coefficients: np.ndarray  # Coefficient of each term, float64 [terms].
    factors: np.ndarray  # Columns of each term, descending, int64; -1 for none.

    @classmethod
    def from_numbers(cls, numbers: np.ndarray) -> Polynomials:
        """Returns known numbers as polynomials without columns."""
        flat = numbers.reshape(-1)
        entries = np.flatnonzero(flat)
        factors = np.full((entries.size, MOST_FACTORS), -1)
        return cls(numbers.shape, entries, flat[entries], factors)

    @classmethod
    def from_columns(cls, shape: tuple[int, ...], start: int) -> Polynomials:
        """Returns an array whose entries are columns, the first of which is ``start``."""
        entries = np.arange(math.prod(shape))
        factors = np.full((entries.size, MOST_FACTORS), -1)
        factors[:, 0] = start + entries
        return cls(shape, entries, np.ones(entries.size), factors)

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def positions(self) -> np.ndarray:
        """The positions of all entries, in the shape of the array."""
        return np.arange(self.size).reshape(self.shape)

    def reshaped(self, shape: Sequence[int]) -> Polynomials:
        """Returns the same entries in another shape."""
        return Polynomials(tuple(shape), self.entries, self.coefficients, self.factors)

    def rearranged(self, positions: np.ndarray) -> Polynomials:
        """Gathers entries by their flat positions, which may repeat."""
        here, there = _pairs(positions.reshape(-1), self.entries)
        return Polynomials(positions.shape, here, self.coefficients[there], self.factors[there])

    def scaled(self, number: float) -> Polynomials:
        """Multiplies all entries by a number."""
        return Polynomials(self.shape, self.entries, number * self.coefficients, self.factors)

    def plus(self, other: Polynomials) -> Polynomials:
        """Adds an array of the same shape."""
        return _one_after_the_other(self.shape, [self, other])

    def summed_to(self, dims: Sequence[int]) -> Polynomials:
        """Sums over all axes but ``dims``, which ascend."""
        shape = tuple(self.shape[d] for d in dims)
        return Polynomials(shape, self._positions_along(dims), self.coefficients, self.factors)

    def divided_by(self, column: int) -> Polynomials:
        """Divides all terms by one column, which each of them has."""
        kept = self.factors[self.factors != column].reshape(-1, MOST_FACTORS - 1)
        factors = np.pad(kept, ((0, 0), (0, 1)), constant_values=-1)
        return Polynomials(self.shape, self.entries, self.coefficients, factors)

    def collected(self) -> Polynomials:
        """Adds equal products of each entry; sorts the terms by entry."""
        keys = np.concatenate([self.entries[:, None], self.factors], axis=1)
        keys, terms = np.unique(keys, axis=0, return_inverse=True)
        total, added = (
            np.bincount(terms.reshape(-1), numbers, minlength=len(keys))
            for numbers in (self.coefficients, np.abs(self.coefficients))
        )
        kept = np.abs(total) > 1e-14 * added  # Other terms cancel up to rounding.
        return Polynomials(self.shape, keys[kept, 0], total[kept], keys[kept, 1:])

    def _positions_along(self, dims: Sequence[int]) -> np.ndarray:
        """Returns the position of each term's entry along some axes, the last one fastest."""
        positions = np.zeros(self.entries.size, np.int64)
        for d in dims:
            stride = math.prod(self.shape[d + 1 :])
            positions = positions * self.shape[d] + self.entries // max(stride, 1) % max(
                self.shape[d], 1
            )
        return positions


@dataclass(frozen=True)
class Side:
    """Operand of a product of arrays, with the roles of its axes."""

    terms: Polynomials
    shared: Sequence[int]  # Axes that both arrays keep, in one order.
    summed: Sequence[int]  # Axes that both arrays have and the product sums over.
    free: Sequence[int]  # Axes that the other array lacks.


def contracted(left: Side, right: Side) -> Polynomials:
    """Multiplies two arrays; axes of the product are shared axes, then free axes of both.

    Raises ``NoMatch`` if more than ``MOST_FACTORS`` columns are multiplied, or terms are too many.
    """
    keys = (s.terms._positions_along([*s.shared, *s.summed]) for s in (left, right))
    first, second = _pairs(*keys)
    rest = tuple(right.terms.shape[d] for d in right.free)
    kept = [*left.shared, *left.free]
    entries = left.terms._positions_along(kept)[first] * math.prod(rest)
    entries = entries + right.terms._positions_along(right.free)[second]
    factors = np.concatenate([left.terms.factors[first], right.terms.factors[second]], axis=1)
    factors = -np.sort(-factors, axis=1)
    need((factors[:, MOST_FACTORS:] < 0).all())
    coefficients = left.terms.coefficients[first] * right.terms.coefficients[second]
    shape = (*(left.terms.shape[d] for d in kept), *rest)
    return Polynomials(shape, entries, coefficients, factors[:, :MOST_FACTORS])


def joined(
    parts: Sequence[Polynomials], join: Callable[[list[np.ndarray]], np.ndarray]
) -> Polynomials:
    """Joins several arrays by a function such as ``np.concatenate``."""
    starts = np.cumsum([0, *(part.size for part in parts)])[:-1]
    moved = [
        Polynomials(part.shape, part.entries + start, part.coefficients, part.factors)
        for start, part in zip(starts, parts, strict=True)
    ]
    whole = _one_after_the_other((sum(part.size for part in parts),), moved)
    return whole.rearranged(
        join([start + part.positions for start, part in zip(starts, parts, strict=True)])
    )


def _one_after_the_other(shape: tuple[int, ...], parts: Sequence[Polynomials]) -> Polynomials:
    """Concatenates the terms of all parts."""
    return Polynomials(
        shape,
        np.concatenate([part.entries for part in parts]),
        np.concatenate([part.coefficients for part in parts]),
        np.concatenate([part.factors for part in parts]),
    )


def _pairs(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of all pairs of equal keys."""
    order = np.argsort(right, kind="stable")
    starts = np.searchsorted(right[order], left, "left")
    counts = np.searchsorted(right[order], left, "right") - starts
    need(counts.sum() <= _MOST_TERMS)
    first = np.repeat(np.arange(left.size), counts)
    ends = np.cumsum(counts)
    within = np.arange(first.size) - np.repeat(ends - counts, counts)
    return first, order[np.repeat(starts, counts) + within]
