"""Walks of a warp through the edges of a piece of a row, some columns to a lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.graph.rows import Piece
from pallas_kernels.graph.spmm import SpmmTile
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp


@dataclass(frozen=True)
class Walk:
    """The columns and the edges of each lane of a warp.

    Groups of ``tile.lanes`` lanes take turns at the edges of a piece. A lane of a group has
    ``tile.entries`` neighbouring columns of the slice that the warp works on.

    Attributes:
      warp: the warp.
      tile: the division of the work.
      columns: number of columns of the rows.
    """

    warp: Warp
    tile: SpmmTile
    columns: int

    @property
    def groups(self) -> int:
        """Number of edges that a warp reads at once."""
        return LANES // self.tile.lanes

    @property
    def group(self) -> Value:
        """Number of a lane's group."""
        return self.warp.lane // self.tile.lanes

    @property
    def column(self) -> Value:
        """First column of a lane, which may be past the last one."""
        of_warp = self.warp.slice * self.tile.lanes + self.warp.lane % self.tile.lanes
        return of_warp * self.tile.entries

    @property
    def is_cut(self) -> bool:
        """Whether some lanes are past the last column."""
        return self.columns % (self.tile.lanes * self.tile.entries) != 0

    @property
    def readable_column(self) -> Value:
        """First column of a lane; lanes past the last column read the first one."""
        if not self.is_cut:
            return self.column
        return self.warp.select(self.column < self.columns, self.column, 0)

    def load(self, row: Array, column: Value | None = None) -> list[Value]:
        """Loads a lane's entries of a row as f32, from ``column`` or the lane's own column on."""
        at, entries = self.readable_column if column is None else column, self.tile.entries
        step = min(entries, 16 // row.itemsize)
        values: list[Value] = []
        for i in range(0, entries, step):
            words = row.load_words(at + i if i else at, step)
            values += [row.unpack(words, j) for j in range(step)]
        return values

    def store(self, row: Array, values: Sequence[Value]) -> None:
        """Stores a lane's entries of a row."""
        step = min(len(values), 16 // row.itemsize)
        for i in range(0, len(values), step):
            row.store(self.column + i if i else self.column, *values[i : i + step])

    def fold(
        self,
        piece: Piece,
        carry: Any,
        add: Callable[[list[Value], list[Value] | None, Any], Any],
    ) -> Any:
        """Repeats ``carry = add(edges, real, carry)`` over the edges of a piece.

        Each time a lane gets ``tile.ahead`` edges, whose reads may overlap. In the last step some
        of them may be past the end: they are given as the last edge, and ``real`` is false.
        Elsewhere ``real`` is None.
        """
        warp, group = self.warp, self.group
        step = self.groups * self.tile.ahead

        def edges_from(first: Value) -> list[Value]:
            return [first + (group + i * self.groups) for i in range(self.tile.ahead)]

        def add_rest(first: Value, carry: Any) -> Any:
            edges = edges_from(first)
            real = [edge < piece.end for edge in edges]
            return add([edge.at_most(piece.end - 1) for edge in edges], real, carry)

        full_end = piece.end - (step - 1)
        carry = warp.loop(
            piece.begin, full_end, step, carry, lambda e, c: add(edges_from(e), None, c)
        )
        if step == 1:
            return carry
        rest = piece.end - (piece.end - piece.begin) % step
        return warp.loop(rest, piece.end, step, carry, add_rest)

    def store_sums(
        self, piece: Piece, sums: Sequence[Value], y: Array, partial: Array | None
    ) -> None:
        """Adds the sums of all groups and stores them: as a row, or as the part of a long row."""
        warp = self.warp
        sums = [warp.sum_groups(value, self.tile.lanes) for value in sums]
        keep = self.group == 0
        if self.is_cut:
            keep = keep & (self.column < self.columns)

        def store() -> None:
            if partial is None:
                return self.store(y.row(piece.row), sums)
            warp.when(piece.slot < 0, lambda: self.store(y.row(piece.row), sums))
            warp.when(piece.slot >= 0, lambda: self.store(partial.row(piece.slot), sums))

        warp.when(keep, store)


def or_zero(warp: Warp, real: Value | None, value: Value) -> Value:
    """Returns the value, or zero where it is not real; None for all real."""
    return value if real is None else warp.select(real, value, 0.0)
