"""Moves a product with a matrix to the side of a neighbour sum where rows are narrower.

``segment_sum(x[senders] * w, receivers) @ W`` and ``segment_sum((x @ W)[senders] * w, receivers)``
are equal, and so are means. The sum reads a row for each edge, so it should run on the narrower
rows: before the product if ``W`` widens them, after it if ``W`` makes them narrower.

Sound where

* the ids that are gathered are known and in range (or clipped), for any ids in any order; ids that
  are summed by may have any values;
* the summed array is a product of rows of one table, numbers of edges and constants, and the sum
  starts at zero; between the sum and the product there are only numbers of nodes and constants;
* the product is along the features with a matrix, without a bias.

Rows that no edge reads are set to zero before they are multiplied, so that a number in them that is
not finite reaches neither results nor gradients. Rounding differs. Both orders are equal for finite
numbers, if neither the sums nor the products overflow where the code has the other one first.

It pays if the rows of the sum become at most half as wide, since a gradient of the sum to features
that need none costs nothing. It must also save more time on bytes than it adds in operations, and
nothing else may read the values in between. All these are conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn.fusion.program.matching import Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation, Values
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import mask_rows, rows_that_are_read
from jaxgnn.fusion.recognise.gathers import (
    RowGather,
    SegmentReduction,
    is_filled_with,
    segment_reduction,
)
from jaxgnn.fusion.recognise.products import Factor, Product, multiplied, product_of
from jaxgnn.fusion.recognise.templates import is_matrix_product
from jaxgnn.fusion.rules.maxk import maxk_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule

# Operations that take as long as a byte of memory; an upper estimate for current CPUs and GPUs.
_OPERATIONS_PER_BYTE = 16
_ASSUMES = ("finite numbers, and sums and products that do not overflow in either order",)


@dataclass(frozen=True)
class _Sum:
    """Sum over neighbours of rows of one table."""

    reduction: SegmentReduction
    product: Product  # Summed array, taken apart.
    gather: RowGather  # Gather of the rows.

    @property
    def factors(self) -> list[Factor]:
        """The numbers of edges and the constants that rows are multiplied by."""
        return [*self.product.scalars, *self.product.constants]

    @property
    def inputs(self) -> list[Atom]:
        """The atoms that ``apply`` reads besides the table."""
        atoms = [factor.atom for factor in self.factors]
        return [self.gather.ids, self.reduction.ids, *atoms]

    def apply(self, table: Any, values: Values) -> Any:
        """Sums rows of a table of any width."""
        updates = self.gather.read(table, values[self.gather.ids])
        updates = multiplied(updates, self.factors, values, updates.ndim)
        updates = updates if self.product.sign > 0 else -updates
        shape = (*self.reduction.base.aval.shape[:-1], table.shape[-1])
        equation, segments = self.reduction.equation, values[self.reduction.ids]
        base = jnp.zeros(shape, updates.dtype)
        return equation.primitive.bind(base, segments, updates, **equation.params)

    def rows_that_are_read(self, view: View) -> np.ndarray:
        """Returns a mask of the read rows; raises ``Refusal`` if the sum can not be moved."""
        rows = self.gather.equation.outvars[0]
        if not all(map(view.is_read_once, (self.reduction.updates, rows))):
            raise Refusal("the rows are needed, too")
        return rows_that_are_read(view, self.gather)


@or_none
def _sum_of(view: View, equation: Equation) -> _Sum:
    """Returns the sum of rows of one table that a scatter computes, or None."""
    reduction, output = required(segment_reduction(equation)), equation.outvars[0]
    need(reduction.kind == "sum" and reduction.axis == output.aval.ndim - 2)
    need(jnp.issubdtype(output.aval.dtype, jnp.floating))
    product = product_of(view, reduction.updates, reduction.axis)
    need(len(product.tables) == 1 and not product.others and not product.has_heads)
    need(is_filled_with(view, reduction.base, 0))
    return _Sum(reduction, product, required(product.tables[0].gather))


def _is_product(equation: Equation) -> bool:
    """Returns whether an equation multiplies the last axis by a matrix of the same dtype."""
    types = {a.aval.dtype for a in (*equation.invars, *equation.outvars)}
    is_dot = equation.primitive.name == "dot_general"
    return is_dot and len(types) == 1 and is_matrix_product(equation)


def _cost(summed: _Sum, width: int, rows: int, operations: int) -> float:
    """Estimates the cost of a sum of this width and a product of ``rows`` rows, in bytes.

    ``operations`` is the number of operations of the product for each row.
    """
    size = summed.reduction.updates.aval.dtype.itemsize
    edges = summed.product.edges * width * size
    return 2 * edges + rows * operations / _OPERATIONS_PER_BYTE


def _propose(view: View, equation: Equation) -> Rewrite:
    is_product = equation.primitive.name == "dot_general"
    return (_propose_product_first if is_product else _propose_sum_first)(view, equation)


def _propose_product_first(view: View, equation: Equation) -> Rewrite:
    """Moves a product that makes rows narrower before the sum."""
    left, kernel = equation.invars
    need(_is_product(equation) and left.aval.ndim > 1)
    wide, narrow = left.aval.shape[-1], equation.outvars[0].aval.shape[-1]
    scaled = product_of(view, left, left.aval.ndim - 2)
    need(not scaled.tables and len(scaled.others) == 1 and 0 < 2 * narrow <= wide)
    of_sums = scaled.others[0]
    summed = required(_sum_of(view, required(view.producer(of_sums.atom))))
    need(not of_sums.is_inverse)
    need(view.is_read_once(left) and view.is_read_once(of_sums.atom))
    is_read = summed.rows_that_are_read(view)
    table = summed.gather.table
    is_repeated = of_sums.atom.aval.shape != left.aval.shape
    need(not scaled.has_heads and not is_repeated and maxk_of(view, table) is None)
    operations = 2 * wide * narrow
    before = _cost(summed, wide, left.aval.size // wide, operations)
    after = _cost(summed, narrow, table.aval.size // wide, operations)
    if after > before:
        raise Refusal("the product of all senders costs more than it saves")
    factors = [*scaled.scalars, *scaled.constants]

    def function(*arrays):
        values = Values(inputs, arrays)
        rows = mask_rows(is_read, values[table], summed.gather.axis).astype(left.aval.dtype)
        product = equation.primitive.bind(rows, values[kernel], **equation.params)
        sums = multiplied(summed.apply(product, values), factors, values, left.aval.ndim)
        return [sums if scaled.sign > 0 else -sums]

    inputs = [table, kernel, *summed.inputs, *(factor.atom for factor in factors)]
    note = f"a sum of {wide} features and a product that leaves {narrow} -> the product first"
    sizes = int(before), int(after)
    return Rewrite(equation, inputs, function, note, *sizes, is_open=True, assumes=_ASSUMES)


def _propose_sum_first(view: View, equation: Equation) -> Rewrite:
    """Moves a product that widens rows after the sum."""
    summed = required(_sum_of(view, equation))
    dot = required(view.producer(summed.gather.table))
    need(_is_product(dot))
    x, kernel = dot.invars
    narrow, wide = x.aval.shape[-1], dot.outvars[0].aval.shape[-1]
    output = equation.outvars[0]
    need(x.aval.dtype == output.aval.dtype and x.aval.ndim == output.aval.ndim)
    need(0 < 2 * narrow <= wide and view.is_read_once(dot.outvars[0]) and _is_movable(view, summed))
    operations = 2 * wide * narrow
    before = _cost(summed, wide, x.aval.size // narrow, operations)
    after = _cost(summed, narrow, output.aval.size // wide, operations)
    if after > before:
        raise Refusal("the product of all receivers costs more than it saves")

    def function(*arrays):
        values = Values(inputs, arrays)
        sums = summed.apply(values[x], values)
        return [dot.primitive.bind(sums, values[kernel], **dot.params)]

    note = f"a product that makes {wide} of {narrow} features and a sum -> the sum first"
    sizes = int(before), int(after)
    inputs = [x, kernel, *summed.inputs]
    return Rewrite(equation, inputs, function, note, *sizes, is_open=True, assumes=_ASSUMES)


def _is_movable(view: View, summed: _Sum) -> bool:
    try:
        summed.rows_that_are_read(view)
    except Refusal:
        return False
    return True


RULE = Rule("linear_order", frozenset(("dot_general", "scatter-add")), _propose)
