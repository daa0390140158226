"""Adds a loop to each node of a graph."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.build import sorted_graph
from jaxgnn.graph.csr.edge_list import (
    EdgeList,
    EdgeNames,
    keep_order,
    known_order,
    reordered,
)
from jaxgnn.graph.csr.normalization import nodes_without_loop
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host

_WHERE = "CSRGraph.with_self_loops"


def with_self_loops(graph: Any, weight: Any, *, duplicates: bool, num_real_nodes: Any) -> Any:
    """Implements ``CSRGraph.with_self_loops`` for a square graph with valid ids, not normalised."""
    is_host = is_concrete(graph.indptr, graph.indices, num_real_nodes)
    xp: Any = np if is_host else jnp
    num_rows, indices = graph.num_rows, xp.asarray(graph.indices)
    receivers = (row_ids_on_host if is_host else row_ids)(graph.indptr, graph.num_edges)
    nodes = xp.arange(num_rows, dtype=np.int32)
    real = receivers < num_rows
    missing = xp.ones(num_rows, bool)
    if not duplicates:
        missing = nodes_without_loop(receivers, indices, num_rows)
    if num_real_nodes is not None:
        missing &= nodes < checked_count(num_real_nodes, num_rows)
    mask: Any = xp.concatenate([real, missing])
    senders, receivers = (xp.concatenate([ids, nodes]) for ids in (indices, receivers))
    weights, order = _with_weights_of_loops(graph, weight), known_order(graph)
    if order is not None:  # Loops have the position -1.
        order = xp.concatenate([order, xp.full(num_rows, -1, order.dtype)])
    is_padded = num_real_nodes is not None or (is_host and not real.all())
    edges = EdgeList(senders, receivers, weights, mask)
    if is_host and not is_padded:  # Keep only slots that hold an edge.
        there = np.flatnonzero(mask)
        weights = None if weights is None else weights[there]
        edges = EdgeList(senders[there], receivers[there], weights)
        order = reordered(order, there)
    names = EdgeNames(_WHERE)
    looped, slots = sorted_graph(type(graph), names, edges, num_rows, with_order=order is not None)
    return keep_order(looped, reordered(order, slots))


def _with_weights_of_loops(graph: Any, weight: Any) -> Any:
    if graph.weights is None:
        return None
    xp: Any = np if is_concrete(graph.weights, weight) else jnp
    new = xp.full((graph.num_rows, *graph.weights.shape[1:]), weight, graph.weights.dtype)
    return xp.concatenate([xp.asarray(graph.weights), new])


def checked_count(count: Any, num_rows: int) -> Any:
    """Returns the number of real nodes, maybe traced; ValueError unless in ``[0, num_rows]``."""
    expected = f"an integer in [0, {num_rows}], the number of nodes that are no padding"
    is_integer = jnp.issubdtype(getattr(count, "dtype", type(count)), jnp.integer)
    if not is_integer or getattr(count, "ndim", 0) != 0:
        raise bad_input(_WHERE, "num_real_nodes", expected, repr(count))
    if is_concrete(count) and not 0 <= int(count) <= num_rows:
        raise bad_input(_WHERE, "num_real_nodes", expected, int(count))
    return count
