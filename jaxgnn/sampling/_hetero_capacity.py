"""Shapes of sampled batches with nodes of several types."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxgnn.graph import EdgeType
from jaxgnn.sampling import _capacity
from jaxgnn.sampling._capacity import Capacity
from jaxgnn.sampling._typed_hops import Relation, TypedHops


@dataclass(frozen=True)
class HeteroCapacity:
    """Numbers of slots of a sampled batch, for each type of its nodes and edges.

    A jitted function compiles once for each capacity. The same class holds the sizes of a batch.

    Attributes:
      nodes: for each type the slots for the seeds (0 for types that are not theirs), then for all
        nodes up to and with each hop, [hops + 1]. The type of the seeds comes first.
      edges: for each relation the slots for the edges of each hop, from the seeds outwards, [hops].

    Example:
      >>> capacity = HeteroCapacity({"paper": (2, 64), "author": (0, 128)},
      ...                           {("author", "writes", "paper"): (256,)})
      >>> capacity.holds(capacity)
      True
    """

    nodes: Mapping[str, tuple[int, ...]]
    edges: Mapping[EdgeType, tuple[int, ...]]

    def holds(self, sizes: HeteroCapacity) -> bool:
        """Whether each number of ``sizes`` is at most that of this capacity."""
        return self._flat().holds(sizes._flat())

    def grown(self, sizes: HeteroCapacity, bound: HeteroCapacity) -> HeteroCapacity:
        """Returns the capacity for this one and for ``sizes`` with a margin, up to ``bound``."""
        return self._typed(self._flat().grown(sizes._flat(), bound._flat()))

    def widened(self, sizes: Iterable[HeteroCapacity], bound: HeteroCapacity) -> HeteroCapacity:
        """Returns a larger capacity that holds all of the sizes, as for ``Capacity``."""
        return self._typed(self._flat().widened([s._flat() for s in sizes], bound._flat()))

    @classmethod
    def measured(cls, sizes: Iterable[HeteroCapacity], bound: HeteroCapacity) -> HeteroCapacity:
        """Returns the largest of the sizes with a margin, as for ``Capacity``."""
        largest = bound._typed(_capacity.rounded((s._flat() for s in sizes), bound._flat()))
        nodes = {
            t: _capacity.ascending(bound.nodes[t][0], counts[1:])
            for t, counts in largest.nodes.items()
        }
        return cls(nodes, largest.edges)

    @classmethod
    def of(cls, found: TypedHops, edge_types: Sequence[EdgeType]) -> HeteroCapacity:
        """Returns the sizes of a sample."""
        nodes = {t: tuple(map(int, counts)) for t, counts in found.num_nodes.items()}
        hops = (tuple(len(hop.e_id) for hop in of_hops) for of_hops in found.hops)
        return cls(nodes, dict(zip(edge_types, hops, strict=True)))

    def like(self, other: HeteroCapacity) -> HeteroCapacity | None:
        """Returns it in the order of another one; None if that has other types or hops."""
        nodes, edges = _ordered(self.nodes, other.nodes), _ordered(self.edges, other.edges)
        return None if nodes is None or edges is None else HeteroCapacity(nodes, edges)

    def with_rows(self, num_seeds: int) -> HeteroCapacity:
        """Returns it with slots for the seeds, and with a node of each type for each layer."""
        (seed_type, seeds), *others = self.nodes.items()
        nodes = {seed_type: (num_seeds, *seeds[1:]), **dict(others)}
        slots = {t: (n[0], *(max(count, 1) for count in n[1:])) for t, n in nodes.items()}
        return HeteroCapacity(slots, self.edges)

    def _flat(self) -> Capacity:
        kinds = (self.nodes, self.edges)
        return Capacity(*(tuple(itertools.chain(*kind.values())) for kind in kinds))

    def _typed(self, flat: Capacity) -> HeteroCapacity:
        """Numbers in the order of ``_flat``, by the types of this one."""
        return HeteroCapacity(_split(flat.nodes, self.nodes), _split(flat.edges, self.edges))


def _split[Type](
    numbers: Iterable[int], like: Mapping[Type, Sequence[int]]
) -> dict[Type, tuple[int, ...]]:
    """Numbers of all types, one type after the other, by type."""
    each = iter(numbers)
    return {t: tuple(itertools.islice(each, len(of_type))) for t, of_type in like.items()}


def _ordered[Type](
    kind: Mapping[Type, Sequence[int]], like: Mapping[Type, Sequence[int]]
) -> dict[Type, tuple[int, ...]] | None:
    """The numbers in the order of another dictionary; None if it has others."""
    if {t: len(n) for t, n in kind.items()} != {t: len(n) for t, n in like.items()}:
        return None
    return {t: tuple(kind[t]) for t in like}


def bound_of(
    relations: Mapping[EdgeType, Relation],
    num_nodes: Mapping[str, int],
    seed_type: str,
    num_seeds: int,
    *,
    copies: int,
    replace: bool,
) -> HeteroCapacity:
    """Returns the sizes that no batch exceeds.

    Args:
      relations: what is drawn.
      num_nodes: number of nodes of each type, the type of the seeds first.
      seed_type: type of the seeds.
      num_seeds: seeds of a batch.
      copies: number of copies of the graph that are drawn from.
      replace: whether an edge may be drawn again.
    """
    nodes = {t: [num_seeds if t == seed_type else 0] for t in num_nodes}
    edges: dict[EdgeType, list[int]] = {e: [] for e in relations}
    degrees = {e: int(np.max(r.graph.degrees(), initial=0)) for e, r in relations.items()}
    for hop in range(len(next(iter(relations.values())).fanouts)):
        for edge_type, relation in relations.items():
            fanout, degree = relation.fanouts[hop], degrees[edge_type]
            all_draws = copies * relation.graph.num_edges
            if replace and degree and fanout > 0:
                degree = fanout
                all_draws = copies * relation.graph.num_nodes * fanout
            drawn = degree if fanout < 0 else min(fanout, degree)
            edges[edge_type].append(min(nodes[relation.receiver][hop] * drawn, all_draws))
        for node_type, counts in nodes.items():
            found = sum(n[hop] for (sender, _, _), n in edges.items() if sender == node_type)
            limit = copies * num_nodes[node_type]
            # Seeds may be repeated, and more than there are nodes.
            counts.append(max(counts[-1], min(counts[-1] + found, limit)))
    of_nodes = {t: tuple(counts) for t, counts in nodes.items()}
    of_edges = {e: tuple(counts) for e, counts in edges.items()}
    return HeteroCapacity(of_nodes, of_edges).with_rows(num_seeds)
