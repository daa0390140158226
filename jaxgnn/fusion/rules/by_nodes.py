"""Products of gathered rows with a matrix are computed by nodes instead of edges.

``concatenate([h[receivers], h[senders], e], -1) @ W`` is
``(h @ W_r)[receivers] + (h @ W_s)[senders] + e @ W_e``, where the rows of ``W`` are cut as the
columns of the concatenation are. There are as many products as nodes, not edges, and no array of
edges times the width of the concatenation. ``h[senders] @ W`` is a case of this with one part.

Sound where ids are known and in range (or clipped), for any ids in any order. Rows that no edge
reads are included in the product of nodes. If there are any, they are set to zero first, so that
NaN or infinities in them reach neither results nor gradients. Rounding differs: sums along the
columns are added in another order.

It pays if there are fewer nodes than edges, which is also a condition.


Sums along the features of gathered rows are computed by nodes instead of edges.

``(x[senders] * a).sum(-1)``, in which ``a`` is the same for all edges, is ``(x * a).sum(-1)``, read
by the senders. Scores of graph attention are written this way.

Sound where the ids are known and in range (or clipped), for any ids in any order, and only the rows
of one table vary along the edges among the factors. Rows of the table that no edge reads are set to
zero first, so that NaN or infinities in them reach neither results nor gradients.

Rows are multiplied with one factor after the other, as the code does it. Where the code multiplies
factors with each other first, their products must stay in range.

It pays where nodes are fewer than edges, which is a condition too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgnn.fusion.edges import RowGather, row_gather, rows_that_are_read
from jaxgnn.fusion.products import IN_RANGE, multiplied, product_of
from jaxgnn.fusion.program import Atom, Equation
from jaxgnn.fusion.rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion.view import View


@dataclass(frozen=True)
class _Part:
    """Some columns of the left factor."""

    atom: Atom  # the columns, or the table of which they are rows
    start: int  # the first of them
    end: int  # the one after the last of them
    gather: RowGather | None = None  # the gather that reads them from the table, or None
    # Mask of the rows of the table that are read; None if all are, or there is no table.
    is_read: np.ndarray | None = None

    def times(self, equation: Equation, array: Any, matrix: Any) -> Any:
        """The product of these columns with their rows of the matrix."""
        axis = equation.params["dimension_numbers"][0][1][0]
        rows = lax.slice_in_dim(matrix, self.start, self.end, axis=axis)
        if self.is_read is not None and self.gather is not None:
            shape = [-1 if d == self.gather.axis else 1 for d in range(array.ndim)]
            array = jnp.where(self.is_read.reshape(shape), array, 0)
        return equation.primitive.bind(array, rows, **equation.params)


def _propose_projection(view: View, equation: Equation) -> Rewrite | Refusal | None:
    left, right = equation.invars
    output = equation.outvars[0]
    (contracted, of_right), batch = equation.params["dimension_numbers"]
    last = left.aval.ndim - 1
    if last < 1 or tuple(contracted) != (last,) or len(of_right) != 1 or any(batch):
        return None
    if not jnp.issubdtype(output.aval.dtype, jnp.floating) or right.aval.ndim > 2:
        return None
    parts = _parts(view, left)
    if isinstance(parts, str):
        return Refusal(equation, parts)
    gathers = [p.gather for p in parts if p.gather is not None]
    if not gathers or any(g.axis == last for g in gathers):
        return None
    rows_of_edges = sum(g.equation.outvars[0].aval.size for g in gathers)
    rows_of_nodes = sum(g.table.aval.size for g in gathers)
    if 2 * rows_of_nodes > rows_of_edges:
        return Refusal(equation, "there are not twice as many edges as nodes")

    def function(matrix, *arrays):
        arrays, places = arrays[: len(parts)], list(arrays[len(parts) :])
        made = None
        for part, array in zip(parts, arrays, strict=True):
            term = part.times(equation, array, matrix)
            if part.gather is not None:
                term = part.gather.read(term, places.pop(0))
            made = term if made is None else made + term
        return [made]

    inputs = [right, *(p.atom for p in parts), *(g.places for g in gathers)]
    before = 2 * nbytes(left) + nbytes(right, output)
    tables = nbytes(*(g.table for g in gathers))
    after = nbytes(right, *(p.atom for p in parts)) + tables + (1 + len(gathers)) * nbytes(output)
    note = f"{left.aval.str_short()} @ {right.aval.str_short()} -> {len(parts)} products"
    return Rewrite(equation, inputs, function, note, before, after, is_open=True)


def _parts(view: View, left: Atom) -> list[_Part] | str:
    """The parts of the left factor, or the reason why a gather among them is not moved."""
    parts, start = [], 0
    for atom in columns_of(view, left):
        end = start + atom.aval.shape[-1]
        gather = row_gather(view, atom)
        if gather is None:
            parts.append(_Part(atom, start, end))
        else:
            is_read = rows_that_are_read(view, gather)
            if isinstance(is_read, str):
                return is_read
            mask = None if is_read.all() else is_read
            parts.append(_Part(gather.table, start, end, gather, mask))
        start = end
    return parts


def columns_of(view: View, atom: Atom) -> list[Atom]:
    """The arrays that are concatenated along the last axis."""
    equation = view.made_by(atom, "concatenate")
    if equation is None or equation.params["dimension"] != atom.aval.ndim - 1:
        return [atom]
    return [part for piece in equation.invars for part in columns_of(view, piece)]


PROJECTION = Rule("edge_projection", frozenset(("dot_general",)), _propose_projection)


def _propose_sum(view: View, equation: Equation) -> Rewrite | Refusal | None:
    (summed,) = equation.invars
    output, axes = equation.outvars[0], tuple(equation.params["axes"])
    if not axes or min(axes) == 0 or not jnp.issubdtype(output.aval.dtype, jnp.floating):
        return None
    product = product_of(view, summed, axis=0)
    if len(product.tables) != 1:
        return None
    factors = [*product.scalars, *product.constants, *product.others]
    gather = product.tables[0].gather
    if gather is None or any(0 in factor.axes for factor in factors):
        return None
    is_read = rows_that_are_read(view, gather)
    if isinstance(is_read, str):
        return Refusal(equation, is_read)
    if 2 * gather.size > product.edges:
        return Refusal(equation, "there are not twice as many edges as nodes")

    def function(table, places, *arrays):
        mask = is_read.reshape(-1, *[1] * (table.ndim - 1))
        rows = table if is_read.all() else jnp.where(mask, table, 0)
        rows = multiplied(rows.astype(summed.aval.dtype), factors, arrays, rows.ndim)
        sums = equation.primitive.bind(rows, **equation.params)
        return [gather.read(sums if product.sign > 0 else -sums, places)]

    inputs = [gather.table, gather.places, *(factor.atom for factor in factors)]
    edges = nbytes(summed)
    note = f"sum of {summed.aval.str_short()} -> sums by nodes"
    before, after = 3 * edges + nbytes(output), 2 * nbytes(gather.table) + 2 * nbytes(output)
    assumes = () if product.is_chain else (IN_RANGE,)
    return Rewrite(equation, inputs, function, note, before, after, is_open=True, assumes=assumes)


SUM = Rule("edge_sum", frozenset(("reduce_sum",)), _propose_sum)
