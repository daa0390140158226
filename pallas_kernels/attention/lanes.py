"""Assignment of edges, heads and columns to the lanes of a warp, with reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.attention.tile import AttentionTile, entries_at_once
from pallas_kernels.graph.rows import Piece, Pieces
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import Warp

_STORE_BYTES = 16


@dataclass(frozen=True)
class Lanes:
    """The place of each lane: its group has one edge, its team one head of that edge.

    Attributes:
      warp: the warp of these lanes.
      tile: how many lanes a team has, and how many heads a group.
      heads: how many heads there are.
    """

    warp: Warp
    tile: AttentionTile
    heads: int

    @property
    def group(self) -> Value:
        """Number of the group that the lane belongs to."""
        return self.warp.lane // (self.tile.lanes * self.tile.heads)

    @property
    def own_head(self) -> Value:
        """The head of the lane, which may be past the last one."""
        team = self.warp.lane // self.tile.lanes
        return self.warp.slice * self.tile.heads + team % self.tile.heads

    @property
    def head(self) -> Value:
        """The head that the lane reads: its own, or the first if it has none."""
        own = self.own_head
        return self.warp.select(own < self.heads, own, 0) if self._some_have_none else own

    @property
    def _some_have_none(self) -> bool:
        return self.heads % self.tile.heads != 0

    def writes(self, lanes: int) -> Value:
        """Whether the lane is among the first ``lanes`` lanes of a team that has a head."""
        first = self.warp.lane % self.tile.lanes < lanes
        return first & (self.own_head < self.heads) if self._some_have_none else first

    def walk(
        self, piece: Piece, carry: Any, add: Callable[[list[Value], Any, Value | None], Any]
    ) -> Any:
        """Returns ``carry = add(edges, carry, end)`` after all edges of a piece.

        ``edges`` are those of the lane's group. If ``end`` is not None, some may be at or past it.
        """
        warp, groups, ahead = self.warp, self.tile.groups, self.tile.ahead
        step = groups * ahead

        def edges(first, count):
            return [first + (self.group + i * groups) for i in range(count)]

        full_end = piece.end - (step - 1)
        carry = warp.loop(
            piece.begin, full_end, step, carry, lambda first, c: add(edges(first, ahead), c, None)
        )
        if step == 1:
            return carry
        # The rest is less than a step: one edge of each group at a time.
        rest = piece.end - (piece.end - piece.begin) % step
        end = piece.end if groups > 1 else None
        return warp.loop(
            rest, piece.end, groups, carry, lambda first, c: add(edges(first, 1), c, end)
        )

    def sum_groups(self, values: Sequence[Value]) -> list[Value]:
        """Sums each value over the groups; all lanes get the results."""
        width = self.tile.lanes * self.tile.heads
        return [self.warp.sum_groups(value, width) for value in values]


@dataclass(frozen=True)
class Columns:
    """The columns of its head that a lane has: runs of neighbouring columns at regular distances.

    Attributes:
      width: columns of a head.
      entries: neighbouring columns that a lane loads at once.
      lanes: lanes that share a head; the other lanes of a team have the same columns as these.
    """

    width: int
    entries: int
    lanes: int

    @classmethod
    def shared(cls, width: int, itemsize: int, lanes: int) -> Columns:
        """The columns of a head that the lanes of a team share."""
        return cls(width, entries_at_once(width, itemsize), lanes)

    @property
    def loads(self) -> int:
        """Number of loads of a lane."""
        return -(-self.width // (self.entries * self.lanes))

    @property
    def count(self) -> int:
        """Number of columns of a lane."""
        return self.loads * self.entries

    def column(self, warp: Warp, load: int) -> Value:
        """Returns the first column of a load, which may be past the last one."""
        return (warp.lane % self.lanes + load * self.lanes) * self.entries

    def may_be_past(self, load: int) -> bool:
        """Whether some lanes have no columns at this load."""
        return (load + 1) * self.lanes * self.entries > self.width


NUMBER = Columns(1, 1, 1)
"""One number for each head, which all lanes of a team have."""


@dataclass(frozen=True)
class Rows:
    """The rows of an array by heads, as lanes read and write them.

    Attributes:
      lanes: places of the lanes.
      columns: which columns of a head a lane has.
      array: [rows, heads * width]; it may have fewer heads, each for several of the lanes' heads.
    """

    lanes: Lanes
    columns: Columns
    array: Array

    @property
    def _first(self) -> Value:
        """The first column of the head that the lane reads."""
        heads = self.array.shape[-1] // self.columns.width
        return self.lanes.head // (self.lanes.heads // heads) * self.columns.width

    def read(self, number: Value) -> list[list[Value]]:
        """Reads the lane's columns of a row, as the words of each load."""
        warp, columns, row = self.lanes.warp, self.columns, self.array.row(number)
        words = []
        for load in range(columns.loads):
            column = columns.column(warp, load)
            if columns.may_be_past(load):  # lanes past the last column read the first one
                column = warp.select(column < columns.width, column, 0)
            words.append(row.load_words(self._first + column, columns.entries))
        return words

    def values(self, words: list[list[Value]], real: Value | None = None) -> list[Value]:
        """Returns the numbers in the words; zeros past the last column, and if not ``real``."""
        warp, columns = self.lanes.warp, self.columns
        values = []
        for load, of_load in enumerate(words):
            known = real
            if columns.may_be_past(load):
                inside = columns.column(warp, load) < columns.width
                known = inside if real is None else real & inside
            found = [self.array.unpack(of_load, i) for i in range(columns.entries)]
            values += found if known is None else [warp.select(known, x, 0.0) for x in found]
        return values

    def load(self, number: Value) -> list[Value]:
        """Returns the lane's numbers of a row."""
        return self.values(self.read(number))

    def store(self, number: Value, values: Sequence[Value]) -> None:
        """Stores the numbers of each team that calls it; of all groups one should."""
        warp, columns = self.lanes.warp, self.columns
        row, at_once = self.array.row(number), min(columns.entries, self._most_at_once)

        def store_load(load):
            column = columns.column(warp, load)
            for i in range(0, columns.entries, at_once):
                first = load * columns.entries + i
                row.store(self._first + (column + i), *values[first : first + at_once])

        def store_all():
            for load in range(columns.loads):
                if columns.may_be_past(load):
                    inside = columns.column(warp, load) < columns.width
                    warp.when(inside, lambda load=load: store_load(load))
                else:
                    store_load(load)

        warp.when(self.lanes.writes(columns.lanes), store_all)

    def store_edge(self, edge: Value, real: Value | None, *values: Value) -> None:
        """Stores the numbers of a group's edge and the lanes' heads, if it is ``real`` or None."""
        if real is None:
            return self.store(edge, values)
        self.lanes.warp.when(real, lambda: self.store(edge, values))

    def zero_padding(self, graph: Pieces) -> None:
        """Sets the numbers of the lanes' heads past the last edge of the graph to zero."""
        warp, groups = self.lanes.warp, self.lanes.tile.groups
        first = graph.indptr.load(graph.num_rows) + (warp.number * groups + self.lanes.group)
        zero, step = [warp.f32(0.0)] * self.columns.count, warp.count * groups
        warp.loop(first, graph.num_edges, step, (), lambda edge, _: self.store(edge, zero))

    @property
    def _most_at_once(self) -> int:
        return _STORE_BYTES // self.array.itemsize
