"""The rows of a graph as the kernels walk them: in pieces of limited length, longest first."""

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

# Columns of a row that a warp can keep in shared memory as float32, three of them to a block.
MOST_COLUMNS = 16384


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Pieces:
    """A sparse matrix by rows, cut into pieces of at most ``edges_per_piece`` edges of one row.

    A long row has full pieces, and then one piece with the rest. In a kernel each array is an
    ``Array``.

    Attributes:
      indptr: row offsets, [rows + 1], int32 or int64.
      unit_rows: row of each unit of work, [units] int32; a unit is a possible start of a piece.
      unit_offsets: first edge of each unit, [units + 1], of the dtype of ``indptr``.
      pieces: the unit that each piece starts with, longest piece first, [units] int32.
      counts: how many pieces are long, and how many pieces there are, [2] int32.
      indices: column of each edge, [edges] int32.
      weights: weight of each edge, [edges] or [edges, heads] float32, or None for ones.
      row_scale: factor of each row, [rows] float32, or None for ones.
      col_scale: factor of each column, [cols] float32, or None for ones.
      edges_per_piece: how many edges a full piece has, static.
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
        """Number of rows of the matrix."""
        return self.indptr.shape[-1] - 1

    @property
    def num_edges(self) -> int:
        """Number of edge slots, padding included."""
        return self.indices.shape[-1]

    @property
    def weight_heads(self) -> int | None:
        """Number of heads of the weights; None for weights without an axis of heads."""
        has_heads = self.weights is not None and len(self.weights.shape) == 2
        return self.weights.shape[1] if has_heads else None

    @property
    def has_long_rows(self) -> bool:
        """Whether a row may have several pieces."""
        return self.num_edges > self.edges_per_piece

    @property
    def has_factors(self) -> bool:
        """Whether edges have factors besides the scale of their row."""
        return self.weights is not None or self.col_scale is not None

    def blocks(self, warps: int) -> int:
        """Returns how many blocks to launch when each warp takes one piece at a time."""
        return striding_blocks(self.pieces.shape[-1], warps)

    def full_blocks(self, warps: int) -> int:
        """Returns how many blocks to launch when each warp takes one full piece at a time."""
        return striding_blocks(self.num_edges // self.edges_per_piece, warps)

    def partial_sums(self, dim: int) -> list[jax.ShapeDtypeStruct]:
        """Returns the workspace for rows of several pieces: sums of full pieces, then of last ones.

        It is empty if no row may have several pieces.
        """
        if not self.has_long_rows:
            return []
        return [jax.ShapeDtypeStruct((2 * self._slots_per_kind(), dim), jnp.float32)]

    def _slots_per_kind(self) -> int:
        return self.num_edges // self.edges_per_piece + 1

    # -- in kernels ----------------------------------------------------------------------------

    def slot(self, warp: Warp, begin: Value, end: Value) -> Value:
        """Returns the row of the workspace for the partial sums of a piece of a long row.

        Full pieces start at least their length apart, so their first edge divided by the length is
        unique. The last pieces of long rows are numbered in the same way, in the second half.
        """
        full = end - begin == self.edges_per_piece
        last = warp.select(full, warp.constant(begin.kind, 0), self._slots_per_kind())
        return begin // self.edges_per_piece + last

    def get(self, warp: Warp, number: Value) -> Piece:
        """Returns piece ``number``; the shortest come last."""
        unit = self.pieces.load(number)
        row = self.unit_rows.load(unit)
        begin = self.unit_offsets.load(unit)
        row_begin, row_end = self.indptr.load(row), self.indptr.load(row + 1)
        end = row_end.at_most(begin + self.edges_per_piece)
        whole = row_end - row_begin <= self.edges_per_piece
        return Piece(row, begin, end, warp.select(whole, -1, self.slot(warp, begin, end)))

    def for_each(self, warp: Warp, body: Callable[[Piece], None]) -> None:
        """Calls ``body(piece)`` for the pieces of this warp, which strides over all of them."""
        num_pieces = self.counts.load(1)
        warp.loop(
            warp.number, num_pieces, warp.count, (), lambda number, _: body(self.get(warp, number))
        )

    def for_each_found_by_lanes(self, warp: Warp, body: Callable[[Piece], None]) -> None:
        """Calls ``body(piece)`` for the pieces of this warp; each lane looks up one of them.

        It is for kernels in which the lookup of a piece would take as long as the work on it: 32
        lookups run at once, then the pieces are processed one after another.
        """
        num_pieces = self.counts.load(1)

        def take(first, _):
            own = (first + warp.lane * warp.count).at_most(num_pieces - 1)
            found = self.get(warp, own)
            left = (num_pieces - first + (warp.count - 1)) // warp.count

            def take_one(lane, _):
                body(Piece(*(warp.shuffle_wide(value, lane) for value in found)))

            warp.loop(warp.i32(0), left.at_most(LANES), 1, (), take_one)

        warp.loop(warp.number, num_pieces, warp.count * LANES, (), take)

    def factor(self, edge: Value, node: Value, head: Value | None = None) -> Value | None:
        """Returns the factor of an edge and its sender, without the row's scale; None for one.

        Where there are weights for several heads, it is that of ``head``.
        """
        factors = []
        if self.weights is not None:
            is_one = head is None
            factors.append(self.weights.load(edge) if is_one else self.weights.row(edge).load(head))
        if self.col_scale is not None:
            factors.append(self.col_scale.load(node))
        return factors[0] * factors[1] if len(factors) == 2 else next(iter(factors), None)

    def scaled(self, row: Value, value: Value) -> Value:
        """Returns ``value`` times the scale of its row."""
        return value if self.row_scale is None else self.row_scale.load(row) * value

    def zero_padding(self, warp: Warp, edges: Array) -> None:
        """Sets the entries past the last edge to zero; ``edges`` is [edges] or [edges, heads]."""
        first = self.indptr.load(self.num_rows) + (warp.number * LANES + warp.lane)
        zero = warp.f32(0.0)

        def clear(edge, _):
            if len(edges.shape) == 1:
                return edges.store(edge, zero)
            of_heads, heads = edges.row(edge), edges.shape[1]
            warp.loop(warp.i32(0), heads, 1, (), lambda head, _: of_heads.store(head, zero))

        warp.loop(first, self.num_edges, warp.count * LANES, (), clear)


class Piece(NamedTuple):
    """Consecutive edges of one row.

    Attributes:
      row: number of the row, i32.
      begin: its first edge.
      end: one past its last edge.
      slot: row of the workspace for its partial sums, or -1 if the piece is a whole row.
    """

    row: Value
    begin: Value
    end: Value
    slot: Value


def load_row(warp: Warp, graph: Pieces, number: Value, rows: Array, shared) -> None:
    """Copies a row of ``rows`` to the warp's shared memory, times the row's scale."""
    row = rows.row(number)
    scale = None if graph.row_scale is None else graph.row_scale.load(number)

    def copy(column):
        value = row.load(column)
        shared.store(column, value if scale is None else scale * value)

    warp.sync()
    warp.strided(rows.shape[-1], copy)
    warp.sync()


def add_pieces(graph: Pieces, partial: jax.Array, y: jax.Array) -> jax.Array:
    """Adds up the partial sums of rows with several pieces, in order; scales and stores them."""
    warps, rows = 8, graph.num_rows
    grid = simt.Grid(
        striding_blocks(-(-rows // LANES), warps), warps, slices=-(-y.shape[-1] // LANES)
    )
    slots = graph.num_edges // graph.edges_per_piece + 1
    # Only the arrays that the kernel reads are passed on.
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
    """A warp searches its share of the rows for long ones; each slice has 32 columns."""

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
            row = mine.at_most(last)
            length = graph.indptr.load(row + 1) - graph.indptr.load(row)
            found = warp.ballot((length > size) & (mine <= last))

            def take_one(left):
                row = first + warp.lowest_bit(left)
                warp.when(inside, lambda: add_row(row))
                return left & (left - 1)

            warp.while_loop(lambda left: left != 0, take_one, found)

        warp.loop(warp.number * LANES, graph.num_rows, warp.count * LANES, (), look_through)
