"""Typed call of the neighbour sampler: plain C functions that need neither JAX nor the GIL."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxgnn._ffi._library import open_library, why_not_open

OFFSETS, SENDER, WEIGHT, ZERO_WEIGHTS, TOO_LARGE = range(1, 6)
"""Kinds of problems."""


@dataclass(frozen=True)
class Problem:
    """Invalid entry of a graph.

    Attributes:
      kind: one of the constants above.
      place: a node, or the position of an edge for a sender or a weight.
      first: first position of a row with invalid offsets, or the invalid sender.
      degree: difference of the invalid offsets.
      weight: the invalid weight.
    """

    kind: int
    place: int
    first: int
    degree: int
    weight: float


def why_missing() -> str | None:
    """The reason why ``sample_neighbours`` can not be called; None if it can."""
    return None if _library() else why_not_open("cpu")


@dataclass(frozen=True)
class Draws:
    """Options of a call that are valid, with the counters of its random numbers.

    Attributes:
      seed: seed of all random numbers.
      epoch: first counter of the batch.
      step: second counter of the batch.
      replace: whether an edge may be drawn again.
      labor: whether keys belong to senders.
      period: counter that stands for ``step`` in the keys of senders.
      factors: shares of the draws of ``period`` and the next; None for those of ``period`` alone.
      threads: number of threads.
      excluded: positions of edges that count as absent, distinct and ascending, int64, or None.
    """

    seed: int
    epoch: int
    step: int
    replace: bool
    labor: bool
    period: int
    factors: tuple[int, int] | None
    threads: int
    excluded: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """Arrays that the library reads in place; they must be contiguous.

    Attributes:
      indptr: int32 or int64 [nodes + 1].
      indices: int32 or int64 [edges].
      weights: float32 or float64 [edges], or None.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None


HopArrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Offsets, int64 [rows + 1], local senders, int32 [edges], and positions, int64 [edges]."""


def sample_neighbours(
    graph: Graph, seeds: np.ndarray, fanouts: Sequence[int], draws: Draws
) -> tuple[np.ndarray, np.ndarray, list[HopArrays]] | Problem:
    """Samples neighbours of seeds in several hops; see ``jaxgnn.sampling.sample_hops``.

    The results are views of the library's memory, which is freed with the last of them.

    Args:
      graph: the graph.
      seeds: distinct valid nodes, int64 [seeds].
      fanouts: valid fan-outs, one for each hop.
      draws: what is drawn.

    Returns:
      Nodes, int64 [nodes]; their number before the first hop and after each, int64 [hops + 1]; and
      the edges of each hop. A ``Problem`` if the graph is invalid.

    Raises:
      MemoryError: if there is not enough memory.
      NotImplementedError: if there is no compiled library.
    """
    sample = _sample(graph, seeds, fanouts, draws, numbers_nodes=True)
    return sample.problem() or sample.arrays(len(fanouts))


def sample_rows(
    graph: Graph, rows: np.ndarray, fanout: int, draws: Draws, hop: int
) -> tuple[np.ndarray, np.ndarray] | Problem:
    """Draws edges of each of some rows, with the random numbers of one hop.

    Args:
      graph: the graph; senders need not be nodes of it.
      rows: valid nodes, int64 [rows].
      fanout: a valid fan-out.
      draws: what is drawn.
      hop: third counter of random numbers.

    Returns:
      Offsets, int64 [rows + 1], and positions of the edges, int64 [edges]. A ``Problem`` if the
      graph is invalid.

    Raises:
      MemoryError: if there is not enough memory.
      NotImplementedError: if there is no compiled library.
    """
    sample = _sample(graph, rows, (fanout,), draws, numbers_nodes=False, first_hop=hop)
    problem = sample.problem()
    if problem is not None:
        return problem
    indptr, _, positions = sample.arrays(1)[2][0]
    return indptr, positions


def find_edges(graph: Graph, rows: np.ndarray, senders: np.ndarray) -> np.ndarray | Problem:
    """Finds the positions of all edges between pairs of nodes.

    Args:
      graph: the graph; its weights are not read.
      rows: valid nodes, the receivers of the pairs, int64 [pairs], ascending.
      senders: the other nodes, int64 [pairs], ascending for each row; no pair is repeated.

    Returns:
      Positions of the edges, ascending, int64 [edges]. A ``Problem`` if the graph is invalid.

    Raises:
      MemoryError: if there is not enough memory.
      NotImplementedError: if there is no compiled library.
    """
    distinct, first = np.unique(rows, return_index=True)
    ends = np.append(first, len(rows)).astype(np.int64)
    pairs = _Pairs(
        indptr=_address(graph.indptr),
        indices=_address(graph.indices),
        num_edges=len(graph.indices),
        rows=_address(distinct),
        ends=_address(ends),
        senders=_address(senders),
        num_rows=len(distinct),
        wide_indptr=graph.indptr.itemsize == 8,
        wide_indices=graph.indices.itemsize == 8,
    )
    sample = _called("edges", pairs)
    problem = sample.problem()
    return sample.arrays(0)[0] if problem is None else problem


def _sample(
    graph: Graph,
    seeds: np.ndarray,
    fanouts: Sequence[int],
    draws: Draws,
    *,
    numbers_nodes: bool,
    first_hop: int = 0,
) -> _Sample:
    hop_fanouts = np.array(fanouts, np.int64)
    weights, excluded = graph.weights, draws.excluded
    request = _Request(
        indptr=_address(graph.indptr),
        indices=_address(graph.indices),
        weights=None if weights is None else _address(weights),
        num_nodes=len(graph.indptr) - 1,
        num_edges=len(graph.indices),
        seeds=_address(seeds),
        fanouts=_address(hop_fanouts),
        num_seeds=len(seeds),
        num_hops=len(fanouts),
        first_hop=first_hop,
        excluded=None if excluded is None else _address(excluded),
        num_excluded=0 if excluded is None else len(excluded),
        seed=draws.seed,
        epoch=draws.epoch,
        step=draws.step,
        period=draws.period,
        mixes=draws.factors is not None,
        replace=draws.replace,
        labor=draws.labor,
        threads=draws.threads,
        numbers_nodes=numbers_nodes,
        wide_indptr=graph.indptr.itemsize == 8,
        wide_indices=graph.indices.itemsize == 8,
        wide_weights=weights is not None and weights.itemsize == 8,
    )
    if draws.factors is not None:
        request.mix_first, request.mix_second = draws.factors
    return _called("neighbours", request)


def _called(name: str, request: ctypes.Structure) -> _Sample:
    """The sample that a function of the library returns."""
    library = _library()
    if library is None:
        raise NotImplementedError(f"sample_neighbours: {why_not_open('cpu')}")
    handle = getattr(library, f"jaxgnn_sample_{name}")(ctypes.byref(request))
    if not handle:
        raise MemoryError("sample_neighbours: not enough memory")
    return _Sample(library, handle)


class _Request(ctypes.Structure):
    """The struct ``Request`` of ``ffi/cpu/sample_neighbours.cc``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "weights")),
        *((name, ctypes.c_int64) for name in ("num_nodes", "num_edges")),
        *((name, ctypes.c_void_p) for name in ("seeds", "fanouts")),
        *((name, ctypes.c_int64) for name in ("num_seeds", "num_hops", "first_hop")),
        ("excluded", ctypes.c_void_p),
        ("num_excluded", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("epoch", "step", "period")),
        *((name, ctypes.c_uint32) for name in ("mix_first", "mix_second")),
        *((name, ctypes.c_int32) for name in ("mixes", "replace", "labor")),
        *((name, ctypes.c_int32) for name in ("threads", "numbers_nodes")),
        *((name, ctypes.c_int32) for name in ("wide_indptr", "wide_indices", "wide_weights")),
    )


class _Pairs(ctypes.Structure):
    """The struct ``Pairs`` of ``ffi/cpu/sample_neighbours.cc``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices")),
        ("num_edges", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "ends", "senders")),
        ("num_rows", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("wide_indptr", "wide_indices")),
    )


_HOP_DTYPES = (np.int64, np.int32, np.int64)


class _Sample:
    """Memory of one sample. Its arrays keep it, and the last of them frees it."""

    def __init__(self, library: ctypes.CDLL, handle: int):
        self._library, self._handle = library, handle

    def __del__(self) -> None:
        self._library.jaxgnn_sample_free(self._handle)

    def problem(self) -> Problem | None:
        """The problem that ended the call, if any."""
        found = (ctypes.c_int64 * 4)()
        weight = self._library.jaxgnn_sample_problem(self._handle, found)
        kind, place, first, degree = found
        return Problem(kind, place, first, degree, weight) if kind else None

    def arrays(self, hops: int) -> tuple[np.ndarray, np.ndarray, list[HopArrays]]:
        """Nodes, their numbers, and offsets, senders and positions of each hop."""
        found = np.zeros(2 * (1 + 3 * hops) + hops + 1, np.int64)
        self._library.jaxgnn_sample_arrays(self._handle, _address(found))
        (address, size), *of_hops = found[: -hops - 1].reshape(-1, 2).tolist()
        nodes = self._view(address, size, np.int64)
        views = [
            self._view(address, size, dtype)
            for (address, size), dtype in zip(of_hops, hops * _HOP_DTYPES, strict=True)
        ]
        edges = [(views[i], views[i + 1], views[i + 2]) for i in range(0, len(views), 3)]
        return nodes, found[-hops - 1 :], edges

    def _view(self, address: int, size: int, dtype: type) -> np.ndarray:
        return np.asarray(_Memory(self, address, size, dtype)) if size else np.empty(0, dtype)


class _Memory:
    """Part of the memory of a sample, which NumPy reads in place."""

    def __init__(self, sample: _Sample, address: int, size: int, dtype: type):
        self.sample = sample
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (size,),
            "typestr": np.dtype(dtype).str,
        }


def _address(array: np.ndarray) -> int:
    return array.ctypes.data


@functools.cache
def _library() -> ctypes.CDLL | None:
    library = open_library("cpu")
    if library is None:
        return None
    pointer = ctypes.c_void_p
    types = {
        "neighbours": ((pointer,), pointer),
        "edges": ((pointer,), pointer),
        "problem": ((pointer, pointer), ctypes.c_double),
        "arrays": ((pointer, pointer), None),
        "free": ((pointer,), None),
    }
    for name, (arguments, result) in types.items():
        function = library[f"jaxgnn_sample_{name}"]
        function.argtypes, function.restype = arguments, result
        setattr(library, f"jaxgnn_sample_{name}", function)
    return library
