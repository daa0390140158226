"""Edge lists as callers pass them, and checks of these lists."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxgnn._arrays.arrays import (
    first_outside,
    is_concrete,
    require_integers,
    require_length,
    require_size,
    require_weights,
)
from jaxgnn._arrays.byte_order import in_native_order
from jaxgnn._arrays.id_range import least_and_most
from jaxgnn._errors import bad_input
from jaxgnn.graph.plan.device_sorting import is_for_device


class EdgeNames(NamedTuple):
    """Names of the arguments of a constructor for the parts of an edge list, used in errors."""

    where: str = "CSRGraph.from_edges"
    senders: str = "senders"
    receivers: str = "receivers"
    edge_data: str = "edge_data"


class EdgeList(NamedTuple):
    """The edges that a constructor was given: arrays, or lists of numbers, in input order.

    Attributes:
      senders: node that each edge leaves.
      receivers: node that each edge enters.
      weights: weight of each edge, [edges] or [edges, heads], or None.
      mask: False for padding edges, or None for no padding.
    """

    senders: Any
    receivers: Any
    weights: Any = None
    mask: Any = None


def as_arrays(edges: EdgeList) -> EdgeList:
    """Returns the same edges as arrays."""
    return EdgeList(
        senders=as_array(edges.senders, np.int32),
        receivers=as_array(edges.receivers, np.int32),
        weights=None if edges.weights is None else as_array(edges.weights),
        mask=None if edges.mask is None else as_array(edges.mask, np.bool),
    )


def as_array(values: Any, empty_dtype: Any = None) -> Any:
    """Converts to an array, of dtype ``empty_dtype`` if empty, since numpy makes [] float."""
    array = in_native_order(values if hasattr(values, "dtype") else np.asarray(values))
    return array if array.size or empty_dtype is None else np.zeros(array.shape, empty_dtype)


def rows_of_edge_index(where: str, edge_index: Any) -> Any:
    """Returns the senders and the receivers of an ``edge_index``, or raises ValueError."""
    if is_concrete(edge_index):  # so that its rows are split without a compilation
        try:
            edge_index = np.asarray(edge_index)
        except ValueError as error:  # from lists of different lengths
            raise bad_input(where, "edge_index", "of shape [2, edges]", str(error)) from error
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        expected = "of shape [2, edges], row 0 the senders and row 1 the receivers"
        if edge_index.ndim == 2 and edge_index.shape[1] == 2:
            expected += " (pass edge_index.T of pairs of nodes)"
        raise bad_input(where, "edge_index", expected, f"shape {edge_index.shape}")
    if edge_index.size:
        require_integers(where, "edge_index", edge_index)
    return edge_index[0], edge_index[1]


def check_edge_list(names: EdgeNames, edges: EdgeList, num_nodes: int, num_cols: int) -> None:
    """Raises ValueError unless these arrays are edges from ``num_cols`` to ``num_nodes`` nodes."""
    where = names.where
    senders, receivers, weights, edge_mask = edges
    require_size(where, "num_nodes", num_nodes)
    require_size(where, "num_senders", num_cols)
    for name, row, ids in ((names.senders, 0, senders), (names.receivers, 1, receivers)):
        other = receivers if ids is senders else senders
        is_edge_index = other.ndim != 1 or other.shape == ids.shape[1:]
        if ids.ndim == 2 and ids.shape[0] == 2 and is_edge_index:
            size = ids.shape[-1]
            expected = f"of shape ({size},); of an edge_index [2, edges] pass edge_index[{row}]"
            expected += ", or use CSRGraph.from_edge_index"
            raise bad_input(where, name, expected, f"shape {ids.shape}")
    require_integers(where, names.senders, senders)
    require_integers(where, names.receivers, receivers)
    require_length(where, names.receivers, receivers, receivers.size, "per edge")
    require_length(where, names.senders, senders, receivers.shape[0], "per receiver")
    if edge_mask is not None:
        require_length(where, "edge_mask", edge_mask, receivers.shape[0], "per edge")
    if weights is not None:
        require_weights(where, "weights", weights, receivers.shape[0], "per edge")
    if edge_mask is not None and edge_mask.dtype != bool:
        raise bad_input(where, "edge_mask", "of dtype bool", edge_mask.dtype)
    sides = (names.senders, senders, num_cols), (names.receivers, receivers, num_nodes)
    for name, ids, bound in sides:
        if is_concrete(ids, edge_mask):
            _check_range(where, name, ids, edge_mask, bound)


def _check_range(where, name, ids, edge_mask, bound):
    if isinstance(ids, jax.Array) and is_for_device(ids.size):
        least, most = least_and_most(ids)
        if least >= 0 and most < bound:
            return
    ids, mask = np.asarray(ids), None if edge_mask is None else np.asarray(edge_mask)
    at = first_outside(ids, bound, mask)
    if at is not None:
        raise bad_input(where, f"{name}[{at}]", f"in [0, {bound})", int(ids[at]))
