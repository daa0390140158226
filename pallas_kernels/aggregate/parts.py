"""Parts: the state of each reduction of a column, and its update with more edges.

A part holds a few numbers for one column. Parts of different edges are merged: those of the groups
of lanes of a warp, and those of the pieces of a long row.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_kernels.arguments.aggregate import Form
from pallas_kernels.arguments.reductions import REDUCTIONS
from pallas_kernels.attention.softmax import log_sum, power, rescaling, shift_of
from pallas_kernels.simt.values import Value, fold_in_pairs
from pallas_kernels.simt.warp import Warp

State = list[Value]

# Holders of an extreme that no edge has, and that two have.
_NOBODY, _TWO = ~0, ~2


@dataclass(frozen=True)
class Number:
    """A number of an edge that a lane has read.

    Attributes:
      value: the number, f32.
      slot: the slot of its edge, i32.
      sender: the sender of its edge, i32; its slot if the numbers are those of edges.
      real: whether it counts, or None if it does. A number that does not count is of the same row
        and is counted by another lane.
    """

    value: Value
    slot: Value
    sender: Value
    real: Value | None

    def or_zero(self, value: Value) -> Value:
        """Returns a value, or zero if the number does not count."""
        return value if self.real is None else value.warp.select(self.real, value, 0.0)


class Part(abc.ABC):
    """The state of some reductions."""

    @property
    @abc.abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """The kind of each number of a state, f32 or i32."""

    @abc.abstractmethod
    def start(self, warp: Warp, first: Value | None, begin: Value) -> State:
        """Returns the state of no edges.

        Args:
          warp: the warp.
          first: the first number of the piece of a row, or None if no part needs it.
          begin: the slot of the first edge, i32.
        """

    @abc.abstractmethod
    def add(self, warp: Warp, state: State, numbers: Sequence[Number]) -> State:
        """Returns the state with more edges."""

    @abc.abstractmethod
    def merge(self, warp: Warp, state: State, other: State, edges: Value) -> State:
        """Returns the state of both sets of edges; the second set has ``edges`` edges, f32."""

    @abc.abstractmethod
    def results(self, warp: Warp, state: State, edges: Value) -> dict[str, Value]:
        """Returns reductions and statistics of ``edges`` edges by name; at least one edge, f32."""


@dataclass(frozen=True)
class WarpMaths:
    """Functions of values of a warp, for the table of reductions."""

    warp: Warp

    def root(self, x: Value) -> Value:
        """The root of a number from zero on."""
        return self.warp.select(x == 0.0, 0.0, x * self.warp.rsqrt(x))

    def exp(self, x: Value) -> Value:
        """The exponential."""
        return self.warp.exp(x)

    def log(self, x: Value) -> Value:
        """The natural logarithm."""
        return self.warp.log(x)

    def where(self, condition: Value, x: Value | float, y: Value | float) -> Value:
        """Returns ``x`` where the condition is true, ``y`` elsewhere."""
        return self.warp.select(condition, x, y)


def _sum(values: Sequence[Value]) -> Value:
    return fold_in_pairs(values, lambda a, b: a + b)


@dataclass(frozen=True)
class Sum(Part):
    """Sums the values of a row's edges."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("f32",)

    def start(self, warp, first, begin):
        return [warp.f32(0.0)]

    def add(self, warp, state, numbers):
        return [state[0] + _sum([n.or_zero(n.value) for n in numbers])]

    def merge(self, warp, state, other, edges):
        return [state[0] + other[0]]

    def results(self, warp, state, edges):
        return {"sum": state[0], "mean": state[0] * warp.reciprocal(edges)}


@dataclass(frozen=True)
class Moments(Part):
    """The first number, and the sums of distances from it and of their squares.

    The first of n numbers is at most √(n - 1) standard deviations from the mean, so the variance
    loses few digits where the mean is far from zero.
    """

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("f32",) * 3

    def start(self, warp, first, begin):
        return [first, warp.f32(0.0), warp.f32(0.0)]

    def add(self, warp, state, numbers):
        shift, first, second = state
        distances = [n.or_zero(n.value - shift) for n in numbers]
        for d in distances:
            second = warp.fma(d, d, second)
        return [shift, first + _sum(distances), second]

    def merge(self, warp, state, other, edges):
        d = other[0] - state[0]
        first = state[1] + warp.fma(edges, d, other[1])
        moved = warp.fma(d, warp.fma(edges, d, other[1] * 2.0), other[2])
        return [state[0], first, state[2] + moved]

    def results(self, warp, state, edges):
        shift, first, second = state
        each = warp.reciprocal(edges)
        offset = first * each
        mean = shift + offset
        variance = warp.fma(offset * -1.0, first, second) * each
        variance = warp.select(variance < 0.0, 0.0, variance)
        return {
            "sum": warp.fma(shift, edges, first),
            "mean": mean,
            "mean_rest": (shift - mean) + offset,
            "variance": variance,
        }


@dataclass(frozen=True)
class Extreme(Part):
    """The largest or the smallest number, and which edges have it.

    Attributes:
      name: ``"max"`` or ``"min"``.
      keeps: ``"count"``, ``"slot"`` or ``"holder"`` of the edges that have it, as ``Form`` says, or
        None for nothing.
    """

    name: str
    keeps: str | None

    @property
    def kinds(self) -> tuple[str, ...]:
        kept = {None: (), "count": ("f32",), "slot": ("i32",), "holder": ("i32",)}
        return ("f32", *kept[self.keeps])

    def start(self, warp, first, begin):
        best = warp.f32(float("-inf") if self.name == "max" else float("inf"))
        nobody = {"count": warp.f32(0.0), "slot": begin, "holder": warp.i32(_NOBODY)}
        return [best] if self.keeps is None else [best, nobody[self.keeps]]

    def add(self, warp, state, numbers):
        if self.keeps is None:
            return [fold_in_pairs([state[0], *(n.value for n in numbers)], self._better)]
        for n in numbers:
            if self.keeps == "holder" and n.real is None:
                state = self._with_holder(warp, state, n)
            else:
                state = self._of_both(warp, state, [n.value, self._own(warp, n)])
        return state

    def _own(self, warp: Warp, number: Number) -> Value:
        """The name, or the count, that is kept of a number that has the extreme alone."""
        if self.keeps == "slot":
            return number.slot
        if self.keeps == "count":
            return number.or_zero(warp.f32(1.0))
        if number.real is None:
            return number.sender
        return warp.select(number.real, number.sender, _NOBODY)

    def _with_holder(self, warp: Warp, state: State, number: Number) -> State:
        """The state with a number that counts, by fewer instructions than for two states."""
        best, holder = state
        one_more = warp.select(holder < 0, holder - 1, _TWO)
        holder = warp.select(number.value == best, one_more, holder)
        holder = warp.select(self._beats(number.value, best), number.sender, holder)
        return [self._better(best, number.value), holder]

    def merge(self, warp, state, other, edges):
        return self._of_both(warp, state, other)

    def _of_both(self, warp: Warp, state: State, other: State) -> State:
        best = self._better(state[0], other[0])
        if self.keeps is None:
            return [best]
        together = {
            "count": lambda a, b: a + b,
            "slot": lambda a, b: a.at_most(b),
            "holder": _holder_of_both,
        }[self.keeps]
        tied = warp.select(other[0] == state[0], together(state[1], other[1]), state[1])
        return [best, warp.select(self._beats(other[0], state[0]), other[1], tied)]

    def _beats(self, number: Value, best: Value) -> Value:
        return number > best if self.name == "max" else number < best

    def _better(self, a: Value, b: Value) -> Value:
        return a.warp.binary("maximum" if self.name == "max" else "minimum", a, b)

    def results(self, warp, state, edges):
        if self.keeps is None:
            return {self.name: state[0]}
        field = "highest" if self.name == "max" else "lowest"
        kept = state[1]
        if self.keeps == "holder":  # nobody has a NaN
            kept = warp.select(state[0] == state[0], kept, _NOBODY)
        return {self.name: state[0], field: kept}


def _holder_of_both(a: Value, b: Value) -> Value:
    """The holder of an extreme that two states have."""
    warp = a.warp
    counts = [warp.select(holder < 0, holder * -1 - 1, 1) for holder in (a, b)]
    shared = (counts[0] + counts[1]) * -1 - 1
    return warp.select(a == _NOBODY, b, warp.select(b == _NOBODY, a, shared))


@dataclass(frozen=True)
class Exponentials(Part):
    """The peak, and the sum of exponentials, and of their products with the numbers.

    Attributes:
      weighted: whether the products are wanted.
    """

    weighted: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("f32",) * (3 if self.weighted else 2)

    def start(self, warp, first, begin):
        return [warp.f32(float("-inf")), *[warp.f32(0.0)] * (len(self.kinds) - 1)]

    def add(self, warp, state, numbers):
        old, *sums = state
        peak = fold_in_pairs(
            [old, *(n.value for n in numbers)], lambda a, b: warp.binary("maximum", a, b)
        )
        shift = shift_of(warp, peak)
        factor = rescaling(warp, old, shift)
        exponentials = [n.or_zero(power(warp, n.value, shift)) for n in numbers]
        more = [_sum(exponentials)]
        if self.weighted:
            pairs = zip(exponentials, numbers, strict=True)
            more.append(_sum([e * n.or_zero(n.value) for e, n in pairs]))
        return [peak, *(warp.fma(s, factor, m) for s, m in zip(sums, more, strict=True))]

    def merge(self, warp, state, other, edges):
        peak = warp.binary("maximum", state[0], other[0])
        shift = shift_of(warp, peak)
        ours, theirs = (rescaling(warp, own[0], shift) for own in (state, other))
        pairs = zip(state[1:], other[1:], strict=True)
        return [peak, *(warp.fma(a, ours, b * theirs) for a, b in pairs)]

    def results(self, warp, state, edges):
        peak, total = state[:2]
        totals = {
            "log_total": log_sum(warp, peak, total),
            "peak": shift_of(warp, peak),
            "total": total,
        }
        if self.weighted:
            totals["soft"] = state[2] * warp.reciprocal(state[1])
        return totals


@dataclass(frozen=True)
class SumOfFunction(Part):
    """Sums the function of each number that a reduction has.

    Attributes:
      name: name of the reduction.
    """

    name: str

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("f32",)

    def start(self, warp, first, begin):
        return [warp.f32(0.0)]

    def add(self, warp, state, numbers):
        reduction, maths = REDUCTIONS[self.name], WarpMaths(warp)
        values = [n.or_zero(reduction.of_each(n.value, maths)) for n in numbers]
        return [state[0] + _sum(values)]

    def merge(self, warp, state, other, edges):
        return [state[0] + other[0]]

    def results(self, warp, state, edges):
        return {self.name: state[0]}


def parts_of(form: Form, keep: bool) -> list[Part]:
    """Returns the parts that the reductions need, with what gradients need if ``keep``."""
    keeps = form.keeps if keep else None
    parts: list[Part] = []
    totals = form.totals
    if "variance" in totals:
        parts.append(Moments())
    elif totals & {"sum", "mean"}:
        parts.append(Sum())
    parts += [Extreme(name, keeps) for name in ("max", "min") if name in totals]
    if totals & {"soft", "log_total"}:
        parts.append(Exponentials("soft" in totals))
    return parts + [SumOfFunction(name) for name in form.sums_of_functions]
