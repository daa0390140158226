"""Where the edges of a tile lie in memory; ``edge_mlp.gather_scatter`` goes there.

A tile is 64 places, one for each of 64 rows of a graph, or of 64 pieces of rows; tile ``k`` of a
group has the ``k``-th edge of each. So what is summed over the edges of a row is summed over tiles
in one place of the registers, and what belongs to receivers is read once for a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp

ROWS = 64  # places of a tile
_GROUP = 8  # rows that lie together in shared memory
PIECE = 16  # bytes that a lane copies
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
            number = number.at_most(self.batch * self.rows - 1)
            element, own = self.divided(warp, number, self.rows)
            return Place(element, own, own * self.degree, None, is_real)
        element, group = self.divided(warp, group, self.pieces // ROWS)
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

    def divided(self, warp: Warp, number: Value, size: int) -> tuple[Value, Value]:
        """The element of the batch, and what is left, where each element has so many."""
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
        return self.width * 2 // PIECE

    def at(self, row: Value, piece: Value) -> Value:
        """Where a piece of a row is, counted in pieces."""
        together = self.swizzle // PIECE
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


def whole_tile_bytes(width: int) -> int:
    """Of 64 rows of 16-bit numbers."""
    return ROWS * width * jnp.dtype(jnp.bfloat16).itemsize


def common_swizzle(widths: Sequence[int]) -> int | None:
    """Bytes that lie together in rows of all these widths, None if they do not suit."""
    return next((size for size in _SWIZZLES if not any(2 * w % size for w in widths)), None)
