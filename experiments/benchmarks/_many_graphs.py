"""Graphs on the host for trainings on several devices: synthetic ones, and repeated larger ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxgnn.datasets import NodeDataset, synthetic
from jaxgnn.graph import CSRGraph

_MAX_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Data:
    """A graph on the host, without normalisation, with features and labels.

    Attributes:
      graph: the graph.
      features: float32 [nodes, features].
      labels: class of each node, int32 [nodes], or tasks of 0 and 1, float32 [nodes, tasks].
    """

    graph: CSRGraph
    features: np.ndarray
    labels: np.ndarray

    @property
    def outputs(self) -> int:
        """Width of the network's result."""
        return self.labels.shape[1] if self.labels.ndim == 2 else int(self.labels.max()) + 1


def load(scale: str, times: int = 1) -> Data:
    """Generates a synthetic graph, on the GPU if there is one, and copies it to the host.

    Its edges are already sorted by receiver, so that only the offsets have to be computed.

    Args:
      scale: a key of ``jaxgnn.datasets.SCALES``.
      times: factor for the number of nodes and edges.
    """
    data = synthetic(scale, on_device=jax.default_backend() != "cpu")
    data = NodeDataset(**jax.device_get(vars(data)))
    nodes = data.num_nodes
    ends = np.cumsum(np.bincount(data.receivers, minlength=nodes))
    indptr = np.concatenate([[0], ends]).astype(np.int32)
    one = Data(_graph(indptr, data.senders, nodes), data.features, data.labels)
    return one if times == 1 else repeated(one, times)


def repeated(data: Data, times: int) -> Data:
    """A graph of several copies of the nodes, with edges from nodes of any copy.

    Each copy of a row has as many edges as the row. They come from copies of the same senders that
    are drawn at random. The degrees keep their distribution, and all pairs of copies have equally
    many edges between them on average. The copies are built on the host, in threads. Offsets have
    64 bits if needed.

    Args:
      data: the graph to repeat.
      times: number of copies.
    """
    graph = data.graph
    nodes, edges = graph.num_rows, graph.num_edges
    offsets = np.int64 if times * edges > _MAX_INT32 else np.int32
    indptr, senders = np.asarray(graph.indptr).astype(offsets), np.asarray(graph.indices)
    starts = [indptr[:-1] + offsets(copy * edges) for copy in range(times)]
    ends = np.array([times * edges], offsets)
    indices = np.empty(times * edges, np.int32)

    def fill(copy: int) -> None:
        block = indices[copy * edges : (copy + 1) * edges]
        draws = np.random.default_rng(copy).integers(0, times, edges, dtype=np.uint8)
        np.multiply(draws, nodes, out=block, casting="unsafe", dtype=np.int32)
        block += senders

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(times)))
    tiled = (np.concatenate([array] * times) for array in (data.features, data.labels))
    return Data(_graph(np.concatenate([*starts, ends]), indices, times * nodes), *tiled)


def _graph(indptr: np.ndarray, indices: np.ndarray, nodes: int) -> CSRGraph:
    arrays: Any = indptr, indices
    for array in arrays:  # otherwise a graph copies them, since they could still change
        array.flags.writeable = False
    return CSRGraph(*arrays, num_cols=nodes, in_range=True)
