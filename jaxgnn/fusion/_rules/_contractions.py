"""Sums of products of two arrays, written as an einsum, or with new axes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxgnn.fusion._axes import Labels, without_repeats
from jaxgnn.fusion._layers import session_precision
from jaxgnn.fusion._program import Atom, Equation
from jaxgnn.fusion._view import View


@dataclass(frozen=True)
class Factor:
    """One of the two arrays.

    Attributes:
      atom: the array.
      labels: the name of each of its axes. Axes of both arrays and of the result with the same
        index have the same name; None for an axis of size one along which it is repeated.
    """

    atom: Atom
    labels: Labels


@dataclass(frozen=True)
class Contraction:
    """The sum of the products of two arrays over the axes that the result does not have.

    Attributes:
      factors: the two arrays.
      labels: the axes of the result, numbered from zero in their order.
    """

    factors: tuple[Factor, Factor]
    labels: Labels


def contraction_of(view: View, atom: Atom) -> Contraction | None:
    """The contraction that computes an array: a product of matrices or a sum of products; or None.

    A product has the precision of the session, and its arrays have the type of the result.
    """
    labels = tuple(range(atom.aval.ndim))
    while (moved := view.made_by(atom, "transpose")) is not None:
        places = dict(zip(moved.params["permutation"], labels, strict=True))
        labels, atom = tuple(places[d] for d in range(len(labels))), moved.invars[0]
    factors = _factors_of(view, atom, labels)
    return None if factors is None else Contraction(factors, tuple(range(len(labels))))


def _factors_of(view: View, atom: Atom, labels: Labels) -> tuple[Factor, Factor] | None:
    """The two arrays whose contraction an array is; ``labels`` are the names of its axes."""
    equation = view.producer(atom)
    if equation is None:
        return None
    if equation.primitive.name == "dot_general":
        return _of_dot(view, equation, labels)
    if equation.primitive.name == "mul":
        return _of_product(view, equation, labels)
    if equation.primitive.name != "reduce_sum":
        return None
    product = view.made_by(equation.invars[0], "mul")
    if product is None:
        return None
    axes, kept = equation.params["axes"], iter(labels)
    rank = product.outvars[0].aval.ndim
    inner = tuple(len(labels) + d if d in axes else next(kept) for d in range(rank))
    made = _of_product(view, product, inner)
    named = {label for factor in made for label in factor.labels}
    shape = product.outvars[0].aval.shape
    counts_repeats = any(shape[d] != 1 and inner[d] not in named for d in axes)
    return None if counts_repeats else made  # a sum of repeats is a multiple


def _of_dot(view: View, equation: Equation, labels: Labels) -> tuple[Factor, Factor] | None:
    types = {v.aval.dtype for v in (*equation.invars, *equation.outvars)}
    if equation.params["precision"] != session_precision() or len(types) > 1:
        return None
    (of_left, of_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    left, right = equation.invars
    names: list[dict[int, int | None]] = [{}, {}]
    free = iter(labels)
    for a, b in zip(batch_left, batch_right, strict=True):
        names[0][a] = names[1][b] = next(free)
    summed = iter(range(100, 200))  # names that no axis of the result has
    for a, b in zip(of_left, of_right, strict=True):
        names[0][a] = names[1][b] = next(summed)
    for known, atom in zip(names, (left, right), strict=True):
        known.update((d, next(free)) for d in range(atom.aval.ndim) if d not in known)
    first, second = (
        _without_repeats(view, a, tuple(known[d] for d in range(a.aval.ndim)))
        for known, a in zip(names, (left, right), strict=True)
    )
    return first, second


def _of_product(view: View, product: Equation, labels: Labels) -> tuple[Factor, Factor]:
    first, second = (_without_repeats(view, a, labels[: a.aval.ndim]) for a in product.invars)
    return first, second


def _without_repeats(view: View, atom: Atom, labels: Labels) -> Factor:
    """The array before axes were added and moved."""
    return Factor(*without_repeats(view, atom, labels, "broadcast_in_dim", "transpose"))
