"""Transforms that merge all edges from one node to another, on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from jaxgnn._arrays.arrays import own
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.transform_input import edges_of
from jaxgnn.graph.plan.sorting import sort_edges

Reduce = Literal["sum", "mean", "min", "max", "mul"]
"""Reduction of the weights of merged edges."""

_UFUNCS: dict[Reduce, Callable[..., np.ndarray]] = {
    "sum": np.add.reduceat,
    "mean": np.add.reduceat,  # then divided by the number of edges
    "min": np.minimum.reduceat,
    "max": np.maximum.reduceat,
    "mul": np.multiply.reduceat,
}


@overload
def coalesce(graph: CSRGraph, reduce: Reduce = "sum") -> CSRGraph: ...
@overload
def coalesce(
    graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: Literal[True]
) -> tuple[CSRGraph, np.ndarray]: ...
def coalesce(graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: bool = False) -> Any:
    """Merges all edges from one node to another into one edge.

    An unweighted graph stays without weights, so an edge that occurred three times then counts
    once. To keep the count, give the graph weights of one first.

    Args:
      graph: a graph that is not normalised; it may be bipartite.
      reduce: how the weights of merged edges are combined, in float64: ``"sum"``, ``"mean"``,
        ``"min"``, ``"max"`` or ``"mul"``.
      return_slots: whether to return the new slots of the edges.

    Returns:
      The graph, its edges sorted by receiver and then by sender. With ``return_slots`` also the new
      slot of each old edge (padding aside), int [edges]; ``jax.ops.segment_sum`` combines edge
      features by it.

    Raises:
      ValueError: if the graph is traced or normalised, or ``reduce`` is unknown.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> graph = CSRGraph.from_edges([2, 0, 2], [1, 1, 1], 3, np.float32([1, 2, 3]))
      >>> made, slots = coalesce(graph, return_slots=True)
      >>> made.indices.tolist(), made.weights.tolist(), slots.tolist()
      ([0, 2], [2.0, 4.0], [1, 0, 1])
    """
    edges = edges_of("coalesce", graph, allow_bipartite=True)
    _check_reduce("coalesce", reduce)
    merged = _merge(edges.senders, edges.receivers, edges.weights, reduce, graph.shape)
    made = _merged_graph(merged, graph.shape)
    return (made, own(merged.slots)) if return_slots else made


@overload
def to_undirected(graph: CSRGraph, reduce: Reduce = "sum") -> CSRGraph: ...
@overload
def to_undirected(
    graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: Literal[True]
) -> tuple[CSRGraph, np.ndarray]: ...
def to_undirected(graph: CSRGraph, reduce: Reduce = "sum", *, return_slots: bool = False) -> Any:
    """Adds the reverse of every edge, then merges all edges from one node to another.

    As in PyTorch Geometric, ``"sum"`` gives both directions the sum of the weights of both. So a
    graph that is undirected already gets twice its weights, and so does every self loop, which is
    its own reverse. ``"mean"`` and ``"max"`` do not change an undirected graph without repeated
    edges. An unweighted graph stays without weights.

    Args:
      graph: a square graph that is not normalised.
      reduce: how the weights of merged edges are combined, in float64: ``"sum"``, ``"mean"``,
        ``"min"``, ``"max"`` or ``"mul"``.
      return_slots: whether to return the new slots of the edges.

    Returns:
      The graph, its edges sorted by receiver and then by sender. With ``return_slots`` also the new
      slots of each old edge (padding aside), int [2, edges]: its own, and that of its reverse.

    Raises:
      ValueError: if the graph is traced, not square or normalised, or ``reduce`` is unknown.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> path = CSRGraph.from_edges([0, 1], [1, 2], 3)
      >>> made = to_undirected(path)
      >>> made.indices.tolist(), made.receivers().tolist()
      ([1, 0, 2, 1], [0, 1, 1, 2])
    """
    edges = edges_of("to_undirected", graph)
    _check_reduce("to_undirected", reduce)
    senders = np.concatenate([edges.senders, edges.receivers])
    receivers = np.concatenate([edges.receivers, edges.senders])
    weights = None if edges.weights is None else np.concatenate([edges.weights] * 2)
    merged = _merge(senders, receivers, weights, reduce, graph.shape)
    made = _merged_graph(merged, graph.shape)
    return (made, own(merged.slots.reshape(2, -1))) if return_slots else made


class _Merged(NamedTuple):
    """Distinct edges, sorted by receiver and then by sender.

    Attributes:
      senders: sender of each new edge.
      receivers: receiver of each new edge.
      weights: combined weights, or None.
      slots: new edge into which each old edge is merged.
    """

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray | None
    slots: np.ndarray


def _check_reduce(where: str, reduce: str) -> None:
    """Raises ValueError unless ``reduce`` is the name of a reduction."""
    if reduce not in _UFUNCS:
        raise bad_input(where, "reduce", f"one of {', '.join(map(repr, _UFUNCS))}", repr(reduce))


def _merge(
    senders: np.ndarray,
    receivers: np.ndarray,
    weights: np.ndarray | None,
    reduce: Reduce,
    shape: tuple[int, int],
) -> _Merged:
    """Merges all edges that have the same two ends.

    Args:
      senders: int32 [edges].
      receivers: int32 [edges].
      weights: floating [edges] or [edges, heads], combined in float64 and returned in their dtype;
        or None.
      reduce: how weights are combined.
      shape: the numbers of receivers and of senders.
    """
    # Two counting sorts, which are linear and keep the order of equal ends.
    _, by_sender = sort_edges(senders, shape[1])
    _, by_receiver = sort_edges(receivers[by_sender], shape[0])
    order = by_sender[by_receiver]
    senders, receivers = senders[order], receivers[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (senders[1:] != senders[:-1]) | (receivers[1:] != receivers[:-1])
    starts = np.flatnonzero(is_first)
    slots = np.empty(len(order), np.int64)
    slots[order] = np.cumsum(is_first) - 1
    if weights is not None:
        dtype = weights.dtype
        wide = weights[order].astype(np.float64)
        combined = _UFUNCS[reduce](wide, starts) if len(starts) else wide
        if reduce == "mean":
            counts = np.diff(starts, append=len(order))
            combined = combined / counts.reshape(-1, *[1] * (weights.ndim - 1))
        weights = combined.astype(dtype)
    return _Merged(senders[starts], receivers[starts], weights, slots)


def _merged_graph(merged: _Merged, shape: tuple[int, int]) -> CSRGraph:
    num_rows, num_cols = shape
    return CSRGraph.from_edges(
        merged.senders, merged.receivers, num_rows, merged.weights, num_senders=num_cols
    )
