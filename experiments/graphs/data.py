"""Batches of one shape from a data set of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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
      ValueError: if the data set needs a folder and none was given, or a file is invalid.
    """
    name, seed = config.dataset, streams(config.seed).split
    fractions = (1 - config.validation - config.test, config.validation, config.test)
    if name in _EMBEDDED:
        _require_no_data(config, "is embedded")
        return _EMBEDDED[name](seed=seed, fractions=fractions)
    if name in datasets.GRAPH_READERS:
        if config.data is None:
            raise bad_input("train", "--data", f"the folder with the files of {name}", None)
        return datasets.GRAPH_READERS[name](config.data)
    if Path(name).is_dir():
        _require_no_data(config, "is the folder itself")
    try:
        return datasets.split_graphs(datasets.read_tu(name), fractions, seed=seed)
    except FileNotFoundError as error:
        known = ", ".join((*_EMBEDDED, *datasets.GRAPH_READERS))
        expected = f"one of {known}, or the path of a folder of the TU format ({error})"
        raise bad_input("train", "--dataset", expected, name) from error


def _require_no_data(config: GraphsConfig, reason: str) -> None:
    if config.data is not None:
        expected = f"left out for {config.dataset}, which {reason}"
        raise bad_input("train", "--data", expected, config.data)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parts:
    """A batch in parts of one shape, one for each device.

    Attributes:
      graphs: the parts, whose arrays have a leading axis for the devices.
      known_labels: mean number of known labels in a part, float32 []. Each part's sum of losses is
        divided by it; the mean of these over the parts is the mean over the labels of the batch.
    """

    graphs: GraphBatch
    known_labels: Float[Array, ""]

    @property
    def own(self) -> GraphBatch:
        """The first part; on a device this is the device's own part."""
        return jax.tree.map(lambda array: array[0], self.graphs)


@dataclass(frozen=True)
class Batches:
    """Batches of a data set, all of one shape, so that each function compiles once.

    Every epoch has its own order of the training graphs, cut into batches whose numbers of graphs
    differ by at most one. The shape is the largest that any batch of the run needs.

    Attributes:
      dataset: the graphs.
      per_epoch: number of batches in an epoch.
      shape: nodes, edges and graphs of each batch, or of each part, padding included.
      seed: seed of the orders.
      devices: number of parts of a training batch.
    """

    dataset: GraphsDataset
    per_epoch: int
    shape: tuple[int, int, int]
    seed: int
    devices: int = 1

    @classmethod
    def of(
        cls, dataset: GraphsDataset, batch_size: int, epochs: int, seed: int, devices: int = 1
    ) -> Batches:
        """Batches of about ``batch_size`` graphs for a number of epochs.

        Raises:
          ValueError: if a batch has fewer graphs than there are devices.
        """
        train = part_of(dataset, "train")
        per_epoch, at_once = -(-train.size // batch_size), batch_size // devices
        if train.size // per_epoch < devices:
            expected = f"at most {train.size // per_epoch}, the graphs of a batch"
            raise bad_input("train", "--devices", expected, devices)
        unknown = cls(dataset, per_epoch, (0, 0, 0), seed, devices)
        plans = [unknown.pieces(epoch) for epoch in range(epochs)]
        plans += [_cut(part_of(dataset, name), at_once) for name in _PARTS]
        nodes, edges = (
            max(int(sizes[piece].sum()) for plan in plans for piece in plan)
            for sizes in (dataset.num_nodes_of_each, dataset.num_edges_of_each)
        )
        # One node and one graph of each batch are padding.
        return cls(dataset, per_epoch, (nodes + 1, edges, at_once + 1), seed, devices)

    def order(self, epoch: int) -> np.ndarray:
        """The training graphs in the order of an epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        return rng.permutation(part_of(self.dataset, "train"))

    def pieces(self, epoch: int) -> list[np.ndarray]:
        """The parts of the batches of an epoch, those of each batch in turn."""
        batches = np.array_split(self.order(epoch), self.per_epoch)
        return [part for batch in batches for part in np.array_split(batch, self.devices)]

    def __call__(self, step: int) -> GraphBatch | Parts:
        """The batch of a training step, counted from 1; in parts for several devices."""
        epoch, place = divmod(step - 1, self.per_epoch)
        pieces = self.pieces(epoch)[place * self.devices : (place + 1) * self.devices]
        if self.devices == 1:
            return self._batch(pieces[0])
        graphs = jax.tree.map(lambda *parts: np.stack(parts), *map(self._batch, pieces))
        labels = self.dataset.labels[np.concatenate(pieces)]
        known = np.count_nonzero(labels == labels)  # false for NaN
        return Parts(graphs, jnp.float32(max(known, 1) / self.devices))

    def part(self, name: str) -> list[GraphBatch]:
        """The graphs of a part in batches, in their order."""
        pieces = _cut(part_of(self.dataset, name), self.shape[2] - 1)
        return [self._batch(piece) for piece in pieces]

    def _batch(self, graphs: np.ndarray) -> GraphBatch:
        samples = [GraphSample(**self.dataset[graph]) for graph in graphs.tolist()]
        return GraphBatch.from_graphs(samples, pad_to=self.shape)


def part_of(dataset: GraphsDataset, name: str) -> np.ndarray:
    """The graphs of a part; raises ValueError if there are none."""
    graphs = getattr(dataset, name)
    if graphs is None or not graphs.size:
        raise bad_input("train", "--dataset", f"one with graphs in the part {name}", dataset.name)
    return graphs


def _cut(graphs: np.ndarray, at_once: int) -> list[np.ndarray]:
    """Pieces of at most ``at_once`` graphs, whose lengths differ by at most one."""
    return np.array_split(graphs, max(1, -(-graphs.size // at_once)))
