"""Maxima and minima of gathered rows become ``ops.neighbour_reduce``.

Sound where the ids of both ends are known, edges that are not ignored read existing rows (or the
nearest, under ``mode="clip"``), and the reduction starts at -inf, for the maximum, or at inf. Then
segments without edges keep that infinity. Edges that tie share the gradient in both, and where the
result is the infinity that the reduction starts at, the start has a share, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn.fusion._edges import graph_of, is_filled_with, row_gather, segment_reduction
from jaxgnn.fusion._graphs import StaticGraph
from jaxgnn.fusion._program import Equation
from jaxgnn.fusion._rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion._view import View
from jaxgnn.ops._core.custom_gradient import custom_vjp

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
        return [with_start(y.reshape(output.aval.shape), graph, start, axis)]

    axis, edges = reduction.axis, nbytes(reduction.updates)
    after = edges + nbytes(gather.table, output)
    note = f"{reduction.kind} of {reduction.updates.aval.str_short()} -> neighbour_reduce"
    return Rewrite(equation, [gather.table], function, note, 3 * edges + nbytes(output), after)


def _with_features(x):
    return x if x.ndim > 1 else x[:, None]


def with_start(y: Any, graph: StaticGraph, start: float, axis: int) -> Any:
    """The results, with ``start`` for segments without edges, and its share of the gradient.

    A result that is ``start`` is so for all edges of the segment, as nothing goes beyond it.
    """
    shape = (-1, *[1] * (y.ndim - axis - 1))
    degrees = np.diff(np.asarray(graph.graph.indptr)).reshape(shape)
    y = _shared_with_start(start, y, jnp.asarray(degrees / (degrees + 1), y.dtype))
    if graph.has_edges.all():
        return y
    return jnp.where(graph.has_edges.reshape(shape), y, jnp.asarray(start, y.dtype))


@partial(custom_vjp, nondiff_argnums=(0,))
def _shared_with_start(start, y, shares):
    """Leaves ``y`` as it is; where it is ``start``, edges get these shares of the gradient."""
    return y


def _shared_with_start_forward(start, y, shares):
    return y, (y, shares)


def _shared_with_start_backward(start, residuals, gradient):
    y, shares = residuals
    return jnp.where(y == start, shares * gradient, gradient), None


_shared_with_start.defvjp(_shared_with_start_forward, _shared_with_start_backward)


RULE = Rule("neighbour_extreme", frozenset(("scatter-max", "scatter-min")), _propose)
