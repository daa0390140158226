"""Functions that build graphs: from edge lists, from matrices of scipy, from networkx and jraph.

The classmethods of ``CSRGraph`` describe the arguments. ``cls`` is the class of the graph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxgnn._arrays.arrays import ids_in_range, is_concrete, kept, offset_dtype, own, put_own, take
from jaxgnn.graph.csr.edge_list import (
    EdgeList,
    EdgeNames,
    as_arrays,
    check_edge_list,
    keep_order,
    ordered_edge_data,
)
from jaxgnn.graph.csr.interchange import attribute_data, networkx_edges, scipy_parts
from jaxgnn.graph.csr.validation import check_finite
from jaxgnn.graph.plan.built_parts import plan_on_demand
from jaxgnn.graph.plan.device_sorting import is_for_device, sort_on_device
from jaxgnn.graph.plan.sorting import compress, sort_edges


def takes_both_ends[F: Callable[..., Any]](function: F) -> F:
    """Decorates ``from_edges``: an error about missing arguments names ``from_edge_index``."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            call = "CSRGraph.from_edge_index(edge_index, num_nodes)"
            is_other = "edge_index" in options or "missing" in str(error)
            advice = f"; for an edge_index [2, edges] call {call}" if is_other else ""
            raise TypeError(f"CSRGraph.from_edges: {error}{advice}") from None
        return function(*args, **options)

    return cast(F, checked)


def from_edges(
    cls: Any, names: EdgeNames, edges: EdgeList, sizes: tuple[int, int | None], edge_data: PyTree
) -> Any:
    """Builds the graph of an edge list, and returns data of the edges, if any, in its order.

    ``sizes`` are the numbers of receivers and of senders, None if they are the same nodes.
    """
    is_wanted = edge_data is not None
    graph, order = sorted_graph(cls, names, edges, *sizes, with_order=is_wanted)
    if not is_wanted:
        return graph
    return keep_order(graph, order), ordered_edge_data(names, edge_data, order)


def from_scipy(cls: Any, matrix: Any, weighted: bool | None) -> Any:
    """Builds the graph of a sparse matrix."""
    csr, values = scipy_parts(matrix, weighted)
    graph = cls(
        indptr=put_own(csr.indptr.astype(offset_dtype(csr.nnz))),
        indices=put_own(csr.indices.astype(np.int32)),
        weights=None if values is None else put_own(values),
        num_cols=csr.shape[1],
    )
    return plan_on_demand(graph.validate())


def from_networkx(
    cls: Any,
    graph: Any,
    weight: str | None,
    node_attributes: Sequence[str] | None,
    edge_attributes: Sequence[str] | None,
) -> Any:
    """Builds the graph of a networkx graph, and returns its nodes and the wanted attributes."""
    names = EdgeNames("CSRGraph.from_networkx", "graph.edges", "graph.edges")
    listed = networkx_edges(graph, weight)
    edges = EdgeList(listed.senders, listed.receivers, listed.weights)
    result, order = sorted_graph(cls, names, edges, len(listed.nodes), with_order=True)
    result = keep_order(result, own(listed.positions[order]))
    if node_attributes is None and edge_attributes is None:
        return result, listed.nodes
    wanted = node_attributes or (), edge_attributes or ()
    return result, listed.nodes, attribute_data(listed, *wanted, listed.positions[order])


def from_graphs_tuple(cls: Any, graphs: Any, weights: Any, padded: bool, return_edges: bool) -> Any:
    """Builds the graph of a ``GraphsTuple`` of jraph, and returns its edges if asked."""
    from jaxgnn.graph.csr.jraph import edge_list

    senders, receivers, num_nodes, edge_mask = edge_list(graphs, padded=padded)
    edges = EdgeList(senders, receivers, weights, edge_mask)
    names = EdgeNames("CSRGraph.from_graphs_tuple", edge_data="graphs.edges")
    graph, order = sorted_graph(cls, EdgeNames(), edges, num_nodes, with_order=return_edges)
    if not return_edges:
        return graph
    return keep_order(graph, order), ordered_edge_data(names, graphs.edges, order)


def sorted_graph(
    cls: Any,
    names: EdgeNames,
    edges: EdgeList,
    num_nodes: int,
    num_senders: int | None = None,
    *,
    with_order: bool = False,
) -> tuple[Any, Any]:
    """Builds the ``cls`` of an edge list, concrete or traced.

    Returns:
      The graph, and if ``with_order`` the input position of each edge slot, in numpy if the list is
      concrete; else None.
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
    if mask is not None:  # Senders of padding may be out of range.
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
