"""GraphSAINT: batches of sampled subgraphs, with weights that make their sums unbiased."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph, Normalization
from jaxgnn.sampling._saint_samplers import (
    EdgeSampler,
    Entries,
    NodeSampler,
    Sampler,
    WalkSampler,
)
from jaxgnn.sampling._subgraph_loader import NodeData, SubgraphLoader, checked_size
from jaxgnn.sampling._subgraphs import Induced, WholeGraph, padded_graph, receivers_of

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
        super().__init__(whole, data, seed, num_threads, processes, capacity)
        self.normalization = graph.normalization
        self._entries = _entries(graph, self._graph)
        size = checked_size(where, "size", size)
        self._sampler = _sampler(where, method, self._entries, size, walk_length)
        self._num_trained = int(np.count_nonzero(self._sampler.can_draw(data.train)))
        if not self._num_trained:
            got = f"{len(data.train)} nodes that it never draws"
            raise bad_input(where, "train", f"with a node that {method!r} can draw", got)
        counts = None if norm_samples is None else checked_size(where, "norm_samples", norm_samples)
        self._counts = _counted(self._graph, self._pre_sample, counts)
        if num_steps is None:
            mean_size = self._counts.nodes.sum() / self._counts.samples
            num_steps = max(1, round(graph.num_rows / (mean_size * self._num_processes)))
        self._num_steps = checked_size(where, "num_steps", num_steps)

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        return self._num_steps

    @property
    def norm_samples(self) -> int:
        """Number of subgraphs that were counted for the normalisation."""
        return self._counts.samples

    def _part_of(self, epoch: int, step: int, process: int) -> Induced:
        return self._drawn(epoch, step * self._num_processes + process)

    def _drawn(self, epoch: int, number: int) -> Induced:
        return self._graph.induced(self._sampler.nodes(self._key(epoch, number)))

    def _pre_sample(self, number: int) -> Induced:
        return self._drawn(_BEFORE_TRAINING, number)

    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        counts = self._counts
        probability = np.maximum(counts.nodes[part.n_id], 1) / counts.samples
        return self._trained_fields(part, slots, probability)

    def _subgraph(self, part: Induced, slots: tuple[int, int]) -> CSRGraph:
        made = padded_graph(part, self._weights(part), slots, with_plan=self._with_plan)
        return dataclasses.replace(made, normalization=self.normalization)

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
    number = found = 0
    while number < samples if samples else found < _COVERAGE * graph.num_nodes:
        part = draw(number)
        nodes[part.n_id] += 1
        edges[part.e_id] += 1
        number, found = number + 1, found + len(part.n_id)
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
