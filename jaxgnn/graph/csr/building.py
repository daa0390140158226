"""Builds a graph from an edge list: the step that all constructors share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import ids_in_range, is_concrete, kept, own, put_own, take
from jaxgnn.graph.csr.edge_list import EdgeList, EdgeNames, as_arrays, check_edge_list
from jaxgnn.graph.csr.validation import check_finite
from jaxgnn.graph.plan.device_sorting import is_for_device, sort_on_device
from jaxgnn.graph.plan.on_demand import plan_on_demand
from jaxgnn.graph.plan.sorting import compress, sort_edges


def sorted_graph(
    cls: Any,
    names: EdgeNames,
    edges: EdgeList,
    num_nodes: int,
    num_senders: int | None = None,
    *,
    with_order: bool = False,
) -> tuple[Any, Any]:
    """Builds the graph of an edge list, and on request the input position of its edge slots.

    Args:
      cls: ``CSRGraph``.
      names: the function and the arguments that errors name.
      edges: the edges in input order, concrete or traced.
      num_nodes: number of receivers.
      num_senders: number of senders; None for that of receivers.
      with_order: whether to return the positions.

    Returns:
      The graph, and the positions: in numpy if the list is concrete, traced otherwise. None unless
      requested.
    """
    edges = as_arrays(edges)
    num_cols = num_nodes if num_senders is None else num_senders
    check_edge_list(names, edges, num_nodes, num_cols)
    is_host = is_concrete(edges.senders, edges.receivers, edges.mask)
    if is_host:
        needs_order = with_order or edges.weights is not None
        indptr, indices, order = _sort_concrete(edges, num_nodes, num_cols, needs_order)
    else:
        indptr, indices, order = _sort_traced(edges, num_nodes, num_cols)
    weights = None if edges.weights is None else _taken(edges.weights, order)
    # Edges out of range raise if the list is concrete, and are padding if it is traced.
    parts = {"indptr": indptr, "indices": indices, "weights": weights}
    graph = cls(**parts, num_cols=num_cols, in_range=True)
    if is_concrete(indptr, weights) and weights is not None:
        check_finite("CSRGraph", "weights", np.asarray(weights)[: np.asarray(indptr)[-1]])
    if not with_order:
        order = None
    elif is_host:
        order = own(np.asarray(order))
    # Weights may be traced even if the structure is concrete.
    return plan_on_demand(graph) if is_host else graph, order


def _sort_concrete(edges: EdgeList, num_rows: int, num_cols: int, needs_order: bool):
    """Sorts by receiver where arrays are placed; the order is None if it is not needed."""
    senders, receivers, _, mask = edges
    if is_for_device(receivers.shape[0]):
        return sort_on_device(receivers, senders, num_rows, mask)
    senders, receivers = (np.asarray(ids).astype(np.int32, copy=False) for ids in edges[:2])
    if mask is not None:  # the senders of padding may be out of range
        indptr, order = sort_edges(receivers, num_rows, mask)
        return put_own(indptr), put_own(senders[order]), order
    # Without an order only the senders and one byte an edge have to be moved.
    values = np.arange(len(senders), dtype=np.int32 if needs_order else np.int8)
    if len(senders) > np.iinfo(np.int32).max:
        values = values.astype(np.int64)
    shape = max(num_rows, 1), max(num_cols, 1)
    indptr, indices, values = compress(receivers, senders, values, shape)
    indptr = put_own(indptr[: num_rows + 1])
    return indptr, put_own(indices), values if needs_order else None


def _sort_traced(edges: EdgeList, num_rows: int, num_cols: int):
    # A traced program may read the other arrays later, when it runs.
    senders, receivers, _, mask = map(kept, edges)
    if not is_concrete(senders, receivers):
        exists = ids_in_range(senders, num_cols) & ids_in_range(receivers, num_rows)
        mask = exists if mask is None else mask & exists
    indptr, order = sort_edges(receivers, num_rows, mask)
    return indptr, take(jnp.asarray(senders).astype(np.int32), order), order


def _taken(array: Any, order: Any) -> Any:
    """Returns ``array[order]`` on the host, or on the device where the order is."""
    if isinstance(order, np.ndarray):
        return take(array, order)
    return jnp.asarray(kept(array))[order]
