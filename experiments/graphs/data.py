"""From a data set of graphs to batches of one shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments._seeds import streams
from experiments.graphs.config import GraphsConfig
from jaxgnn import datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import GraphsDataset
from jaxgnn.graph import GraphBatch, GraphSample

_PARTS = ("validation", "test")
_EMBEDDED = {"digits": datasets.digit_graphs, "mutag": datasets.mutag}


def load(config: GraphsConfig) -> GraphsDataset:
    """Reads the data set that the options name, with the split of its files or of the seed.

    Raises:
      ValueError: if the data set needs a folder and none was given, or a file is at fault.
    """
    name, seed = config.dataset, streams(config.seed).split
    fractions = (1 - config.validation - config.test, config.validation, config.test)
    if name in _EMBEDDED:
        return _EMBEDDED[name](seed=seed, fractions=fractions)
    if name in datasets.GRAPH_READERS:
        if config.data is None:
            raise bad_input("train", "--data", f"the folder with the files of {name}", None)
        return datasets.GRAPH_READERS[name](config.data)
    try:
        return datasets.split_graphs(datasets.read_tu(name), fractions, seed=seed)
    except FileNotFoundError as error:
        known = ", ".join((*_EMBEDDED, *datasets.GRAPH_READERS))
        expected = f"one of {known}, or the path of a folder of the TU format ({error})"
        raise bad_input("train", "--dataset", expected, name) from error


@dataclass(frozen=True)
class Batches:
    """Batches of a data set, all of one shape, so that each function compiles once.

    Every epoch has the training graphs in an order of its own, cut into batches whose numbers of
    graphs differ by at most one. The shape is the largest that any batch of the run needs.

    Attributes:
      dataset: the graphs.
      per_epoch: number of batches in an epoch.
      shape: nodes, edges and graphs of each batch, padding included.
      seed: seed of the orders.
    """

    dataset: GraphsDataset
    per_epoch: int
    shape: tuple[int, int, int]
    seed: int

    @classmethod
    def of(cls, dataset: GraphsDataset, batch_size: int, epochs: int, seed: int) -> Batches:
        """Batches of about ``batch_size`` graphs for a number of epochs."""
        train = part_of(dataset, "train")
        per_epoch = -(-train.size // batch_size)
        unknown = cls(dataset, per_epoch, (0, 0, 0), seed)
        plans = [unknown.order(epoch) for epoch in range(epochs)]
        plans += [part_of(dataset, name) for name in _PARTS]
        counts = [max(1, -(-plan.size // batch_size)) for plan in plans]
        needed = [
            [_largest(sizes[plan], count) for plan, count in zip(plans, counts, strict=True)]
            for sizes in (dataset.num_nodes_of_each, dataset.num_edges_of_each)
        ]
        # One node and one graph of each batch are padding.
        nodes, edges = (max(sizes) for sizes in needed)
        return cls(dataset, per_epoch, (nodes + 1, edges, batch_size + 1), seed)

    def order(self, epoch: int) -> np.ndarray:
        """The training graphs in the order of an epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        return rng.permutation(part_of(self.dataset, "train"))

    def __call__(self, step: int) -> GraphBatch:
        """The batch of a step of the training, counted from 1."""
        epoch, place = divmod(step - 1, self.per_epoch)
        return self._batch(np.array_split(self.order(epoch), self.per_epoch)[place])

    def part(self, name: str) -> list[GraphBatch]:
        """The graphs of a part in batches, in their order."""
        graphs = part_of(self.dataset, name)
        count = max(1, -(-graphs.size // (self.shape[2] - 1)))
        return [self._batch(piece) for piece in np.array_split(graphs, count)]

    def _batch(self, graphs: np.ndarray) -> GraphBatch:
        samples = [GraphSample(**self.dataset[graph]) for graph in graphs.tolist()]
        return GraphBatch.from_graphs(samples, pad_to=self.shape)


def part_of(dataset: GraphsDataset, name: str) -> np.ndarray:
    """The graphs of a part; ValueError where there are none."""
    graphs = getattr(dataset, name)
    if graphs is None or not graphs.size:
        raise bad_input("train", "--dataset", f"one with graphs in the part {name}", dataset.name)
    return graphs


def _largest(sizes: np.ndarray, count: int) -> int:
    """The largest sum of the pieces into which ``np.array_split`` cuts sizes."""
    ends = np.append(0, np.cumsum(sizes, dtype=np.int64))
    cuts = np.append(0, np.cumsum([piece.size for piece in np.array_split(sizes, count)]))
    return int(np.diff(ends[cuts]).max())
