"""Neighbour sampling in NumPy: the definition of what samplers draw.

``host.py`` computes the same bits in C++, and ``device.py`` under ``jit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn.sampling import checks, random
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.random import Key


@dataclass(frozen=True, eq=False)
class Hop:
    """Edges that one hop draws, as rows of local ids.

    Attributes:
      indptr: first edge of each row, int64 [rows + 1]. Row i is the node ``n_id[i]``.
      senders: local ids of senders, int32 [edges]: places in ``n_id``.
      e_id: positions of the edges in the arrays of the graph, int64 [edges].
    """

    indptr: np.ndarray
    senders: np.ndarray
    e_id: np.ndarray


@dataclass(frozen=True, eq=False)
class Hops:
    """Sample of a batch of seeds.

    Attributes:
      n_id: nodes, int64 [n]: the distinct seeds in the order given, then the new nodes of each hop,
        ascending within the hop.
      num_nodes: number of nodes before the first hop and after each, int64 [hops + 1]. Hop h has
        ``num_nodes[h]`` rows, and its local ids are below ``num_nodes[h + 1]``.
      hops: drawn edges; hop 0 is next to the seeds.
      seed_ids: local id of each seed, int64 [seeds].
    """

    n_id: np.ndarray
    num_nodes: np.ndarray
    hops: tuple[Hop, ...]
    seed_ids: np.ndarray


@dataclass(frozen=True)
class Randomness:
    """Keys of the random numbers of one hop.

    Attributes:
      neighbours: key of the draws of a row without weights.
      weighted: key of the draws of a row with weights.
      labor: key of the draws of senders.
      next_labor: key of the draws towards which those of ``labor`` move, or None.
      factors: shares of the two in this step, as ``random.turn`` has them.
    """

    neighbours: Key
    weighted: Key
    labor: Key
    next_labor: Key | None = None
    factors: tuple[int, int] = (0, 0)


def randomness(seed: int, epoch: int, step: int, hop: int, batch_dependency: int = 1) -> Randomness:
    """The keys of one hop; draws of senders change within ``batch_dependency`` steps."""
    key = random.batch_key(seed, epoch, step)
    neighbours = random.hop_key(key, hop, random.NEIGHBOURS)
    weighted = random.hop_key(key, hop, random.WEIGHTED)
    period, part = divmod(step, batch_dependency)
    labor = _labor_key(seed, epoch, period, hop)
    if batch_dependency == 1:
        return Randomness(neighbours, weighted, labor)
    next_labor = _labor_key(seed, epoch, period + 1, hop)
    factors = random.turn(part, batch_dependency)
    return Randomness(neighbours, weighted, labor, next_labor, factors)


def _labor_key(seed: int, epoch: int, step: int, hop: int) -> Key:
    return random.hop_key(random.batch_key(seed, epoch, step), hop, random.LABOR)


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
    """Draws neighbours of seeds, neighbours of these, and so on; see ``host.sample_hops``.

    With excluded edges the sample is that of the graph that they have been deleted from, with the
    positions of the edges in the whole graph.
    """
    del num_threads
    where = "sampling.sample_hops"
    checks.graph(where, indptr, indices, weights)
    checks.options(where, fanouts, replace, method, batch_dependency)
    checks.counters(where, seed, epoch, step)
    seeds = checks.seeds(where, seeds, len(indptr) - 1)
    excluded = checks.excluded(where, excluded, len(indices))
    options = {"replace": replace, "weights": weights, "method": method, "excluded": excluded}

    n_id, seed_ids = distinct(seeds)
    num_nodes, hops = [len(n_id)], []
    for hop, fanout in enumerate(fanouts):
        keys = randomness(seed, epoch, step, hop, batch_dependency)
        row_ends, e_id = sample_rows(indptr, indices, n_id, fanout, keys, **options)
        drawn = np.asarray(indices[e_id], np.int64)
        checks.senders(where, drawn, e_id, len(indptr) - 1)
        n_id = np.concatenate([n_id, np.setdiff1d(drawn, n_id)])
        num_nodes.append(len(n_id))
        hops.append(Hop(row_ends, _places(n_id, drawn), e_id))
    return Hops(n_id, np.array(num_nodes, np.int64), tuple(hops), seed_ids)


def sample_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    rows: np.ndarray,
    fanout: int,
    keys: Randomness,
    *,
    replace: bool = False,
    weights: np.ndarray | None = None,
    method: Method = "neighbour",
    excluded: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws edges of each of some rows, as if the excluded edges were not in the graph.

    Returns:
      The first drawn edge of each row, int64 [rows + 1], and the positions of the edges in the
      arrays of the graph, int64 [edges], ascending within a row.
    """
    where = "sampling.sample_hops"
    first, ends = (np.asarray(indptr[at], np.int64) for at in (rows, rows + 1))
    checks.rows(where, rows, first, ends - first, len(indices))
    if weights is not None:
        for row in np.flatnonzero(first < ends):
            values = np.asarray(weights[first[row] : ends[row]], np.float64)
            checks.row_weights(where, values, first[row], rows[row])
    left = EdgesLeft.of(excluded)
    first, ends = left.ranks(first), left.ranks(ends)
    degrees = ends - first

    def positions(row, offset):
        return left.positions(first[row] + offset)

    if replace and fanout >= 0 and weights is None:
        row, offset = _with_replacement(rows, degrees, fanout, keys)
    elif replace and fanout >= 0:
        row, offset = _weighted_with_replacement(rows, positions, degrees, fanout, keys, weights)
    elif weights is None and method == "neighbour":
        row, offset = _without_replacement(rows, degrees, fanout, keys)
    else:
        row, offset = _least_keys(indices, rows, positions, degrees, fanout, keys, weights, method)
    order = np.lexsort((offset, row))
    row, offset = row[order], offset[order]
    return _ends(np.bincount(row, minlength=len(rows))), positions(row, offset)


# Each function below returns pairs of a row (its place in `rows`) and an edge's offset in it, among
# those that are not excluded; `positions` turns these pairs into positions in the graph.


def _without_replacement(rows, degrees, fanout, keys):
    """Draws distinct edges, uniformly among all sets of them, by Floyd's method.

    Bentley and Floyd, "A sample of brilliance", 1987, https://doi.org/10.1145/30401.315746.
    """
    small = degrees <= fanout if fanout >= 0 else np.ones(len(rows), bool)
    all_rows, all_offsets = _all_edges(np.where(small, degrees, 0))
    large = np.flatnonzero(~small)
    chosen = np.empty((len(large), max(fanout, 0)), np.int64)
    for slot in range(chosen.shape[1]):
        last = degrees[large] - fanout + slot
        drawn = random.below(random.draw(keys.neighbours, rows[large], slot), last + 1)
        is_taken = (chosen[:, :slot] == drawn[:, None]).any(axis=1)
        chosen[:, slot] = np.where(is_taken, last, drawn)
    row = np.concatenate([all_rows, np.repeat(large, chosen.shape[1])])
    return row, np.concatenate([all_offsets, chosen.ravel()])


def _with_replacement(rows, degrees, fanout, keys):
    """Draws ``fanout`` edges of each row that has any; the same edge may be drawn again."""
    filled = np.flatnonzero(degrees)
    words = random.draw(keys.neighbours, rows[filled, None], np.arange(fanout))
    offsets = random.below(words, degrees[filled, None])
    return np.repeat(filled, fanout), offsets.ravel()


def _weighted_with_replacement(rows, positions, degrees, fanout, keys, weights):
    """Draws ``fanout`` edges of each row with probabilities in proportion to their weights."""
    row, offset = _all_edges(degrees)
    edge_weights = np.asarray(weights[positions(row, offset)], np.float64)
    filled = np.flatnonzero(np.bincount(row, edge_weights, minlength=len(rows)))
    starts = _ends(degrees)
    offsets = np.empty((len(filled), fanout), np.int64)
    for i, row in enumerate(filled):
        ends = np.cumsum(edge_weights[starts[row] : starts[row + 1]])
        drawn = random.uniform(random.draw(keys.weighted, rows[row], np.arange(fanout)))
        # Only the rounding of very small numbers can reach the end.
        points = np.minimum(drawn * ends[-1], np.nextafter(ends[-1], 0.0))
        offsets[i] = np.searchsorted(ends, points, side="right")
    return np.repeat(filled, fanout), offsets.ravel()


def _least_keys(indices, rows, positions, degrees, fanout, keys, weights, method):
    """Chooses the edges of least key in each row; equal keys in the order of the graph.

    Uniform keys draw without replacement. Exponential keys, divided by the weights, draw one edge
    after the other, each in proportion to the weights of those that are left (Efraimidis and
    Spirakis, 2006, https://doi.org/10.1016/j.ipl.2005.11.003). Where keys belong to senders, rows
    choose the same senders as far as they can (LABOR, Balin and Catalyurek, NeurIPS 2023,
    https://arxiv.org/abs/2210.13339).
    """
    row, offset = _all_edges(degrees)
    edges = positions(row, offset)
    if method == "labor":
        key = _labor_keys(keys, np.asarray(indices[edges], np.int64), weights is not None)
    else:
        key = random.exponential(random.draw(keys.weighted, rows[row], offset))
    if weights is not None:
        edge_weights = np.asarray(weights[edges], np.float64)
        allowed = edge_weights > 0
        row, offset = row[allowed], offset[allowed]
        key = key[allowed] / edge_weights[allowed]
    order = np.lexsort((offset, key, row))
    row, offset = row[order], offset[order]
    ends = _ends(np.bincount(row, minlength=len(rows)))
    rank = np.arange(len(row)) - ends[row]
    kept = rank < fanout if fanout >= 0 else np.ones(len(row), bool)
    return row[kept], offset[kept]


def _labor_keys(keys: Randomness, senders: np.ndarray, weighted: bool) -> np.ndarray:
    words = random.draw(keys.labor, senders, 0)
    if keys.next_labor is None:
        return random.exponential(words) if weighted else words
    next_words = random.draw(keys.next_labor, senders, 0)
    sums = random.mixed(words, next_words, keys.factors)
    return random.exponential_of_mixed(sums, keys.factors) if weighted else sums


def _all_edges(degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    row = np.repeat(np.arange(len(degrees)), degrees)
    return row, np.arange(len(row)) - _ends(degrees)[row]


def _ends(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def find_edges(
    indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, senders: np.ndarray
) -> np.ndarray:
    """Finds the positions of all edges between pairs of nodes; see ``host.find_edges``."""
    num_nodes = len(indptr) - 1
    nodes, place = np.unique(rows, return_inverse=True)
    first = np.asarray(indptr[nodes], np.int64)
    degrees = np.asarray(indptr[nodes + 1], np.int64) - first
    checks.rows("sampling.find_edges", nodes, first, degrees, len(indices))
    row, offset = _all_edges(degrees)
    positions = first[row] + offset
    of_edges = np.asarray(indices[positions], np.int64)
    is_node = (of_edges >= 0) & (of_edges < num_nodes)
    is_pair = np.isin(row * num_nodes + of_edges, place * num_nodes + senders)
    return positions[is_node & is_pair]


def distinct(seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct seeds in order of their first place, and the number of each seed among them."""
    _, first, inverse = np.unique(seeds, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return seeds[first[order]], number[inverse.ravel()].astype(np.int64)


def _places(nodes: np.ndarray, values: np.ndarray) -> np.ndarray:
    order = np.argsort(nodes)
    return order[np.searchsorted(nodes, values, sorter=order)].astype(np.int32)


@dataclass(frozen=True, eq=False)
class EdgesLeft:
    """Numbers of edges in a graph that some edges have been deleted from.

    Attributes:
      excluded: positions of the deleted edges in the arrays of the graph, distinct and ascending,
        in NumPy or in JAX; padding in JAX is beyond all positions.
    """

    excluded: Any

    @classmethod
    def of(cls, excluded: np.ndarray | None) -> EdgesLeft:
        """Takes positions on the host; None for none."""
        return cls(np.empty(0, np.int64) if excluded is None else excluded)

    def ranks(self, positions: Any) -> Any:
        """Returns the number of edges that are left before each position."""
        xp: Any = np if isinstance(self.excluded, np.ndarray) else jnp
        return positions - xp.searchsorted(self.excluded, positions)

    def positions(self, ranks: Any) -> Any:
        """Returns the position of each edge that is left, by the number of those before it."""
        xp: Any = np if isinstance(self.excluded, np.ndarray) else jnp
        places = xp.arange(self.excluded.shape[0], dtype=self.excluded.dtype)
        # Edges that are left before each excluded one; the edge of a rank follows those up to it.
        before = self.excluded - places
        return ranks + xp.searchsorted(before, ranks, side="right")
