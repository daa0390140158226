"""Maxima and minima of gathered rows become ``ops.neighbour_reduce``.

Sound where the ids of both ends are known, edges that are not ignored read existing rows (or the
nearest, under ``mode="clip"``), and the reduction starts at -inf, for the maximum, or at inf. Then
segments without edges keep that infinity. Edges that tie share the gradient in both.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn.fusion._edges import graph_of, is_filled_with, row_gather, segment_reduction
from jaxgnn.fusion._program import Equation
from jaxgnn.fusion._rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion._view import View

STARTS = {"max": -np.inf, "min": np.inf}


def _propose(view: View, equation: Equation) -> Rewrite | Refusal | None:
    reduction = segment_reduction(equation)
    output = equation.outvars[0]
    if reduction is None or not jnp.issubdtype(output.aval.dtype, jnp.floating):
        return None
    gather = row_gather(view, reduction.updates)
    if gather is None or gather.axis != reduction.axis:
        return None
    start = STARTS[reduction.kind]
    if not is_filled_with(view, reduction.base, start):
        return Refusal(equation, f"the reduction does not start at {start}")
    graph = graph_of(view, reduction, gather)
    if isinstance(graph, str):
        return Refusal(equation, graph)

    def function(table):
        y = ops.neighbour_reduce(graph.graph, _with_features(table), reduction.kind, axis=axis)
        return [with_start(y.reshape(output.aval.shape), graph.has_edges, start, axis)]

    axis, edges = reduction.axis, nbytes(reduction.updates)
    after = edges + nbytes(gather.table, output)
    note = f"{reduction.kind} of {reduction.updates.aval.str_short()} -> neighbour_reduce"
    return Rewrite(equation, [gather.table], function, note, 3 * edges + nbytes(output), after)


def _with_features(x):
    return x if x.ndim > 1 else x[:, None]


def with_start(y, has_edges, start, axis):
    """The results, with ``start`` for segments without edges."""
    if has_edges.all():
        return y
    mask = has_edges.reshape(-1, *[1] * (y.ndim - axis - 1))
    return jnp.where(mask, y, jnp.asarray(start, y.dtype))


RULE = Rule("neighbour_extreme", frozenset(("scatter-max", "scatter-min")), _propose)
