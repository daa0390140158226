"""ShaDow: a small subgraph for each seed, so that layers may be deeper than the subgraph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import own
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling._capacity import Capacity
from jaxgnn.sampling._reference import randomness, sample_rows
from jaxgnn.sampling._subgraph_loader import NodeData, SubgraphLoader, checked_size, read_graph
from jaxgnn.sampling._subgraphs import HostGraph, Induced, filled, union


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
      seeds: node ids, integers [seeds]; or a mask, bool [nodes]. Ids may occur several times.
      fanouts: largest number of neighbours that each hop draws of a node, -1 for all.
      batch_size: seeds of a batch; the last batch of an epoch may have fewer.
      features: of the nodes, [nodes, ...]: an array, ``np.memmap`` or an object with
        ``gather(ids)``; None for batches without ``x``.
      labels: of the nodes, [nodes, ...], or None. A batch has those of its seeds.
      shuffle: whether to shuffle the seeds in each epoch.
      seed: seed of the random numbers.

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
        seeds: npt.ArrayLike,
        fanouts: Sequence[int] = (10, 5),
        batch_size: int = 1024,
        *,
        features: Any = None,
        labels: npt.ArrayLike | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ):
        where = "ShadowLoader"
        graph = read_graph(where, graph)
        data = NodeData.of(where, graph.num_rows, features, labels, None)
        super().__init__(HostGraph.of(graph), data, seed)
        self.seeds = _seeds(where, seeds, graph.num_rows)
        self.fanouts = _fanouts(where, fanouts)
        self.batch_size = checked_size(where, "batch_size", batch_size)
        self.shuffle = shuffle

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        return -(-len(self.seeds) // self.batch_size)

    def _part(self, epoch: int, step: int) -> Induced:
        seeds = self.seeds
        if self.shuffle:
            seeds = seeds[self._shuffled(epoch, len(seeds))]
        seeds = seeds[step * self.batch_size :][: self.batch_size]
        owners, nodes = self._scopes(seeds, epoch, step)
        ends = np.cumsum(np.bincount(owners, minlength=len(seeds)))[:-1]
        return union(map(self._graph.induced, np.split(nodes, ends)))

    def _scopes(self, seeds: np.ndarray, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The nodes of all subgraphs, one after the other, and the place of the seed of each."""
        owners = np.arange(len(seeds))
        known = _pairs(owners, seeds, self._graph.num_nodes)
        frontier = known
        for hop, fanout in enumerate(self.fanouts):
            frontier = np.setdiff1d(self._drawn(frontier, fanout, (epoch, step, hop)), known)
            known = np.concatenate([known, frontier])
        owners, nodes = np.divmod(known, self._graph.num_nodes)
        # The seeds are the first of all pairs; within a subgraph the others are ascending.
        is_seed = np.arange(len(known)) < len(seeds)
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
        neighbours = HostGraph(ends, graph.indices[e_id], None)
        first, drawn = neighbours.edges_into(where)
        return _pairs(
            np.repeat(owners, np.diff(first)), neighbours.indices[drawn], graph.num_nodes
        )

    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        assert part.starts is not None
        count = len(part.starts)
        ids = np.repeat(np.arange(count), np.diff(part.starts, append=len(part.n_id)))
        labels = self._data.labels
        if labels is not None:
            labels = filled(labels[part.n_id[part.starts]], self.batch_size, 0, labels.dtype)
        return {
            "y": labels,
            "root": filled(part.starts, self.batch_size, 0, np.int32),
            "seed_mask": own(np.arange(self.batch_size) < count),
            "graph_ids": filled(ids, slots, self.batch_size, np.int32),
        }

    def _bound(self) -> Capacity:
        graph = self._graph
        sizes = self.batch_size * np.array([graph.num_nodes, graph.num_edges])
        return Capacity((1, int(sizes[0])), (int(sizes[1]),))


def _pairs(owners: np.ndarray, nodes: np.ndarray, num_nodes: int) -> np.ndarray:
    """One integer for each pair of a subgraph and a node."""
    return owners.astype(np.int64) * num_nodes + nodes


def _seeds(where: str, seeds: npt.ArrayLike, num_nodes: int) -> np.ndarray:
    ids = np.asarray(seeds)
    if ids.dtype == bool and ids.shape == (num_nodes,):
        ids = np.flatnonzero(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not ids.size:
        expected = f"node ids, integers [seeds], or a mask of shape ({num_nodes},)"
        raise bad_input(where, "seeds", expected, f"{ids.dtype} of shape {ids.shape}")
    outside = np.flatnonzero((ids < 0) | (ids >= num_nodes))
    if outside.size:
        at = int(outside[0])
        raise bad_input(where, f"seeds[{at}]", f"in [0, {num_nodes})", int(ids[at]))
    return ids.astype(np.int64)


def _fanouts(where: str, fanouts: Any) -> tuple[int, ...]:
    if not isinstance(fanouts, Sequence) or not fanouts:
        raise bad_input(where, "fanouts", "a sequence with a number for each hop", repr(fanouts))
    for at, fanout in enumerate(fanouts):
        is_integer = isinstance(fanout, int | np.integer) and not isinstance(fanout, bool)
        if not is_integer or fanout == 0 or fanout < -1:
            raise bad_input(where, f"fanouts[{at}]", "at least 1, or -1 for all", repr(fanout))
    return tuple(map(int, fanouts))
