"""Typed call of the neighbour sampler, plain C functions that run without JAX and without the GIL."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np

from jaxgnn._ffi._library import open_library, why_not_open

OFFSETS, SENDER, WEIGHT, ZERO_WEIGHTS = range(1, 5)
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


def sample_neighbours(
    indptr: np.ndarray,
    indices: np.ndarray,
    weights: np.ndarray | None,
    seeds: np.ndarray,
    fanouts: np.ndarray,
    *,
    seed: int,
    epoch: int,
    step: int,
    replace: bool,
    labor: bool,
    period: int,
    factors: tuple[int, int] | None,
    threads: int,
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] | Problem:
    """Samples neighbours of seeds in several hops; see ``jaxgnn.sampling.sample_hops``.

    Nothing is copied: the library reads the arrays of the graph, which must be contiguous, and the
    results are views of its memory, which is freed with the last of them.

    Args:
      indptr: int32 or int64 [nodes + 1].
      indices: int32 or int64 [edges].
      weights: float32 or float64 [edges], or None.
      seeds: distinct valid nodes, int64 [seeds].
      fanouts: valid fan-outs, int64 [hops].
      seed: seed of all random numbers.
      epoch: first counter of the batch.
      step: second counter of the batch.
      replace: whether an edge may be drawn again.
      labor: whether keys belong to senders.
      period: counter that stands for ``step`` in the keys of senders.
      factors: shares of the draws of ``period`` and the next; None for those of ``period`` alone.
      threads: number of threads.

    Returns:
      Nodes, int64 [nodes]; their number before the first hop and after each, int64 [hops + 1]; and
      offsets int64, local senders int32 and positions int64 of each hop. A ``Problem`` if the graph
      is invalid.

    Raises:
      MemoryError: if there is not enough memory.
      NotImplementedError: if there is no compiled library.
    """
    library = _library()
    if library is None:
        raise NotImplementedError(f"sample_neighbours: {why_not_open('cpu')}")
    first, second = factors or (0, 0)
    request = _Request(
        **{"indptr": _address(indptr), "indices": _address(indices)},
        **{"weights": None if weights is None else _address(weights)},
        **{"num_nodes": len(indptr) - 1, "num_edges": len(indices)},
        **{"seeds": _address(seeds), "num_seeds": len(seeds)},
        **{"fanouts": _address(fanouts), "num_hops": len(fanouts)},
        **{"seed": seed, "epoch": epoch, "step": step, "period": period},
        **{"mixes": factors is not None, "mix_first": first, "mix_second": second},
        **{"replace": replace, "labor": labor, "threads": threads},
        **{"wide_indptr": indptr.itemsize == 8, "wide_indices": indices.itemsize == 8},
        **{"wide_weights": weights is not None and weights.itemsize == 8},
    )
    handle = library.jaxgnn_sample_neighbours(ctypes.byref(request))
    if not handle:
        raise MemoryError("sample_neighbours: not enough memory")
    sample = _Sample(library, handle)
    return sample.problem() or sample.arrays(len(fanouts))


class _Request(ctypes.Structure):
    """The struct ``Request`` of ``ffi/cpu/sample_neighbours.cc``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("indptr", "indices", "weights")),
        *((name, ctypes.c_int64) for name in ("num_nodes", "num_edges")),
        *((name, ctypes.c_void_p) for name in ("seeds", "fanouts")),
        *((name, ctypes.c_int64) for name in ("num_seeds", "num_hops")),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("epoch", "step", "period")),
        *((name, ctypes.c_uint32) for name in ("mix_first", "mix_second")),
        *((name, ctypes.c_int32) for name in ("mixes", "replace", "labor", "threads")),
        *((name, ctypes.c_int32) for name in ("wide_indptr", "wide_indices", "wide_weights")),
    )


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
        return Problem(*found, weight) if found[0] else None

    def arrays(self, hops: int):
        """Nodes, their numbers, and offsets, senders and positions of each hop."""
        addresses, num_nodes = (ctypes.c_int64 * (1 + 3 * hops))(), np.empty(hops + 1, np.int64)
        self._library.jaxgnn_sample_arrays(self._handle, addresses, _address(num_nodes))
        nodes = self._view(addresses[0], np.int64, int(num_nodes[-1]))
        found = []
        for hop in range(hops):
            indptr, senders, positions = addresses[1 + 3 * hop : 4 + 3 * hop]
            ends = self._view(indptr, np.int64, int(num_nodes[hop]) + 1)
            size = int(ends[-1])
            edges = self._view(positions, np.int64, size)
            found.append((ends, self._view(senders, np.int32, size), edges))
        return nodes, num_nodes, found

    def _view(self, address: int, dtype: type, size: int) -> np.ndarray:
        if size == 0:
            return np.empty(0, dtype)
        memory = (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(address)
        memory.sample = self  # pyrefly: ignore[missing-attribute]
        return np.frombuffer(memory, dtype)


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
        "problem": ((pointer, pointer), ctypes.c_double),
        "arrays": ((pointer, pointer, pointer), None),
        "free": ((pointer,), None),
    }
    for name, (arguments, result) in types.items():
        function = library[f"jaxgnn_sample_{name}"]
        function.argtypes, function.restype = arguments, result
        setattr(library, f"jaxgnn_sample_{name}", function)
    return library
