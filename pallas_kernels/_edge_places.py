"""Where the edges of a tile lie in memory, and SIMT code that brings them and takes results back.

A tile is 64 places, one for each of 64 rows of a graph, or of 64 pieces of rows; tile ``k`` of a
group has the ``k``-th edge of each. So what is summed over the edges of a row is summed over tiles
in one place of the registers, and what belongs to receivers is read once for a group.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels._values import Array, Value
from pallas_kernels._warp import Warp

ROWS = 64  # places of a tile
_GROUP = 8  # rows that lie together in shared memory
_PIECE = 16  # bytes that a lane copies
_LANES = 4  # that share a row: pieces of a row are a multiple
_SWIZZLES = (128, 64)


class EdgeLayers(NamedTuple):
    """What edges are made of.

    Attributes:
      receivers: [batch, rows, first], or [batch rows, first]; bfloat16 or float16.
      senders: [batch, cols, first], or likewise.
      weights: [batch|1, edges] float32, or None for ones.
      kernels: of layers, widths multiples of 32.
      biases: one for each kernel, or None.
      features: what edges have of their own, [batch|1, edges, first] likewise, or None.
    """

    receivers: jax.Array
    senders: jax.Array
    weights: jax.Array | None
    kernels: Sequence[jax.Array]
    biases: Sequence[jax.Array | None]
    features: jax.Array | None = None

    def flat(self) -> EdgeLayers:
        """With one axis for all nodes."""
        receivers, senders = (n.reshape(-1, n.shape[-1]) for n in (self.receivers, self.senders))
        return self._replace(receivers=receivers, senders=senders)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Tables:
    """Which edges the places of the groups have. Of a graph of one degree nothing has to be listed.

    Attributes:
      indices: sender of each edge, [edges] int32.
      rows: row of each piece, pieces of like length together, [64 groups] int32; any where
        ``lengths`` is zero and ``starts`` is negative, which is no piece.
      starts: first edge of each piece, likewise.
      lengths: how many edges it has, likewise.
      slots: where its partial sums go, or -1 if it is all of its row.
      steps: edges of the longest of each group, [groups] int32.
    """

    indices: Any
    rows: Any = None
    starts: Any = None
    lengths: Any = None
    slots: Any = None
    steps: Any = None


@dataclass(frozen=True)
class Places:
    """The graph's shape, and how its edges are dealt out.

    Attributes:
      batch: copies of the graph, each with nodes of its own.
      rows: of the graph.
      cols: of the graph.
      edges: slots of the graph.
      degree: edges of every row, or None where ``Tables`` list them.
      pieces: of rows, padded to whole groups; where ``Tables`` list them.
    """

    batch: int
    rows: int
    cols: int
    edges: int
    degree: int | None = None
    pieces: int = 0

    @property
    def groups(self) -> int:
        """Of 64 places."""
        if self.degree is None:
            return self.batch * self.pieces // ROWS
        return -(-self.batch * self.rows // ROWS)

    def steps(self, group: Any, tables: Tables) -> Any:
        """Tiles of a group, in Pallas: as many as its longest piece has edges."""
        if self.degree is not None:
            return self.degree
        return tables.steps[jax.lax.rem(group, self.pieces // ROWS)]

    # -- in SIMT code ------------------------------------------------------------------------------

    def place(self, warp: Warp, group: Value, row: Value, tables: Tables) -> Place:
        """The ``row``-th of a group."""
        if self.degree is not None:
            number = group * ROWS + row
            is_real = number < self.batch * self.rows
            number = number.least(self.batch * self.rows - 1)
            element, own = self._divided(warp, number, self.rows)
            return Place(element, own, own * self.degree, None, is_real)
        element, group = self._divided(warp, group, self.pieces // ROWS)
        number = group * ROWS + row
        length, start = tables.lengths.load(number), tables.starts.load(number)
        return Place(element, tables.rows.load(number), start, length, start >= 0)

    def sender(
        self, warp: Warp, group: Value, row: Value, step: Value, tables: Tables
    ) -> tuple[Value, Value]:
        """Whether the ``row``-th of a group has an edge of this number, and its sender."""
        place = self.place(warp, group, row, tables)
        real, edge = place.edge(warp, step)
        return real, place.element * self.cols + tables.indices.load(edge)

    def _divided(self, warp: Warp, number: Value, size: int) -> tuple[Value, Value]:
        if self.batch == 1:
            return warp.i32(0), number
        return number // size, number % size


@dataclass(frozen=True)
class Place:
    """A row or a piece of a row.

    Attributes:
      element: of the batch.
      row: of the graph.
      start: its first edge.
      length: how many it has, or None where all have as many.
      is_real: whether there is one.
    """

    element: Value
    row: Value
    start: Value
    length: Value | None
    is_real: Value

    def edge(self, warp: Warp, step: Value) -> tuple[Value, Value]:
        """Whether it has an edge of this number, and which; one that can be read if it has none.

        The sender of that may be none: its features are not to be read.
        """
        real = self.is_real if self.length is None else step < self.length
        return real, warp.select(real, self.start + step, 0)

    @property
    def has_any(self) -> Value:
        """Whether it has edges."""
        return self.is_real if self.length is None else self.length > 0


@dataclass(frozen=True)
class Layout:
    """How a tile [64, width] of 16-bit numbers lies in shared memory for the tensor cores.

    Attributes:
      width: of a row.
      swizzle: bytes of a row that lie together.
    """

    width: int
    swizzle: int

    @property
    def pieces(self) -> int:
        """Of a row, 16 bytes each."""
        return self.width * 2 // _PIECE

    def at(self, row: Value, piece: Value) -> Value:
        """Where a piece of a row is, counted in pieces."""
        together = self.swizzle // _PIECE
        chunks = self.width * 2 // self.swizzle
        # Rows of fewer than 128 bytes change the order of their pieces less often.
        turn = (row % _GROUP) // (_GROUP // together)
        within = (row % _GROUP) * together + ((piece % together) ^ turn)
        return (row // _GROUP * chunks + piece // together) * (_GROUP * together) + within

    def own_rows(self, warp: Warp) -> list[Value]:
        """Rows that this lane has pieces of: four lanes share one, and each has few to look up."""
        step = warp.threads // _LANES
        return [warp.thread // _LANES + first for first in range(0, ROWS, step)]

    def own_pieces(self, warp: Warp) -> Iterator[Value]:
        """Of each of its rows; neighbours have neighbouring pieces."""
        return (warp.thread % _LANES + first for first in range(0, self.pieces, _LANES))

    def each(self, warp: Warp) -> Iterator[tuple[Value, Value]]:
        """All rows and pieces of this lane."""
        return itertools.product(self.own_rows(warp), self.own_pieces(warp))


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
                place = self.places.place(warp, group, warp.thread.least(ROWS - 1), tables)
                bring = functools.partial(self._bring_factor, warp, place, step, weights, factors)
                warp.when(warp.thread < ROWS, bring)

        warp.when(step < steps, gather)
        warp.end_copies()

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
        warp.end_copies()
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
        each = _PIECE // 2  # numbers of a piece
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
            element, own = places._divided(warp, group, places.pieces // ROWS)
            slot = tables.slots.load(own * ROWS + row)
            warp.when(place.is_real & (slot < 0), store)

            to = partial.row(element).row(slot)
            store = functools.partial(self._store_part, tile, words, left, at, to, piece)
            warp.when(place.is_real & (slot >= 0), store)

    @staticmethod
    def _store_part(tile: Array, words, left: Any, at: Value, target: Array, piece: Value) -> None:
        each = _PIECE // 2
        sums = _both(tile, words, left, at)
        for i in range(0, each, 4):
            target.store(piece * each + i, *sums[i : i + 4])


def _both(tile: Array, words: Sequence[Value], left: Array, at: Value) -> list[Value]:
    """Numbers of a piece, rounded, and what rounding has left over."""
    low = left.load_words(at, _PIECE // 2)
    return [tile.unpack(words, i) + left.unpack(low, i) for i in range(_PIECE // 2)]


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
        each = _PIECE // 2
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
    each = _PIECE // 2
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
        each = _PIECE // 2
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


def whole_tile_bytes(width: int) -> int:
    """Of 64 rows of 16-bit numbers."""
    return ROWS * width * jnp.dtype(jnp.bfloat16).itemsize


def common_swizzle(widths: Sequence[int]) -> int | None:
    """Bytes that lie together in rows of all these widths, None if they do not suit."""
    return next((size for size in _SWIZZLES if not any(2 * w % size for w in widths)), None)
