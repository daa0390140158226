"""Neighbour sampling along relations, or before a time: the definition, in NumPy.

Rows are drawn by ``host.sample_rows``, which does the same as ``reference.sample_rows``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.sorting import row_ids_on_host
from jaxgnn.sampling import checks, host
from jaxgnn.sampling.drawing import Drawing, HostGraph, on_host
from jaxgnn.sampling.memory import check_files
from jaxgnn.sampling.reference import Hop, distinct

RowSampler = Callable[..., tuple[np.ndarray, np.ndarray]]


_WHERE = "sampling.sample_hops"


# Bits of the counter of a hop. The bits above have the position of the relation.
_HOP_BITS = 16


@dataclass(frozen=True, eq=False)
class Relation:
    """Edges from nodes of one type to nodes of one type, and what is drawn of them.

    Attributes:
      sender: type of the senders.
      receiver: type of the receivers, the rows of the graph.
      graph: the edges, those of a row in the order of their times if there are any.
      times: times of the edges; None for edges that exist at all times.
      fanouts: for each hop the number of edges to draw for each node, -1 for all, 0 for none.
      weights: weight of each edge for the draws, or None.
    """

    sender: str
    receiver: str
    graph: HostGraph
    times: EdgeTimes | None
    fanouts: tuple[int, ...]
    weights: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class TypedHops:
    """Sample of a batch of seeds, with nodes of several types.

    Attributes:
      n_id: nodes of each type, int64: the seeds in the order given, then the new nodes of each hop,
        ascending within the hop; where each seed has nodes of its own, those of the first seed come
        first.
      owners: for each node of ``n_id`` the place of its seed; None where seeds share their nodes.
      num_nodes: for each type the number of nodes before the first hop and after each, int64
        [hops + 1].
      hops: for each relation its drawn edges, hop by hop. Row i is node i of the receiving type,
        and local ids are places among the nodes of the sending type.
      seed_ids: local id of each seed, int64 [seeds].
    """

    n_id: dict[str, np.ndarray]
    owners: dict[str, np.ndarray] | None
    num_nodes: dict[str, np.ndarray]
    hops: tuple[tuple[Hop, ...], ...]
    seed_ids: np.ndarray


def sample_typed_hops(
    relations: Sequence[Relation],
    num_nodes: Mapping[str, int],
    seed_type: str,
    seeds: np.ndarray,
    *,
    drawing: Drawing,
    epoch: int,
    step: int,
    seed_times: np.ndarray | None = None,
    latest: bool = False,
    num_threads: int | None = None,
    draw_rows: RowSampler = host.sample_rows,
) -> TypedHops:
    """Draws neighbours of seeds, neighbours of these, and so on, along all relations.

    Each hop draws again, by each relation, for all nodes of its receiving type found so far. Random
    numbers of hop h and relation r have the counter ``r << 16 | h`` in the place of the hop; with
    one relation the sample is that of ``sample_hops``.

    With ``seed_times`` each seed has nodes of its own, even if another seed is the same node. An
    edge is drawn only if its time is before that of the seed whose nodes it joins. In the draws of
    the node at place i of its type, the node counts as 2 i + 1.

    Args:
      relations: all relations, with equally many fan-outs.
      num_nodes: number of nodes of each type.
      seed_type: type of the seeds.
      seeds: valid nodes, int64 [seeds].
      drawing: how to draw; its fan-outs are not used.
      epoch: number of the epoch.
      step: number of the batch in the epoch.
      seed_times: times of the seeds, in the dtype of those of the edges, [seeds], or None.
      latest: whether to take the last edges before the seed's time, and draw none.
      num_threads: number of threads; None for as many as the process may use.
      draw_rows: draws edges of rows, as ``host.sample_rows``.
    """
    is_disjoint = seed_times is not None
    first, seed_ids = (seeds, np.arange(len(seeds))) if is_disjoint else distinct(seeds)
    if is_disjoint:
        first = first + seed_ids * num_nodes[seed_type]
    numbered = {t: _Numbers(first if t == seed_type else first[:0]) for t in num_nodes}
    counts = {t: [len(numbers.keys)] for t, numbers in numbered.items()}
    draw = functools.partial(
        draw_rows,
        seed=drawing.seed,
        epoch=epoch,
        step=step,
        replace=drawing.replace,
        method=drawing.method,
        batch_dependency=drawing.batch_dependency,
        num_threads=num_threads,
    )
    hops: list[list[Hop]] = [[] for _ in relations]
    for hop in range(len(relations[0].fanouts)):
        drawn = []
        for place, relation in enumerate(relations):
            draw_hop = functools.partial(draw, hop=place << _HOP_BITS | hop)
            rows = _Rows(relation, numbered[relation.receiver].keys, num_nodes, seed_times)
            drawn.append(rows.drawn(relation.fanouts[hop], draw_hop, latest=latest))
        for node_type, numbers in numbered.items():
            pairs = zip(relations, drawn, strict=True)
            numbers.add([senders for r, (_, senders, _) in pairs if r.sender == node_type])
            counts[node_type].append(len(numbers.keys))
        for relation, of_hops, (ends, senders, e_id) in zip(relations, hops, drawn, strict=True):
            of_hops.append(Hop(ends, numbered[relation.sender].of(senders), e_id))

    pairs_of = {t: np.divmod(numbers.keys, num_nodes[t]) for t, numbers in numbered.items()}
    return TypedHops(
        n_id={t: nodes for t, (_, nodes) in pairs_of.items()},
        owners={t: owners for t, (owners, _) in pairs_of.items()} if is_disjoint else None,
        num_nodes={t: np.array(count, np.int64) for t, count in counts.items()},
        hops=tuple(map(tuple, hops)),
        seed_ids=seed_ids,
    )


class _Rows:
    """Nodes that draw along a relation.

    Args:
      relation: the relation.
      keys: the node of each row, plus the place of its seed times the number of nodes.
      num_nodes: number of nodes of each type.
      seed_times: times of the seeds, or None.
    """

    def __init__(
        self,
        relation: Relation,
        keys: np.ndarray,
        num_nodes: Mapping[str, int],
        seed_times: np.ndarray | None,
    ):
        self._relation, self._seed_times = relation, seed_times
        self._owners, self._nodes = np.divmod(keys, num_nodes[relation.receiver])
        self._num_senders = num_nodes[relation.sender]

    def drawn(
        self, fanout: int, draw: RowSampler, *, latest: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets of the drawn edges, keys of their senders, and their positions."""
        graph, times = self._relation.graph, self._relation.times
        edge_times = None if times is None else times.values
        check_files(_WHERE, indptr=graph.indptr, indices=graph.indices, edge_times=edge_times)
        ends, e_id = self._edges(fanout, draw, latest)
        senders = graph.indices[e_id].astype(np.int64)
        checks.senders(_WHERE, senders, e_id, self._num_senders)
        return ends, senders + np.repeat(self._owners * self._num_senders, np.diff(ends)), e_id

    def _edges(self, fanout: int, draw: RowSampler, latest: bool) -> tuple[np.ndarray, np.ndarray]:
        relation, rows = self._relation, self._nodes
        indptr, times = relation.graph.indptr, relation.times
        if fanout == 0:
            return np.zeros(len(rows) + 1, np.int64), np.empty(0, np.int64)
        if self._seed_times is not None:
            first, ends = (indptr[at].astype(np.int64) for at in (rows, rows + 1))
            if times is not None:
                ends = times.ends_before(first, ends, self._seed_times[self._owners])
                if latest and fanout > 0:
                    first, fanout = np.maximum(first, ends - fanout), -1
            indptr, rows = rows_of_spans(first, ends)
        return draw(indptr, relation.graph.indices, rows, fanout, weights=relation.weights)


class _Numbers:
    """Distinct keys in the order in which they were found, each numbered by its place."""

    def __init__(self, keys: np.ndarray):
        self.keys = keys
        self._places = np.argsort(keys, kind="stable")
        self._sorted = keys[self._places]

    def add(self, parts: list[np.ndarray]) -> None:
        """Adds the keys that are new, ascending."""
        keys = np.sort(np.concatenate(parts)) if parts else self.keys[:0]
        # ``np.unique`` may build a hash table, which is slower.
        keys = keys[np.diff(keys, prepend=-1) != 0]
        before = np.searchsorted(self._sorted, keys)
        is_known = np.zeros(len(keys), bool)
        inside = before < len(self._sorted)
        is_known[inside] = self._sorted[before[inside]] == keys[inside]
        new, before = keys[~is_known], before[~is_known]
        self._places = np.insert(self._places, before, len(self.keys) + np.arange(len(new)))
        self._sorted = np.insert(self._sorted, before, new)
        self.keys = np.concatenate([self.keys, new])

    def of(self, keys: np.ndarray) -> np.ndarray:
        """The numbers of keys, int32."""
        return self._places[np.searchsorted(self._sorted, keys)].astype(np.int32)


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
    shown = (
        f"{times[at]} at slot {at}, then {times[at + 1]} at slot {at + 1}, of edges to node {row}"
    )
    way = "sort the edges by np.lexsort((times, receivers)) before CSRGraph.from_edges"
    raise bad_input(where, argument, "ascending within each row of the graph", f"{shown}; {way}")


def check_comparable(where: str, argument: str, times: np.ndarray, seed_times: np.ndarray) -> None:
    """Raises ValueError unless both have one dtype: a conversion could round past a limit."""
    if times.dtype != seed_times.dtype:
        expected = f"{seed_times.dtype}, as seed_times are"
        raise bad_input(where, argument, expected, times.dtype)


Temporal = Literal["uniform", "last"]
"""Choice among the edges before a time."""


def timed_graph(
    where: str,
    argument: str,
    edge_times: Any,
    graph: CSRGraph,
    drawn: HostGraph,
    seed_times: np.ndarray,
) -> tuple[HostGraph, EdgeTimes]:
    """Returns the graph that draws with its rows in the order of time, and its times.

    Args:
      where: the function that was called.
      argument: name of the argument.
      edge_times: times of the edge slots of the user's graph.
      graph: the user's graph.
      drawn: the same, as rows that draw.
      seed_times: checked times of the seeds.

    Raises:
      ValueError: if times are invalid, missing, or descend within a row of the user's graph.
    """
    times = checked_times(where, argument, edge_times, graph.num_edges)
    check_comparable(where, argument, times, seed_times)
    times = times[: drawn.num_edges]
    check_present(where, argument, times)
    check_ascending(where, argument, on_host(graph.indptr), times)
    return EdgeTimes.of(drawn, times)


def check_options(
    where: str, drawing: Drawing, edge_times: Any, seed_times: Any, temporal: Any
) -> None:
    """Raises ValueError unless times, if there are any, go with the other options of a loader."""
    if not is_choice(temporal, get_args(Temporal)):
        expected = " or ".join(repr(name) for name in get_args(Temporal))
        raise bad_input(where, "temporal", expected, repr(temporal))
    if (edge_times is None) != (seed_times is None):
        missing, other = ("edge_times", "seed_times")[:: 1 if edge_times is None else -1]
        raise bad_input(where, missing, f"given with {other}", "None")
    if seed_times is None:
        if temporal == "last":
            raise bad_input(where, "seed_times", "given with temporal='last'", "None")
        return
    if drawing.method != "neighbour":
        raise bad_input(where, "method", "'neighbour' with seed_times", repr(drawing.method))
    if temporal == "last" and drawing.replace:
        raise bad_input(where, "replace", "False with temporal='last'", drawing.replace)


def checked_seed_times(where: str, seed_times: Any, count: int) -> np.ndarray:
    """Returns a copy of the times of seeds, since a file that they are mapped from may shrink.

    Raises:
      ValueError: if they are no times, are missing, or another number of them.
    """
    times = np.array(checked_times(where, "seed_times", seed_times, count))
    check_present(where, "seed_times", times)
    return times
