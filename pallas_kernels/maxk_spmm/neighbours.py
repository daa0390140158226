"""Loops of a group of lanes over the neighbours of a row: one by one, or in aligned fours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pallas_kernels.graph.rows import Piece, Pieces
from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import LANES

# Neighbours whose indices are loaded at once, from an aligned address; and the most edges of a
# piece that are in no such four.
_FOUR, _ENDS = 4, 6


class AddNeighbours(Protocol):
    """A function that adds neighbours to the sums of their groups."""

    def __call__(
        self,
        edges: list[Value],
        exist: list[Value | None],
        nodes: list[Value],
        load_next: Callable[[], Any],
    ) -> Any:
        """Loads the neighbours' entries, calls ``load_next``, and then adds the entries.

        Returns what ``load_next`` returned. This order lets the next loads overlap with the
        additions.

        Args:
          edges: edges to the neighbours.
          exist: whether each edge is one of the group's, or None if all are; others may be read,
            but not added.
          nodes: the neighbours.
          load_next: starts to load what is needed next.
        """
        ...


@dataclass(frozen=True)
class OneByOne:
    """A group's edges of a piece: every ``stride``-th from ``first`` on, ``count`` of them."""

    first: Value
    stride: int
    count: Value

    @classmethod
    def of(cls, piece: Piece, number: Value, groups: int, exists: Value) -> OneByOne:
        """Returns the edges of group ``number`` of those that share a piece.

        Without ``exists`` there are none.
        """
        count = _share(_edges_of(piece), number, groups, exists)
        return cls(piece.begin + number, groups, count)

    def walk(self, graph: Pieces, ahead: int, add: AddNeighbours) -> None:
        """Adds the neighbours, ``ahead`` at a time."""
        warp, count = self.count.warp, self.count

        def edge(t):
            # A group without further edges reads any edge.
            return warp.select(t < count, self.first + t * self.stride, 0)

        def load(t):
            return [graph.indices.load(edge(t + s)) for s in range(ahead)]

        def step(t, nodes, is_full):
            places = [t + s for s in range(ahead)]
            exist = [None if is_full else place < count for place in places]
            load_next = functools.partial(load, t + ahead)
            return add([edge(place) for place in places], exist, nodes, load_next)

        # The first group has the most edges and the last one the fewest: groups that share a long
        # piece take its edges in turn, and short pieces are sorted by length.
        most, least = warp.shuffle(count, 0), warp.shuffle(count, LANES - 1)
        full = least - least % ahead
        nodes = warp.loop(0, full, ahead, load(warp.i32(0)), lambda t, n: step(t, n, True))
        warp.loop(full, most, ahead, nodes, lambda t, n: step(t, n, False))


@dataclass(frozen=True)
class InFours:
    """A group's edges of a piece: some aligned fours, and some of the edges at its ends.

    Attributes:
      begin: first edge of the piece.
      head: edges of the piece before its first four, i32.
      in_fours: edges of the piece that are in fours, i32.
      ends: edges before and after the fours that belong to the group, i32.
      fours: fours that belong to the group, i32.
      number: number of the group among those that share the piece, i32.
      groups: how many groups share the piece.
    """

    begin: Value
    head: Value
    in_fours: Value
    ends: Value
    fours: Value
    number: Value
    groups: int

    @classmethod
    def of(cls, piece: Piece, number: Value, groups: int, exists: Value) -> InFours:
        """Returns the edges of group ``number`` of those that share a piece.

        Without ``exists`` there are none.
        """
        count = _edges_of(piece)
        head = (_FOUR - (piece.begin % _FOUR).to("i32")) % _FOUR
        head = count.warp.select(count <= _ENDS, count, head)
        rest = count - head
        in_fours = rest - rest % _FOUR
        fours = in_fours // _FOUR
        ends = _share(count - in_fours, number, groups, exists)
        fours = _share(fours, number, groups, exists)
        return cls(piece.begin, head, in_fours, ends, fours, number, groups)

    def walk(self, graph: Pieces, ahead: int, add: AddNeighbours) -> None:
        """Adds the neighbours, ``ahead`` at a time, which is a multiple of four."""
        warp, together = self.fours.warp, ahead // _FOUR
        most, least = (warp.reduce(op, self.fours) for op in ("max", "min"))

        def load(first):
            found = []
            for t in (first + i for i in range(together)):
                words = graph.indices.load_words(self._four(t, self.fours), _FOUR)
                found += [word.bits("i32") for word in words]
            return found

        def step(first, nodes, is_full):
            edges, exist = [], []
            for t in (first + i for i in range(together)):
                edge = self._four(t, None if is_full else self.fours)
                edges += [edge + s for s in range(_FOUR)]
                exist += [None if is_full else t < self.fours] * _FOUR
            return add(edges, exist, nodes, functools.partial(load, first + together))

        # The graph may have fewer than four edges, so nothing is loaded without a four.
        none = [warp.i32(0)] * ahead
        nodes = warp.update_when(most > 0, none, lambda _: load(warp.i32(0)))
        self._walk_ends(graph, add)
        full = least - least % together
        nodes = warp.loop(0, full, together, nodes, lambda t, n: step(t, n, True))
        warp.loop(full, most, together, nodes, lambda t, n: step(t, n, False))

    def _walk_ends(self, graph, add) -> None:
        """Adds the neighbours of edges that are in no four."""
        warp, together = self.ends.warp, _ENDS // 2

        def step(first, _):
            places = [first + s for s in range(together)]
            edges = [self._end(t) for t in places]
            nodes = [graph.indices.load(edge) for edge in edges]
            add(edges, [t < self.ends for t in places], nodes, lambda: None)

        warp.loop(0, warp.reduce("max", self.ends), together, (), step)

    def _end(self, t: Value) -> Value:
        """Returns the group's ``t``-th edge that is in no four; edge 0 if it has fewer."""
        at = t * self.groups + self.number
        edge = self.begin + at.warp.select(at < self.head, at, at + self.in_fours)
        return at.warp.select(t < self.ends, edge, 0)

    def _four(self, t: Value, count: Value | None) -> Value:
        """Returns the first edge of the group's ``t``-th four.

        It is edge 0 if ``t`` is not below ``count``.
        """
        edge = self.begin + self.head + (t * self.groups + self.number) * _FOUR
        return edge if count is None else t.warp.select(t < count, edge, 0)


def _edges_of(piece: Piece) -> Value:
    return (piece.end - piece.begin).to("i32")


def _share(count: Value, number: Value, groups: int, exists: Value) -> Value:
    """Returns how many of ``count`` items a group has if groups take them in turn."""
    return count.warp.select(exists, (count - number + (groups - 1)) // groups, 0)
