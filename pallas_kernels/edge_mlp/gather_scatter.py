"""SIMT code that brings what the edges of a tile have, and takes results back to where they belong.

``edge_mlp.places`` says where that is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.edge_mlp.places import PIECE, ROWS, Layout, Place, Places, Tables
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import Warp


@dataclass(frozen=True)
class GatherRows:
    """Begins to copy what belongs to the receivers of a group; zeros where there are no edges."""

    places: Places
    layout: Layout

    def __call__(self, warp: Warp, group: Value, nodes: Array, tile: Array, *tables: Array) -> None:
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            source = nodes.row(place.element * self.places.rows + place.row)
            for piece in self.layout.own_pieces(warp):
                tile.copy_from(self.layout.at(row, piece), source, piece, real=place.has_any)


@dataclass(frozen=True)
class GatherEdges:
    """Begins to copy what belongs to the senders of a tile, and the weights of its edges.

    Behind the last step nothing is copied; where a place has no edge, zeros are.

    Attributes:
      places: where.
      layout: of the tile.
      steps: None, or of every group.
      own_weights: whether each element of the batch has its own; None without weights.
      has_factors: whether weights are asked for, ones if there are none.
    """

    places: Places
    layout: Layout
    own_weights: bool | None
    has_factors: bool

    def __call__(
        self,
        warp: Warp,
        group: Value,
        step: Value,
        steps: Value,
        nodes: Array,
        tile: Array,
        *rest: Array,
    ) -> None:
        """Begins to copy.

        Args:
          warp: of a warpgroup.
          group: its number.
          step: of the tile.
          steps: of the group.
          nodes: [batch cols, width].
          tile: [64, width], in shared memory.
          rest: factors, [64] in shared memory, if there are; weights, [batch|1 edges], if there
            are; and what ``Tables`` has.
        """
        left: list[Any] = [*rest]
        factors = left.pop(0) if self.has_factors else None
        weights = left.pop(0) if self.own_weights is not None else None
        tables = Tables(*left)

        def gather():
            rows = self.layout.own_rows(warp)
            # All are looked up before the first is copied.
            found = [self.places.sender(warp, group, row, step, tables) for row in rows]
            for row, (real, node) in zip(rows, found, strict=True):
                source = nodes.row(node)
                for piece in self.layout.own_pieces(warp):
                    tile.copy_from(self.layout.at(row, piece), source, piece, real=real)
            if factors is not None:
                place = self.places.place(warp, group, warp.thread.at_most(ROWS - 1), tables)
                bring = functools.partial(self._bring_factor, warp, place, step, weights, factors)
                warp.when(warp.thread < ROWS, bring)

        warp.when(step < steps, gather)
        warp.commit_copies()

    def _bring_factor(self, warp: Warp, place: Place, step, weights: Any, factors: Array) -> None:
        real, edge = place.edge(warp, step)
        if weights is None:
            factors.store(warp.thread, warp.select(real, warp.f32(1.0), 0.0))
        else:
            own = weights.row(place.element if self.own_weights else warp.i32(0))
            factors.copy_from(warp.thread, own, edge, nbytes=4, real=real)


@dataclass(frozen=True)
class GatherFeatures:
    """Begins to copy what the edges of a tile have of their own, as ``GatherEdges``, which ends it.

    Attributes:
      places: where.
      layout: of the tile.
      own: whether each element of the batch has its own.
    """

    places: Places
    layout: Layout
    own: bool

    def __call__(
        self, warp: Warp, group: Value, step: Value, steps: Value, features, tile, *tables: Array
    ) -> None:
        """Begins to copy.

        Args:
          warp: of a warpgroup.
          group: its number.
          step: of the tile.
          steps: of the group.
          features: [batch|1, edges, width].
          tile: [64, width], in shared memory.
          tables: what ``Tables`` has.
        """

        def gather():
            for row in self.layout.own_rows(warp):
                place = self.places.place(warp, group, row, Tables(*tables))
                real, edge = place.edge(warp, step)
                source = features.row(place.element if self.own else warp.i32(0)).row(edge)
                for piece in self.layout.own_pieces(warp):
                    tile.copy_from(self.layout.at(row, piece), source, piece, real=real)

        warp.when(step < steps, gather)


@dataclass(frozen=True)
class WaitForCopies:
    """Until no more groups of copies than so many are under way."""

    groups: int

    def __call__(self, warp: Warp) -> None:
        warp.wait_for_copies(self.groups)


@dataclass(frozen=True)
class WaitForAllCopies:
    """Until all that were begun have ended."""

    def __call__(self, warp: Warp) -> None:
        warp.commit_copies()
        warp.wait_for_copies(0)


@dataclass(frozen=True)
class ScatterRows:
    """Writes the sums of a group: rows, rounded; of a piece of a row, its part in float32.

    Attributes:
      places: where.
      layout: of the tiles.
    """

    places: Places
    layout: Layout

    def __call__(
        self,
        warp: Warp,
        group: Value,
        result: Array,
        tile: Array,
        *rest: Array,
    ) -> None:
        """Writes.

        Args:
          warp: of a warpgroup.
          group: its number.
          result: [batch rows, width].
          tile: [64, width] in shared memory, the sums, rounded.
          rest: where ``Tables`` list pieces: what rounding has left over, likewise, and the partial
            sums, [batch, slots, width] float32; and what ``Tables`` has.
        """
        places, layout = self.places, self.layout
        each = PIECE // 2  # numbers of a piece
        arrays: list[Any] = [*rest]
        left, partial = (arrays.pop(0), arrays.pop(0)) if places.degree is None else (None, None)
        tables = Tables(*arrays)

        for row, piece in layout.each(warp):
            place = places.place(warp, group, row, tables)
            at = layout.at(row, piece) * each
            words = tile.load_words(at, each)
            target = result.row(place.element * places.rows + place.row)
            store = functools.partial(target.store_words, piece * each, words, each)
            if partial is None:
                warp.when(place.is_real, store)
                continue
            element, own = places.divided(warp, group, places.pieces // ROWS)
            slot = tables.slots.load(own * ROWS + row)
            warp.when(place.is_real & (slot < 0), store)

            to = partial.row(element).row(slot)
            store = functools.partial(self._store_part, tile, words, left, at, to, piece)
            warp.when(place.is_real & (slot >= 0), store)

    @staticmethod
    def _store_part(tile: Array, words, left: Any, at: Value, target: Array, piece: Value) -> None:
        each = PIECE // 2
        sums = _both(tile, words, left, at)
        for i in range(0, each, 4):
            target.store(piece * each + i, *sums[i : i + 4])


def _both(tile: Array, words: Sequence[Value], left: Array, at: Value) -> list[Value]:
    """Numbers of a piece, rounded, and what rounding has left over."""
    low = left.load_words(at, PIECE // 2)
    return [tile.unpack(words, i) + left.unpack(low, i) for i in range(PIECE // 2)]


@dataclass(frozen=True)
class AddToRows:
    """Adds the sums of a group to its rows, atomically."""

    places: Places
    layout: Layout

    def __call__(
        self, warp: Warp, group: Value, sums: Array, tile: Array, left: Array, *tables: Array
    ) -> None:
        """Adds.

        Args:
          warp: of a warpgroup.
          group: its number.
          sums: [batch rows, width] float32.
          tile: [64, width] in shared memory, rounded.
          left: likewise, what rounding has left over.
          tables: what ``Tables`` has.
        """
        each = PIECE // 2
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            target = sums.row(place.element * self.places.rows + place.row)

            def add(row=row, target=target):
                for piece in self.layout.own_pieces(warp):
                    at = self.layout.at(row, piece) * each
                    values = _both(tile, tile.load_words(at, each), left, at)
                    for i in range(0, each, 4):
                        target.add(piece * each + i, *values[i : i + 4])

            warp.when(place.has_any, add)


@dataclass(frozen=True)
class AddToReceivers:
    """Adds the rows of a tile to what belongs to the receivers of its edges, atomically."""

    places: Places
    layout: Layout

    def __call__(
        self, warp: Warp, group: Value, step: Value, sums: Array, tile: Array, *tables: Array
    ) -> None:
        """As ``AddToSenders``, to [batch rows, width]."""
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            real, _ = place.edge(warp, step)
            target = sums.row(place.element * self.places.rows + place.row)
            warp.when(real, functools.partial(_add_row, warp, self.layout, row, tile, target))


@dataclass(frozen=True)
class AddToSenders:
    """Adds the rows of a tile to what belongs to the senders of its edges, atomically."""

    places: Places
    layout: Layout

    def __call__(
        self, warp: Warp, group: Value, step: Value, sums: Array, tile: Array, *tables: Array
    ) -> None:
        """Adds.

        Args:
          warp: of a warpgroup.
          group: its number.
          step: of the tile.
          sums: [batch cols, width] float32.
          tile: [64, width] in shared memory.
          tables: what ``Tables`` has.
        """
        rows = self.layout.own_rows(warp)
        found = [self.places.sender(warp, group, row, step, Tables(*tables)) for row in rows]
        for row, (real, node) in zip(rows, found, strict=True):
            add = functools.partial(_add_row, warp, self.layout, row, tile, sums.row(node))
            warp.when(real, add)


def _add_row(warp: Warp, layout: Layout, row: Value, tile: Array, sums: Array) -> None:
    """Adds one of a tile."""
    each = PIECE // 2
    for piece in layout.own_pieces(warp):
        words = tile.load_words(layout.at(row, piece) * each, each)
        values = [tile.unpack(words, i) for i in range(each)]
        for i in range(0, each, 4):
            sums.add(piece * each + i, *values[i : i + 4])


@dataclass(frozen=True)
class GiveToFeatures:
    """Brings the rows of a tile to what its edges have of their own.

    Attributes:
      places: where.
      layout: of the tile.
      own: whether each element of the batch has its own: these are written, others added to,
        atomically.
    """

    places: Places
    layout: Layout
    own: bool

    def __call__(
        self, warp: Warp, group: Value, step: Value, result: Array, tile: Array, *tables: Array
    ) -> None:
        """Writes or adds.

        Args:
          warp: of a warpgroup.
          group: its number.
          step: of the tile.
          result: [batch, edges, width] of the dtype of the tile, or [1, edges, width] float32.
          tile: [64, width] in shared memory.
          tables: what ``Tables`` has.
        """
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            real, edge = place.edge(warp, step)
            target = result.row(place.element if self.own else warp.i32(0)).row(edge)
            bring = self._store if self.own else _add_row
            warp.when(real, functools.partial(bring, warp, self.layout, row, tile, target))

    @staticmethod
    def _store(warp: Warp, layout: Layout, row: Value, tile: Array, target: Array) -> None:
        each = PIECE // 2
        for piece in layout.own_pieces(warp):
            words = tile.load_words(layout.at(row, piece) * each, each)
            target.store_words(piece * each, words, each)


@dataclass(frozen=True)
class StoreByEdge:
    """Writes a number of each edge of a tile."""

    places: Places

    def __call__(
        self, warp: Warp, group: Value, step: Value, result: Array, numbers: Array, *tables: Array
    ) -> None:
        """Writes.

        Args:
          warp: of a warpgroup.
          group: its number.
          step: of the tile.
          result: [batch, edges] float32.
          numbers: [64] float32 in shared memory.
          tables: what ``Tables`` has.
        """

        def store():
            place = self.places.place(warp, group, warp.thread, Tables(*tables))
            real, edge = place.edge(warp, step)
            target = result.row(place.element)
            warp.when(real, lambda: target.store(edge, numbers.load(warp.thread)))

        warp.when(warp.thread < ROWS, store)
