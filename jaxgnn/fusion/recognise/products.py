"""Products of arrays and the axes of their factors.

An array of edges is taken apart into tables read by row, numbers of edges, and constants; a sum of
products, written as an einsum or with new axes, into its two arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import own
from jaxgnn.fusion.program.matching import Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation, Values
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import Rows
from jaxgnn.fusion.recognise.gathers import RowGather, is_filled_with, row_gather
from jaxgnn.fusion.recognise.templates import session_precision

_MOST_STEPS = 100  # Most factors that are taken apart; powers of powers have more.
SUMMED = 100  # Label of the first summed axis of a product of matrices.
# Text for ``Rewrite.assumes``.
IN_RANGE = "products of weights that neither overflow nor underflow"


Labels = tuple[int | None, ...]


@dataclass(frozen=True)
class Factor:
    """Factor of an array."""

    atom: Atom  # Array without the axes along which it is only repeated.
    # For each of its axes the axis of the product that it is; None for an axis of size one. The
    # labels of a factor of an array of edges increase.
    labels: Labels
    is_inverse: bool = False  # True if the product is divided by this factor.
    gather: RowGather | None = None  # Gather that reads the factor from a table, or None.
    depth: int = 0  # Number of products and quotients around this factor.

    @property
    def axes(self) -> frozenset[int]:
        """The axes of the product along which it varies."""
        return frozenset(label for label in self.labels if label is not None)

    def placed(self, array: Any, rank: int) -> Any:
        """Returns its value with the axes of a product of this rank, ones where it is repeated."""
        sizes = {d: n for d, n in zip(self.labels, array.shape, strict=True) if d is not None}
        return array.reshape([sizes.get(d, 1) for d in range(rank)])


@dataclass(frozen=True)
class Mask:
    """``where`` with one condition for each edge that replaces a product by zero."""

    condition: Factor
    kept: int  # Value of the condition at edges that stay.
    depth: int  # Number of products and quotients around the ``where``.

    def is_kept(self, view: View) -> np.ndarray | None:
        """Returns a mask of the edges that stay, bool [edges], or None if it is not known."""
        value = view.value(self.condition.atom)
        return None if value is None else value.reshape(-1) == self.kept


@dataclass
class Product:
    """Factors whose product is an array of edges, up to rounding."""

    shape: tuple[int, ...]
    axis: int  # Axis of edges.
    tables: list[Factor] = field(default_factory=list)  # Factors that a list of ids reads by row.
    scalars: list[Factor] = field(default_factory=list)  # Numbers of edges, or of edges and heads.
    constants: list[Factor] = field(default_factory=list)  # Factors that are one number.
    others: list[Factor] = field(default_factory=list)
    sign: int = 1
    steps: int = 0  # Number of factors that were taken apart.
    masks: list[Mask] | None = None  # Masks of hidden edges; None if masks are no factors here.

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
        """Returns whether rows of one table are multiplied with one factor after the other."""
        depths = sorted(f.depth for f in (*self.scalars, *self.constants, *self.others))
        is_chain = depths == list(range(1, 1 + len(depths)))
        return is_chain and [t.depth for t in self.tables] == depths[-1:]

    @property
    def has_heads(self) -> bool:
        """Returns whether a scalar differs between heads, the axis after that of the edges."""
        return any(self.axis + 1 in factor.axes for factor in self.scalars)

    @property
    def scalar_axes(self) -> frozenset[int]:
        """The axes along which a weight of edges may vary."""
        if self.width == 1:
            return frozenset()
        if self.axis == 0 and len(self.shape) == 3 and self.shape[2] > 1:
            return frozenset((0, 1))  # A weight may differ between heads.
        return frozenset((self.axis,))


def unmerged(view: View, atom: Atom, axis: int) -> Atom:
    """Returns an array of edges before a reshape merged axes of features, such as those of heads.

    ``axis`` is its axis of edges.
    """
    while (merged := view.produced_by(atom, "reshape")) is not None:
        inner = merged.invars[0]
        kept = inner.aval.shape[: axis + 1] == atom.aval.shape[: axis + 1]
        if not kept or inner.aval.ndim <= atom.aval.ndim:
            break
        atom = inner
    return atom


def product_of(view: View, atom: Atom, axis: int, *, has_masks: bool = False) -> Product:
    """Takes an array of edges apart; ``axis`` is its axis of edges.

    ``a * b``, ``a / b`` with a divisor of one number for each edge, ``-a``, and conversions to
    wider floats are followed. A quotient is kept whole if it is a softmax, which rules of attention
    recognise. With ``has_masks``, ``where(mask, a, 0)`` with a mask of edges is followed, too: the
    product is that of the edges that the masks keep.
    """
    product = Product(tuple(atom.aval.shape), axis, masks=[] if has_masks else None)
    _take_apart(view, atom, product, is_inverse=False, depth=0)
    return product


def _take_apart(view: View, atom: Atom, product: Product, *, is_inverse: bool, depth: int) -> None:
    """Adds the factors of an array to a product; the array has its shape, or is a number."""
    factor = _factor(view, atom, product, is_inverse=is_inverse, depth=depth)
    if not factor.axes:
        product.constants.append(factor)
        return
    if factor.axes <= product.scalar_axes:
        product.scalars.append(factor)
        return
    if factor.gather is not None and not is_inverse:
        product.tables.append(factor)
        return
    equation = view.producer(factor.atom)
    name = "" if equation is None else equation.primitive.name
    product.steps += 1
    is_whole = product.shape == tuple(factor.atom.aval.shape) and product.steps < _MOST_STEPS
    if equation is None or not is_whole:
        product.others.append(factor)
    elif name == "mul":
        for part in equation.invars:
            _take_apart(view, part, product, is_inverse=is_inverse, depth=depth + 1)
    elif name == "div" and not is_inverse and _is_scalar(view, equation.invars[1], product):
        for part, divides in zip(equation.invars, (False, True), strict=True):
            _take_apart(view, part, product, is_inverse=divides, depth=depth + 1)
    elif (
        product.masks is not None and (mask := _mask_of(view, equation, product, depth)) is not None
    ):
        product.masks.append(mask)
        kept = equation.invars[1 + mask.kept]
        _take_apart(view, kept, product, is_inverse=is_inverse, depth=depth)
    elif name == "neg" or (name == "convert_element_type" and _widens(equation)):
        product.sign = -product.sign if name == "neg" else product.sign
        _take_apart(view, equation.invars[0], product, is_inverse=is_inverse, depth=depth)
    else:
        product.others.append(factor)


def split_masks(view: View, atom: Atom, axis: int, start: float) -> tuple[Atom, Product]:
    """Strips each ``where`` that sets some edges to a number; returns the array and masks."""
    product = Product(tuple(atom.aval.shape), axis, masks=(masks := []))
    while (equation := view.producer(atom)) is not None:
        mask = _mask_of(view, equation, product, depth=0, hidden=start)
        if mask is None:
            break
        masks.append(mask)
        atom = equation.invars[1 + mask.kept]
    return atom, product


def _mask_of(
    view: View, equation: Equation, product: Product, depth: int, hidden: float = 0.0
) -> Mask | None:
    """Returns the mask of a ``where`` that sets some edges to ``hidden``, or None."""
    if equation.primitive.name != "select_n" or len(equation.invars) != 3:
        return None
    test, *cases = equation.invars
    are_hidden = [is_filled_with(view, case, hidden) for case in cases]
    condition = _factor(view, test, product, is_inverse=False, depth=0)
    if are_hidden[0] == are_hidden[1] or condition.axes != {product.axis}:
        return None
    return Mask(condition, are_hidden.index(False), depth)


def _is_scalar(view: View, atom: Atom, product: Product) -> bool:
    return _factor(view, atom, product, is_inverse=True, depth=0).axes <= product.scalar_axes


def _widens(equation: Any) -> bool:
    old, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    are_floats = jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.floating)
    return old == new or bool(are_floats and jnp.finfo(new).bits >= jnp.finfo(old).bits)


def _factor(view: View, atom: Atom, product: Product, *, is_inverse: bool, depth: int) -> Factor:
    """Returns an atom as a factor, without the axes along which it is only repeated."""
    kinds = "broadcast_in_dim", "reshape", "squeeze"
    atom, labels = strip_repeats(view, atom, tuple(range(atom.aval.ndim)), *kinds)
    gather = row_gather(view, atom)
    # Each axis is then the same axis of the product.
    is_whole = product.shape == tuple(atom.aval.shape)
    if gather is not None and (gather.axis != product.axis or not is_whole):
        gather = None
    return Factor(atom, drop_unit_labels(labels, atom), is_inverse, gather, depth)


def values_of(factors: Sequence[Factor], values: Values, rank: int) -> Any:
    """Returns the product of factors, of ``rank`` axes, or None if there are none.

    It has ones for axes that it does not vary along. Floats of 16 bits are multiplied in float32.
    """
    product = None
    for factor in factors:
        array = jnp.asarray(values[factor.atom])
        is_short = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
        array = factor.placed(array.astype(jnp.float32) if is_short else array, rank)
        if factor.is_inverse:
            product = 1 / array if product is None else product / array
        else:
            product = array if product is None else product * array
    return product


def multiplied(x: Any, factors: Sequence[Factor], values: Values, rank: int) -> Any:
    """Multiplies an array with one factor after the other, the first one first.

    In this order the code multiplied with them, so what leaves the range of numbers here did there.
    The array has ``rank`` axes, which may have other sizes than those of the product.
    """
    for factor in sorted(factors, key=lambda factor: -factor.depth):
        array = factor.placed(values[factor.atom], rank).astype(x.dtype)
        x = x / array if factor.is_inverse else x * array
    return x


def rows_behind(view: View, product: Product, rows: Rows) -> Rows:
    """Returns the segment of each edge, and -1 for edges that a mask of the product hides.

    Hidden edges are dropped from the sum, since zero times a number that is not
    finite would be NaN. Raises ``Refusal`` if a mask is not known.
    """
    for mask in product.masks or ():
        is_kept = mask.is_kept(view)
        if is_kept is None:
            raise Refusal("a mask that hides messages is known only when it runs")
        if not isinstance(rows, np.ndarray):
            raise Refusal("messages are hidden behind a mask, and their ids known only at run time")
        rows = own(np.where(is_kept, rows, -1))
    return rows


def hides_more(rows: Rows, others: Rows) -> bool:
    """Returns whether some edges are dropped in ``rows`` and not in ``others``."""
    if not (isinstance(rows, np.ndarray) and isinstance(others, np.ndarray)):
        return False
    return bool((rows[others >= 0] < 0).any())


# Text for ``Rewrite.assumes``.
BEHIND_MASKS = "finite weights at the edges that a mask has made zero before"


def assumed_of_masks(product: Product) -> tuple[str, ...]:
    """Lists the conditions for dropping masked edges: zero times a weight has to be zero."""
    return (BEHIND_MASKS,) if any(mask.depth > 0 for mask in product.masks or ()) else ()


def leaves_range(factors: Sequence[Factor], values: Values, product: np.ndarray) -> bool:
    """Returns whether a product of known numbers overflows or underflows."""
    if len(factors) < 2 and not any(factor.is_inverse for factor in factors):
        return False
    is_normal = np.isfinite(product) & (np.abs(product) >= np.finfo(product.dtype).tiny)
    if is_normal.all():
        return False
    are_normal = ~is_normal
    for factor in factors:
        array = np.asarray(values[factor.atom], product.dtype)
        array = factor.placed(array, product.ndim)
        are_normal = are_normal & np.isfinite(array) & (array != 0)
    return bool(are_normal.any())


def all_widen(view: View, constants: Sequence[Factor]) -> bool:
    """Returns whether all constants are known, finite and at least one in magnitude.

    A sum before such a factor is smaller, so it overflows only if the product does.
    """
    numbers = [(view.number(c.atom), c.is_inverse) for c in constants]
    return all(
        number is not None and (0 < abs(number) <= 1 if is_inverse else 1 <= abs(number) < math.inf)
        for number, is_inverse in numbers
    )


def strip_repeats(view: View, atom: Atom, labels: Labels, *primitives: str) -> tuple[Atom, Labels]:
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
    while (equation := view.produced_by(atom, *primitives)) is not None:
        of_operand = _FOLLOWED[equation.primitive.name](equation, labels)
        if of_operand is None:
            break
        atom, labels = equation.invars[0], of_operand
    return atom, labels


def span_of(equation: Equation, member: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the begin and end of a slice, or of a part of a split array."""
    params, shape = equation.params, equation.invars[0].aval.shape
    if equation.primitive.name == "slice":
        return tuple(params["start_indices"]), tuple(params["limit_indices"])
    axis, position = params["axis"], equation.outvars.index(member)
    sizes = [1] * shape[axis] if equation.primitive.name == "unstack" else params["sizes"]
    start = int(sum(sizes[:position]))
    begins = [start if d == axis else 0 for d in range(len(shape))]
    ends = [start + int(sizes[position]) if d == axis else n for d, n in enumerate(shape)]
    return tuple(begins), tuple(ends)


def drop_unit_labels(labels: Labels, atom: Atom) -> Labels:
    """Returns the labels of the axes of an array, with None for those of size one."""
    sizes = zip(labels, atom.aval.shape, strict=True)
    return tuple(None if n == 1 else label for label, n in sizes)


def _broadcast_labels(equation: Any, labels: Labels) -> Labels:
    inner, outer = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    dims = zip(equation.params["broadcast_dimensions"], inner, strict=True)
    return tuple(labels[d] if size == outer[d] else None for d, size in dims)


def _transposed_labels(equation: Any, labels: Labels) -> Labels:
    label_by_axis = dict(zip(equation.params["permutation"], labels, strict=True))
    return tuple(label_by_axis[d] for d in range(len(labels)))


def _reshaped_labels(equation: Any, labels: Labels) -> Labels | None:
    """Labels of the operand, whose axes of other sizes than one are those of the result."""
    inner, outer = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if [n for n in inner if n != 1] != [n for n in outer if n != 1]:
        return None
    kept = iter(label for label, n in zip(labels, outer, strict=True) if n != 1)
    return tuple(None if n == 1 else next(kept) for n in inner)


_FOLLOWED = {
    "broadcast_in_dim": _broadcast_labels,
    "transpose": _transposed_labels,
    "reshape": _reshaped_labels,
    "squeeze": _reshaped_labels,
}


@or_none
def contraction_of(view: View, atom: Atom) -> tuple[Factor, Factor]:
    """Returns the two factors of a product of matrices or a sum of products, or None.

    The sum is over the axes that the result lacks. Labels of the factors are those of the axes of
    the result, which are numbered from zero, and other ones for the axes that are summed.

    A product of matrices has the precision of the session, and its arrays have the type of the
    result.
    """
    labels: Labels = tuple(range(atom.aval.ndim))
    atom, labels = strip_repeats(view, atom, labels, "transpose")
    equation = view.match(atom, "dot_general", "mul", "reduce_sum")
    if equation.primitive.name == "dot_general":
        return _dot_factors(view, equation, labels)
    if equation.primitive.name == "mul":
        return _product_factors(view, equation, labels)
    product = view.match(equation.invars[0], "mul")
    axes, kept = equation.params["axes"], iter(labels)
    shape = product.outvars[0].aval.shape
    inner = tuple(len(labels) + d if d in axes else next(kept) for d in range(len(shape)))
    factors = _product_factors(view, product, inner)
    named = {label for factor in factors for label in factor.labels}
    # A sum of repeats would be a multiple.
    need(all(shape[d] == 1 or inner[d] in named for d in axes))
    return factors


@or_none
def matrix_product_of(view: View, atom: Atom) -> tuple[Factor, Factor] | None:
    """Returns the array [edges, features] and the matrix whose product is an atom, or None.

    The matrix is [features, dim], with 1 as its last label, or [dim, features]. All have one dtype.
    """
    left, right = required(contraction_of(view, atom))
    for basis, kernel in ((left, right), (right, left)):
        if basis.labels[:1] != (0,) or len(basis.labels) != 2 or len(kernel.labels) != 2:
            continue
        if set(kernel.labels) == {basis.labels[1], 1}:
            need(basis.atom.aval.dtype == kernel.atom.aval.dtype == atom.aval.dtype)
            return basis, kernel
    return None


def _dot_factors(view: View, equation: Equation, labels: Labels) -> tuple[Factor, Factor]:
    types = {v.aval.dtype for v in (*equation.invars, *equation.outvars)}
    need(equation.params["precision"] == session_precision() and len(types) == 1)
    (of_left, of_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    names: list[dict[int, int | None]] = [{}, {}]
    free, summed = iter(labels), iter(range(SUMMED, 2 * SUMMED))
    for a, b in zip(batch_left, batch_right, strict=True):
        names[0][a] = names[1][b] = next(free)
    for a, b in zip(of_left, of_right, strict=True):
        names[0][a] = names[1][b] = next(summed)
    pairs = list(zip(names, equation.invars, strict=True))
    for labels_by_axis, atom in pairs:
        labels_by_axis.update(
            (d, next(free)) for d in range(atom.aval.ndim) if d not in labels_by_axis
        )
    first, second = (
        _bare_factor(view, a, tuple(labels_by_axis[d] for d in range(a.aval.ndim)))
        for labels_by_axis, a in pairs
    )
    return first, second


def _product_factors(view: View, product: Equation, labels: Labels) -> tuple[Factor, Factor]:
    first, second = (_bare_factor(view, a, labels[: a.aval.ndim]) for a in product.invars)
    return first, second


def _bare_factor(view: View, atom: Atom, labels: Labels) -> Factor:
    """Returns an array as a factor, before axes were added and moved."""
    return Factor(*strip_repeats(view, atom, labels, "broadcast_in_dim", "transpose"))
