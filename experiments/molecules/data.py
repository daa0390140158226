"""Structures as graphs, split into parts, in batches of one shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from experiments._seeds import streams
from experiments.molecules.config import TrainConfig
from jaxgnn import datasets, models
from jaxgnn._errors import bad_input
from jaxgnn.datasets import StructuresDataset
from jaxgnn.graph import GraphBatch, GraphSample

# Structures that an error names.
_MOST_NAMES = 5


class Split(NamedTuple):
    """Numbers of the structures of each part.

    Attributes:
      train: to train on.
      validation: to choose the best step by.
      test: to score with.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def load(config: TrainConfig) -> StructuresDataset:
    """Generates or reads the structures of the options, with energies and forces.

    Raises:
      ValueError: if a file is invalid, or lacks energies or forces; names the structures that do.
    """
    if config.data is None:
        generate = getattr(datasets, config.system)
        return generate(num=config.structures, seed=streams(config.seed).split)
    if config.data.suffix == ".db":
        data = datasets.read_ase(config.data, missing="nan")  # a stress is not needed
    else:
        keys = {"energy": config.energy_key, "forces": config.forces_key}
        data = datasets.read_extxyz(config.data, **keys, missing="nan")
    for name in ("energy", "forces"):
        lacking = data.unlabelled(name)
        if lacking.size:
            expected = f"structures that all have {name}"
            named = ", ".join(map(str, lacking[:_MOST_NAMES].tolist()))
            more = f" and {lacking.size - _MOST_NAMES} more" if lacking.size > _MOST_NAMES else ""
            got = f"{config.data}, where structure {named}{more} of {len(data)} has none"
            raise bad_input("train", "--data", expected, got)
    return data


def split_of(config: TrainConfig, count: int) -> Split:
    """A random split of structures; ValueError if a part would be empty."""
    order = np.random.default_rng(streams(config.seed).split).permutation(count)
    validation, test = (round(part * count) for part in (config.validation, config.test))
    if not (validation and test and validation + test < count):
        expected = "enough structures for training, validation and test"
        raise bad_input("train", "--data", expected, f"{count}")
    held_out = validation + test
    return Split(order[held_out:], order[:validation], order[validation:held_out])


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of structures, all of one shape, so that each function compiles once.

    The shape has space for any structures of the data set, as many as there are in a batch. Every
    epoch has its own order of the training structures, and leaves out those that do not fill a
    batch.

    Attributes:
      dataset: the structures.
      split: the parts.
      radius: distance up to which atoms are neighbours.
      batch_size: number of structures in a batch.
      seed: seed of the orders.
    """

    dataset: StructuresDataset
    split: Split
    radius: float
    batch_size: int
    seed: int

    @cached_property
    def samples(self) -> list[GraphSample]:
        """Each structure as a graph, with its energy and its forces."""
        found = []
        for place in range(len(self.dataset)):
            structure = self.dataset[place] | {"stress": None}
            found.append(models.atomic_sample(r=self.radius, **structure))
        return found

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Nodes, edges and graphs of a batch, padding included."""
        largest = [
            sum(sorted(sizes)[-self.batch_size :])
            for sizes in zip(*((s.num_nodes, s.num_edges) for s in self.samples), strict=True)
        ]
        return largest[0] + 1, largest[1], self.batch_size + 1

    def __call__(self, step: int) -> GraphBatch:
        """The batch of a training step, counted from 1."""
        per_epoch = max(1, len(self.split.train) // self.batch_size)
        epoch, place = divmod(step - 1, per_epoch)
        first = place * self.batch_size
        return self._batch(self.order(epoch)[first : first + self.batch_size])

    def order(self, epoch: int) -> np.ndarray:
        """The training structures in the order of an epoch."""
        return np.random.default_rng((self.seed, epoch)).permutation(self.split.train)

    def part(self, structures: np.ndarray) -> list[GraphBatch]:
        """Some structures in batches, in their order."""
        ends = range(0, len(structures), self.batch_size)
        return [self._batch(structures[at : at + self.batch_size]) for at in ends]

    def _batch(self, structures: np.ndarray) -> GraphBatch:
        return GraphBatch.from_graphs([self.samples[at] for at in structures], pad_to=self.shape)
