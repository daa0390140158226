"""Shapes of sampled batches, measured on the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Numbers of slots are multiples of this, except where they are as large as they can be.
_MULTIPLE = 128
_MARGIN = 1.1


@dataclass(frozen=True)
class Capacity:
    """Numbers of slots of a sampled batch, for its nodes and for the edges of each hop.

    A jitted function compiles once for each capacity. The same class holds the sizes of a batch:
    ``capacity.holds(sizes)`` tells whether the batch fits.

    Attributes:
      nodes: slots for the seeds, then for all nodes up to and with each hop, [hops + 1].
      edges: slots for the edges of each hop, from the seeds outwards, [hops].

    Example:
      >>> capacity = Capacity(nodes=(2, 128), edges=(256,))
      >>> capacity.holds(Capacity(nodes=(2, 60), edges=(70,)))
      True
    """

    nodes: tuple[int, ...]
    edges: tuple[int, ...]

    def __post_init__(self):
        for name in ("nodes", "edges"):
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))

    def holds(self, sizes: Capacity) -> bool:
        """Whether each number of ``sizes`` is at most that of this capacity."""
        pairs = zip(self.nodes + self.edges, sizes.nodes + sizes.edges, strict=True)
        return all(slots >= size for slots, size in pairs)

    def grown(self, sizes: Capacity, bound: Capacity) -> Capacity:
        """Returns the capacity for this one and for ``sizes`` with a margin, up to ``bound``."""
        wanted = measured([sizes], bound)
        return Capacity(
            nodes=tuple(map(max, self.nodes, wanted.nodes)),
            edges=tuple(map(max, self.edges, wanted.edges)),
        )


def measured(sizes: Iterable[Capacity], bound: Capacity) -> Capacity:
    """Returns the largest of the sizes, with a margin of a tenth, in multiples of 128.

    No number is above ``bound``, and seeds have as many slots as it says.
    """
    each = list(sizes)
    nodes = np.max([s.nodes for s in each], axis=0)
    edges = np.max([s.edges for s in each], axis=0)
    with_margin = Capacity(tuple(map(_padded, nodes)), tuple(map(_padded, edges)))
    most = tuple(map(min, with_margin.nodes, bound.nodes))
    return Capacity(
        nodes=(bound.nodes[0], *most[1:]),
        edges=tuple(map(min, with_margin.edges, bound.edges)),
    )


def bound_of(
    num_seeds: int, fanouts: Sequence[int], num_nodes: int, num_edges: int, max_degree: int
) -> Capacity:
    """Returns the sizes that no batch exceeds.

    Args:
      num_seeds: seeds of a batch.
      fanouts: neighbours that each hop draws, -1 for all.
      num_nodes: nodes of the graph.
      num_edges: edges of the graph; of each row not more than a fan-out are drawn.
      max_degree: largest number of edges of a row, or of draws where edges are drawn repeatedly.
    """
    nodes, edges = [min(num_seeds, num_nodes)], []
    for fanout in fanouts:
        drawn = max_degree if fanout < 0 else min(fanout, max_degree)
        edges.append(min(nodes[-1] * drawn, num_edges))
        nodes.append(min(nodes[-1] + edges[-1], num_nodes))
    return Capacity(tuple(nodes), tuple(edges))


def _padded(size: int) -> int:
    wanted = int(np.ceil(size * _MARGIN))
    return max(-(-wanted // _MULTIPLE), 1) * _MULTIPLE
