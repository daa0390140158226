"""The factors of an array of edges: tables read by row, numbers of edges, constants."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from jaxgnn.fusion._edges import RowGather, row_gather
from jaxgnn.fusion._program import Atom
from jaxgnn.fusion._view import View

_MOST_STEPS = 100  # nested powers could have too many factors


@dataclass(frozen=True)
class Factor:
    """One factor of an array of edges.

    Attributes:
      atom: the array, without axes along which it is only repeated.
      shape: its shape in the rank of the product, with ones for these axes.
      is_inverse: whether the product is divided by it.
      gather: the gather that reads it from a table, or None.
    """

    atom: Atom
    shape: tuple[int, ...]
    is_inverse: bool = False
    gather: RowGather | None = None

    @property
    def axes(self) -> frozenset[int]:
        """The axes along which it varies."""
        return frozenset(d for d, n in enumerate(self.shape) if n != 1)


@dataclass
class Product:
    """The factors whose product an array is, up to rounding.

    Attributes:
      shape: the shape of the array.
      axis: its axis of edges.
      tables: factors that vary along features, and are read by row.
      scalars: factors with one number for each edge, or for each edge and head.
      constants: factors that do not vary along edges or features.
      others: factors of any other kind.
      sign: 1 or -1.
      steps: number of factors that were expanded.
    """

    shape: tuple[int, ...]
    axis: int
    tables: list[Factor] = field(default_factory=list)
    scalars: list[Factor] = field(default_factory=list)
    constants: list[Factor] = field(default_factory=list)
    others: list[Factor] = field(default_factory=list)
    sign: int = 1
    steps: int = 0

    @property
    def edges(self) -> int:
        """The number of edges."""
        return self.shape[self.axis]

    @property
    def width(self) -> int:
        """The number of features of an edge."""
        return math.prod(self.shape[self.axis + 1 :])

    @property
    def has_heads(self) -> bool:
        """Whether a scalar differs between heads, the axis after that of the edges."""
        return any(self.axis + 1 in factor.axes for factor in self.scalars)

    @property
    def scalar_axes(self) -> frozenset[int]:
        """The axes along which a weight of edges may vary."""
        if self.width == 1:
            return frozenset()
        if self.axis == 0 and len(self.shape) == 3 and self.shape[2] > 1:
            return frozenset((0, 1))  # a weight for each head
        return frozenset((self.axis,))


def product_of(view: View, atom: Atom, axis: int) -> Product:
    """Splits an array of edges into factors.

    ``a * b``, ``a / b`` with a divisor of one number for each edge, ``-a``, and conversions to
    wider floats are followed. A quotient is kept whole if it is a softmax, which
    rules of attention need.

    A reshape that merges the axes of features, such as those of heads, is ignored: the
    shape of the product is the one before it.

    Args:
      view: the view of the program.
      atom: the array.
      axis: its axis of edges.
    """
    while (merged := view.made_by(atom, "reshape")) is not None:
        inner = merged.invars[0]
        kept = inner.aval.shape[: axis + 1] == atom.aval.shape[: axis + 1]
        if not kept or inner.aval.ndim <= atom.aval.ndim:
            break
        atom = inner
    found = Product(tuple(atom.aval.shape), axis)
    _take_apart(view, atom, found, is_inverse=False)
    return found


def _take_apart(view: View, atom: Atom, found: Product, *, is_inverse: bool) -> None:
    factor = _factor(view, atom, found, is_inverse=is_inverse)
    if not factor.axes:
        found.constants.append(factor)
        return
    if factor.axes <= found.scalar_axes:
        found.scalars.append(factor)
        return
    if factor.gather is not None and not is_inverse:
        found.tables.append(factor)
        return
    equation = view.producer(factor.atom)
    name = "" if equation is None else equation.primitive.name
    found.steps += 1
    is_whole = factor.shape == tuple(factor.atom.aval.shape) and found.steps < _MOST_STEPS
    if equation is None or not is_whole:
        found.others.append(factor)
    elif name == "mul":
        for part in equation.invars:
            _take_apart(view, part, found, is_inverse=is_inverse)
    elif name == "div" and not is_inverse and _is_scalar(view, equation.invars[1], found):
        _take_apart(view, equation.invars[0], found, is_inverse=False)
        _take_apart(view, equation.invars[1], found, is_inverse=True)
    elif name == "neg":
        found.sign = -found.sign
        _take_apart(view, equation.invars[0], found, is_inverse=is_inverse)
    elif name == "convert_element_type" and _widens(equation):
        _take_apart(view, equation.invars[0], found, is_inverse=is_inverse)
    else:
        found.others.append(factor)


def _is_scalar(view: View, atom: Atom, found: Product) -> bool:
    return _factor(view, atom, found, is_inverse=True).axes <= found.scalar_axes


def _widens(equation: Any) -> bool:
    old, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    is_float = jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.floating)
    return bool(is_float and jnp.finfo(new).bits >= jnp.finfo(old).bits and old != new) or (
        old == new
    )


def _factor(view: View, atom: Atom, found: Product, *, is_inverse: bool) -> Factor:
    """The factor of an atom, without the axes along which it is only repeated."""
    shape = tuple(atom.aval.shape)
    while (equation := view.made_by(atom, "broadcast_in_dim", "reshape", "squeeze")) is not None:
        inner = equation.invars[0]
        kept = _unrepeated(equation, shape)
        if kept is None:
            break
        atom, shape = inner, kept
    if shape == () and found.shape != ():
        shape = (1,) * len(found.shape)
    gather = row_gather(view, atom)
    if gather is not None and (
        gather.axis != found.axis or tuple(gather.equation.outvars[0].aval.shape) != found.shape
    ):
        gather = None
    return Factor(atom, shape, is_inverse, gather)


def _unrepeated(equation: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The operand's shape in the rank of the result, with ones for new axes; None if it has none.

    ``shape`` is the shape of the result in the rank of the product.
    """
    inner = tuple(equation.invars[0].aval.shape)
    outer = tuple(equation.outvars[0].aval.shape)
    if equation.primitive.name == "broadcast_in_dim":
        if len(outer) != len(shape):
            return None
        dims = equation.params["broadcast_dimensions"]
        made = [1] * len(outer)
        for d, n in zip(dims, inner, strict=True):
            made[d] = n
        return tuple(made)
    # A reshape that only adds axes of size one.
    if len(outer) != len(shape) or [n for n in inner if n != 1] != [n for n in outer if n != 1]:
        return None
    return outer


def values_of(factors: list[Factor], arrays: list[Any]) -> Any:
    """The product of factors as an array with ones for axes that it does not vary along, or None.

    Args:
      factors: the factors.
      arrays: their values.
    """
    made = None
    for factor, array in zip(factors, arrays, strict=True):
        array = jnp.reshape(array, factor.shape)
        if factor.is_inverse:
            array = 1 / array
        made = array if made is None else made * array
    return made
