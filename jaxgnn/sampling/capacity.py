"""Shapes of sampled batches: measured on the graph, and shared by several processes."""

from __future__ import annotations

import itertools
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.graph import EdgeType
from jaxgnn.sampling.relations import Relation, TypedHops

# Numbers of slots are multiples of this, except where they are as large as they can be.
_MULTIPLE = 128


_MARGIN = 1.1


# Ratio of the capacities of steps with more nodes than the others.
_STEP = 1.25
_UNREACHED = 2**62


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

    def unbounded(self) -> Capacity:
        """Returns a bound of as many numbers that no batch reaches."""
        return self._with(itertools.repeat(_UNREACHED))

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
        largest = bound._typed(rounded((s._flat() for s in sizes), bound._flat()))
        nodes = {t: ascending(bound.nodes[t][0], counts[1:]) for t, counts in largest.nodes.items()}
        return cls(nodes, largest.edges)

    @classmethod
    def of(cls, sample: TypedHops, edge_types: Sequence[EdgeType]) -> HeteroCapacity:
        """Returns the sizes of a sample."""
        nodes = {t: tuple(map(int, counts)) for t, counts in sample.num_nodes.items()}
        hops = (tuple(len(hop.e_id) for hop in of_hops) for of_hops in sample.hops)
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


def typed_bound_of(
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
            new_nodes = sum(n[hop] for (sender, _, _), n in edges.items() if sender == node_type)
            limit = copies * num_nodes[node_type]
            # Seeds may be repeated, and more than there are nodes.
            counts.append(max(counts[-1], min(counts[-1] + new_nodes, limit)))
    of_nodes = {t: tuple(counts) for t, counts in nodes.items()}
    of_edges = {e: tuple(counts) for e, counts in edges.items()}
    return HeteroCapacity(of_nodes, of_edges).with_rows(num_seeds)


@dataclass(frozen=True, eq=False)
class SharedCapacity:
    """Decides the capacity of a step, which is the same in each process.

    A batch is a function of its epoch, step and process. So a process can count the parts of the
    others, and the capacity of a step is a function of it alone: the loader's, or if one of the
    parts does not fit, a larger one for this step. Threads and restarts do not change it.

    A capacity that the user has given is that of all steps; no process counts the parts of others.

    Attributes:
      where: name of the loader, for messages.
      process: index of this process.
      num_processes: number of processes.
      is_given: whether the user has given the capacity.
      shown: makes the text of sizes, for messages.
    """

    where: str
    process: int
    num_processes: int
    is_given: bool
    shown: Callable[[Any], str] = str
    _warned: set[Any] = field(default_factory=set)

    def of_step(
        self,
        capacity: Any,
        bound: Any,
        excess: Any,
        sizes_of: Callable[[int], Any],
        place: tuple[int, int],
    ) -> Any:
        """Returns the capacity of a step.

        Args:
          capacity: the capacity of the loader.
          bound: sizes that no batch exceeds.
          excess: sizes of the part of this process, or None if they fit.
          sizes_of: returns the sizes of the part of a process.
          place: epoch and step.

        Raises:
          ValueError: if the part of this process does not fit into a capacity that was given.

        Warns:
          UserWarning: if a part does not fit, once for each larger capacity.
        """
        batch = "the batch of epoch {} and step {}".format(*place)
        if self.is_given:
            if excess is not None:
                expected = (
                    f"enough for {batch}, {self.shown(excess)}, as it can not grow in one of "
                )
                expected += f"{self.num_processes} processes"
                raise bad_input(self.where, "capacity", expected, self.shown(capacity))
            return capacity
        others = (p for p in range(self.num_processes) if p != self.process)
        parts = [*map(sizes_of, others), *([] if excess is None else [excess])]
        too_large = [sizes for sizes in parts if not capacity.holds(sizes)]
        if not too_large:
            return capacity
        widened = capacity.widened(too_large, bound)
        if repr(widened) not in self._warned:
            self._warned.add(repr(widened))
            warnings.warn(
                f"{self.where}: {batch} has {self.shown(too_large[0])} in one of "
                f"{self.num_processes} processes, more than {self.shown(capacity)}; in such steps "
                f"it is {self.shown(widened)} in all of them, for which a jitted step compiles "
                "again",
                stacklevel=4,
            )
        return widened
