"""Follows the axes of an array back through equations that only move, add or repeat them."""

from __future__ import annotations

from typing import Any

from jaxgnn.fusion._program import Atom
from jaxgnn.fusion._view import View

Labels = tuple[int | None, ...]


def without_repeats(
    view: View, atom: Atom, labels: Labels, *primitives: str
) -> tuple[Atom, Labels]:
    """Returns the array before axes were moved, added and repeated, and the labels of its axes.

    Sizes do not say which axis is which, as those of two axes may be equal: each axis is followed
    by its label through every equation.

    Args:
      view: the view of the program.
      atom: the array.
      labels: a name of each of its axes; None for an axis of size one that has no name.
      *primitives: names of the primitives that are looked through, of ``"broadcast_in_dim"``,
        ``"reshape"`` and ``"squeeze"``, which keep the order of the axes, and ``"transpose"``. A
        reshape is looked through if it only adds or removes axes of size one.
    """
    while (equation := view.made_by(atom, *primitives)) is not None:
        of_operand = _FOLLOWED[equation.primitive.name](equation, labels)
        if of_operand is None:
            break
        atom, labels = equation.invars[0], of_operand
    return atom, labels


def unless_one(labels: Labels, atom: Atom) -> Labels:
    """Returns the labels of the axes of an array, with None for those of size one."""
    sizes = zip(labels, atom.aval.shape, strict=True)
    return tuple(None if n == 1 else label for label, n in sizes)


def _of_broadcast(equation: Any, labels: Labels) -> Labels:
    inner, outer = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    dims = zip(equation.params["broadcast_dimensions"], inner, strict=True)
    return tuple(labels[d] if size == outer[d] else None for d, size in dims)


def _of_transpose(equation: Any, labels: Labels) -> Labels:
    places = dict(zip(equation.params["permutation"], labels, strict=True))
    return tuple(places[d] for d in range(len(labels)))


def _of_reshape(equation: Any, labels: Labels) -> Labels | None:
    """Labels of the operand, whose axes of other sizes than one are those of the result."""
    inner, outer = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if [n for n in inner if n != 1] != [n for n in outer if n != 1]:
        return None
    kept = iter(label for label, n in zip(labels, outer, strict=True) if n != 1)
    return tuple(None if n == 1 else next(kept) for n in inner)


_FOLLOWED = {
    "broadcast_in_dim": _of_broadcast,
    "transpose": _of_transpose,
    "reshape": _of_reshape,
    "squeeze": _of_reshape,
}
