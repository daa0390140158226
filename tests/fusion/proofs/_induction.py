"""Proofs by z3 that hold for any number of edges, nodes and features.

Ids, weights and rows are functions of whole numbers of which nothing is known. What a segment sum,
a maximum or a product of matrices makes of a list is a ``Fold``: its value after ``n`` entries,
given by its value after none and by the step from ``n`` to ``n + 1``. A claim about folds holds for
all lists if it holds for the empty one, and for ``n + 1`` entries whenever it does for ``n``.

Numbers are real numbers: rounding is what the tolerances of tests are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import z3

ANY_ROW = z3.Int("row")
ANY_NUMBER = z3.Int("n")


class Fold:
    """What is made of a list by taking one entry after the other.

    Attributes:
      value: the function from the number of entries to the value after them.
      term: the function from the position of an entry to what it adds.
      start: the value after no entry.
      combine: takes the value so far and a term, and returns the next value.
    """

    def __init__(
        self,
        name: str,
        term: Callable[[Any], Any],
        start: Any = 0,
        combine: Callable[[Any, Any], Any] = lambda so_far, term: so_far + term,
    ):
        self.term, self.combine = term, combine
        sort = z3.BoolSort() if isinstance(start, bool) else z3.RealSort()
        self.start = z3.BoolVal(start) if isinstance(start, bool) else start
        self.value = z3.Function(name, z3.IntSort(), sort)

    def __call__(self, count: Any) -> Any:
        return self.value(count)

    @property
    def at_start(self) -> Any:
        """The value of the empty list."""
        return self.value(0) == self.start

    @property
    def step(self) -> Any:
        """The value after one more than any number of entries."""
        after = self.combine(self.value(ANY_NUMBER), self.term(ANY_NUMBER))
        return self.value(ANY_NUMBER + 1) == after


def array(name: str, *indices: Any) -> Any:
    """An array of real numbers of which nothing is known, by its indices."""
    return z3.Function(name, *([z3.IntSort()] * max(len(indices), 1)), z3.RealSort())


def ids(name: str) -> Any:
    """A list of whole numbers of which nothing is known."""
    return z3.Function(name, z3.IntSort(), z3.IntSort())


def follows(claim: Any, *given: Any) -> bool:
    """Whether a claim follows from what is given.

    Raises:
      TimeoutError: if z3 can not tell.
    """
    solver = z3.Solver()
    solver.set(timeout=20_000)
    solver.add(*given, z3.Not(claim))
    answer = solver.check()
    if answer == z3.unknown:
        raise TimeoutError(f"z3 can not tell: {solver.reason_unknown()}")
    return answer == z3.unsat


def holds_for_all_lists(claim: Callable[[Any], Any], folds: Sequence[Fold], *given: Any) -> bool:
    """Whether a claim about folds holds after any number of entries, by induction.

    Args:
      claim: from the number of entries to what is claimed.
      folds: the folds of which the claim speaks.
      *given: what is known of anything else, at any entry.
    """
    holds_at_start = follows(claim(z3.IntVal(0)), *(f.at_start for f in folds), *given)
    steps = [f.step for f in folds]
    goes_on = follows(claim(ANY_NUMBER + 1), ANY_NUMBER >= 0, claim(ANY_NUMBER), *steps, *given)
    return holds_at_start and goes_on
