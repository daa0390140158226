"""Shapes of sampled batches, measured on the graph."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Numbers of slots are multiples of this, except where they are as large as they can be.
_MULTIPLE = 128
_MARGIN = 1.1
# Ratio of the capacities of steps with more nodes than the others.
_STEP = 1.25


@dataclass(frozen=True)
class Capacity:
    """Numbers of slots of a sampled batch, for its nodes and for the edges of each hop.

    A jitted function compiles once for each capacity. The same class holds the sizes of a batch:
    ``capacity.holds(sizes)`` tells whether the batch fits.

    Attributes:
      nodes: slots for the seeds, then for all nodes up to and with each hop, [hops + 1].
      edges: slots for the edges of each hop, from the seeds outwards, [hops].
      candidates: for LABOR on the device, slots for all edges of the rows of each hop, [hops]; else
        empty.

    Example:
      >>> capacity = Capacity(nodes=(2, 128), edges=(256,))
      >>> capacity.holds(Capacity(nodes=(2, 60), edges=(70,)))
      True
    """

    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    candidates: tuple[int, ...] = ()

    def __post_init__(self):
        for name in ("nodes", "edges", "candidates"):
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))

    def holds(self, sizes: Capacity) -> bool:
        """Whether each number of ``sizes`` is at most that of this capacity."""
        return all(map(operator.ge, self._numbers(), sizes._numbers()))

    def grown(self, sizes: Capacity, bound: Capacity) -> Capacity:
        """Returns the capacity for this one and for ``sizes`` with a margin, up to ``bound``.

        Numbers of nodes ascend in each, and so in the result.
        """
        return self._with(map(max, self._numbers(), rounded([sizes], bound)._numbers()))

    def with_seeds(self, seeds: int) -> Capacity:
        """Returns it with so many slots for seeds, and for nodes at least as many."""
        return Capacity(ascending(seeds, self.nodes[1:]), self.edges, self.candidates)

    def widened(self, sizes: Iterable[Capacity], bound: Capacity) -> Capacity:
        """Returns a larger capacity that holds all of the sizes, up to ``bound``.

        It is one of few: all numbers are multiplied by a power of 1.25.
        """
        numbers = self._numbers()
        pairs = [zip(each._numbers(), numbers, strict=True) for each in sizes]
        ratio = max(size / max(slots, 1) for pair in pairs for size, slots in pair)
        factor = _STEP ** math.ceil(math.log(max(ratio, 1)) / math.log(_STEP))
        wide = [-(-math.ceil(max(n, 1) * factor) // _MULTIPLE) * _MULTIPLE for n in numbers]
        return self._with(map(max, numbers, map(min, wide, bound._numbers())))

    def _numbers(self) -> tuple[int, ...]:
        return self.nodes + self.edges + self.candidates

    def _with(self, numbers: Iterable[int]) -> Capacity:
        """Returns other numbers of slots, in the order of ``_numbers``."""
        each = iter(numbers)
        kinds = (self.nodes, self.edges, self.candidates)
        return Capacity(*(tuple(itertools.islice(each, len(kind))) for kind in kinds))


def measured(sizes: Iterable[Capacity], bound: Capacity) -> Capacity:
    """Returns the largest of the sizes, with a margin of a tenth, in multiples of 128.

    No number is above ``bound``. Seeds have as many slots as it says, since a batch has a slot for
    each of its seeds, and no hop has fewer slots for nodes than seeds.
    """
    return rounded(sizes, bound).with_seeds(bound.nodes[0])


def rounded(sizes: Iterable[Capacity], bound: Capacity) -> Capacity:
    """Returns the largest of the sizes as ``measured`` does, with measured slots for seeds too."""
    largest = np.max([each._numbers() for each in sizes], axis=0)
    return bound._with(map(min, map(_with_margin, largest), bound._numbers()))


def ascending(seeds: int, nodes: Iterable[int]) -> tuple[int, ...]:
    """Returns slots for seeds, then for nodes up to and with each hop, which never decrease.

    The nodes of a hop contain those of the hops before it, so rows of a block are columns of it.
    """
    return tuple(itertools.accumulate((seeds, *nodes), max))


def bound_of(
    num_seeds: int,
    fanouts: Sequence[int],
    num_nodes: int,
    num_edges: int,
    max_degree: int,
    *,
    with_candidates: bool = False,
) -> Capacity:
    """Returns the sizes that no batch exceeds.

    Args:
      num_seeds: seeds of a batch.
      fanouts: neighbours that each hop draws, -1 for all.
      num_nodes: nodes of the graph.
      num_edges: edges of the graph, or draws of all nodes where edges are drawn repeatedly.
      max_degree: largest number of edges of a row, or of draws.
      with_candidates: whether to bound the edges that LABOR chooses from.
    """
    nodes, edges, candidates = [num_seeds], [], []
    for fanout in fanouts:
        drawn = max_degree if fanout < 0 else min(fanout, max_degree)
        candidates.append(max(min(nodes[-1] * max_degree, num_edges), 1))
        most = min(nodes[-1] * drawn, num_edges)
        # Seeds may be repeated, and more than there are nodes.
        nodes.append(max(nodes[-1], min(nodes[-1] + most, num_nodes)))
        edges.append(max(most, 1))  # the device needs a slot, even without edges
    return Capacity(tuple(nodes), tuple(edges), tuple(candidates) if with_candidates else ())


def _with_margin(size: int) -> int:
    wanted = int(np.ceil(size * _MARGIN))
    return max(-(-wanted // _MULTIPLE), 1) * _MULTIPLE
