"""Edge lists and data of edges as callers pass them: checks, and the graph of a list."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from jaxgnn._arrays.arrays import (
    first_outside,
    in_native_order,
    is_concrete,
    own,
    require_integers,
    require_kept_integers,
    require_length,
    require_size,
    require_weights,
    take,
)
from jaxgnn._arrays.eager import least_and_most
from jaxgnn._errors import bad_input
from jaxgnn.graph.plan.device_sorting import is_for_device


class EdgeNames(NamedTuple):
    """Names of the arguments of a constructor for the parts of an edge list, used in errors."""

    where: str = "CSRGraph.from_edges"
    senders: str = "senders"
    receivers: str = "receivers"
    edge_data: str = "edge_data"


class EdgeList(NamedTuple):
    """Edges that a constructor was given, in input order: arrays, or lists of numbers.

    ``weights`` are [edges], [edges, heads] or None; ``mask`` is False for padding edges, or None.
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
    if is_concrete(edge_index):  # NumPy splits its rows without a compilation.
        try:
            edge_index = np.asarray(edge_index)
        except ValueError as error:  # Lists of different lengths raise it.
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


def ordered_edge_data(
    names: EdgeNames, tree: PyTree, permutation: Int[Array, " edges"] | np.ndarray
) -> PyTree:
    """Returns a pytree of arrays [edges, ...] as JAX arrays in the order of the graph's edge slots.

    Raises:
      ValueError: names the path of the first leaf that is not an array of numbers with one entry
        for each edge, or whose integers JAX would cut.
    """
    length = permutation.shape[0]
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = names.edge_data + jax.tree_util.keystr(path)
        require_leading(names.where, name, leaf, length, "edge")
        require_kept_integers(names.where, name, leaf)
    return jax.tree.map(lambda leaf: take(leaf, permutation), tree)


def require_leading(where: str, argument: str, leaf: Any, length: int, of_what: str) -> None:
    """Raises ValueError unless ``leaf`` is an array of numbers whose first axis has ``length``."""
    expected = f"an array of shape ({length}, ...), one entry per {of_what}"
    if not isinstance(leaf, np.ndarray | jax.Array):
        raise bad_input(where, argument, expected, type(leaf).__name__)
    if leaf.ndim == 0 or leaf.shape[0] != length:
        raise bad_input(where, argument, expected, f"shape {leaf.shape}")
    # The other dtypes of numpy are strings, objects and times.
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSUMm":
        raise bad_input(where, argument, "of a numeric or boolean dtype", leaf.dtype)


def way_to_edge_slots(num_edges: int, shape: tuple[int, ...]) -> str:
    """The end of an error on features of edges, [..., edges, features], of another number of rows.

    Empty for features with a row for each edge slot, which are wrong in another way.
    """
    if num_edges in shape[-2:-1]:
        return ""
    return (
        "; give a row to each edge slot, self loops and padding included. "
        "graph.sort_edges(features) brings those of the edges of the input into this order"
    )


def known_order(graph: Any) -> Any:
    """Returns the input position of each edge slot of this graph, or None if it is not known.

    It is no field, so graphs with and without it are the same pytree; ``jit`` drops it.
    """
    return graph.__dict__.get("_edge_order")


def keep_order[Graph](graph: Graph, order: Any) -> Graph:
    """Stores the input position of each slot in ``graph``, which the library has just built."""
    if order is not None:
        graph.__dict__["_edge_order"] = order
    return graph


def reordered(order: Any, slots: Any) -> Any:
    """``order[slots]``, on the host if both are on the host; None if the order is not known."""
    if order is None:
        return None
    if is_concrete(order, slots):
        return own(np.asarray(order)[np.asarray(slots)])
    return order[slots]
