"""Prepared graphs of edge lists whose ids are known, built once for each content."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn._arrays.arrays import own, put_own
from jaxgnn.graph import CSRGraph
from jaxgnn.ops.core.custom_gradient import custom_vjp


@dataclass(frozen=True, eq=False)
class StaticGraph:
    """A graph with the mapping between its edge list and its edge slots."""

    graph: CSRGraph  # Rows are the ids of segments; columns are the gathered ids.
    order: np.ndarray  # Position in the edge list of each slot, int32 [edges].
    is_ordered: bool  # True if slots and edge list have the same order.
    num_live: int  # Number of edges that enter a row; later slots are padding.
    has_edges: np.ndarray  # Mask of the rows with edges, bool [rows].
    is_read: np.ndarray  # Mask of the columns that edges read, bool [columns].
    # The last numbers of edges in the order of the slots, with their key, or nothing.
    _weights: list[tuple[bytes, Array]] = field(default_factory=list)
    preparations: tuple[()] = ()  # A static graph needs no preparation.

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.graph.num_rows

    @property
    def num_columns(self) -> int:
        """The number of columns."""
        return self.graph.num_cols

    @cached_property
    def degrees(self) -> np.ndarray:
        """The number of edges of each row."""
        return np.diff(np.asarray(self.graph.indptr))

    @cached_property
    def live_rows(self) -> np.ndarray:
        """The row of each slot that is not padding."""
        return np.repeat(np.arange(self.num_rows, dtype=np.int32), self.degrees)

    @cached_property
    def live_columns(self) -> np.ndarray:
        """The column of each slot that is not padding."""
        return np.asarray(self.graph.indices)[: self.num_live]

    @cached_property
    def _orders(self) -> tuple[Any, Any]:
        """Order of the slots and its inverse, on the device."""
        inverse = np.empty_like(self.order)
        inverse[self.order] = np.arange(self.order.size, dtype=np.int32)
        return put_own(self.order), put_own(inverse)

    @property
    def edge_positions(self) -> Array | None:
        """Position in the edge list of each slot; None if both have the same order."""
        return None if self.is_ordered else self._orders[0]

    def to_slots(self, of_edges: Array, axis: int = 0) -> Array:
        """Reorders an array from the order of the edge list to that of the slots."""
        return of_edges if self.is_ordered else moved(axis, *self._orders, of_edges)

    def to_list(self, of_slots: Array, axis: int = 0) -> Array:
        """Reorders an array from the order of the slots to that of the edge list."""
        return of_slots if self.is_ordered else moved(axis, *self._orders[::-1], of_slots)

    def weights(self, of_edges: np.ndarray) -> Array:
        """Returns known numbers of edges in the order of the slots; builds the array once."""
        key = digest(of_edges)
        for kept, weights in self._weights:
            if kept == key:
                return weights
        with jax.ensure_compile_time_eval():
            weights = self.to_slots(jnp.asarray(of_edges))
        # At once, for other threads. Most programs have one normalisation of a graph.
        self._weights[:] = [(key, weights)]
        return weights


class _Cache:
    """Cache of the most recently used graphs, by a digest of their ids."""

    def __init__(self, most: int):
        self._most = most
        self._graphs: OrderedDict[Any, StaticGraph] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], StaticGraph]) -> StaticGraph:
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
                return self._graphs[key]
        graph = make()
        with self._lock:
            self._graphs[key] = graph
            while len(self._graphs) > self._most:
                self._graphs.popitem(last=False)
        return graph

    def latest_with_rows(self, rows: Any) -> StaticGraph | None:
        """Returns the most recently used graph with these rows, or None."""
        with self._lock:
            key = next((key for key in reversed(self._graphs) if key[0] == rows), None)
            if key is None:
                return None
            self._graphs.move_to_end(key)
            return self._graphs[key]


_CACHE = _Cache(16)


def static_graph(
    rows: np.ndarray, columns: np.ndarray, num_rows: int, num_columns: int
) -> StaticGraph:
    """Returns the graph of an edge list, integers [edges]; rows out of range mark ignored edges.

    Columns are in range where the row is.
    """
    key = (digest(rows), num_rows), digest(columns), num_columns
    return _CACHE.get(key, lambda: _make(rows, columns, num_rows, num_columns))


def graph_of_rows(rows: np.ndarray, num_rows: int) -> StaticGraph:
    """Returns a graph whose edges enter the rows, integers [edges]; -1 marks ignored edges.

    Callers must not depend on the senders. The order of the slots does not depend on the
    columns, so a graph that was built with columns is reused.
    """
    of_rows = digest(rows), num_rows
    cached = _CACHE.latest_with_rows(of_rows)
    key = of_rows, b"", 1
    return cached or _CACHE.get(key, lambda: _make(rows, np.zeros_like(rows), num_rows, 1))


def digest_of_argument(ids: Any) -> bytes:
    """Returns a key of the content of a caller's array; a numpy array may change later.

    A numpy array that is read-only can be made writable again, and views of it may be writable.
    """
    return digest(ids) if isinstance(ids, jax.Array) else _digest(np.asarray(ids))


def digest(ids: Any) -> bytes:
    """Returns a key of the content of an array; computes it once if the array can not change."""
    if not isinstance(ids, jax.Array) and not _is_fixed(ids):
        return _digest(np.asarray(ids))
    entry = _DIGESTS.get(id(ids))
    if entry is None or entry[0]() is not ids:
        key = id(ids)
        reference = weakref.ref(ids, lambda _: _DIGESTS.pop(key, None))
        entry = reference, _digest(np.asarray(ids))
        _DIGESTS[key] = entry
    return entry[1]


def _is_fixed(ids: Any) -> bool:
    """Returns whether a numpy array is read-only and owns its memory."""
    return isinstance(ids, np.ndarray) and ids.base is None and not ids.flags.writeable


_DIGESTS: dict[int, tuple[weakref.ref[Any], bytes]] = {}
_HASHED_AT_ONCE = 1 << 24  # Bytes of a part; threads hash several parts at once.


def _digest(ids: np.ndarray) -> bytes:
    ids = np.ascontiguousarray(ids)
    hashed = hashlib.blake2b(f"{ids.dtype}{ids.shape}".encode(), digest_size=16)
    if ids.nbytes <= _HASHED_AT_ONCE:
        hashed.update(ids)
        return hashed.digest()
    flat = ids.reshape(-1).view(np.uint8)
    parts = [flat[i : i + _HASHED_AT_ONCE] for i in range(0, flat.size, _HASHED_AT_ONCE)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for one in pool.map(lambda part: hashlib.blake2b(part, digest_size=16).digest(), parts):
            hashed.update(one)
    return hashed.digest()


def _make(rows, columns, num_rows, num_columns) -> StaticGraph:
    is_live = (rows >= 0) & (rows < num_rows)
    kept = bool(is_live.all())
    if not kept:
        rows, columns = np.where(is_live, rows, 0), np.where(is_live, columns, 0)
    with jax.ensure_compile_time_eval():
        mask = None if kept else is_live
        graph, _ = CSRGraph.from_edges(
            columns, rows, num_rows, num_senders=num_columns, edge_mask=mask, edge_data=()
        )
        order = own(np.asarray(graph.edge_order).astype(np.int32, copy=False))
    is_read = np.zeros(num_columns, bool)
    is_read[columns if kept else columns[is_live]] = True
    return StaticGraph(
        graph,
        order,
        is_ordered=_counts_up(order),
        num_live=order.size if kept else int(is_live.sum()),
        has_edges=np.diff(np.asarray(graph.indptr)) > 0,
        is_read=is_read,
    )


def _counts_up(order: np.ndarray) -> bool:
    """Returns whether an order is 0, 1, 2 and so on."""
    parts = order[:1024], order  # Most other orders differ early.
    return all((part == np.arange(part.size, dtype=part.dtype)).all() for part in parts)


@partial(custom_vjp, nondiff_argnums=(0,))
def moved(axis, positions, back, values):
    """Permutes an axis; the gradient is the inverse permutation, not a scatter."""
    return jnp.take(values, positions, axis=axis, unique_indices=True, mode="clip")


def moved_forward(axis, positions, back, values):
    return moved(axis, positions, back, values), (positions, back)


def moved_backward(axis, residuals, gradient):
    positions, back = residuals
    return None, None, moved(axis, back, positions, gradient)


moved.defvjp(moved_forward, moved_backward)
