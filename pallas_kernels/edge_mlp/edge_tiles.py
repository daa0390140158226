"""Places: the assignment of edges to tiles, and their addresses in memory.

A group has 64 places, for 64 rows of a graph or 64 pieces of rows. Step ``k`` of a group has a tile
with the ``k``-th edge of each place. So the sum over the edges of a row is a sum over tiles that
stays in the same registers, and receivers are read once for a group. ``edge_mlp.gather_scatter``
copies tiles by these rules.
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

ROWS = 64  # rows of a tile, one for each place of a group
_GROUP = 8  # rows of a swizzled block in shared memory
VECTOR_BYTES = 16  # bytes that a lane copies at once
_LANES = 4  # lanes that share a row, whose vectors are a multiple of these
_SWIZZLES = (128, 64)


class EdgeLayers(NamedTuple):
    """The arrays of dense layers on edges: inputs of nodes and edges, and parameters.

    Attributes:
      receivers: [batch, rows, first] or [batch rows, first], bfloat16 or float16.
      senders: [batch, cols, first] or [batch cols, first], of the dtype of ``receivers``.
      weights: weights of edges in the sum, [batch|1, edges] float32, or None for ones.
      kernels: matrices of the layers, [width before, width after], widths multiples of 32.
      biases: one vector or None for each kernel.
      features: features of edges, [batch|1, edges, first] of the dtype of ``receivers``, or None.
    """

    receivers: jax.Array
    senders: jax.Array
    weights: jax.Array | None
    kernels: Sequence[jax.Array]
    biases: Sequence[jax.Array | None]
    features: jax.Array | None = None

    def flat(self) -> EdgeLayers:
        """These layers with the nodes of the whole batch along one axis."""
        receivers, senders = (n.reshape(-1, n.shape[-1]) for n in (self.receivers, self.senders))
        return self._replace(receivers=receivers, senders=senders)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Tables:
    """The edges of every place. If all rows have one degree, only ``indices`` is needed.

    Attributes:
      indices: sender of each edge, [edges] int32.
      rows: row of each piece, pieces of similar length together, [64 groups] int32. Undefined for
        padding, where ``lengths`` is zero and ``starts`` is negative.
      starts: first edge of each piece, [64 groups] int32.
      lengths: number of edges of each piece, [64 groups] int32.
      slots: index of the partial sum of each piece, or -1 if it is its whole row, [64 groups]
        int32.
      steps: number of edges of the longest piece of each group, [groups] int32.
    """

    indices: Any
    rows: Any = None
    starts: Any = None
    lengths: Any = None
    slots: Any = None
    steps: Any = None


@dataclass(frozen=True)
class Places:
    """The shape of a batch of copies of a graph, and how their edges are assigned to tiles.

    Attributes:
      batch: copies of the graph, each with nodes of its own.
      rows: rows of the graph, its receivers.
      cols: columns of the graph, its senders.
      edges: edges of the graph, padding slots included.
      degree: edges of every row if that is one number; None if ``Tables`` list pieces of rows.
      pieces: pieces of rows that ``Tables`` list, padded to whole groups; otherwise 0.
    """

    batch: int
    rows: int
    cols: int
    edges: int
    degree: int | None = None
    pieces: int = 0

    @property
    def groups(self) -> int:
        """Number of groups of 64 places."""
        if self.degree is None:
            return self.batch * self.pieces // ROWS
        return -(-self.batch * self.rows // ROWS)

    def steps(self, group: Any, tables: Tables) -> Any:
        """Number of tiles of a group, the edges of its longest piece; for code in Pallas."""
        if self.degree is not None:
            return self.degree
        return tables.steps[jax.lax.rem(group, self.pieces // ROWS)]

    # -- in SIMT code ------------------------------------------------------------------------------

    def place(self, warp: Warp, group: Value, row: Value, tables: Tables) -> Place:
        """The row, or piece of a row, of the ``row``-th place of a group."""
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
        """Whether the ``row``-th place of a group has an edge in a step, and its sender."""
        place = self.place(warp, group, row, tables)
        real, edge = place.edge(warp, step)
        return real, place.element * self.cols + tables.indices.load(edge)

    def divided(self, warp: Warp, number: Value, size: int) -> tuple[Value, Value]:
        """Splits a number into an element of the batch, with ``size`` each, and a remainder."""
        if self.batch == 1:
            return warp.i32(0), number
        return number // size, number % size


@dataclass(frozen=True)
class Place:
    """The row, or piece of a row, whose edges a place of a group has.

    Attributes:
      element: element of the batch.
      row: row of the graph.
      start: first edge of the row or piece.
      length: number of its edges, or None where all rows have equally many.
      is_real: whether the place is used; otherwise it is padding.
    """

    element: Value
    row: Value
    start: Value
    length: Value | None
    is_real: Value

    def edge(self, warp: Warp, step: Value) -> tuple[Value, Value]:
        """Whether there is an edge in this step, and its number.

        Without an edge the number is 0, at which tables may be read. The sender of that edge may
        be outside of the graph: its features must not be read.
        """
        real = self.is_real if self.length is None else step < self.length
        return real, warp.select(real, self.start + step, 0)

    @property
    def has_any(self) -> Value:
        """Whether the place has any edges."""
        return self.is_real if self.length is None else self.length > 0


@dataclass(frozen=True)
class Layout:
    """Layout of a tile [64, width] of 16-bit numbers in shared memory, swizzled for tensor cores.

    Attributes:
      width: numbers of a row.
      swizzle: bytes of a swizzle span, the part of a row that is contiguous.
    """

    width: int
    swizzle: int

    @property
    def vectors(self) -> int:
        """Vectors of 16 bytes of a row."""
        return self.width * 2 // VECTOR_BYTES

    def at(self, row: Value, vector: Value) -> Value:
        """Offset of a vector of a row in the tile, counted in vectors."""
        together = self.swizzle // VECTOR_BYTES
        spans = self.width * 2 // self.swizzle
        # Spans of fewer than 128 bytes change the order of their vectors less often.
        turn = (row % _GROUP) // (_GROUP // together)
        within = (row % _GROUP) * together + ((vector % together) ^ turn)
        return (row // _GROUP * spans + vector // together) * (_GROUP * together) + within

    def own_rows(self, warp: Warp) -> list[Value]:
        """Rows that this lane copies vectors of; four lanes share a row, so each looks up few."""
        step = warp.threads // _LANES
        return [warp.thread // _LANES + first for first in range(0, ROWS, step)]

    def own_vectors(self, warp: Warp) -> Iterator[Value]:
        """Vectors of each row that this lane copies; neighbouring lanes have neighbours."""
        return (warp.thread % _LANES + first for first in range(0, self.vectors, _LANES))

    def each(self, warp: Warp) -> Iterator[tuple[Value, Value]]:
        """All pairs of a row and a vector that this lane copies."""
        return itertools.product(self.own_rows(warp), self.own_vectors(warp))


def whole_tile_bytes(width: int) -> int:
    """Bytes of 64 rows of 16-bit numbers."""
    return ROWS * width * jnp.dtype(jnp.bfloat16).itemsize


def common_swizzle(widths: Sequence[int]) -> int | None:
    """The widest swizzle span that divides rows of all these widths; None if none does."""
    return next((size for size in _SWIZZLES if not any(2 * w % size for w in widths)), None)
