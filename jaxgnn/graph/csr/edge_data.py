"""Edge data: reorders trees of arrays with one entry for each edge into the order of a graph."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from jaxgnn._arrays.arrays import is_concrete, own, require_kept_integers, take
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.edge_list import EdgeNames


def ordered_edge_data(
    names: EdgeNames, tree: PyTree, permutation: Int[Array, " edges"] | np.ndarray
) -> PyTree:
    """Returns ``tree`` with the entries of each leaf in the order of the graph's edge slots.

    Args:
      names: the function and the argument that errors name.
      tree: a pytree of arrays [edges, ...], one entry for each edge in input order.
      permutation: position in the input of each edge slot [edges].

    Returns:
      The same tree of JAX arrays, on the default device.

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
    """The input position of each edge slot of this graph, or None if it is not known.

    The order is no field, but is stored beside the fields, like the plan that a graph builds on
    demand. So graphs with and without it are the same pytree and share compilations and
    checkpoints. ``jit``, which flattens graphs, drops it.
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
