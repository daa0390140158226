"""Prepared graphs of edge lists whose ids are known, made once for each content."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._core.custom_gradient import custom_vjp

_MOST_GRAPHS = 16


@dataclass(frozen=True, eq=False)
class StaticGraph:
    """A graph with the way from its edge list to its edge slots.

    Attributes:
      graph: rows are the ids that are summed by, columns those that are gathered.
      order: position in the edge list of each edge slot, int32 [edges].
      inverse: edge slot of each entry of the edge list, int32 [edges].
      is_ordered: whether slots and list have the same order.
      num_live: number of edges that arrive at a row; the slots after them are padding.
      has_edges: which rows have edges, bool [rows].
      is_read: which columns edges read that arrive at a row, bool [columns].
      live_rows: the row of each slot that is not padding.
      live_columns: the column of each slot that is not padding.
    """

    graph: CSRGraph
    order: np.ndarray
    inverse: np.ndarray
    is_ordered: bool
    num_live: int
    has_edges: np.ndarray
    is_read: np.ndarray
    live_rows: np.ndarray
    live_columns: np.ndarray

    def to_slots(self, of_edges: Array, axis: int = 0) -> Array:
        """An array of the edge list in the order of the slots, along its axis of edges."""
        return of_edges if self.is_ordered else _moved(axis, self.order, self.inverse, of_edges)

    def to_list(self, of_slots: Array, axis: int = 0) -> Array:
        """An array of the slots in the order of the edge list, along its axis of edges."""
        return of_slots if self.is_ordered else _moved(axis, self.inverse, self.order, of_slots)


class _Cache:
    """The graphs that were used last, by a digest of their ids."""

    def __init__(self, most: int):
        self._most = most
        self._made: OrderedDict[Any, StaticGraph] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], StaticGraph]) -> StaticGraph:
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        made = make()
        with self._lock:
            self._made[key] = made
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return made


_CACHE = _Cache(_MOST_GRAPHS)


def static_graph(
    rows: np.ndarray, columns: np.ndarray, num_rows: int, num_columns: int
) -> StaticGraph:
    """The graph of an edge list; rows out of range mark edges that do not count.

    Args:
      rows: the row that each edge enters, integers [edges].
      columns: the column that each edge leaves, integers [edges], in range where the row is.
      num_rows: number of rows.
      num_columns: number of columns.
    """
    key = digest(rows), digest(columns), num_rows, num_columns
    return _CACHE.get(key, lambda: _make(rows, columns, num_rows, num_columns))


def digest(ids: Any) -> bytes:
    """A short key of the content of an array; that of an array of JAX is computed once."""
    if not isinstance(ids, jax.Array):  # an array of numpy may change
        return _digest(np.asarray(ids))
    entry = _DIGESTS.get(id(ids))
    if entry is None or entry[0]() is not ids:
        key = id(ids)
        reference = weakref.ref(ids, lambda _: _DIGESTS.pop(key, None))
        entry = reference, _digest(np.asarray(ids))
        _DIGESTS[key] = entry
    return entry[1]


_DIGESTS: dict[int, tuple[weakref.ref[Any], bytes]] = {}


def _digest(ids: np.ndarray) -> bytes:
    ids = np.ascontiguousarray(ids)
    made = hashlib.blake2b(f"{ids.dtype}{ids.shape}".encode(), digest_size=16)
    made.update(ids)
    return made.digest()


def _make(rows, columns, num_rows, num_columns) -> StaticGraph:
    is_live = (rows >= 0) & (rows < num_rows)
    kept = is_live.all()
    safe = np.where(is_live, rows, 0), np.where(is_live, columns, 0)
    with jax.ensure_compile_time_eval():
        graph, _ = CSRGraph.from_edges(
            safe[1],
            safe[0],
            num_rows,
            num_senders=num_columns,
            edge_mask=None if kept else is_live,
            edge_data=(),
        )
        order = np.asarray(graph.edge_order).astype(np.int32)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(order.size, dtype=np.int32)
    has_edges, is_read = np.zeros(num_rows, bool), np.zeros(num_columns, bool)
    has_edges[rows[is_live]] = True
    is_read[columns[is_live]] = True
    num_live = int(is_live.sum())
    live = order[:num_live]
    return StaticGraph(
        graph,
        order,
        inverse,
        is_ordered=bool((order == np.arange(order.size)).all()),
        num_live=num_live,
        has_edges=has_edges,
        is_read=is_read,
        live_rows=rows[live],
        live_columns=columns[live],
    )


@partial(custom_vjp, nondiff_argnums=(0,))
def _moved(axis, places, back, values):
    """A permutation of an axis, whose gradient is the permutation back, not a scatter."""
    return jnp.take(values, places, axis=axis, unique_indices=True, mode="clip")


def _moved_forward(axis, places, back, values):
    return _moved(axis, places, back, values), (places, back)


def _moved_backward(axis, residuals, gradient):
    places, back = residuals
    return None, None, _moved(axis, back, places, gradient)


_moved.defvjp(_moved_forward, _moved_backward)
