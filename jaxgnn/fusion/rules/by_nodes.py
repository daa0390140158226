"""Products and sums of gathered rows are computed by nodes instead of edges.

``concatenate([h[receivers], h[senders], e], -1) @ W`` is
``(h @ W_r)[receivers] + (h @ W_s)[senders] + e @ W_e``, where the rows of ``W`` are cut as the
columns of the concatenation are. There are as many products as nodes, not edges, and no array of
edges times the width of the concatenation. ``h[senders] @ W`` is a case of this with one part.
Rounding differs: sums along the columns are added in another order.

``(x[senders] * a).sum(-1)``, in which ``a`` is the same for all edges, is ``(x * a).sum(-1)``, read
by the senders. Scores of graph attention are written this way. It is sound where only the rows of
one table vary along the edges among the factors. Rows are multiplied with one factor after the
other, as the code does it. Where the code multiplies factors with each other first, their products
must stay in range.

Both are sound where ids are known and in range (or clipped), for any ids in any order. Rows that no
edge reads are set to zero first, so that NaN or infinities in them reach neither results nor
gradients. They pay if there are fewer nodes than edges, which is also a condition.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from jaxgnn.fusion.graphs.preparations import Preparation
from jaxgnn.fusion.program.matching import Refusal, need, required
from jaxgnn.fusion.program.program import Atom, Equation, Values, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import Mask, mask_of_read_rows, mask_rows
from jaxgnn.fusion.recognise.gathers import RowGather, row_gather
from jaxgnn.fusion.recognise.products import IN_RANGE, multiplied, product_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule


@dataclass(frozen=True)
class _Part:
    """Range of columns of the left factor."""

    atom: Atom  # Array of the columns, or the table that they are gathered from.
    start: int  # First column.
    end: int  # Column after the last one.
    gather: RowGather | None = None  # Gather that reads rows of the table, or None.
    is_read: Mask | None = None  # Mask of the rows of the table that are read.


def _propose_projection(view: View, equation: Equation) -> Rewrite:
    left, right = equation.invars
    output = equation.outvars[0]
    (contracted, of_right), batch = equation.params["dimension_numbers"]
    last = left.aval.ndim - 1
    need(last >= 1 and tuple(contracted) == (last,) and len(of_right) == 1 and not any(batch))
    need(jnp.issubdtype(output.aval.dtype, jnp.floating) and right.aval.ndim <= 2)
    parts = _parts(view, left)
    gathers = [p.gather for p in parts if p.gather is not None]
    need(gathers and all(g.axis != last for g in gathers))
    rows_of_edges = sum(g.equation.outvars[0].aval.size for g in gathers)
    rows_of_nodes = sum(g.table.aval.size for g in gathers)
    _check_sizes(rows_of_nodes, rows_of_edges)

    def function(*arrays):
        values = Values(inputs, arrays)
        total = None
        for part in parts:
            term, gather = values[part.atom], part.gather
            if gather is not None and part.is_read is not None:
                term = mask_rows(part.is_read, term, gather.axis)
            matrix = lax.slice_in_dim(values[right], part.start, part.end, axis=of_right[0])
            term = equation.primitive.bind(term, matrix, **equation.params)
            term = term if gather is None else gather.read(term, values[gather.ids])
            total = term if total is None else total + term
        return [total]

    inputs = [right, *(p.atom for p in parts), *(g.ids for g in gathers)]
    before = 2 * nbytes(left) + nbytes(right, output)
    tables = nbytes(*(g.table for g in gathers))
    after = nbytes(right, *(p.atom for p in parts)) + tables + (1 + len(gathers)) * nbytes(output)
    note = f"{left.aval.str_short()} @ {right.aval.str_short()} -> {len(parts)} products"
    preparations = [p.is_read for p in parts if isinstance(p.is_read, Preparation)]
    return Rewrite(
        equation, inputs, function, note, before, after, is_open=True, preparations=preparations
    )


def _parts(view: View, left: Atom) -> list[_Part]:
    parts, start = [], 0
    for atom in columns_of(view, left):
        end, gather = start + atom.aval.shape[-1], row_gather(view, atom)
        if gather is None:
            parts.append(_Part(atom, start, end))
        else:
            is_read = mask_of_read_rows(view, gather)
            parts.append(_Part(gather.table, start, end, gather, is_read))
        start = end
    return parts


def _check_sizes(nodes: int, edges: int) -> None:
    if 2 * nodes > edges:
        raise Refusal("there are not twice as many edges as nodes")


def columns_of(view: View, atom: Atom) -> list[Atom]:
    """Returns the arrays that are concatenated along the last axis."""
    equation = view.produced_by(atom, "concatenate")
    if equation is None or equation.params["dimension"] != atom.aval.ndim - 1:
        return [atom]
    return [part for piece in equation.invars for part in columns_of(view, piece)]


def _propose_sum(view: View, equation: Equation) -> Rewrite:
    (summed,) = equation.invars
    output, axes = equation.outvars[0], tuple(equation.params["axes"])
    need(axes and min(axes) > 0 and jnp.issubdtype(output.aval.dtype, jnp.floating))
    product = product_of(view, summed, axis=0)
    need(len(product.tables) == 1)
    factors = [*product.scalars, *product.constants, *product.others]
    gather = required(product.tables[0].gather)
    need(not any(0 in factor.axes for factor in factors))
    is_read = mask_of_read_rows(view, gather)
    _check_sizes(gather.size, product.edges)

    def function(*arrays):
        values = Values(inputs, arrays)
        rows = mask_rows(is_read, values[gather.table], 0).astype(summed.aval.dtype)
        rows = multiplied(rows, factors, values, rows.ndim)
        sums = equation.primitive.bind(rows, **equation.params)
        return [gather.read(sums if product.sign > 0 else -sums, values[gather.ids])]

    inputs = [gather.table, gather.ids, *(factor.atom for factor in factors)]
    edges = nbytes(summed)
    note = f"sum of {summed.aval.str_short()} -> sums by nodes"
    before, after = 3 * edges + nbytes(output), 2 * nbytes(gather.table) + 2 * nbytes(output)
    assumes = () if product.is_chain else (IN_RANGE,)
    preparations = [is_read] if isinstance(is_read, Preparation) else []
    return Rewrite(
        equation,
        inputs,
        function,
        note,
        before,
        after,
        is_open=True,
        assumes=assumes,
        preparations=preparations,
    )


PROJECTION = Rule("edge_projection", frozenset(("dot_general",)), _propose_projection)
SUM = Rule("edge_sum", frozenset(("reduce_sum",)), _propose_sum)
