"""Rows of nodes at the ends of edges, and sums of edges at the nodes: each the other's gradient."""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.plan import GraphPlan
from jaxgnn.ops._edge_mlp.reference.interaction import EdgeLists, taken
from jaxgnn.ops._graph.spmm import SPMM
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient

End = Literal["receivers", "senders"]
"""An end of an edge."""


@partial(custom_vjp, nondiff_argnums=(0, 1))
def take_at(
    request: dispatch.Request, end: End, edges: EdgeLists, x: Float[Array, "nodes d"]
) -> Float[Array, "edges d"]:
    """The row of the node at an end of each edge; zeros in padding."""
    return taken(x, edges.receivers if end == "receivers" else edges.senders)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def sum_at(
    request: dispatch.Request, end: End, edges: EdgeLists, values: Float[Array, "edges d"]
) -> Float[Array, "nodes d"]:
    """Sums the values of edges at an end, in float32 (float64 for float64), rounded once.

    The values of padding are not read.
    """
    return SPMM(request, _slots_of_nodes(end, edges), values)


def _slots_of_nodes(end: End, edges: EdgeLists) -> CSRGraph:
    """The matrix with a row for each node and a column for each edge, of ones."""
    graph, order = edges.graph, edges.order
    if end == "receivers":
        plan = graph.made_plan("schedule")
        indptr, schedule = graph.indptr, plan.schedule
        slots = jnp.arange(graph.num_edges, dtype=jnp.int32) if order is None else order
    else:
        plan = graph.made_plan("schedule", "transpose", "permutation")
        indptr, schedule = plan.transposed_indptr, plan.transposed_schedule
        slots = plan.permutation
        slots = slots if order is None else order[slots]
    rows = GraphPlan(schedule=schedule)
    return CSRGraph(indptr, slots, num_cols=graph.num_edges, plan=rows, in_range=True)


set_gradient(take_at, lambda request, end, edges, x, dy: (None, sum_at(request, end, edges, dy)), 2)
set_gradient(sum_at, lambda request, end, edges, v, dy: (None, take_at(request, end, edges, dy)), 2)
