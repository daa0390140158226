"""Reductions of segments become ``ops.neighbour_reduce`` and ``ops.aggregate``.

Those that no other rule has rewritten become ``ops.aggregate``.

Sound where the segment ids are known: rows that are dropped become padding. A sum may start at any
array, which is added; a maximum at -inf and a minimum at inf, which segments without rows keep.

A sum of one constant is that constant times the number of edges of each segment, if the dtype
represents this number exactly: counts of edges, such as the divisors of means, are known in
advance. So are reductions of one known number for each edge, such as degrees with self loops.

Maxima and minima of gathered rows become ``ops.neighbour_reduce``.

Sound where the ids of both ends are known, edges that are not ignored read existing rows (or the
nearest, under ``mode="clip"``), and the reduction starts at -inf, for the maximum, or at inf. Then
segments without edges keep that infinity. Known edges that a ``where`` sets to it are dropped.
Edges that tie share the gradient in both, and where the
result is the infinity that the reduction starts at, the start has a share, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn.fusion.program.matching import NoMatch, Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Equation, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import (
    Graph,
    graph_entering,
    graph_of,
    has_rows_in_order,
    known_rows,
    rows_of,
)
from jaxgnn.fusion.recognise.gathers import (
    SegmentReduction,
    is_filled_with,
    row_gather,
    segment_reduction,
)
from jaxgnn.fusion.recognise.products import product_of, rows_behind, split_masks
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.ops.core.custom_gradient import custom_vjp


def _propose(view: View, equation: Equation) -> Rewrite:
    reduction, output = required(segment_reduction(equation)), equation.outvars[0]
    counted = _counted(view, reduction) if reduction.kind == "sum" else None
    constant = counted or _propose_constant(view, reduction)
    if constant is not None:
        return constant
    need(jnp.issubdtype(output.aval.dtype, jnp.floating))
    rows = rows_of(view, reduction)
    if rows.size == 0:
        raise Refusal("there are no edges")
    start = _STARTS.get(reduction.kind, 0)
    starts_there = is_filled_with(view, reduction.base, start)
    if reduction.kind != "sum" and not starts_there:
        raise Refusal(f"the reduction does not start at {start}")
    axis = reduction.axis
    preparations = (
        ()
        if isinstance(rows, np.ndarray)
        else graph_entering(view, rows, reduction.size).preparations
    )

    def function(updates, *base):
        graph = graph_entering(view, rows, reduction.size)
        slots = graph.to_slots(updates, axis=axis)
        y = ops.aggregate(graph.graph, _add_feature_axis(slots), reduction.kind, axis=axis)
        y = y.reshape(output.aval.shape)
        if reduction.kind != "sum":
            y = _fill_starts(y, graph, start, axis)
        return [base[0] + y if base else y]

    inputs = [reduction.updates] if starts_there else [reduction.updates, reduction.base]
    edges = nbytes(reduction.updates)
    are_sorted = has_rows_in_order(rows)
    moved = 0 if are_sorted else 2 * edges
    note = f"{reduction.kind} of {reduction.updates.aval.str_short()} -> aggregate"
    before, after = 3 * edges + nbytes(output), edges + moved + nbytes(output)
    case = _case(view, reduction, are_sorted=are_sorted)
    return Rewrite(
        equation, inputs, function, note, before, after, case=case, preparations=preparations
    )


def _case(view: View, reduction: SegmentReduction, *, are_sorted: bool) -> str:
    """Names the measured case; XLA computes some messages within its sum."""
    order = "sorted " if are_sorted else ""
    if reduction.kind != "sum":
        return f"extremes of {order}segments"
    if reduction.updates.aval.dtype.itemsize < 4:  # A GPU adds short floats by compare and swap.
        return f"sums of {order}short floats"
    return f"sums of {order}{'products' if _is_computed_within(view, reduction) else 'segments'}"


def _is_computed_within(view: View, reduction: SegmentReduction) -> bool:
    """Returns whether XLA computes messages entry by entry in the loop that sums them.

    It does so where nothing else reads them. Products of matrices, sums and results of other ops
    are arrays in memory in any case.
    """
    equation = view.producer(reduction.updates)
    if equation is None or not view.is_read_once(reduction.updates):
        return False
    return equation.primitive.name in _BY_ENTRY


# Primitives whose results XLA computes entry by entry where they are read.
_BY_ENTRY = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "max", "min", "abs", "sign", "pow", "integer_pow"),
        *("exp", "log", "tanh", "logistic", "erf", "sqrt", "rsqrt", "square", "custom_jvp_call"),
        *("select_n", "clamp", "convert_element_type", "gather"),
        *("broadcast_in_dim", "reshape", "squeeze", "slice", "split", "transpose", "concatenate"),
    )
)


@or_none
def _propose_constant(view: View, reduction: SegmentReduction) -> Rewrite:
    """Proposes a constant for the reduction of known numbers, one for each edge."""
    output, updates = reduction.equation.outvars[0], reduction.updates
    edges = updates.aval.shape[reduction.axis]
    need(updates.aval.size == edges)
    value = required(view.value(output))
    note = f"{reduction.kind} of {edges} known numbers -> a constant"
    before, after = nbytes(updates, output), nbytes(output)

    def function():
        return [jnp.asarray(value)]

    return Rewrite(reduction.equation, [], function, note, before, after, True, "counts")


def _add_feature_axis(x):
    return x if x.ndim > 1 else x[:, None]


@or_none
def _counted(view: View, reduction: SegmentReduction) -> Rewrite:
    """Proposes the number of edges of each segment times a row, for a sum of that row."""
    output, updates = reduction.equation.outvars[0], reduction.updates
    product = product_of(view, updates, reduction.axis)
    need(not (product.tables or product.scalars or product.others))
    need(len(product.constants) == 1 and not product.constants[0].is_inverse)
    need(is_filled_with(view, reduction.base, 0))
    try:
        rows = known_rows(view, reduction)
    except Refusal:
        raise NoMatch from None
    need(rows.size > 0)
    ids = reduction.ids
    question = f"counts {reduction.size} {reduction.mode}", ids
    counts = view.derived(question, lambda: _counts(rows, reduction.size), of=[ids])
    dtype, axis = output.aval.dtype, reduction.axis
    need((counts <= _largest_exact(dtype)).all())

    def function(row):
        shape = (1,) * axis + (-1,) + (1,) * (output.aval.ndim - axis - 1)
        of_segments = jnp.asarray(counts.astype(dtype)).reshape(shape)
        row = row.astype(dtype).reshape((1,) * output.aval.ndim)
        totals = of_segments * (row if product.sign > 0 else -row)
        totals = totals if (counts > 0).all() else jnp.where(of_segments > 0, totals, 0)
        return [jnp.broadcast_to(totals, output.aval.shape)]

    note = f"a constant over {updates.aval.size} entries -> the number of edges of each segment"
    before, after = 3 * nbytes(updates) + nbytes(output), nbytes(output)
    inputs = [product.constants[0].atom]
    return Rewrite(reduction.equation, inputs, function, note, before, after, True, "counts")


def _counts(rows: np.ndarray, size: int) -> np.ndarray:
    """Counts the edges of each row; ignores rows of -1."""
    return np.bincount(rows if rows.min() >= 0 else rows[rows >= 0], minlength=size)


def _largest_exact(dtype) -> int:
    """Returns the largest number up to which this dtype represents all integers."""
    if jnp.issubdtype(dtype, jnp.floating):
        return 2 ** (jnp.finfo(dtype).nmant + 1)
    return int(jnp.iinfo(dtype).max) if jnp.issubdtype(dtype, jnp.integer) else 0


_STARTS = {"max": -np.inf, "min": np.inf}


def _propose_extreme(view: View, equation: Equation) -> Rewrite:
    reduction, output = required(segment_reduction(equation)), equation.outvars[0]
    axis, start = reduction.axis, _STARTS[reduction.kind]
    updates, masked = split_masks(view, reduction.updates, axis, start)
    gather = required(row_gather(view, updates))
    need(gather.axis == axis and jnp.issubdtype(output.aval.dtype, jnp.floating))
    if not is_filled_with(view, reduction.base, start):
        raise Refusal(f"the reduction does not start at {start}")
    entered = rows_of(view, reduction)
    graph = graph_of(view, reduction, gather, rows_behind(view, masked, entered))
    # Masked edges tie with the start, so they have a share of the gradient where it is the result.
    counts = None
    if masked.masks and isinstance(entered, np.ndarray) and entered.size:
        counts = _counts(entered, reduction.size)

    def function(table):
        y = ops.neighbour_reduce(graph.graph, _add_feature_axis(table), reduction.kind, axis=axis)
        return [_fill_starts(y.reshape(output.aval.shape), graph, start, axis, counts)]

    edges = nbytes(reduction.updates)
    after = edges + nbytes(gather.table, output)
    note = f"{reduction.kind} of {reduction.updates.aval.str_short()} -> neighbour_reduce"
    before = 3 * edges + nbytes(output)
    return Rewrite(
        equation, [gather.table], function, note, before, after, preparations=graph.preparations
    )


def _fill_starts(
    y: Any, graph: Graph, start: float, axis: int, counts: np.ndarray | None = None
) -> Any:
    """Fills segments without edges with ``start``, and gives it a share of the gradient.

    If a result is ``start``, all edges of the segment tie with it.
    ``counts`` are the edges of each segment, if some are not in the graph.
    """
    shape = (-1, *[1] * (y.ndim - axis - 1))
    degrees, has_edges = graph.degrees.reshape(shape), graph.has_edges
    ties = 1 + (degrees if counts is None else counts.reshape(shape))
    y = _shared_with_start(start, y, jnp.asarray(degrees / ties, y.dtype))
    if isinstance(has_edges, np.ndarray) and has_edges.all():
        return y
    return jnp.where(has_edges.reshape(shape), y, jnp.asarray(start, y.dtype))


@partial(custom_vjp, nondiff_argnums=(0,))
def _shared_with_start(start, y, shares):
    """Returns ``y``; entries equal to ``start`` pass on these shares of the gradient."""
    return y


def _shared_with_start_forward(start, y, shares):
    return y, (y, shares)


def _shared_with_start_backward(start, residuals, gradient):
    y, shares = residuals
    return jnp.where(y == start, shares * gradient, gradient), None


_shared_with_start.defvjp(_shared_with_start_forward, _shared_with_start_backward)


EXTREME = Rule("neighbour_extreme", frozenset(("scatter-max", "scatter-min")), _propose_extreme)
SEGMENTS = Rule("segments", frozenset(("scatter-add", "scatter-max", "scatter-min")), _propose)
