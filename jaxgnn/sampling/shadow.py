"""ShaDow: a small subgraph for each seed, so that layers may be deeper than the subgraph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import own
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling import checks, options
from jaxgnn.sampling.capacity import Capacity
from jaxgnn.sampling.loader import Step
from jaxgnn.sampling.reference import randomness, sample_rows
from jaxgnn.sampling.subgraphs import (
    Induced,
    NodeData,
    SubgraphLoader,
    WholeGraph,
    checked_size,
    filled,
    sizes_of,
    union,
)


class ShadowLoader(SubgraphLoader):
    """Batches of one small subgraph for each seed, without edges between them.

    ShaDow-GNN (https://arxiv.org/abs/2201.07858) decouples depth from scope: the subgraph of a seed
    has the seed, up to ``fanouts[0]`` of its neighbours (senders), up to ``fanouts[1]`` neighbours
    of each of these, and so on, drawn uniformly without replacement, and *all* edges of the graph
    between its nodes. A network of any depth runs on it; the result of the seed is
    ``h[batch.root]``, or a readout over ``batch.graph_ids``.

    ``batch(epoch, step)`` is a ``SubgraphBatch``, a function of its arguments, equal on every
    machine. Iteration yields one epoch after the other, and ``steps(start)`` continues anywhere. In
    a subgraph the seed comes first, then the other nodes in ascending order. A node draws the same
    neighbours for all seeds of a batch. The number of slots is measured: the largest of 8 batches
    with a margin of a tenth. A larger batch increases it, with a warning, and functions compile
    once more.

    Args:
      graph: a square graph that is not normalised; layers normalise the batch.
      seeds: node ids, which may occur several times; a mask, bool [nodes]; or None for all nodes.
      fanouts: largest number of neighbours that each hop draws of a node, -1 for all.
      batch_size: seeds of a batch; the last batch of an epoch may have fewer.
      features: of the nodes, [nodes, ...]: an array, ``np.memmap`` or an object with
        ``gather(ids)``; None for batches without ``x``.
      labels: of the nodes, [nodes, ...], or None. A batch has those of its seeds.
      shuffle: whether to shuffle the seeds in each epoch.
      drop_last: whether to leave out the last batch of an epoch if it has fewer seeds.
      seed: of all random numbers, from 0 to 2^64 - 1.
      num_threads: number of threads that make batches, at most 4; None for one for each core.
      capacity: numbers of node slots and of edge slots of a batch; None measures eight batches.
        With several processes, a batch that does not fit into a given one is an error.
      processes: ``(index, count)`` of this process, whose batches are its part of each step; by
        default those of JAX.

    Raises:
      ValueError: if the graph is traced, not square, normalised, without nodes, or has weights that
        are not finite; ``seeds`` are empty or out of range; a fan-out is 0 or below -1;
        ``batch_size`` is below 1; or features or labels have another length.

    Example:
      >>> path = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 3, 4], 5)
      >>> options = {"fanouts": (1, 1), "batch_size": 2, "shuffle": False}
      >>> batch = ShadowLoader(path, [4, 2], features=np.eye(5), **options).batch(0, 0)
      >>> batch.n_id[:6].tolist(), batch.root.tolist(), batch.graph_ids[:6].tolist()
      ([4, 2, 3, 2, 0, 1], [0, 3], [0, 0, 0, 1, 1, 1])
    """

    def __init__(
        self,
        graph: CSRGraph,
        seeds: npt.ArrayLike | None = None,
        fanouts: Sequence[int] = (10, 5),
        batch_size: int = 1024,
        *,
        features: Any = None,
        labels: npt.ArrayLike | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        num_threads: int | None = None,
        capacity: tuple[int, int] | None = None,
        processes: tuple[int, int] | None = None,
    ):
        where = self._where
        whole = WholeGraph.read(where, graph)
        data = NodeData.of(where, whole.num_nodes, features, labels)
        self._seeds = options.checked_seeds(where, seeds, whole.num_nodes)
        self._fanouts = options.checked_fanouts(where, fanouts)
        checks.options(where, self._fanouts, False, "neighbour", 1)
        super().__init__(
            whole,
            data,
            len(self._seeds),
            checked_size(where, "batch_size", batch_size),
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            num_threads=num_threads,
            capacity=capacity,
            processes=processes,
        )

    def bound(self) -> Capacity:
        """Returns the sizes that no batch exceeds."""
        count = self._batch_size
        return sizes_of(count * self._graph.num_nodes, count * self._graph.num_edges)

    def _part_of(self, step: Step) -> Induced:
        seeds = self._seeds[step.items]
        if not len(seeds):  # Other processes take the seeds of a last step.
            return self._graph.induced(seeds)._replace(starts=np.zeros(0, np.int64))
        owners, nodes = self._scopes(seeds, step.epoch, step.step)
        ends = np.cumsum(np.bincount(owners, minlength=len(seeds)))[:-1]
        return union(map(self._graph.induced, np.split(nodes, ends)))

    def _scopes(self, seeds: np.ndarray, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The nodes of all subgraphs, one after the other, and the place of the seed of each."""
        owners = np.arange(len(seeds))
        pairs = _pairs(owners, seeds, self._graph.num_nodes)
        frontier = pairs
        for hop, fanout in enumerate(self._fanouts):
            frontier = np.setdiff1d(self._drawn(frontier, fanout, (epoch, step, hop)), pairs)
            pairs = np.concatenate([pairs, frontier])
        owners, nodes = np.divmod(pairs, self._graph.num_nodes)
        # The seeds are the first of all pairs; within a subgraph the others are ascending.
        is_seed = np.arange(len(pairs)) < len(seeds)
        order = np.lexsort((nodes, ~is_seed, owners))
        return owners[order], nodes[order]

    def _drawn(self, pairs: np.ndarray, fanout: int, place: tuple[int, int, int]) -> np.ndarray:
        """Pairs of each seed and the neighbours that its nodes draw."""
        graph = self._graph
        owners, nodes = np.divmod(pairs, graph.num_nodes)
        distinct, where = np.unique(nodes, return_inverse=True)
        keys = randomness(self._seed, *place)
        ends, e_id = sample_rows(graph.indptr, graph.indices, distinct, fanout, keys)
        # The drawn edges as a graph, whose row i is the node distinct[i].
        neighbours = WholeGraph(ends, graph.indices[e_id], None)
        first, drawn = neighbours.edges_into(where)
        return _pairs(np.repeat(owners, np.diff(first)), neighbours.indices[drawn], graph.num_nodes)

    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        assert part.starts is not None
        count = len(part.starts)
        ids = np.repeat(np.arange(count), np.diff(part.starts, append=len(part.n_id)))
        labels = self._data.labels
        if labels is not None:
            seeds = part.n_id[part.starts]
            labels = options.read_labels(self._where, labels, seeds, self._batch_size)
        return {
            "y": labels,
            "root": filled(part.starts, self._batch_size, 0, np.int32),
            "seed_mask": own(np.arange(self._batch_size) < count),
            "graph_ids": filled(ids, slots, self._batch_size, np.int32),
        }


def _pairs(owners: np.ndarray, nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """One integer for each pair of a subgraph and a node."""
    return owners.astype(np.int64) * num_nodes + nodes
