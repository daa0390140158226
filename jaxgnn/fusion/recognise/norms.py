"""Normalisations over the last axis of an array, in the ways in which libraries write them.

Flax, Haiku, Equinox and plain JAX differ in the variance, ``mean((x - m)²)`` or ``mean(x²) - m²``,
in the order of the factors, and in where numbers of 16 bits are widened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from jaxgnn.fusion.program.matching import NoMatch, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation
from jaxgnn.fusion.program.variables import UnroundedView, View, unrounded
from jaxgnn.fusion.recognise.products import strip_repeats
from jaxgnn.fusion.recognise.templates import row_of

_MOST_STEPS = 20  # Depth of products; no normalisation is deeper.
_REPEATS = "broadcast_in_dim", "reshape", "squeeze"


@dataclass(frozen=True)
class NormOf:
    """Normalisation ``(y - mean) / sqrt(var + eps) scale + offset``, or by ``mean(y²)``."""

    kind: Literal["layer", "rms"]
    y: Atom
    eps: float
    scales: tuple[Atom, ...]  # Rows or numbers whose product is the scale.
    offset: Atom | None


def norm_of(view: View, atom: Atom) -> NormOf | None:
    """Returns the normalisation over the last axis that computes an atom, or None."""
    return view.remembered("norm", atom, lambda: _norm_of(unrounded(view), atom))


@or_none
def _norm_of(view: UnroundedView, atom: Atom) -> NormOf:
    need(atom.aval.ndim >= 1)
    offset, scaled = _split_offset(view, atom)
    factors = _factors(view, scaled, is_inverse=False)
    rows = [(_row_or_number(view, a, atom.aval), inverse) for a, inverse in factors]
    scales = tuple(row for row, inverse in rows if row is not None and not inverse)
    others = [f for f, (row, _) in zip(factors, rows, strict=True) if row is None]
    need(len(others) == 2 and not any(row is not None and inverse for row, inverse in rows))
    for (centred, inverse), root in (others, others[::-1]):
        statistics = None if inverse else _statistics(view, centred, root)
        if statistics is not None:
            kind, y, eps = statistics
            return NormOf(kind, view.source(y), eps, scales, offset)
    raise NoMatch


def _split_offset(view: UnroundedView, atom: Atom) -> tuple[Atom | None, Atom]:
    """Splits an array into the row that is added last, or None, and the rest."""
    equation = view.produced_by(atom, "add")
    for row, rest in () if equation is None else (equation.invars, equation.invars[::-1]):
        offset = _row_or_number(view, row, atom.aval)
        if offset is not None:
            return offset, rest
    return None, atom


def _row_or_number(view: UnroundedView, atom: Atom, like: Any) -> Atom | None:
    """Returns the row, or the number, that an array repeats; or None."""
    inner, _ = strip_repeats(view, atom, tuple(range(atom.aval.ndim)), *_REPEATS)
    return inner if inner.aval.size == 1 else row_of(view, atom, like)


def _factors(
    view: UnroundedView, atom: Atom, *, is_inverse: bool, depth: int = 0
) -> list[tuple[Atom, bool]]:
    """Lists the factors of a product, with True for divisors; ignores broadcasts."""
    need(depth < _MOST_STEPS)
    inner, _ = strip_repeats(view, atom, tuple(range(atom.aval.ndim)), *_REPEATS)
    equation = view.producer(inner)
    name = "" if equation is None else equation.primitive.name
    if equation is None or name not in ("mul", "div"):
        return [(atom, is_inverse)]
    first, second = equation.invars
    of_second = is_inverse != (name == "div")
    left = _factors(view, first, is_inverse=is_inverse, depth=depth + 1)
    return [*left, *_factors(view, second, is_inverse=of_second, depth=depth + 1)]


@or_none
def _statistics(
    view: UnroundedView, centred: Atom, root: tuple[Atom, bool]
) -> tuple[Literal["layer", "rms"], Atom, float]:
    """Returns the kind of a normalisation, its argument, and its epsilon, or None."""
    atom, inverse = root
    equation = _maker(view, atom)
    need(equation.primitive.name == ("sqrt" if inverse else "rsqrt"))
    added = _maker(view, equation.invars[0])
    need(added.primitive.name == "add")
    for variance, eps in (added.invars, added.invars[::-1]):
        number = view.number(eps)
        if number is None:
            continue
        difference = view.produced_by(centred, "sub")
        if difference is not None and _is_mean(view, difference.invars[1], difference.invars[0]):
            y = difference.invars[0]
            need(_is_variance(view, variance, y))
            return "layer", y, number
        if difference is not None and _is_zero(view, difference.invars[1]):
            centred = difference.invars[0]
        need(_is_mean_square(view, variance, centred))
        return "rms", centred, number
    raise NoMatch


def _maker(view: UnroundedView, atom: Atom) -> Equation:
    """Returns the equation that computes an array; ignores broadcasts and known choices."""
    while True:
        atom, _ = strip_repeats(view, atom, tuple(range(atom.aval.ndim)), *_REPEATS)
        equation = required(view.producer(atom))
        chosen = _chosen(view, equation)
        if chosen is None:
            return equation
        atom = chosen


def _chosen(view: UnroundedView, equation: Equation) -> Atom | None:
    """Returns the operand of a known ``where``, or of a maximum with zero; or None."""
    if equation.primitive.name == "select_n":
        which, *cases = equation.invars
        choice = view.value(which) if which.aval.size == 1 or view.is_known(which) else None
        if choice is not None and choice.size and (choice == choice.flat[0]).all():
            return cases[int(choice.flat[0])]
    if equation.primitive.name == "max":
        for bound, value in (equation.invars, equation.invars[::-1]):
            if _is_zero(view, bound):
                return value
    return None


def _is_zero(view: UnroundedView, atom: Atom) -> bool:
    atom, _ = strip_repeats(view, atom, tuple(range(atom.aval.ndim)), *_REPEATS)
    return view.number(atom) == 0


def _mean(view: UnroundedView, atom: Atom) -> Atom:
    """Returns the array of which an atom is the mean over the last axis."""
    equation = _maker(view, atom)
    need(equation.primitive.name in ("div", "mul"))
    total, count = equation.invars
    number = view.number(count)
    if number is None and equation.primitive.name == "mul":
        total, number = count, view.number(total)
    summed = _maker(view, total)
    need(summed.primitive.name == "reduce_sum")
    (values,) = summed.invars
    axes = tuple(int(axis) for axis in summed.params["axes"])
    need(axes == (values.aval.ndim - 1,) and number is not None)
    width = values.aval.shape[-1]
    need(number == width if equation.primitive.name == "div" else number == 1 / width)
    return values


@or_none
def _is_mean_of(view: UnroundedView, atom: Atom, values: Atom) -> bool:
    need(view.source(_mean(view, atom)) is view.source(values))
    return True


def _is_mean(view: UnroundedView, atom: Atom, values: Atom) -> bool:
    return bool(_is_mean_of(view, atom, values))


def _base_of_square(view: UnroundedView, atom: Atom) -> Atom:
    equation = _maker(view, atom)
    need(equation.primitive.name in ("square", "integer_pow", "mul"))
    base = equation.invars[0]
    need(equation.params.get("y", 2) == 2 and all(factor is base for factor in equation.invars))
    return base


@or_none
def _is_mean_of_squares(view: UnroundedView, atom: Atom, values: Atom) -> bool:
    base = _base_of_square(view, _mean(view, atom))
    need(view.source(base) is view.source(values))
    return True


def _is_mean_square(view: UnroundedView, atom: Atom, values: Atom) -> bool:
    return bool(_is_mean_of_squares(view, atom, values))


@or_none
def _is_variance_of(view: UnroundedView, atom: Atom, y: Atom) -> Any:
    equation = _maker(view, atom)
    if equation.primitive.name == "sub":  # The variance is mean(y²) - mean(y)².
        squares, square = equation.invars
        need(_is_mean_square(view, squares, y))
        return need(_is_mean(view, _base_of_square(view, square), y)) or True
    difference = _maker(view, _base_of_square(view, _mean(view, atom)))
    need(difference.primitive.name == "sub" and difference.invars[0].aval.shape == y.aval.shape)
    need(view.source(difference.invars[0]) is view.source(y))
    return need(_is_mean(view, difference.invars[1], y)) or True


def _is_variance(view: UnroundedView, atom: Atom, y: Atom) -> bool:
    return bool(_is_variance_of(view, atom, y))
