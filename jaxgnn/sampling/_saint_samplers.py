"""Samplers of GraphSAINT: distinct nodes, drawn by node, by edge or by random walks.

Sections 3.4 and algorithm 2 of https://arxiv.org/abs/1907.04931. ``Ã`` is the matrix that a layer
multiplies by, such as the mean over the senders of a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jaxgnn.sampling import _random
from jaxgnn.sampling._random import Key
from jaxgnn.sampling._subgraphs import WholeGraph

# Edges that are read at once where all edges of a graph are.
_AT_ONCE = 1 << 24


class Sampler(Protocol):
    """Draws nodes by counters; the same key gives the same nodes."""

    def nodes(self, key: Key) -> np.ndarray:
        """Draws the nodes of a subgraph; returns the distinct ones, ascending."""
        ...

    def can_draw(self, nodes: np.ndarray) -> np.ndarray:
        """Returns whether each of some nodes has a chance to be drawn, bool [nodes]."""
        ...


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries ``Ã_vu = r_v w_vu c_u`` of the matrix that is estimated; factors of None are ones."""

    graph: WholeGraph
    row_scale: np.ndarray | None
    col_scale: np.ndarray | None

    def of(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Entries in some rows at some positions in the arrays of the graph, float64."""
        values = np.ones(len(positions))
        if self.graph.weights is not None:
            values *= self.graph.weights[positions]
        if self.row_scale is not None:
            values *= self.row_scale[rows]
        if self.col_scale is not None:
            values *= self.col_scale[self.graph.indices[positions]]
        return values


@dataclass(frozen=True, eq=False)
class NodeSampler:
    """Draws ``size`` nodes with replacement, node u in proportion to ``Σ_v Ã_vu²``."""

    size: int
    ends: np.ndarray

    @classmethod
    def of(cls, entries: Entries, size: int) -> NodeSampler:
        """Sums the squares of the columns."""
        graph = entries.graph
        sums = np.zeros(graph.num_nodes)
        for rows, positions in _all_edges(graph):
            squares = entries.of(rows, positions) ** 2
            sums += np.bincount(graph.indices[positions], squares, graph.num_nodes)
        return cls(size, np.cumsum(sums))

    def can_draw(self, nodes: np.ndarray) -> np.ndarray:
        """Returns whether each of some nodes has a chance to be drawn, bool [nodes]."""
        return self.ends[nodes] > np.where(nodes > 0, self.ends[nodes - 1], 0.0)

    def nodes(self, key: Key) -> np.ndarray:
        """Draws the nodes of a subgraph; returns the distinct ones, ascending."""
        words = _random.draw(key, np.arange(self.size), 0)
        return np.unique(_by_weight(self.ends, _random.uniform(words))[0])


@dataclass(frozen=True, eq=False)
class EdgeSampler:
    """Draws ``size`` edges with replacement, edge u → v in proportion to ``1/deg u + 1/deg v``.

    Degrees count the edges that enter a node; the term of a node without any is zero. A row is
    drawn first, then an edge of it, so that only sums of rows are kept.
    """

    size: int
    graph: WholeGraph
    inverse: np.ndarray
    ends: np.ndarray
    sends: np.ndarray

    @classmethod
    def of(cls, graph: WholeGraph, size: int) -> EdgeSampler:
        """Sums the weights of the edges of each row."""
        degrees = graph.degrees()
        inverse = np.where(degrees > 0, 1.0 / np.maximum(degrees, 1), 0.0)
        sums, sends = np.zeros(graph.num_nodes), np.zeros(graph.num_nodes, bool)
        for rows, positions in _all_edges(graph):
            senders = graph.indices[positions]
            sums += np.bincount(rows, inverse[rows] + inverse[senders], graph.num_nodes)
            sends[senders] = True
        return cls(size, graph, inverse, np.cumsum(sums), sends)

    def can_draw(self, nodes: np.ndarray) -> np.ndarray:
        """Returns whether each of some nodes has a chance to be drawn, bool [nodes]."""
        return (self.inverse[nodes] > 0) | self.sends[nodes]

    def nodes(self, key: Key) -> np.ndarray:
        """Distinct ends of the edges, ascending."""
        words = _random.draw(key, np.arange(self.size), 0)
        rows, rest = _by_weight(self.ends, _random.uniform(words))
        ends, positions = self.graph.edges_into(rows)
        senders = self.graph.indices[positions]
        owner = np.repeat(np.arange(len(rows)), np.diff(ends))
        weights = self.inverse[rows[owner]] + self.inverse[senders]
        # Sums of the weights of a row up to and with each edge.
        sums = np.concatenate([np.zeros(1), np.cumsum(weights)])
        before = sums[1:] - sums[ends[:-1]][owner] <= rest[owner]
        place = np.bincount(owner[before], minlength=len(rows))
        chosen = ends[:-1] + np.minimum(place, np.diff(ends) - 1)
        return np.unique(np.concatenate([rows, senders[chosen]]))


@dataclass(frozen=True, eq=False)
class WalkSampler:
    """Draws ``size`` roots with replacement, and walks ``length`` steps from each to senders.

    A walk ends at a node that no edge enters.
    """

    size: int
    length: int
    graph: WholeGraph

    def can_draw(self, nodes: np.ndarray) -> np.ndarray:
        """Returns that each node has a chance to be drawn, as a root, bool [nodes]."""
        return np.ones(len(nodes), bool)

    def nodes(self, key: Key) -> np.ndarray:
        """Draws walks; returns their distinct nodes, ascending."""
        graph, walks = self.graph, np.arange(self.size)
        at = _random.below(_random.draw(key, walks, 0), np.array(graph.num_nodes))
        visited = [at]
        for step in range(1, self.length + 1):
            first = graph.indptr[at].astype(np.int64)
            degrees = graph.indptr[at + 1] - first
            goes_on = np.flatnonzero(degrees)
            offsets = _random.below(_random.draw(key, walks[goes_on], step), degrees[goes_on])
            walks = walks[goes_on]
            at = graph.indices[first[goes_on] + offsets]
            visited.append(at)
        return np.unique(np.concatenate(visited))


def _by_weight(ends: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices drawn by weight from its cumulative sums, and what is left of the sum in each."""
    wanted = uniform * ends[-1]
    chosen = np.searchsorted(ends, wanted, side="right")
    # A product may round up to the whole sum, which is that of the last index with a weight.
    chosen = np.minimum(chosen, np.searchsorted(ends, ends[-1]))
    return chosen, wanted - np.where(chosen > 0, ends[chosen - 1], 0.0)


def _all_edges(graph: WholeGraph) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows and positions of all edges, in pieces."""
    for begin in range(0, graph.num_edges, _AT_ONCE):
        positions = np.arange(begin, min(begin + _AT_ONCE, graph.num_edges))
        yield np.searchsorted(graph.indptr, positions, side="right") - 1, positions
