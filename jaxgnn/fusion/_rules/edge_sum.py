"""Sums along the features of gathered rows are computed by nodes instead of edges.

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

import jax.numpy as jnp

from jaxgnn.fusion._edges import rows_that_are_read
from jaxgnn.fusion._products import IN_RANGE, multiplied, product_of
from jaxgnn.fusion._program import Equation
from jaxgnn.fusion._rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion._view import View


def _propose(view: View, equation: Equation) -> Rewrite | Refusal | None:
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


RULE = Rule("edge_sum", frozenset(("reduce_sum",)), _propose)
