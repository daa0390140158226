"""Arrays of edges as sums of products of numbered columns, and what is done to them, in NumPy."""

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
class Terms:
    """Entries of an array of edges, each the sum of ``coefficient · column · column ⋯``.

    The axis of edges is left out: entries are those of one edge.
    """

    shape: tuple[int, ...]  # without the axis of edges
    entries: np.ndarray  # position in the flattened shape, int64 [terms]
    coefficients: np.ndarray  # float64 [terms]
    factors: np.ndarray  # columns, descending, int64 [terms, MOST_FACTORS]; -1 for none

    @classmethod
    def of_numbers(cls, numbers: np.ndarray) -> Terms:
        """Known numbers, without columns."""
        flat = numbers.reshape(-1)
        entries = np.flatnonzero(flat)
        factors = np.full((entries.size, MOST_FACTORS), -1)
        return cls(numbers.shape, entries, flat[entries], factors)

    @classmethod
    def of_columns(cls, shape: tuple[int, ...], start: int) -> Terms:
        """An array whose entries are columns, the first of which is ``start``."""
        entries = np.arange(math.prod(shape))
        factors = np.full((entries.size, MOST_FACTORS), -1)
        factors[:, 0] = start + entries
        return cls(shape, entries, np.ones(entries.size), factors)

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def places(self) -> np.ndarray:
        """The positions of all entries, in the shape of the array."""
        return np.arange(self.size).reshape(self.shape)

    def reshaped(self, shape: Sequence[int]) -> Terms:
        """The same entries in another shape."""
        return Terms(tuple(shape), self.entries, self.coefficients, self.factors)

    def rearranged(self, places: np.ndarray) -> Terms:
        """An array whose entries are those at given places of this one, as often as they occur."""
        here, there = _pairs(places.reshape(-1), self.entries)
        return Terms(places.shape, here, self.coefficients[there], self.factors[there])

    def scaled(self, number: float) -> Terms:
        """The product with a number."""
        return Terms(self.shape, self.entries, number * self.coefficients, self.factors)

    def plus(self, other: Terms) -> Terms:
        """The sum with an array of the same shape."""
        return _one_after_the_other(self.shape, [self, other])

    def summed_to(self, dims: Sequence[int]) -> Terms:
        """The sum over all axes but ``dims``, which ascend."""
        shape = tuple(self.shape[d] for d in dims)
        return Terms(shape, self._along(dims), self.coefficients, self.factors)

    def divided_by(self, column: int) -> Terms:
        """The terms without one factor, which all of them have."""
        kept = self.factors[self.factors != column].reshape(-1, MOST_FACTORS - 1)
        factors = np.pad(kept, ((0, 0), (0, 1)), constant_values=-1)
        return Terms(self.shape, self.entries, self.coefficients, factors)

    def collected(self) -> Terms:
        """Equal products of an entry as one term, in the order of the entries."""
        keys = np.concatenate([self.entries[:, None], self.factors], axis=1)
        keys, places = np.unique(keys, axis=0, return_inverse=True)
        total, added = (
            np.bincount(places.reshape(-1), numbers, minlength=len(keys))
            for numbers in (self.coefficients, np.abs(self.coefficients))
        )
        kept = np.abs(total) > 1e-14 * added  # others cancel, but for rounding
        return Terms(self.shape, keys[kept, 0], total[kept], keys[kept, 1:])

    def _along(self, dims: Sequence[int]) -> np.ndarray:
        """The position of each term's entry along some axes, the last one fastest."""
        found = np.zeros(self.entries.size, np.int64)
        for d in dims:
            stride = math.prod(self.shape[d + 1 :])
            found = found * self.shape[d] + self.entries // max(stride, 1) % max(self.shape[d], 1)
        return found


@dataclass(frozen=True)
class Side:
    """One array of a product of arrays, and the roles of its axes."""

    terms: Terms
    shared: Sequence[int]  # which both arrays have, in the same order
    summed: Sequence[int]  # the same, but summed over
    free: Sequence[int]  # which the other one lacks


def contracted(left: Side, right: Side) -> Terms:
    """The product of two arrays: its axes are the shared ones and the free ones of both.

    Raises ``NoMatch`` if more than ``MOST_FACTORS`` columns are multiplied, or terms are too many.
    """
    keys = (s.terms._along([*s.shared, *s.summed]) for s in (left, right))
    first, second = _pairs(*keys)
    rest = tuple(right.terms.shape[d] for d in right.free)
    kept = [*left.shared, *left.free]
    entries = left.terms._along(kept)[first] * math.prod(rest)
    entries = entries + right.terms._along(right.free)[second]
    factors = np.concatenate([left.terms.factors[first], right.terms.factors[second]], axis=1)
    factors = -np.sort(-factors, axis=1)
    need((factors[:, MOST_FACTORS:] < 0).all())
    coefficients = left.terms.coefficients[first] * right.terms.coefficients[second]
    shape = (*(left.terms.shape[d] for d in kept), *rest)
    return Terms(shape, entries, coefficients, factors[:, :MOST_FACTORS])


def joined(parts: Sequence[Terms], join: Callable[[list[np.ndarray]], np.ndarray]) -> Terms:
    """The array that a function, such as ``np.concatenate``, makes of several arrays."""
    starts = np.cumsum([0, *(part.size for part in parts)])[:-1]
    moved = [
        Terms(part.shape, part.entries + start, part.coefficients, part.factors)
        for start, part in zip(starts, parts, strict=True)
    ]
    whole = _one_after_the_other((sum(part.size for part in parts),), moved)
    return whole.rearranged(
        join([start + part.places for start, part in zip(starts, parts, strict=True)])
    )


def _one_after_the_other(shape: tuple[int, ...], parts: Sequence[Terms]) -> Terms:
    """The terms of all parts."""
    return Terms(
        shape,
        np.concatenate([part.entries for part in parts]),
        np.concatenate([part.coefficients for part in parts]),
        np.concatenate([part.factors for part in parts]),
    )


def _pairs(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of all pairs of equal keys."""
    order = np.argsort(right, kind="stable")
    starts = np.searchsorted(right[order], left, "left")
    counts = np.searchsorted(right[order], left, "right") - starts
    need(counts.sum() <= _MOST_TERMS)
    first = np.repeat(np.arange(left.size), counts)
    ends = np.cumsum(counts)
    within = np.arange(first.size) - np.repeat(ends - counts, counts)
    return first, order[np.repeat(starts, counts) + within]
