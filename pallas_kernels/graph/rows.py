"""A graph as the kernels walk it: pieces of rows, longest first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

# Rows of floats that warps keep in shared memory: a block has room for three of them.
MOST_COLUMNS = 16384


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Pieces:
    """A sparse matrix by rows, cut into pieces of at most ``edges_per_piece`` edges of one row.

    A long row has full pieces, then what is left of it. In a kernel each array is an ``Array``.

    Attributes:
      indptr: row offsets, [rows + 1], int32 or int64.
      unit_rows: row of each unit of work, [units] int32; a piece begins with one.
      unit_offsets: first edge of each unit, [units + 1], of the dtype of ``indptr``.
      pieces: first unit of each piece, longest piece first, [units] int32.
      counts: how many pieces are long, and how many there are, [2] int32.
      indices: column of each edge, [edges] int32.
      weights: of the edges, [edges] float32, or None for ones.
      row_scale: factor of each row, [rows] float32, or None for ones.
      col_scale: factor of each column, [cols] float32, or None for ones.
      edges_per_piece: edges of a full piece.
    """

    indptr: Any
    unit_rows: Any
    unit_offsets: Any
    pieces: Any
    counts: Any
    indices: Any
    weights: Any
    row_scale: Any
    col_scale: Any
    edges_per_piece: int = field(metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """Rows of the matrix."""
        return self.indptr.shape[-1] - 1

    @property
    def num_edges(self) -> int:
        """Edge slots, padding included."""
        return self.indices.shape[-1]

    @property
    def has_long_rows(self) -> bool:
        """Whether a row may have several pieces."""
        return self.num_edges > self.edges_per_piece

    @property
    def has_factors(self) -> bool:
        """Whether edges have factors beside that of their row."""
        return self.weights is not None or self.col_scale is not None

    def blocks(self, warps: int) -> int:
        """Blocks of ``warps`` warps, each of which takes a piece at a time."""
        return striding_blocks(self.pieces.shape[-1], warps)

    def full_blocks(self, warps: int) -> int:
        """Blocks of ``warps`` warps, each of which takes a full piece at a time."""
        return striding_blocks(self.num_edges // self.edges_per_piece, warps)

    def partial_sums(self, dim: int) -> list[jax.ShapeDtypeStruct]:
        """The workspace for rows of several pieces: full pieces, and last ones."""
        if not self.has_long_rows:
            return []
        return [jax.ShapeDtypeStruct((2 * self._slots_per_kind(), dim), jnp.float32)]

    def _slots_per_kind(self) -> int:
        return self.num_edges // self.edges_per_piece + 1

    # -- in kernels ----------------------------------------------------------------------------

    def slot(self, warp: Warp, begin: Value, end: Value) -> Value:
        """Where the partial sums of a piece of a long row go.

        Full pieces lie apart by their length, so the quotient of their first edge names them; what
        is left of long rows is named likewise.
        """
        full = end - begin == self.edges_per_piece
        last = warp.select(full, warp.constant(begin.kind, 0), self._slots_per_kind())
        return begin // self.edges_per_piece + last

    def get(self, warp: Warp, number: Value) -> Piece:
        """Piece ``number``; the shortest come last."""
        unit = self.pieces.load(number)
        row = self.unit_rows.load(unit)
        begin = self.unit_offsets.load(unit)
        row_begin, row_end = self.indptr.load(row), self.indptr.load(row + 1)
        end = row_end.least(begin + self.edges_per_piece)
        whole = row_end - row_begin <= self.edges_per_piece
        return Piece(row, begin, end, warp.select(whole, -1, self.slot(warp, begin, end)))

    def for_each(self, warp: Warp, body: Callable[[Piece], None]) -> None:
        """``body(piece)`` for the pieces of this warp, which strides over them."""
        num_pieces = self.counts.load(1)
        warp.loop(
            warp.number, num_pieces, warp.count, (), lambda number, _: body(self.get(warp, number))
        )

    def for_each_found_by_lanes(self, warp: Warp, body: Callable[[Piece], None]) -> None:
        """``for_each``, where finding pieces would take as long as what is done with them.

        Each lane finds one, and they are done one after another.
        """
        num_pieces = self.counts.load(1)

        def take(first, _):
            own = (first + warp.lane * warp.count).least(num_pieces - 1)
            found = self.get(warp, own)
            left = (num_pieces - first + (warp.count - 1)) // warp.count

            def take_one(lane, _):
                body(Piece(*(warp.shuffle_wide(value, lane) for value in found)))

            warp.loop(warp.i32(0), left.least(LANES), 1, (), take_one)

        warp.loop(warp.number, num_pieces, warp.count * LANES, (), take)

    def factor(self, edge: Value, node: Value) -> Value | None:
        """What multiplies a neighbour, its row's scale apart; None for one."""
        factors = [
            array.load(at)
            for array, at in ((self.weights, edge), (self.col_scale, node))
            if array is not None
        ]
        return factors[0] * factors[1] if len(factors) == 2 else next(iter(factors), None)

    def scaled(self, row: Value, value: Value) -> Value:
        """``value`` times the scale of its row."""
        return value if self.row_scale is None else self.row_scale.load(row) * value

    def zero_padding(self, warp: Warp, edges: Array) -> None:
        """Sets the entries behind the last edge to zero."""
        first = self.indptr.load(self.num_rows) + (warp.number * LANES + warp.lane)
        zero = warp.f32(0.0)
        warp.loop(
            first, self.num_edges, warp.count * LANES, (), lambda edge, _: edges.store(edge, zero)
        )


class Piece(NamedTuple):
    """Consecutive edges of one row.

    Attributes:
      row: the row, i32.
      begin: its first edge.
      end: behind its last.
      slot: where its partial sums go, or -1 if it is all of its row.
    """

    row: Value
    begin: Value
    end: Value
    slot: Value


def load_row(warp: Warp, graph: Pieces, number: Value, rows: Array, shared) -> None:
    """Copies a row of ``rows``, scaled, to shared memory; all lanes see it."""
    row = rows.row(number)
    scale = None if graph.row_scale is None else graph.row_scale.load(number)

    def copy(column):
        value = row.load(column)
        shared.store(column, value if scale is None else scale * value)

    warp.sync()
    warp.strided(rows.shape[-1], copy)
    warp.sync()


def add_pieces(graph: Pieces, partial: jax.Array, y: jax.Array) -> jax.Array:
    """Writes the rows of several pieces: their partial sums, added in order and scaled."""
    warps, rows = 8, graph.num_rows
    grid = simt.Grid(
        striding_blocks(-(-rows // LANES), warps), warps, slices=-(-y.shape[-1] // LANES)
    )
    slots = graph.num_edges // graph.edges_per_piece + 1
    # What the kernel does not read is left out.
    structure = dataclasses.replace(
        graph,
        unit_rows=None,
        unit_offsets=None,
        pieces=None,
        counts=None,
        indices=None,
        weights=None,
        col_scale=None,
    )
    return simt.launch(
        _AddPieces(slots), (structure, partial), [], name="add_pieces", grid=grid, updated=[y]
    )[0]


@dataclass(frozen=True)
class _AddPieces:
    """A warp looks through its share of the rows for long ones; a slice has 32 columns."""

    slots: int

    def __call__(self, warp: Warp, inputs, y: Array) -> None:
        graph, partial = inputs
        column = warp.slice * LANES + warp.lane
        inside = column < y.shape[-1]
        size = graph.edges_per_piece

        def add_row(row):
            begin, end = graph.indptr.load(row), graph.indptr.load(row + 1)

            def add(first, total):
                full = end - first >= size
                kind = warp.select(full, warp.constant(first.kind, 0), self.slots)
                return total + partial.row(first // size + kind).load(column)

            total = warp.loop(begin, end, size, warp.f32(0.0), add)
            y.row(row).store(column, graph.scaled(row, total))

        def look_through(first, _):
            mine = first + warp.lane
            last = graph.num_rows - 1
            row = mine.least(last)
            length = graph.indptr.load(row + 1) - graph.indptr.load(row)
            found = warp.ballot((length > size) & (mine <= last))

            def take_one(left):
                row = first + warp.lowest_bit(left)
                warp.when(inside, lambda: add_row(row))
                return left & (left - 1)

            warp.while_loop(lambda left: left != 0, take_one, found)

        warp.loop(warp.number * LANES, graph.num_rows, warp.count * LANES, (), look_through)
