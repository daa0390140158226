"""Source of samples along relations, on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxgnn.graph import EdgeType
from jaxgnn.sampling._hetero_capacity import HeteroCapacity
from jaxgnn.sampling._source import Drawing
from jaxgnn.sampling._typed_hops import Relation, TypedHops, sample_typed_hops


@dataclass(frozen=True, eq=False)
class HeteroSample:
    """A sample that fits into a capacity."""

    found: TypedHops
    capacity: HeteroCapacity


@dataclass(frozen=True, eq=False)
class HeteroSource:
    """Draws along relations, on the host. The seeds of its methods are numbers of seeds.

    Attributes:
      relations: what is drawn.
      num_nodes: number of nodes of each type, the type of the seeds first.
      seed_type: type of the seeds.
      seeds: node of each seed, int64 [all seeds].
      seed_times: time of each seed, [all seeds], or None.
      drawing: the options.
      latest: whether the last edges before a time are taken.
      num_threads: threads for one batch.
    """

    relations: dict[EdgeType, Relation]
    num_nodes: dict[str, int]
    seed_type: str
    seeds: np.ndarray
    seed_times: np.ndarray | None
    drawing: Drawing
    latest: bool
    num_threads: int

    def sizes(self, seeds: np.ndarray, epoch: int, step: int) -> HeteroCapacity:
        """Sizes of a sample."""
        return HeteroCapacity.of(self.hops(seeds, epoch, step), list(self.relations))

    def draw(
        self, seeds: np.ndarray, epoch: int, step: int, capacity: HeteroCapacity
    ) -> HeteroSample | HeteroCapacity:
        """A sample; its sizes instead if it does not fit into the capacity."""
        found = self.hops(seeds, epoch, step)
        sizes = HeteroCapacity.of(found, list(self.relations))
        return HeteroSample(found, capacity) if capacity.holds(sizes) else sizes

    def hops(self, seeds: np.ndarray, epoch: int, step: int) -> TypedHops:
        """A sample without padding."""
        return sample_typed_hops(
            list(self.relations.values()),
            self.num_nodes,
            self.seed_type,
            self.seeds[seeds],
            drawing=self.drawing,
            epoch=epoch,
            step=step,
            seed_times=None if self.seed_times is None else self.seed_times[seeds],
            latest=self.latest,
            num_threads=self.num_threads,
        )
