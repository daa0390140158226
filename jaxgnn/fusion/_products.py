"""The factors of an array of edges: tables read by row, numbers of edges, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn.fusion._axes import Labels, unless_one, without_repeats
from jaxgnn.fusion._edges import RowGather, row_gather
from jaxgnn.fusion._program import Atom
from jaxgnn.fusion._view import View

_MOST_STEPS = 100  # powers of powers have more factors than anybody means
IN_RANGE = "products of weights that neither overflow nor underflow"  # for ``Rewrite.assumes``


@dataclass(frozen=True)
class Factor:
    """One factor of an array of edges.

    Attributes:
      atom: the array, without axes along which it is only repeated.
      labels: for each of its axes the axis of the product that it is, in increasing order; None for
        an axis of size one.
      is_inverse: whether the product is divided by it.
      gather: how it is read from a table, or None.
      depth: the number of products and quotients that the factor, or what it makes, goes through.
    """

    atom: Atom
    labels: Labels
    is_inverse: bool = False
    gather: RowGather | None = None
    depth: int = 0

    @property
    def axes(self) -> frozenset[int]:
        """The axes of the product along which it varies."""
        return frozenset(label for label in self.labels if label is not None)

    def placed(self, array: Any, rank: int) -> Any:
        """Returns its value with the axes of a product of this rank, ones where it is repeated."""
        sizes = {d: n for d, n in zip(self.labels, array.shape, strict=True) if d is not None}
        return array.reshape([sizes.get(d, 1) for d in range(rank)])


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
    def is_chain(self) -> bool:
        """Whether rows of one table are multiplied with one factor after the other."""
        depths = sorted(f.depth for f in (*self.scalars, *self.constants, *self.others))
        return [t.depth for t in self.tables] == depths[-1:] and depths == [
            *range(1, 1 + len(depths))
        ]

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


def before_merge(view: View, atom: Atom, axis: int) -> Atom:
    """Returns an array of edges before a reshape merged axes of features, such as those of heads.

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
    return atom


def product_of(view: View, atom: Atom, axis: int) -> Product:
    """Takes an array of edges apart.

    ``a * b``, ``a / b`` with a divisor of one number for each edge, ``-a``, and conversions to
    wider floats are followed. A quotient is kept whole if it is a softmax, which
    rules of attention want to see.

    Args:
      view: the view of the program.
      atom: the array.
      axis: its axis of edges.
    """
    found = Product(tuple(atom.aval.shape), axis)
    _take_apart(view, atom, found, is_inverse=False, depth=0)
    return found


def _take_apart(view: View, atom: Atom, found: Product, *, is_inverse: bool, depth: int) -> None:
    """Sorts the factors of an array that has the shape of the product, or is one number."""
    factor = _factor(view, atom, found, is_inverse=is_inverse, depth=depth)
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
    is_whole = found.shape == tuple(factor.atom.aval.shape) and found.steps < _MOST_STEPS
    deeper = depth + 1
    if equation is None or not is_whole:
        found.others.append(factor)
    elif name == "mul":
        for part in equation.invars:
            _take_apart(view, part, found, is_inverse=is_inverse, depth=deeper)
    elif name == "div" and not is_inverse and _is_scalar(view, equation.invars[1], found):
        _take_apart(view, equation.invars[0], found, is_inverse=False, depth=deeper)
        _take_apart(view, equation.invars[1], found, is_inverse=True, depth=deeper)
    elif name == "neg":
        found.sign = -found.sign
        _take_apart(view, equation.invars[0], found, is_inverse=is_inverse, depth=depth)
    elif name == "convert_element_type" and _widens(equation):
        _take_apart(view, equation.invars[0], found, is_inverse=is_inverse, depth=depth)
    else:
        found.others.append(factor)


def _is_scalar(view: View, atom: Atom, found: Product) -> bool:
    return _factor(view, atom, found, is_inverse=True, depth=0).axes <= found.scalar_axes


def _widens(equation: Any) -> bool:
    old, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    is_float = jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.floating)
    return bool(is_float and jnp.finfo(new).bits >= jnp.finfo(old).bits and old != new) or (
        old == new
    )


def _factor(view: View, atom: Atom, found: Product, *, is_inverse: bool, depth: int) -> Factor:
    """An atom without the axes along which it is only repeated."""
    kinds = "broadcast_in_dim", "reshape", "squeeze"
    atom, labels = without_repeats(view, atom, tuple(range(atom.aval.ndim)), *kinds)
    gather = row_gather(view, atom)
    is_whole = found.shape == tuple(atom.aval.shape)  # so that each axis is that of the product
    if gather is not None and (gather.axis != found.axis or not is_whole):
        gather = None
    return Factor(atom, unless_one(labels, atom), is_inverse, gather, depth)


def values_of(factors: Sequence[Factor], arrays: Sequence[Any], rank: int) -> Any:
    """Returns the product of factors, or None if there are none.

    It has ones for axes that it does not vary along. Floats of 16 bits are multiplied in float32.

    Args:
      factors: the factors.
      arrays: their values.
      rank: the number of axes of the product.
    """
    made = None
    for factor, array in zip(factors, arrays, strict=True):
        array = factor.placed(_of_32_bits(jnp.asarray(array)), rank)
        if factor.is_inverse:
            made = 1 / array if made is None else made / array
        else:
            made = array if made is None else made * array
    return made


def multiplied(x: Any, factors: Sequence[Factor], arrays: Sequence[Any], rank: int) -> Any:
    """Multiplies an array with one factor after the other, the first one first.

    In this order the code multiplied with them, so what leaves the range of numbers here did there.

    Args:
      x: the array, whose axes may have other sizes than those of the product.
      factors: the factors.
      arrays: their values.
      rank: the number of axes of the product.
    """
    pairs = zip(factors, arrays, strict=True)
    for factor, array in sorted(pairs, key=lambda pair: -pair[0].depth):
        array = factor.placed(array, rank).astype(x.dtype)
        x = x / array if factor.is_inverse else x * array
    return x


def _of_32_bits(array: Any) -> Any:
    is_short = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
    return array.astype(jnp.float32) if is_short else array


def leaves_range(factors: Sequence[Factor], arrays: Sequence[Any], product: np.ndarray) -> bool:
    """Whether a product of known numbers overflows or underflows, where its factors do not.

    Args:
      factors: the factors.
      arrays: their values.
      product: the value of their product, as ``values_of`` makes it.
    """
    if len(factors) < 2 and not any(factor.is_inverse for factor in factors):
        return False
    is_normal = np.isfinite(product) & (np.abs(product) >= np.finfo(product.dtype).tiny)
    if is_normal.all():
        return False
    are_normal = ~is_normal
    for factor, array in zip(factors, arrays, strict=True):
        array = factor.placed(np.asarray(array, product.dtype), product.ndim)
        are_normal = are_normal & np.isfinite(array) & (array != 0)
    return bool(are_normal.any())


def only_widen(view: View, constants: Sequence[Factor]) -> bool:
    """Whether constants are known, finite and at least one, so that sums may be made before them.

    What is multiplied by them is the smaller one, so it overflows only if the product does.
    """
    return all(_is_at_least_one(view.value(c.atom), is_inverse=c.is_inverse) for c in constants)


def _is_at_least_one(value: np.ndarray | None, *, is_inverse: bool) -> bool:
    if value is None:
        return False
    size = abs(float(value.reshape(())))
    return 0 < size <= 1 if is_inverse else 1 <= size < math.inf
