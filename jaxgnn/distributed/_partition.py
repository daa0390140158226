"""Partitions of the rows of a graph over devices, kept on disk where they take minutes."""

from __future__ import annotations

import hashlib
import heapq
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse

from jaxgnn._errors import bad_input, require_regular_file
from jaxgnn.distributed._communities import parts_by_community
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph.csr.require_graph import require_graph

Method = Literal["contiguous", "random", "degree", "communities", "metis"]
"""Method that assigns rows to parts; see ``partition``."""

# Number of the largest rows that are assigned one by one to the part with the fewest edges so far.
# The other rows are similar in size; they are dealt out in turn, to and fro.
_ROWS_BY_LOAD = 1 << 16

# Version of the methods and of the file. Increase it when the result of a method changes.
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Partition:
    """Part of each row of a graph, with counts of rows, edges and halo rows.

    Attributes:
      part_of: part of each row, int32 [rows].
      rows: number of rows of each part, int64 [parts].
      edges: number of edges that enter the rows of each part, int64 [parts].
      between: ``halo_rows`` and ``cut_edges``, or a function that counts them on first access. That
        takes long for many parts, and reads all senders.
    """

    part_of: np.ndarray
    rows: np.ndarray
    edges: np.ndarray
    between: tuple[np.ndarray, int] | Callable[[], tuple[np.ndarray, int]]

    @cached_property
    def _counts(self) -> tuple[np.ndarray, int]:
        return self.between() if callable(self.between) else self.between

    @property
    def halo_rows(self) -> np.ndarray:
        """Number of rows of other parts that the edges of each part read, int64 [parts].

        If the graph is not square these are columns.
        """
        return self._counts[0]

    @property
    def cut_edges(self) -> int:
        """Number of edges whose ends are in different parts."""
        return self._counts[1]

    @property
    def num_parts(self) -> int:
        """Number of parts that the rows are given to."""
        return len(self.rows)

    @property
    def imbalance(self) -> float:
        """Edges of the largest part by the mean over the parts; 1 is perfect."""
        return float(self.edges.max() / self.edges.mean()) if self.edges.any() else 1.0

    def __repr__(self) -> str:
        """Shows the counts of the partition, without the part of each row."""
        return (
            f"Partition(parts={self.num_parts}, rows={self.rows.tolist()}, "
            f"edges={self.edges.tolist()}, halo_rows={self.halo_rows.tolist()}, "
            f"cut_edges={self.cut_edges}, imbalance={self.imbalance:.3f})"
        )


def partition(
    graph: CSRGraph,
    parts: int,
    method: Method | npt.ArrayLike = "degree",
    *,
    columns: npt.ArrayLike | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> Partition:
    """Assigns each row of a graph to one of ``parts`` parts.

    - ``"degree"`` deals the rows out by falling degree, so that all parts have nearly as many edges
      and as many rows. It ignores which rows are neighbours.
    - ``"contiguous"`` cuts the rows in their order where the edges are equal.
    - ``"random"`` deals rows out in random order.
    - ``"communities"`` cuts few edges too, without a package: neighbours are clustered, and parts
      have 0.5 to 1.05 times the mean number of rows. It needs a square graph.
    - ``"metis"`` cuts few edges, in whichever direction, and balances them; it needs the package
      ``pymetis`` and a square graph.
    - An array has the part of each row.

    Args:
      graph: the graph, not traced.
      parts: number of parts.
      method: one of the above.
      columns: part of each column of a graph that is not square; None if columns are rows.
      seed: seed of ``"random"``.
      cache: folder that keeps the results of the methods by name, by a hash of the graph and of the
        other arguments; None keeps nothing. A file that cannot be read is computed again, with a
        warning.

    Returns:
      The part of each row, with counts of rows, edges and halo rows.

    Raises:
      ValueError: if the graph is traced, or not square without ``columns``; there are fewer rows
        than parts; the method is unknown; an array is not of integers from 0 to ``parts - 1``, one
        for each row; a part has no row; or the cache is a file.
      ImportError: for ``"metis"`` without ``pymetis``.

    Example:
      >>> from jaxgnn import CSRGraph, distributed
      >>> graph = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4)
      >>> distributed.partition(graph, 2, "contiguous")
      Partition(parts=2, rows=[2, 2], edges=[2, 2], halo_rows=[1, 1], cut_edges=2, imbalance=1.000)
    """
    check_graph(graph, square=columns is None)
    if isinstance(parts, bool) or not isinstance(parts, int | np.integer) or parts < 1:
        raise bad_input("partition", "parts", "an integer of at least 1", repr(parts))
    if parts > graph.num_rows:
        expected = f"at most one for each of {graph.num_rows} rows"
        raise bad_input("partition", "parts", expected, parts)
    if isinstance(method, str):
        part_of = _cached_parts(graph, int(parts), method, seed, cache)
    else:
        part_of = _checked_array("method", np.asarray(method), graph.num_rows, int(parts))
    of_columns = part_of
    if columns is not None:
        of_columns = _checked_array("columns", np.asarray(columns), graph.num_cols, int(parts))
    return _counted(graph, part_of, of_columns, int(parts))


def _cached_parts(
    graph: CSRGraph, parts: int, method: str, seed: int, cache: str | os.PathLike[str] | None
) -> np.ndarray:
    """Returns the part of each row, by a method or from the cache."""
    if method not in _METHODS:
        expected = f"{', '.join(map(repr, _METHODS))} or an array"
        raise bad_input("partition", "method", expected, repr(method))

    make = partial(_METHODS[method], graph, parts, seed)
    if cache is None:
        return make()
    if Path(cache).exists() and not Path(cache).is_dir():
        raise bad_input("partition", "cache", "a folder, which need not be there yet", str(cache))
    return cached_parts(Path(cache), graph, (parts, method, seed), make)


def _counted(graph: CSRGraph, part_of: np.ndarray, of_columns: np.ndarray, parts: int) -> Partition:
    """Returns the partition with its counts; no part may be without rows."""
    rows = np.bincount(part_of, minlength=parts)
    if not rows.all():
        expected = f"at least one row for each of {parts} parts"
        raise bad_input("partition", "method", expected, f"none for part {int(rows.argmin())}")
    degrees = np.diff(np.asarray(graph.indptr))
    edges = np.bincount(part_of, degrees, parts).astype(np.int64)
    between = partial(_boundaries, graph, part_of, rows, of_columns)
    return Partition(part_of, rows, edges, between)


def check_graph(graph: Any, *, square: bool) -> None:
    """Raises ValueError unless the host can read ``graph``, a CSRGraph, square if ``square``."""
    require_graph("partition", "graph", graph)
    if not is_concrete(graph.indptr, graph.indices, graph.weights):
        raise bad_input("partition", "graph", "concrete; call it outside jit", "a tracer")
    if square and graph.num_rows != graph.num_cols:
        expected = "square, or the part of each column given"
        raise bad_input("partition", "graph", expected, f"shape {graph.shape}")


def edges_of(indptr: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the positions of the edges that enter some rows, one row after the other."""
    degrees = np.diff(indptr)[rows]
    ends = np.cumsum(degrees)
    total = int(ends[-1]) if len(ends) else 0
    starts = (indptr[rows] - (ends - degrees)).astype(indptr.dtype)
    return np.repeat(starts, degrees) + np.arange(total, dtype=indptr.dtype)


def rows_of(part_of: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """The rows of each part in ascending order, from the part of each row and the counts."""
    return np.split(np.argsort(part_of, kind="stable"), np.cumsum(rows)[:-1])


def _boundaries(
    graph: CSRGraph, part_of: np.ndarray, rows: np.ndarray, of_columns: np.ndarray
) -> tuple[np.ndarray, int]:
    """Returns the number of halo rows of each part, and of edges between parts."""
    indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
    halo_rows, cut = [], 0
    for part, rows_of_one in enumerate(rows_of(part_of, rows)):
        senders = indices[edges_of(indptr, rows_of_one)]
        cut += int(np.count_nonzero(of_columns[senders] != part))
        read = np.zeros(graph.num_cols, bool)
        read[senders] = True
        halo_rows.append(np.count_nonzero(read & (of_columns != part)))
    return np.array(halo_rows, np.int64), cut


def _degree_parts(graph: CSRGraph, parts: int, seed: int) -> np.ndarray:
    degrees = np.diff(np.asarray(graph.indptr))
    order = np.argsort(-degrees, kind="stable")
    part_of = np.empty(len(order), np.int32)
    # Each row counts as one more edge, so that rows without edges are distributed too.
    load = [(0, part) for part in range(parts)]
    for row in order[:_ROWS_BY_LOAD].tolist():
        edges, part = load[0]
        part_of[row] = part
        heapq.heapreplace(load, (edges + int(degrees[row]) + 1, part))
    there = [part for _, part in sorted(load)]
    rest = order[_ROWS_BY_LOAD:]
    part_of[rest] = np.resize(there + there[::-1], len(rest))
    return part_of


def _random_parts(graph: CSRGraph, parts: int, seed: int) -> np.ndarray:
    part_of = np.arange(graph.num_rows, dtype=np.int32) % parts
    return np.random.default_rng(seed).permutation(part_of)


def _contiguous(graph: CSRGraph, parts: int, seed: int) -> np.ndarray:
    # Each row counts as one more edge, so that rows without edges are distributed too.
    ends = np.asarray(graph.indptr)[1:].astype(np.int64) + np.arange(1, graph.num_rows + 1)
    part_of = np.minimum((ends - 1) * parts // ends[-1], parts - 1).astype(np.int32)
    if np.bincount(part_of, minlength=parts).all():
        return part_of
    # A row of very many edges left a part without rows: give all parts as many rows.
    return (np.arange(graph.num_rows) * parts // graph.num_rows).astype(np.int32)


def _community_parts(graph: CSRGraph, parts: int, seed: int) -> np.ndarray:
    _require_square(graph, "communities")
    return parts_by_community(_adjacency(graph), parts)


def _require_square(graph: CSRGraph, method: str) -> None:
    if graph.num_rows != graph.num_cols:
        expected = f"square for method={method!r}"
        raise bad_input("partition", "graph", expected, f"shape {graph.shape}")


def _metis_parts(graph: CSRGraph, parts: int, seed: int) -> np.ndarray:
    _require_square(graph, "metis")
    try:
        import pymetis  # pyrefly: ignore[missing-import]
    except ImportError as error:
        raise ImportError(
            "partition: method='metis' needs the package pymetis, which is not installed; "
            "'degree' balances edges without it"
        ) from error
    weights = (np.diff(np.asarray(graph.indptr)) + 1).astype(np.int64)
    both = _adjacency(graph)
    adjacency = pymetis.CSRAdjacency(both.indptr, both.indices)
    _, part_of = pymetis.part_graph(parts, adjacency, vweights=weights)
    return np.asarray(part_of, np.int32)


def _adjacency(graph: CSRGraph) -> scipy.sparse.csr_array:
    """Neighbours of each node in either direction, each once, without itself."""
    indptr = np.asarray(graph.indptr)
    indices = np.asarray(graph.indices)[: indptr[-1]]
    ones = np.ones(len(indices), np.int8)
    one_way = scipy.sparse.csr_array((ones, indices, indptr), shape=graph.shape).astype(bool)
    both = scipy.sparse.csr_array(one_way + one_way.T)
    both.setdiag(False)
    both.eliminate_zeros()
    return both


_METHODS: dict[str, Callable[[CSRGraph, int, int], np.ndarray]] = {
    "contiguous": _contiguous,
    "random": _random_parts,
    "degree": _degree_parts,
    "communities": _community_parts,
    "metis": _metis_parts,
}


def _checked_array(argument: str, part_of: np.ndarray, num_rows: int, parts: int) -> np.ndarray:
    if part_of.shape != (num_rows,) or not np.issubdtype(part_of.dtype, np.integer):
        expected = f"integers of shape ({num_rows},), the part of each row"
        got = f"{part_of.dtype} of shape {part_of.shape}"
        raise bad_input("partition", argument, expected, got)
    if part_of.size and (part_of.min() < 0 or part_of.max() >= parts):
        expected = f"parts from 0 to {parts - 1}"
        raise bad_input("partition", argument, expected, f"{part_of.min()} to {part_of.max()}")
    return part_of.astype(np.int32)


def cached_parts(
    folder: Path, graph: CSRGraph, arguments: tuple[Any, ...], make: Callable[[], np.ndarray]
) -> np.ndarray:
    """Returns the part of each row, read from the folder, or computed and written to it.

    A file appears under its name once it is complete, so that processes may share the folder. It
    depends on the edges and on ``arguments``, of which the number of parts is the first.
    """
    indptr = np.asarray(graph.indptr)
    name = hashlib.blake2b(repr((_VERSION, graph.shape, arguments)).encode(), digest_size=16)
    name.update(indptr.astype(np.int64))
    name.update(np.ascontiguousarray(np.asarray(graph.indices)[: indptr[-1]]))
    path = folder / f"partition-{name.hexdigest()}.npz"
    if path.exists():
        try:
            return _read(path, graph.num_rows, arguments[0])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            warnings.warn(f"partition: {path} is made anew: {error}", stacklevel=2)
    part_of = make()
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, part_of=part_of, digest=_digest(part_of))
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return part_of


def _read(path: Path, rows: int, parts: int) -> np.ndarray:
    require_regular_file(path, "the parts of a graph")
    with path.open("rb") as opened, np.load(opened) as file:
        part_of, digest = file["part_of"], file["digest"]
    if part_of.dtype != np.int32 or part_of.shape != (rows,):
        raise ValueError(f"it has {part_of.dtype} of shape {part_of.shape}, not int32 of ({rows},)")
    if not np.array_equal(digest, _digest(part_of)) or part_of.min() < 0 or part_of.max() >= parts:
        raise ValueError("its parts are not those that were written")
    return part_of


def _digest(part_of: np.ndarray) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(part_of, digest_size=16).digest(), np.uint8)
