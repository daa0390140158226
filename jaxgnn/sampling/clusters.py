"""Cluster-GCN: batches of clusters of nodes, with the edges within and between them."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.distributed import partition
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling.loader import Step
from jaxgnn.sampling.subgraphs import Induced, NodeData, SubgraphLoader, WholeGraph, checked_size

ClusterMethod = Literal["communities", "metis", "contiguous", "random"]
"""Method that finds clusters; see ``distributed.partition``."""


class ClusterLoader(SubgraphLoader):
    """Batches of some clusters of nodes, for training on graphs that no device holds.

    Cluster-GCN (https://arxiv.org/abs/1905.07953): in each epoch the clusters are shuffled, and a
    batch has all nodes of ``batch_clusters`` of them, and all edges between these nodes, also those
    from one cluster to another. So every node is in one batch of an epoch, and a layer costs as
    much as on the whole graph. Edges to nodes outside of the batch are missing, which biases the
    sums of neighbours; several clusters a batch reduce that.

    ``batch(epoch, step)`` is a ``SubgraphBatch``, a function of its arguments, equal on every
    machine. Iteration yields one epoch after the other, and ``steps(start)`` continues anywhere.
    Nodes are in ascending order. The number of slots is measured: the largest of 8 batches with a
    margin of a tenth. A larger batch increases it, with a warning, and functions compile once more.

    Args:
      graph: a square graph that is not normalised; layers normalise the batch.
      clusters: number of clusters, at most that of nodes; or the cluster of each node, integers
        [nodes].
      batch_clusters: clusters of a batch; the last batch of an epoch may have fewer.
      features: of the nodes, [nodes, ...]: an array, ``np.memmap`` or an object with
        ``gather(ids)``; None for batches without ``x``.
      labels: of the nodes, [nodes, ...], or None.
      train: nodes to train on: a mask, bool [nodes], or distinct ids; None for all.
      method: how to find a number of clusters. ``"communities"`` needs no package, ``"metis"``
        needs ``pymetis`` and cuts fewer edges.
      cache: folder that keeps the clusters, by a hash of the graph; None keeps nothing.
      shuffle: whether to shuffle the clusters in each epoch.
      seed: of the shuffling, from 0 to 2^64 - 1.
      num_threads: number of threads that make batches, at most 4; None for one for each core.
      capacity: numbers of node slots and of edge slots of a batch; None measures eight batches.
        With several processes, a batch that does not fit into a given one is an error.
      processes: ``(index, count)`` of this process, whose batches are its part of each step; by
        default those of JAX.

    Raises:
      ValueError: if the graph is traced, not square, normalised, without nodes, or has weights that
        are not finite; a number is below 1; ``clusters`` is larger than the number of nodes or an
        array of another length; features or labels have another length; the method is unknown; or
        ``train`` has an id out of range or twice.
      ImportError: for ``method="metis"`` without ``pymetis``.

    Example:
      >>> ring = CSRGraph.from_edges(range(8), np.roll(range(8), -1), 8)
      >>> clusters = [0, 0, 1, 1, 2, 2, 3, 3]
      >>> loader = ClusterLoader(ring, clusters, 2, features=np.eye(8), shuffle=False)
      >>> batch = loader.batch(epoch=0, step=0)
      >>> batch.n_id.tolist(), len(loader)
      ([0, 1, 2, 3, -1, -1, -1, -1], 2)
      >>> batch.graph.indices[:3].tolist(), batch.e_id[:4].tolist()
      ([0, 1, 2], [1, 2, 3, -1])
    """

    _things = "clusters"
    _divides_evenly = False

    def __init__(
        self,
        graph: CSRGraph,
        clusters: int | npt.ArrayLike,
        batch_clusters: int = 1,
        *,
        features: Any = None,
        labels: npt.ArrayLike | None = None,
        train: npt.ArrayLike | None = None,
        method: ClusterMethod = "communities",
        cache: str | os.PathLike[str] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        num_threads: int | None = None,
        capacity: tuple[int, int] | None = None,
        processes: tuple[int, int] | None = None,
    ):
        where = self._where
        whole = WholeGraph.read(where, graph)
        data = NodeData.of(where, whole.num_nodes, features, labels, train)
        if not is_choice(method, get_args(ClusterMethod)):
            expected = f"one of {', '.join(map(repr, get_args(ClusterMethod)))}"
            raise bad_input(where, "method", expected, repr(method))
        self.cluster_of = _clusters(where, graph, clusters, method, cache)
        # The nodes of all clusters, one after the other, and where each cluster begins.
        self._nodes = np.argsort(self.cluster_of, kind="stable")
        sizes = np.bincount(self.cluster_of)
        self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[sizes > 0])])
        self.batch_clusters = checked_size(where, "batch_clusters", batch_clusters)
        super().__init__(
            whole,
            data,
            self.num_clusters,
            self.batch_clusters,
            seed=seed,
            shuffle=shuffle,
            num_threads=num_threads,
            capacity=capacity,
            processes=processes,
        )

    @property
    def num_clusters(self) -> int:
        """Number of clusters that have a node."""
        return len(self._ends) - 1

    def _part_of(self, step: Step) -> Induced:
        nodes = [self._nodes[self._ends[i] : self._ends[i + 1]] for i in step.items.tolist()]
        return self._graph.induced(np.sort(np.concatenate([self._nodes[:0], *nodes])))

    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        return self._trained_fields(part, slots, 1 / (len(self) * self._num_processes))


def _clusters(where: str, graph: CSRGraph, clusters: Any, method: str, cache: Any) -> np.ndarray:
    """The cluster of each node, given or found."""
    if np.ndim(clusters) == 0:
        number = checked_size(where, "clusters", clusters)
        if number > graph.num_rows:
            expected = f"at most one for each of {graph.num_rows} nodes"
            raise bad_input(where, "clusters", expected, number)
        return partition(graph, number, method, cache=cache).part_of
    cluster_of = np.asarray(clusters)
    if cluster_of.shape != (graph.num_rows,) or cluster_of.dtype.kind not in "iu":
        expected = f"a number, or integers of shape ({graph.num_rows},), the cluster of each node"
        raise bad_input(
            where, "clusters", expected, f"{cluster_of.dtype} of shape {cluster_of.shape}"
        )
    if cluster_of.min() < 0:
        expected = "not negative"
        at = int(cluster_of.argmin())
        raise bad_input(where, f"clusters[{at}]", expected, int(cluster_of[at]))
    return np.unique(cluster_of, return_inverse=True)[1].astype(np.int32)
