"""Times of edges: checks, their order in the rows of a graph, and the edges before a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.graph.plan.sorting import row_ids_on_host
from jaxgnn.sampling._source import HostGraph, on_host


@dataclass(frozen=True, eq=False)
class EdgeTimes:
    """Times of the edges of a graph, which never decrease within a row.

    Attributes:
      values: int64, float64 or datetime64 [edges].
    """

    values: np.ndarray

    @classmethod
    def of(cls, graph: HostGraph, times: np.ndarray) -> tuple[HostGraph, EdgeTimes]:
        """Sorts the edges of each row by time; edges of equal times stay in order.

        Rows of the user's graph are sorted already. Rows of the transposed graph need not be, since
        their edges come from many rows of the user's.

        Args:
          graph: the user's graph, or its transpose.
          times: times of the edges of the user's graph, which ``check_ascending`` has passed.

        Returns:
          The graph, whose ``edge_ids`` are still those of the user's graph, and its times.
        """
        if graph.edge_ids is None:
            return graph, cls(times)
        values = times[graph.edge_ids]
        if not _descents(graph.indptr, values).any():
            return graph, cls(values)
        order = _order(row_ids_on_host(graph.indptr, len(values)), values)
        edge_ids, indices = graph.edge_ids[order], graph.indices[order]
        return replace(graph, indices=indices, edge_ids=edge_ids), cls(values[order])

    def ends_before(self, first: np.ndarray, ends: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """Ends of the parts of rows that are strictly before a limit, one for each row.

        Args:
          first: first edge of each row, int64 [rows].
          ends: end of the edges of each row, int64 [rows].
          limits: times, of the dtype of the values, [rows].
        """
        low, high = first.copy(), ends.copy()
        rows = np.flatnonzero(low < high)
        while len(rows):  # bisection, of all rows at once
            middle = (low[rows] + high[rows]) // 2
            is_before = self.values[middle] < limits[rows]
            low[rows[is_before]] = middle[is_before] + 1
            high[rows[~is_before]] = middle[~is_before]
            rows = rows[low[rows] < high[rows]]
        return low


def _descents(indptr: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Whether each edge is later than the next one of its row, bool [edges - 1]."""
    descends = times[1:] < times[:-1]
    inner = indptr[1:-1]
    descends[inner[(inner > 0) & (inner < len(times))] - 1] = False  # between two rows
    return descends


def _order(rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The stable order by row and time; ``np.lexsort`` takes three times as long."""
    by_time = np.argsort(times)
    sorted_times, ranks = times[by_time], np.empty(len(times), np.int64)
    ranks[by_time] = np.cumsum(np.append(False, sorted_times[1:] != sorted_times[:-1]))
    keys = rows * (ranks.max(initial=0) + 1) + ranks
    return np.argsort(keys, kind="stable")


def rows_of_spans(first: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of a graph with spans of edges as rows, and these rows: span i is row 2 i + 1."""
    indptr = np.zeros(2 * len(first) + 1, np.int64)
    indptr[1::2], indptr[2::2] = first, ends
    return indptr, np.arange(1, len(indptr), 2)


def checked_times(where: str, argument: str, values: Any, count: int) -> np.ndarray:
    """Times as a contiguous array of int64, float64 or datetime64.

    Args:
      where: the function that was called.
      argument: name of the argument.
      values: times.
      count: number of times.

    Raises:
      ValueError: if they are missing, are no numbers or dates, or another number of them.
    """
    times = on_host(values) if hasattr(values, "dtype") else np.asarray(values)
    kind = times.dtype.kind
    if kind not in "iufM" or times.dtype == np.uint64:
        raise bad_input(where, argument, "integers, floats or datetime64", times.dtype)
    if times.shape != (count,):
        raise bad_input(where, argument, f"of shape ({count},)", f"shape {times.shape}")
    wanted = {"f": np.dtype(np.float64), "M": times.dtype}.get(kind, np.dtype(np.int64))
    return np.ascontiguousarray(times, wanted)


def check_present(where: str, argument: str, times: np.ndarray) -> None:
    """Raises ValueError, which names the first, if a time is NaN or NaT."""
    if times.dtype.kind == "i":
        return
    missing = np.flatnonzero(np.isnan(times))  # of dates too
    if len(missing):
        at = int(missing[0])
        raise bad_input(where, argument, "without missing times", f"{times[at]} at {at}")


def check_ascending(where: str, argument: str, indptr: np.ndarray, times: np.ndarray) -> None:
    """Raises ValueError, which names the first, if an edge is later than the next one of its row.

    Args:
      where: the function that was called.
      argument: name of the argument.
      indptr: row offsets of the user's graph.
      times: times of its edges, without padding and without missing ones.
    """
    descends = _descents(indptr, times)
    if not descends.any():
        return
    at = int(descends.argmax())
    row = int(np.searchsorted(indptr, at, side="right")) - 1
    found = (
        f"{times[at]} at slot {at}, then {times[at + 1]} at slot {at + 1}, of edges to node {row}"
    )
    way = "sort the edges by np.lexsort((times, receivers)) before CSRGraph.from_edges"
    raise bad_input(where, argument, "ascending within each row of the graph", f"{found}; {way}")


def check_comparable(where: str, argument: str, times: np.ndarray, seed_times: np.ndarray) -> None:
    """Raises ValueError unless both have one dtype: a conversion could round past a limit."""
    if times.dtype != seed_times.dtype:
        expected = f"{seed_times.dtype}, as seed_times are"
        raise bad_input(where, argument, expected, times.dtype)
