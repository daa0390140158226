"""SIMT code that gathers tiles of edges into shared memory, and scatters results to global memory.

``edge_mlp.places`` defines which edges a tile has. Lanes copy vectors of 16 bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.edge_mlp.edge_tiles import ROWS, VECTOR_BYTES, Layout, Place, Places, Tables
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import Warp


@dataclass(frozen=True)
class GatherRows:
    """Begins to copy the rows of a group's receivers to a tile; zeros for rows without edges."""

    places: Places
    layout: Layout

    def __call__(self, warp: Warp, group: Value, nodes: Array, tile: Array, *tables: Array) -> None:
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            source = nodes.row(place.element * self.places.rows + place.row)
            for vector in self.layout.own_vectors(warp):
                tile.copy_from(self.layout.at(row, vector), source, vector, real=place.has_any)


@dataclass(frozen=True)
class GatherEdges:
    """Begins to copy the senders of a tile, and the weights of its edges.

    Past the last step of a group nothing is copied; places without an edge get zeros.

    Attributes:
      places: the shape of the graph, and how its edges are assigned to tiles.
      layout: layout of the tile in shared memory.
      own_weights: whether each element of the batch has its own edge weights; None without weights.
      has_factors: whether to write the factors of the rows: the weights, or ones without weights.
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
          warp: a warp of the warpgroup.
          group: number of the group.
          step: step of the tile in its group.
          steps: number of steps of the group.
          nodes: the senders, [batch cols, width].
          tile: [64, width], in shared memory.
          rest: factors [64] in shared memory if ``has_factors``; edge weights [batch|1, edges] if
            there are any; and the arrays of ``Tables``.
        """
        left: list[Any] = [*rest]
        factors = left.pop(0) if self.has_factors else None
        weights = left.pop(0) if self.own_weights is not None else None
        tables = Tables(*left)

        def gather():
            rows = self.layout.own_rows(warp)
            # All senders are looked up before the first is copied.
            found = [self.places.sender(warp, group, row, step, tables) for row in rows]
            for row, (real, node) in zip(rows, found, strict=True):
                source = nodes.row(node)
                for vector in self.layout.own_vectors(warp):
                    tile.copy_from(self.layout.at(row, vector), source, vector, real=real)
            if factors is not None:
                place = self.places.place(warp, group, warp.thread.at_most(ROWS - 1), tables)
                write = functools.partial(self._write_factor, warp, place, step, weights, factors)
                warp.when(warp.thread < ROWS, write)

        warp.when(step < steps, gather)
        warp.commit_copies()

    def _write_factor(self, warp: Warp, place: Place, step, weights: Any, factors: Array) -> None:
        """Writes the factor of this lane's place: the weight of its edge, or one; zero without."""
        real, edge = place.edge(warp, step)
        if weights is None:
            factors.store(warp.thread, warp.select(real, warp.f32(1.0), 0.0))
        else:
            own = weights.row(place.element if self.own_weights else warp.i32(0))
            factors.copy_from(warp.thread, own, edge, nbytes=4, real=real)


@dataclass(frozen=True)
class GatherFeatures:
    """Begins to copy the features of the edges of a tile; ``GatherEdges`` commits the copies.

    Past the last step of a group nothing is copied; places without an edge get zeros.

    Attributes:
      places: the shape of the graph, and how its edges are assigned to tiles.
      layout: layout of the tile in shared memory.
      own: whether each element of the batch has its own features.
    """

    places: Places
    layout: Layout
    own: bool

    def __call__(
        self, warp: Warp, group: Value, step: Value, steps: Value, features, tile, *tables: Array
    ) -> None:
        """Begins to copy.

        Args:
          warp: a warp of the warpgroup.
          group: number of the group.
          step: step of the tile in its group.
          steps: number of steps of the group.
          features: [batch|1, edges, width].
          tile: [64, width], in shared memory.
          tables: the arrays of ``Tables``.
        """

        def gather():
            for row in self.layout.own_rows(warp):
                place = self.places.place(warp, group, row, Tables(*tables))
                real, edge = place.edge(warp, step)
                source = features.row(place.element if self.own else warp.i32(0)).row(edge)
                for vector in self.layout.own_vectors(warp):
                    tile.copy_from(self.layout.at(row, vector), source, vector, real=real)

        warp.when(step < steps, gather)


@dataclass(frozen=True)
class WaitForCopies:
    """Waits until at most ``groups`` of the committed groups of copies are still pending."""

    groups: int

    def __call__(self, warp: Warp) -> None:
        warp.wait_for_copies(self.groups)


@dataclass(frozen=True)
class WaitForAllCopies:
    """Commits all copies of the lanes and waits for them."""

    def __call__(self, warp: Warp) -> None:
        warp.commit_copies()
        warp.wait_for_copies(0)


@dataclass(frozen=True)
class ScatterRows:
    """Writes the sums of a group: whole rows, rounded, and partial sums of pieces in float32.

    Attributes:
      places: the shape of the graph, and how its edges are assigned to tiles.
      layout: layout of the tiles in shared memory.
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
        """Writes the sums.

        Args:
          warp: a warp of the warpgroup.
          group: number of the group.
          result: [batch rows, width].
          tile: the rounded sums, [64, width] in shared memory.
          rest: where ``Tables`` list pieces, the rounding errors of the sums, [64, width] in shared
            memory, and the partial sums to write, [batch, slots, width] float32; and the arrays of
            ``Tables``.
        """
        places, layout = self.places, self.layout
        each = VECTOR_BYTES // 2  # numbers of a vector
        arrays: list[Any] = [*rest]
        left, partial = (arrays.pop(0), arrays.pop(0)) if places.degree is None else (None, None)
        tables = Tables(*arrays)

        for row, vector in layout.each(warp):
            place = places.place(warp, group, row, tables)
            at = layout.at(row, vector) * each
            words = tile.load_words(at, each)
            target = result.row(place.element * places.rows + place.row)
            store = functools.partial(target.store_words, vector * each, words, each)
            if partial is None:
                warp.when(place.is_real, store)
                continue
            element, own = places.divided(warp, group, places.pieces // ROWS)
            slot = tables.slots.load(own * ROWS + row)
            warp.when(place.is_real & (slot < 0), store)

            to = partial.row(element).row(slot)
            store = functools.partial(self._store_partial_sum, tile, words, left, at, to, vector)
            warp.when(place.is_real & (slot >= 0), store)

    @staticmethod
    def _store_partial_sum(
        tile: Array, words, left: Any, at: Value, target: Array, vector: Value
    ) -> None:
        each = VECTOR_BYTES // 2
        sums = _with_rounding_errors(tile, words, left, at)
        for i in range(0, each, 4):
            target.store(vector * each + i, *sums[i : i + 4])


def _with_rounding_errors(
    tile: Array, words: Sequence[Value], left: Array, at: Value
) -> list[Value]:
    """The float32 numbers of a vector, from the rounded ones and their rounding errors."""
    low = left.load_words(at, VECTOR_BYTES // 2)
    return [tile.unpack(words, i) + left.unpack(low, i) for i in range(VECTOR_BYTES // 2)]


@dataclass(frozen=True)
class AddToRows:
    """Adds the float32 sums of a group to its rows in global memory, atomically."""

    places: Places
    layout: Layout

    def __call__(
        self, warp: Warp, group: Value, sums: Array, tile: Array, left: Array, *tables: Array
    ) -> None:
        """Adds the sums.

        Args:
          warp: a warp of the warpgroup.
          group: number of the group.
          sums: array to add to, [batch rows, width] float32.
          tile: the rounded sums of the group, [64, width] in shared memory.
          left: their rounding errors, [64, width] in shared memory.
          tables: the arrays of ``Tables``.
        """
        each = VECTOR_BYTES // 2
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            target = sums.row(place.element * self.places.rows + place.row)

            def add(row=row, target=target):
                for vector in self.layout.own_vectors(warp):
                    at = self.layout.at(row, vector) * each
                    values = _with_rounding_errors(tile, tile.load_words(at, each), left, at)
                    for i in range(0, each, 4):
                        target.add(vector * each + i, *values[i : i + 4])

            warp.when(place.has_any, add)


@dataclass(frozen=True)
class AddToReceivers:
    """Adds the rows of a tile to the rows of the receivers of its edges, atomically."""

    places: Places
    layout: Layout

    def __call__(
        self, warp: Warp, group: Value, step: Value, sums: Array, tile: Array, *tables: Array
    ) -> None:
        """Adds the rows.

        Args:
          warp: a warp of the warpgroup.
          group: number of the group.
          step: step of the tile in its group.
          sums: array to add to, [batch rows, width] float32.
          tile: [64, width] in shared memory.
          tables: the arrays of ``Tables``.
        """
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            real, _ = place.edge(warp, step)
            target = sums.row(place.element * self.places.rows + place.row)
            warp.when(real, functools.partial(_add_row, warp, self.layout, row, tile, target))


@dataclass(frozen=True)
class AddToSenders:
    """Adds the rows of a tile to the rows of the senders of its edges, atomically."""

    places: Places
    layout: Layout

    def __call__(
        self, warp: Warp, group: Value, step: Value, sums: Array, tile: Array, *tables: Array
    ) -> None:
        """Adds the rows.

        Args:
          warp: a warp of the warpgroup.
          group: number of the group.
          step: step of the tile in its group.
          sums: array to add to, [batch cols, width] float32.
          tile: [64, width] in shared memory.
          tables: the arrays of ``Tables``.
        """
        rows = self.layout.own_rows(warp)
        found = [self.places.sender(warp, group, row, step, Tables(*tables)) for row in rows]
        for row, (real, node) in zip(rows, found, strict=True):
            add = functools.partial(_add_row, warp, self.layout, row, tile, sums.row(node))
            warp.when(real, add)


def _add_row(warp: Warp, layout: Layout, row: Value, tile: Array, sums: Array) -> None:
    """Adds this lane's part of a row of a tile to a float32 row, atomically."""
    each = VECTOR_BYTES // 2
    for vector in layout.own_vectors(warp):
        words = tile.load_words(layout.at(row, vector) * each, each)
        values = [tile.unpack(words, i) for i in range(each)]
        for i in range(0, each, 4):
            sums.add(vector * each + i, *values[i : i + 4])


@dataclass(frozen=True)
class ScatterFeatures:
    """Writes or adds the rows of a tile to the gradients of its edges' features.

    Attributes:
      places: the shape of the graph, and how its edges are assigned to tiles.
      layout: layout of the tile in shared memory.
      own: whether each element of the batch has its own features, so that rows are written; shared
        features are added to atomically.
    """

    places: Places
    layout: Layout
    own: bool

    def __call__(
        self, warp: Warp, group: Value, step: Value, result: Array, tile: Array, *tables: Array
    ) -> None:
        """Writes or adds the rows.

        Args:
          warp: a warp of the warpgroup.
          group: number of the group.
          step: step of the tile in its group.
          result: [batch, edges, width] of the dtype of the tile, or [1, edges, width] float32.
          tile: [64, width] in shared memory.
          tables: the arrays of ``Tables``.
        """
        for row in self.layout.own_rows(warp):
            place = self.places.place(warp, group, row, Tables(*tables))
            real, edge = place.edge(warp, step)
            target = result.row(place.element if self.own else warp.i32(0)).row(edge)
            put = self._store_row if self.own else _add_row
            warp.when(real, functools.partial(put, warp, self.layout, row, tile, target))

    @staticmethod
    def _store_row(warp: Warp, layout: Layout, row: Value, tile: Array, target: Array) -> None:
        each = VECTOR_BYTES // 2
        for vector in layout.own_vectors(warp):
            words = tile.load_words(layout.at(row, vector) * each, each)
            target.store_words(vector * each, words, each)


@dataclass(frozen=True)
class StoreByEdge:
    """Writes one number for each edge of a tile, such as the gradient of its weight."""

    places: Places

    def __call__(
        self, warp: Warp, group: Value, step: Value, result: Array, numbers: Array, *tables: Array
    ) -> None:
        """Writes the numbers.

        Args:
          warp: a warp of the warpgroup.
          group: number of the group.
          step: step of the tile in its group.
          result: [batch, edges] float32.
          numbers: [64] float32 in shared memory.
          tables: the arrays of ``Tables``.
        """

        def store():
            place = self.places.place(warp, group, warp.thread, Tables(*tables))
            real, edge = place.edge(warp, step)
            target = result.row(place.element)
            warp.when(real, lambda: target.store(edge, numbers.load(warp.thread)))

        warp.when(warp.thread < ROWS, store)
