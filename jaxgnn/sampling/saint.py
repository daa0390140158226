"""GraphSAINT: batches of sampled subgraphs, with weights that make their sums unbiased."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph, Normalization
from jaxgnn.sampling import checks, random
from jaxgnn.sampling.loader import Step
from jaxgnn.sampling.options import checked_processes
from jaxgnn.sampling.random import Key
from jaxgnn.sampling.subgraphs import (
    Induced,
    NodeData,
    SubgraphLoader,
    WholeGraph,
    checked_size,
    padded_graph,
    receivers_of,
    subgraph_key,
)

SaintMethod = Literal["node", "edge", "walk"]
"""Sampler of GraphSAINT: nodes, edges or random walks."""


# Number of times that the samples of the normalisation have a node, on average; as in the code of
# the paper.
_COVERAGE = 50


# Epoch of the samples of the normalisation, which training does not reach.
_BEFORE_TRAINING = 2**32 - 1


class SaintLoader(SubgraphLoader):
    """Batches of sampled nodes and all edges between them, weighted against the bias of sampling.

    GraphSAINT (https://arxiv.org/abs/1907.04931). A batch has the nodes that a sampler draws:

    - ``"node"``: ``size`` nodes, each in proportion to the sum of squares of its column of
      ``Ã``.
    - ``"edge"``: the ends of ``size`` edges, each in proportion to ``1/deg u + 1/deg v``.
    - ``"walk"``: the nodes of ``size`` random walks of ``walk_length`` steps along the edges,
      against their direction. Roots are uniform.

    All draws are with replacement, so a batch has fewer nodes. ``Ã`` is the matrix that layers
    multiply by: the graph with its ``normalization``. Before training, ``norm_samples`` subgraphs
    are drawn; with the numbers ``C_v`` of those that have node v, and ``C_vu`` of those
    that have the edge u → v,

    - ``batch.graph`` has the weights ``Ã_vu C_v / C_vu``. The expected value of a sum over
      the neighbours of a sampled node is then that on the whole graph. The graph counts as
      normalised (but with ``normalization=None``), so layers use these weights unchanged.
    - ``batch.node_weight`` is ``norm_samples`` by ``C_v`` times the number of nodes to train
      on that the sampler can draw. The expected value of ``(node_weight * loss).sum()`` is the
      mean of the loss over these nodes.

    ``"node"`` never draws a node whose column of ``Ã`` is zero, such as one that no edge leaves,
    and ``"edge"`` none without edges: they have no part in the loss. ``"walk"`` draws all nodes. A
    node or edge that no sample has counts as if one had.

    ``batch(epoch, step)`` is a ``SubgraphBatch``, a function of its arguments, equal on every
    machine. Iteration yields one epoch after the other, and ``steps(start)`` continues anywhere.
    Nodes are in ascending order. The number of slots is measured: the largest of 8 batches with a
    margin of a tenth. A larger batch increases it, with a warning, and functions compile once more.

    Args:
      graph: a square graph. In the paper it has only nodes to train on.
      method: the sampler.
      size: number of drawn nodes, edges or walks.
      walk_length: steps of a walk.
      normalization: normalisation of ``Ã``, by ``graph.normalized``: ``"mean"`` as in the
        paper, ``"sym"``, ``"gcn"``, or None for sums. Not applied to a graph that is normalised
        already.
      norm_samples: number of subgraphs that are counted; None draws until a node has occurred 50
        times on average.
      num_steps: steps of an epoch; None for the number of nodes of the graph by that of the batches
        of all processes.
      features: of the nodes, [nodes, ...]: an array, ``np.memmap`` or an object with
        ``gather(ids)``; None for batches without ``x``.
      labels: of the nodes, [nodes, ...], or None.
      train: nodes to train on: a mask, bool [nodes], or distinct ids; None for all.
      seed: of all random numbers, from 0 to 2^64 - 1.
      num_threads: number of threads that make batches, at most 4; None for one for each core.
      capacity: numbers of node slots and of edge slots of a batch; None measures eight batches.
        With several processes, a batch that does not fit into a given one is an error.
      processes: ``(index, count)`` of this process, whose batches are its part of each step; by
        default those of JAX.

    Raises:
      ValueError: if the graph is traced, not square, without nodes, or has weights that are not
        finite; there is no edge to draw for ``"node"`` and ``"edge"``; a number is below 1;
        features or labels have another length; the method or the normalisation is unknown; or
        ``train`` has an id out of range or twice, or no node that the sampler can draw.

    Example:
      >>> ring = CSRGraph.from_edges(range(8), np.roll(range(8), -1), 8)
      >>> loader = SaintLoader(ring, "walk", size=2, walk_length=3, features=np.eye(8))
      >>> batch = loader.batch(epoch=0, step=0)
      >>> batch.graph.normalization, batch.x.shape == (loader.capacity[0], 8)
      ('mean', True)
    """

    _things = "subgraphs"

    def __init__(
        self,
        graph: CSRGraph,
        method: SaintMethod = "walk",
        *,
        size: int,
        walk_length: int = 2,
        normalization: Normalization | None = "mean",
        norm_samples: int | None = None,
        num_steps: int | None = None,
        features: Any = None,
        labels: npt.ArrayLike | None = None,
        train: npt.ArrayLike | None = None,
        seed: int = 0,
        num_threads: int | None = None,
        capacity: tuple[int, int] | None = None,
        processes: tuple[int, int] | None = None,
    ):
        where = self._where
        whole = WholeGraph.read(where, graph, allow_normalized=True)
        data = NodeData.of(where, whole.num_nodes, features, labels, train)
        if not is_choice(normalization, (None, *get_args(Normalization))):
            expected = f"one of {', '.join(map(repr, get_args(Normalization)))}, or None"
            raise bad_input(where, "normalization", expected, repr(normalization))
        if not graph.is_normalized:
            graph = graph.normalized(normalization)
            whole = WholeGraph.read(where, graph, allow_normalized=True)
        checks.counters(where, seed, 0, 0)
        _, num_processes = checked_processes(where, processes)
        self.normalization = graph.normalization
        self._entries = _entries(graph, whole)
        size = checked_size(where, "size", size)
        self._sampler = _sampler(where, method, self._entries, size, walk_length)
        num_trained = int(np.count_nonzero(self._sampler.can_draw(data.train)))
        if not num_trained:
            got = f"{len(data.train)} nodes that it never draws"
            raise bad_input(where, "train", f"with a node that {method!r} can draw", got)
        counts = None if norm_samples is None else checked_size(where, "norm_samples", norm_samples)
        self._graph, self._seed = whole, seed
        self._counts = _counted(whole, self._pre_sample, counts)
        if num_steps is None:
            mean_size = self._counts.nodes.sum() / self._counts.samples
            num_steps = max(1, round(graph.num_rows / (mean_size * num_processes)))
        # An epoch visits samples by their numbers, one in each step of each process.
        super().__init__(
            whole,
            data,
            checked_size(where, "num_steps", num_steps) * num_processes,
            1,
            seed=seed,
            shuffle=False,
            num_threads=num_threads,
            capacity=capacity,
            processes=processes,
        )
        self._num_trained = num_trained

    @property
    def norm_samples(self) -> int:
        """Number of subgraphs that were counted for the normalisation."""
        return self._counts.samples

    def _part_of(self, step: Step) -> Induced:
        return self._drawn(step.epoch, int(step.items[0]))

    def _drawn(self, epoch: int, number: int) -> Induced:
        key = subgraph_key(self._seed, epoch, number)
        return self._graph.induced(self._sampler.nodes(key))

    def _pre_sample(self, number: int) -> Induced:
        return self._drawn(_BEFORE_TRAINING, number)

    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        counts = self._counts
        probability = np.maximum(counts.nodes[part.n_id], 1) / counts.samples
        return self._trained_fields(part, slots, probability)

    def _subgraph(self, part: Induced, slots: tuple[int, int]) -> CSRGraph:
        subgraph = padded_graph(part, self._weights(part), slots, with_plan=self._with_plan)
        return dataclasses.replace(subgraph, normalization=self.normalization)

    def _weights(self, part: Induced) -> np.ndarray:
        """The weights of the edges of a batch, by which sums are unbiased."""
        receivers = part.n_id[receivers_of(part)]
        of_nodes, of_edges = self._counts.nodes[receivers], self._counts.edges[part.e_id]
        entries = self._entries.of(receivers, part.e_id)
        weights = entries * np.maximum(of_nodes, 1) / np.maximum(of_edges, 1)
        return weights.astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class _Counts:
    """Number of samples, and of those that have each node and each edge."""

    samples: int
    nodes: np.ndarray
    edges: np.ndarray


def _counted(graph: WholeGraph, draw: Any, samples: int | None) -> _Counts:
    """Draws subgraphs and counts their nodes and edges."""
    nodes, edges = np.zeros(graph.num_nodes, np.int64), np.zeros(graph.num_edges, np.int32)
    number = occurrences = 0
    while number < samples if samples else occurrences < _COVERAGE * graph.num_nodes:
        part = draw(number)
        nodes[part.n_id] += 1
        edges[part.e_id] += 1
        number, occurrences = number + 1, occurrences + len(part.n_id)
    return _Counts(number, nodes, edges)


def _entries(graph: CSRGraph, host: WholeGraph) -> Entries:
    """The entries of a normalised graph."""
    scales = (None if s is None else np.asarray(s) for s in (graph.row_scale, graph.col_scale))
    return Entries(host, *scales)


def _sampler(where: str, method: Any, entries: Entries, size: int, walk_length: Any) -> Sampler:
    """The sampler of a name."""
    if not is_choice(method, get_args(SaintMethod)):
        expected = f"one of {', '.join(map(repr, get_args(SaintMethod)))}"
        raise bad_input(where, "method", expected, repr(method))
    if method == "walk":
        return WalkSampler(size, checked_size(where, "walk_length", walk_length), entries.graph)
    of_edges = method == "edge"
    sampler = EdgeSampler.of(entries.graph, size) if of_edges else NodeSampler.of(entries, size)
    if not sampler.ends[-1] > 0:
        expected = f"with an edge of a weight that is not zero, by which {method!r} draws"
        raise bad_input(where, "graph", expected, f"{entries.graph.num_edges} edges")
    return sampler


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
        words = random.draw(key, np.arange(self.size), 0)
        return np.unique(_by_weight(self.ends, random.uniform(words))[0])


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
        words = random.draw(key, np.arange(self.size), 0)
        rows, rest = _by_weight(self.ends, random.uniform(words))
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
        at = random.below(random.draw(key, walks, 0), np.array(graph.num_nodes))
        visited = [at]
        for step in range(1, self.length + 1):
            first = graph.indptr[at].astype(np.int64)
            degrees = graph.indptr[at + 1] - first
            goes_on = np.flatnonzero(degrees)
            offsets = random.below(random.draw(key, walks[goes_on], step), degrees[goes_on])
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
