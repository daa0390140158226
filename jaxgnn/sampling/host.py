"""Neighbour sampling on the host, in C++ on any number of threads."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Sequence

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._ffi import sample_neighbours as _ffi
from jaxgnn.sampling import checks, random, reference
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.reference import Hop, Hops


def sample_hops(
    indptr: np.ndarray,
    indices: np.ndarray,
    seeds: np.ndarray,
    fanouts: Sequence[int],
    *,
    seed: int,
    epoch: int,
    step: int,
    replace: bool = False,
    weights: np.ndarray | None = None,
    method: Method = "neighbour",
    batch_dependency: int = 1,
    excluded: np.ndarray | None = None,
    num_threads: int | None = None,
) -> Hops:
    """Draws neighbours of seeds, neighbours of these, and so on, on the host.

    Each hop draws again for all nodes found so far. The result is a function of the arguments: the
    same for any number of threads, in any process. The arrays may be memory-mapped files, of graphs
    larger than the memory; they are not copied, and only rows of sampled nodes are read. The GIL is
    released, so several batches can be drawn by threads. If a file becomes shorter during the call,
    the process dies of SIGBUS.

    Without the compiled library the same is computed by NumPy, with a warning about the slow path.

    Args:
      indptr: first edge of each receiver, int32 or int64 [nodes + 1].
      indices: senders of the edges, int32 or int64 [edges].
      seeds: nodes to begin with; repeated ones become one node.
      fanouts: the number of edges to draw for each node, for each hop; -1 for all of its edges.
      seed: seed of all random numbers, of 64 bits.
      epoch: number of the epoch.
      step: number of the batch in the epoch.
      replace: whether an edge may be drawn several times. A node with any edge then has ``fanout``.
        Otherwise it has all of its edges if these are fewer.
      weights: weights of the edges, float32 or float64 [edges], or None. An edge is drawn in
        proportion to its weight, and never if that is zero.
      method: ``"neighbour"`` draws for each receiver by itself. ``"labor"`` has one random number
        for each sender, so that the nodes of a batch share senders and the batch has fewer nodes
        (Balin and Catalyurek, NeurIPS 2023, https://arxiv.org/abs/2210.13339).
      batch_dependency: number of steps within which the random numbers of ``"labor"`` change to
        others, slowly, so that batches share nodes with the ones before.
      excluded: positions of edges that are not drawn, distinct and ascending, [excluded], or None.
        Other edges are drawn in their place: the sample is that of the graph without these edges.
      num_threads: number of threads; None for as many as the process may use.

    Returns:
      Nodes and edges of each hop. The edges of a row are in the order of the graph.

    Raises:
      ValueError: if an argument is invalid, if a sampled row has invalid offsets, senders or
        weights, or if a mapped file has become too short.
      MemoryError: if the sample does not fit into memory.

    Example:
      >>> indptr, indices = np.array([0, 2, 3, 3]), np.array([1, 2, 2])
      >>> hops = sample_hops(indptr, indices, np.array([0]), (-1,), seed=0, epoch=0, step=0)
      >>> hops.n_id.tolist(), hops.hops[0].senders.tolist()
      ([0, 1, 2], [1, 2])
    """
    where = "sampling.sample_hops"
    checks.graph(where, indptr, indices, weights)
    checks.options(where, fanouts, replace, method, batch_dependency)
    checks.counters(where, seed, epoch, step)
    draws = _draws(seed, epoch, step, replace, method, batch_dependency, num_threads)
    seeds = checks.seeds(where, seeds, len(indptr) - 1)
    excluded = checks.excluded(where, excluded, len(indices))
    if not _is_compiled():
        options = {"replace": replace, "weights": weights, "method": method, "excluded": excluded}
        counters = {"seed": seed, "epoch": epoch, "step": step}
        return reference.sample_hops(
            indptr,
            indices,
            seeds,
            fanouts,
            **counters,
            **options,
            batch_dependency=batch_dependency,
        )
    draws = dataclasses.replace(draws, excluded=excluded)
    distinct, seed_ids = reference.distinct(seeds)
    graph = _ffi.Graph(indptr, indices, weights)
    result = _ffi.sample_neighbours(graph, distinct, fanouts, draws)
    if isinstance(result, _ffi.Problem):
        raise _error(where, result, len(indptr) - 1)
    n_id, num_nodes, hops = result
    return Hops(n_id, num_nodes, tuple(Hop(*hop) for hop in hops), seed_ids)


def sample_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    rows: np.ndarray,
    fanout: int,
    *,
    seed: int,
    epoch: int,
    step: int,
    hop: int,
    replace: bool = False,
    weights: np.ndarray | None = None,
    method: Method = "neighbour",
    batch_dependency: int = 1,
    num_threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws edges of each of some rows; rows may be repeated, and senders need not be rows.

    Graphs with several types of nodes are sampled by it, with another ``hop`` for each type of
    edges. The other arguments are those of ``sample_hops``.

    Returns:
      The first drawn edge of each row, int64 [rows + 1], and the positions of the edges in the
      arrays of the graph, int64 [edges], ascending within a row.

    Raises:
      ValueError: as ``sample_hops``.
      MemoryError: if the sample does not fit into memory.
    """
    where = "sampling.sample_rows"
    checks.graph(where, indptr, indices, weights)
    checks.options(where, (fanout,), replace, method, batch_dependency)
    checks.counters(where, seed, epoch, step)
    draws = _draws(seed, epoch, step, replace, method, batch_dependency, num_threads)
    rows = checks.seeds(where, rows, len(indptr) - 1)
    if not _is_compiled():
        keys = reference.randomness(seed, epoch, step, hop, batch_dependency)
        options = {"replace": replace, "weights": weights, "method": method}
        return reference.sample_rows(indptr, indices, rows, fanout, keys, **options)
    result = _ffi.sample_rows(_ffi.Graph(indptr, indices, weights), rows, fanout, draws, hop)
    if isinstance(result, _ffi.Problem):
        raise _error(where, result, len(indptr) - 1)
    return result


def find_edges(
    indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, senders: np.ndarray
) -> np.ndarray:
    """Finds the positions of all edges between pairs of nodes, with all repeats.

    Reads all edges of the rows. The arrays of the graph may be memory-mapped files.

    Args:
      indptr: first edge of each receiver, int32 or int64 [nodes + 1].
      indices: senders of the edges, int32 or int64 [edges].
      rows: receiver of each pair, a node, [pairs]; a pair may be repeated, and need not have edges.
      senders: sender of each pair, a node, [pairs].

    Returns:
      Positions in the arrays of the graph, distinct and ascending, int64 [found].

    Raises:
      ValueError: if the arrays are invalid, or a row has invalid offsets.
      MemoryError: if the positions do not fit into memory.
    """
    where = "sampling.find_edges"
    checks.graph(where, indptr, indices, None)
    rows, senders = (checks.seeds(where, ends, len(indptr) - 1) for ends in (rows, senders))
    order = np.lexsort((senders, rows))
    rows, senders = rows[order], senders[order]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (rows[1:] != rows[:-1]) | (senders[1:] != senders[:-1])
    rows, senders = rows[is_new], senders[is_new]
    if not _is_compiled():
        return reference.find_edges(indptr, indices, rows, senders)
    result = _ffi.find_edges(_ffi.Graph(indptr, indices, None), rows, senders)
    if isinstance(result, _ffi.Problem):
        raise _error(where, result, len(indptr) - 1)
    return result


def _draws(
    seed: int,
    epoch: int,
    step: int,
    replace: bool,
    method: Method,
    batch_dependency: int,
    num_threads: int | None,
) -> _ffi.Draws:
    period, part = divmod(step, batch_dependency)
    return _ffi.Draws(
        seed=seed,
        epoch=epoch,
        step=step,
        replace=replace,
        labor=method == "labor",
        period=period,
        factors=random.turn(part, batch_dependency) if batch_dependency > 1 else None,
        threads=_threads("sampling.sample_hops", num_threads),
    )


@functools.cache
def _is_compiled() -> bool:
    reason = _ffi.why_missing()
    if reason is not None:
        text = f"jaxgnn: sampling.sample_hops takes the slow path: the sampler in C++ {reason}"
        warnings.warn(text, stacklevel=3)
    return reason is None


def _threads(where: str, num_threads: int | None) -> int:
    if num_threads is None:
        affinity = getattr(os, "sched_getaffinity", None)  # not on every system
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if not checks.is_integer(num_threads) or not 1 <= num_threads <= 1024:
        raise bad_input(where, "num_threads", "an integer from 1 to 1024, or None", num_threads)
    return int(num_threads)


def _error(where: str, problem: _ffi.Problem, num_nodes: int) -> ValueError:
    place, first = problem.place, problem.first
    if problem.kind == _ffi.OFFSETS:
        return checks.bad_offsets(where, place, first, problem.degree)
    if problem.kind == _ffi.SENDER:
        return checks.bad_sender(where, first, place, num_nodes)
    if problem.kind == _ffi.TOO_LARGE:
        return bad_input(where, "fanouts", "so that a batch has fewer than 2^31 nodes", "more")
    if problem.kind == _ffi.WEIGHT:
        return checks.bad_weight(where, problem.weight, place)
    return checks.zero_weights(where, place)
