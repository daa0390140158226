"""Expands arrays of edges into sums of products of entries of other arrays of edges.

Tensor products are written in many ways: as einsums with small tables, of slices, split and joined
again. All of them are multilinear: ``Expansion`` follows an array back to the rows of a table and
to arrays of edges, whose entries are numbered as columns, and gives each entry as a sum of products
of columns with known coefficients. Only these numbers matter, not the form of the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn.fusion.program.matching import NoMatch, need
from jaxgnn.fusion.program.program import Atom, Equation, closure, is_variable
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.gathers import RowGather, row_gather
from jaxgnn.fusion.recognise.polynomials import Polynomials, Side, contracted, joined
from jaxgnn.fusion.recognise.products import span_of

_MOST_EQUATIONS = 2_000  # Most equations between rows of a table and the expanded array.
_DEEPEST = 150  # Longest chain of equations that is followed.
_MOST_ENTRIES = 1 << 18  # Most entries of one edge.
_LARGEST_TABLE = 1 << 16  # Most entries of a known array that all edges share.


@dataclass(frozen=True)
class Leaf:
    """Array of edges that is not expanded; each entry of an edge is a column."""

    atom: Atom
    axis: int  # Axis of edges.
    start: int  # Number of the first column.

    @property
    def size(self) -> int:
        """The number of columns."""
        return self.atom.aval.size // max(self.atom.aval.shape[self.axis], 1)

    def has_any(self, columns: np.ndarray) -> bool:
        """Returns whether the leaf has any of these columns."""
        return bool(((columns >= self.start) & (columns < self.start + self.size)).any())

    def edge_columns(self, array: Any) -> Any:
        """Reshapes the value of the leaf to [edges, columns]."""
        edges = array.shape[self.axis]
        return jnp.moveaxis(array, self.axis, 0).reshape(edges, self.size)


def expanded(view: View, atom: Atom) -> tuple[Expansion, Polynomials]:
    """Expands the summed array of edges, [edges, ...], in rows that a list of ids gathers.

    Starts with the rows of the widest table. Where products lack them, and have rows of another
    table that the same list reads, these are rows too: features of each degree may be arrays of
    their own. Rows that only enter harmonics or weights, such as positions, are not.

    Raises ``NoMatch`` where the array is not multilinear in the rows and in arrays of edges.
    """
    behind = _dependencies(view, atom)
    variables = (v for e in view.program.equations for v in e.outvars if v in behind)
    gathers = [g for v in variables if (g := row_gather(view, v)) is not None]
    need(gathers)
    widest = max(gathers, key=lambda g: g.table.aval.size // max(g.size, 1))
    need(widest.axis == 0)
    chosen = [widest]
    while True:
        expansion = Expansion(view, chosen, behind, atom.aval.dtype)
        terms = expansion.terms(atom, 0).collected()
        behind_others = expansion.variables_without_rows(terms)
        further = [g for g in gathers if _reads_alike(g, widest) and g.result in behind_others]
        if not further:
            return expansion, terms
        of_all = {g.result for g in (*chosen, *further)}
        chosen = [g for g in gathers if g.result in of_all]


def _reads_alike(gather: RowGather, other: RowGather) -> bool:
    """Returns whether two gathers read rows by the same list in the same way."""
    same = gather.ids is other.ids and gather.mode == other.mode
    return same and (gather.axis, gather.size) == (other.axis, other.size)


class Expansion:
    """Expands arrays of edges that rows of some tables enter; columns of the rows come first."""

    def __init__(self, view: View, gathers: list[RowGather], behind: set[Any], dtype: Any):
        self.view = view
        self.dtype = dtype
        self.gathers = gathers
        self.width = 0
        self._rows: dict[Any, Polynomials] = {}  # Polynomials of the results of the gathers.
        for gather in gathers:
            rows = gather.result
            self._rows[rows] = Polynomials.from_columns(
                _remove_axis(rows.aval.shape, 0), self.width
            )
            self.width += self._rows[rows].size
        # Variables that depend on the rows.
        self.inside = {
            variable
            for rows in self._rows
            for variable in closure(rows, lambda v: [o for o in self._results(v) if o in behind])
        }
        self.leaves: list[Leaf] = []
        self._terms_by_array: dict[tuple[Any, int], Polynomials] = {}
        self._depth = 0

    def variables_without_rows(self, terms: Polynomials) -> set[Any]:
        """Returns the variables behind arrays of edges that no product with a row has."""
        has_row = ((terms.factors >= 0) & (terms.factors < self.width)).any(axis=1)
        without, with_row = terms.factors[~has_row], terms.factors[has_row]
        return {
            variable
            for leaf in self.leaves
            if leaf.has_any(without) and not leaf.has_any(with_row)
            for variable in _dependencies(self.view, leaf.atom)
        }

    def _results(self, variable: Any) -> list[Any]:
        users = self.view.users(variable)
        return [v for e in users if e.primitive.name in _FOLLOWED for v in e.outvars]

    def is_private(self, reader: Equation) -> bool:
        """Returns whether only ``reader`` reads the variables that depend on the rows."""
        between = self.inside - self._rows.keys()
        return not any(self.view.is_output(v) for v in between) and all(
            equation is reader or not between.isdisjoint(equation.outvars)
            for variable in between
            for equation in self.view.users(variable)
        )

    def is_used_up(self, leaf: Leaf) -> bool:
        """Returns whether a leaf is read only by variables that depend on the rows."""

        def others(variable: Any) -> list[Any]:
            results = [v for e in self.view.users(variable) for v in e.outvars]
            return [v for v in results if v not in self.inside]

        return not any(self.view.is_output(v) for v in closure(leaf.atom, others))

    def terms(self, atom: Atom, axis: int | None) -> Polynomials:
        """Returns the polynomials of an array; ``axis`` is that of edges, None if shared."""
        if axis is None or not is_variable(atom):
            return _constant(self.view, atom)
        if (atom, axis) not in self._terms_by_array:
            self._depth += 1
            need(self._depth < _DEEPEST)
            self._terms_by_array[atom, axis] = self._terms(atom, axis)
            self._depth -= 1
        return self._terms_by_array[atom, axis]

    def _terms(self, atom: Atom, axis: int) -> Polynomials:
        need(atom.aval.dtype == self.dtype)
        need(math.prod(_remove_axis(atom.aval.shape, axis)) <= _MOST_ENTRIES)
        equation = self.view.producer(atom)
        if atom in self._rows:
            need(axis == 0)
            return self._rows[atom]
        if equation is None or not (atom in self.inside or self._is_followed(equation, axis)):
            return self._leaf_terms(atom, axis)
        return _FOLLOWED[equation.primitive.name](self, equation, atom, axis)

    def _leaf_terms(self, atom: Atom, axis: int) -> Polynomials:
        start = self.width + sum(leaf.size for leaf in self.leaves)
        self.leaves.append(Leaf(atom, axis, start))
        return Polynomials.from_columns(_remove_axis(atom.aval.shape, axis), start)

    def _is_followed(self, equation: Equation, axis: int) -> bool:
        """Returns whether to expand an array that does not depend on the rows.

        Its equation then moves the entries of one array of edges, or multiplies them by a table.
        """
        name = equation.primitive.name
        if name in _LAYOUTS and equation.invars[0].aval.dtype == self.dtype:
            return name != "broadcast_in_dim" or _axis_before(equation, axis) is not None
        if name in ("mul", "dot_general"):
            return any(self._is_table(a, equation, axis) for a in equation.invars)
        return name == "div" and self._is_table(equation.invars[1], equation, axis)

    def _is_table(self, atom: Atom, equation: Equation, axis: int) -> bool:
        """Returns whether a factor is known and the same for all edges."""
        if not self.view.is_known(atom):
            return False
        if equation.primitive.name == "dot_general":
            axes = _axes_of_factors(equation, axis)
            return axes[0 if atom is equation.invars[0] else 1] is None
        repeated = self.view.produced_by(atom, "broadcast_in_dim")
        is_repeated = repeated is not None and _axis_before(repeated, axis) is None
        return is_repeated or _axis_of_operand(atom, equation, axis) is None


def _dependencies(view: View, atom: Atom) -> set[Any]:
    """Returns the variables that an array depends on through followed equations."""

    def reads(variable: Any) -> Sequence[Any]:
        equation = view.producer(variable)
        if equation is None or equation.primitive.name not in _FOLLOWED:
            return ()
        return [a for a in equation.invars if is_variable(a)]

    variables = closure(atom, reads) if is_variable(atom) else set()
    need(len(variables) <= _MOST_EQUATIONS)
    return variables


def _constant(view: View, atom: Atom) -> Polynomials:
    """Returns the terms of a known array that all edges share."""
    need(atom.aval.size <= _LARGEST_TABLE and jnp.issubdtype(atom.aval.dtype, jnp.floating))
    need(view.is_known(atom))
    numbers = _numbers(view, atom)
    need(np.isfinite(numbers).all())
    return Polynomials.from_numbers(numbers)


def _numbers(view: View, atom: Atom) -> np.ndarray:
    """Returns a known array in float64; products and roots are computed by NumPy."""
    equation = view.producer(atom)
    function = None if equation is None else _IN_NUMPY.get(equation.primitive.name)
    if equation is None or function is None or atom.aval.dtype.name not in _EXACT:
        return np.asarray(view.value(atom)).astype(np.float64)
    numbers = function(*(_numbers(view, a) for a in equation.invars))
    return numbers.astype(atom.aval.dtype).astype(np.float64)


_EXACT = ("float32", "float64")
_IN_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "convert_element_type": np.asarray,
}


def _remove_axis[T](shape: Sequence[T], axis: int | None) -> tuple[T, ...]:
    return tuple(n for d, n in enumerate(shape) if d != axis)


def _renumber_axes(dims: Sequence[int], axis: int | None) -> list[int]:
    """Returns the positions of axes after the axis of edges is removed."""
    need(axis not in dims)
    return [d - (axis is not None and d > axis) for d in dims]


def _axis_before(equation: Equation, axis: int) -> int | None:
    """Returns the axis of edges in the operand of a broadcast; None if it has none."""
    dims = tuple(equation.params["broadcast_dimensions"])
    if axis not in dims:
        return None
    inner = equation.invars[0].aval.shape[dims.index(axis)]
    return dims.index(axis) if inner == equation.outvars[0].aval.shape[axis] else None


def _broadcast(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    need(len(equation.invars) == 1)
    inner, outer = equation.invars[0], equation.outvars[0].aval.shape
    before = _axis_before(equation, axis)
    terms = this.terms(inner, before)
    dims = equation.params["broadcast_dimensions"]
    # The axis of edges has one entry, whether it is repeated or left out.
    sizes = [1 if d == axis else n for d, n in enumerate(outer)]
    positions = np.arange(terms.size).reshape(
        [1 if d == before else n for d, n in enumerate(inner.aval.shape)]
    )
    spread = np.ones(len(outer), int)
    for d, n in zip(dims, positions.shape, strict=True):
        spread[d] = n
    positions = np.broadcast_to(positions.reshape(spread), sizes)
    return terms.rearranged(positions.reshape(_remove_axis(sizes, axis)))


def _reshape(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    """Follows a reshape that keeps the axis of edges."""
    need(equation.primitive.name == "squeeze" or equation.params["dimensions"] is None)
    inner, outer = equation.invars[0], equation.outvars[0].aval.shape
    before = math.prod(outer[:axis])
    for d, n in enumerate(inner.aval.shape):
        if n == outer[axis] and math.prod(inner.aval.shape[:d]) == before:
            return this.terms(inner, d).reshaped(_remove_axis(outer, axis))
    raise NoMatch


def _transpose(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    order = equation.params["permutation"]
    terms = this.terms(equation.invars[0], order[axis])
    return terms.rearranged(
        terms.positions.transpose(_renumber_axes(_remove_axis(order, axis), order[axis]))
    )


def _part(this: Expansion, equation: Equation, member: Any, axis: int) -> Polynomials:
    """Follows a slice, or a part of a split array."""
    need(not any(s != 1 for s in equation.params.get("strides") or ()))
    inner = equation.invars[0]
    begins, ends = span_of(equation, member)
    need((begins[axis], ends[axis]) == (0, inner.aval.shape[axis]))
    terms = this.terms(inner, axis)
    kept = tuple(slice(b, e) for b, e in zip(begins, ends, strict=True))
    return terms.rearranged(terms.positions[_remove_axis(kept, axis)])


def _joined(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    (along,) = _renumber_axes([equation.params["dimension"]], axis)
    parts = [this.terms(atom, axis) for atom in equation.invars]
    return joined(parts, lambda positions: np.concatenate(positions, axis=along))


def _stacked(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    along = equation.params["axis"]
    need(along != axis)
    parts = [this.terms(atom, axis - (along < axis)) for atom in equation.invars]
    (along,) = _renumber_axes([along], axis)
    return joined(parts, lambda positions: np.stack(positions, axis=along))


def _member(this: Expansion, equation: Equation, member: Any, axis: int) -> Polynomials:
    along = equation.params["axis"]
    axis += axis >= along
    terms = this.terms(equation.invars[0], axis)
    (along,) = _renumber_axes([along], axis)
    return terms.rearranged(terms.positions.take(equation.outvars.index(member), axis=along))


def _same(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    return this.terms(equation.invars[0], axis)


def _negated(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    return this.terms(equation.invars[0], axis).scaled(-1.0)


def _operands(this: Expansion, equation: Equation, axis: int) -> list[Polynomials]:
    """Returns the polynomials of operands, broadcast to the shape of the result."""
    shape = equation.outvars[0].aval.shape
    operands = []
    for atom in equation.invars:
        operand_axis = _axis_of_operand(atom, equation, axis)
        terms = this.terms(atom, operand_axis)
        sizes = atom.aval.shape or (1,) * len(shape)
        positions = terms.positions.reshape([1 if d == axis else n for d, n in enumerate(sizes)])
        wanted = [1 if d == axis else n for d, n in enumerate(shape)]
        positions = np.broadcast_to(positions, wanted).reshape(_remove_axis(shape, axis))
        operands.append(terms.rearranged(positions))
    return operands


def _axis_of_operand(atom: Atom, equation: Equation, axis: int) -> int | None:
    """Returns the axis of edges of an operand; None if all edges share it."""
    shape = atom.aval.shape
    is_repeated = not shape or shape[axis] != equation.outvars[0].aval.shape[axis]
    return None if is_repeated else axis


def _times(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    left, right = _operands(this, equation, axis)
    shared = range(len(left.shape))
    return contracted(Side(left, shared, (), ()), Side(right, shared, (), ()))


def _quotient(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    left, right = _operands(this, equation, axis)
    need((right.factors < 0).all() and np.array_equal(right.entries, np.arange(right.size)))
    coefficients = left.coefficients / right.coefficients[left.entries]
    return Polynomials(left.shape, left.entries, coefficients, left.factors)


def _sum(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    left, right = _operands(this, equation, axis)
    return left.plus(right.scaled(-1.0) if equation.primitive.name == "sub" else right)


def _total(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    axes = equation.params["axes"]
    kept = [d for d in range(equation.invars[0].aval.ndim) if d not in axes]
    before = kept.pop(axis)
    return this.terms(equation.invars[0], before).summed_to(_renumber_axes(kept, before))


def _axes_of_factors(equation: Equation, axis: int) -> tuple[int | None, int | None]:
    """Returns the axis of edges in each array of a product; None for arrays without it."""
    _, (batch_left, batch_right) = equation.params["dimension_numbers"]
    if axis < len(batch_left):
        return batch_left[axis], batch_right[axis]
    free_left, free_right = _free(equation)
    position = axis - len(batch_left)
    if position < len(free_left):
        return free_left[position], None
    return None, free_right[position - len(free_left)]


def _free(equation: Equation) -> tuple[list[int], list[int]]:
    """Returns the axes of both arrays of a product that are neither summed nor shared."""
    summed, batch = equation.params["dimension_numbers"]
    ranks = (a.aval.ndim for a in equation.invars)
    left, right = (
        [d for d in range(rank) if d not in s and d not in b]
        for rank, s, b in zip(ranks, summed, batch, strict=True)
    )
    return left, right


def _contraction(this: Expansion, equation: Equation, _: Any, axis: int) -> Polynomials:
    axes = _axes_of_factors(equation, axis)
    summed, batch = equation.params["dimension_numbers"]

    def side(i: int) -> Side:
        side_axis = axes[i]
        roles = batch[i], summed[i], _free(equation)[i]
        need(side_axis not in summed[i])
        terms = this.terms(equation.invars[i], side_axis)
        return Side(
            terms,
            *(_renumber_axes([d for d in dims if d != side_axis], side_axis) for dims in roles),
        )

    return contracted(side(0), side(1))


_LAYOUTS = frozenset(
    (
        *("broadcast_in_dim", "copy", "convert_element_type", "neg", "reshape", "slice", "split"),
        *("squeeze", "transpose", "unstack"),
    )
)
_FOLLOWED: dict[str, Callable[[Expansion, Equation, Any, int], Polynomials]] = {
    "add": _sum,
    "broadcast_in_dim": _broadcast,
    "concatenate": _joined,
    "convert_element_type": _same,  # Both arrays have one dtype, which is checked.
    "copy": _same,
    "div": _quotient,
    "dot_general": _contraction,
    "mul": _times,
    "neg": _negated,
    "reduce_sum": _total,
    "reshape": _reshape,
    "slice": _part,
    "split": _part,
    "squeeze": _reshape,
    "stack": _stacked,
    "sub": _sum,
    "transpose": _transpose,
    "unstack": _member,
}
