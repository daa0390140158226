"""Sparse times k-sparse: the forward; its gradients lie next door."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import _simt
from pallas_kernels._maxk_spmm_backward import grad_values, grad_values_blocks, grad_weights
from pallas_kernels._neighbours import InFours, OneByOne
from pallas_kernels._pieces import Piece, Pieces, add_pieces, warps_with_rows
from pallas_kernels._records import RecordShape, make_records
from pallas_kernels._values import Array, Shared, Value
from pallas_kernels._warp import LANES, Warp

__all__ = ["ForwardTile", "grad_values", "grad_values_blocks", "grad_weights", "maxk_spmm"]


# Of a row on average: those timed had 478, and 50 and 10.
_MANY_EDGES = 128


@dataclass(frozen=True)
class ForwardTile:
    """How the warps share the work of ``maxk_spmm``.

    Attributes:
      shape: of the records.
      ahead: neighbours that a lane reads before it adds them.
      in_fours: whether their numbers are read in fours.
      warps: warps of a block.
    """

    shape: RecordShape
    ahead: int
    in_fours: bool
    warps: int

    @classmethod
    def choose(cls, k: int, dim: int, itemsize: int, edges_of_a_row: float) -> ForwardTile:
        """The one heuristic: as many neighbours ahead as there are registers for.

        Fours pay where rows are much longer than what is left of them at their ends.
        """
        shape = RecordShape.choose(k, dim, itemsize)
        if edges_of_a_row >= _MANY_EDGES:
            ahead, in_fours = 4 if shape.per_block >= 16 else 8, True
        else:
            ahead, in_fours = 2 if shape.per_block >= 16 else 4, False
        tile = cls(shape, ahead, in_fours, 1)
        return dataclasses.replace(tile, warps=warps_with_rows(4 * tile.words, 4))

    @property
    def groups(self) -> int:
        """Groups of lanes in a warp."""
        return LANES // self.shape.lanes

    @property
    def words(self) -> int:
        """Sums of a warp, those of padding included."""
        return (self.shape.dim + self.shape.lanes) * self.groups


def maxk_spmm(
    graph: Pieces, values: jax.Array, columns: jax.Array, dim: int, tile: ForwardTile | None = None
) -> jax.Array:
    """``y_i = r_i Σ_j w_ij c_j x_j`` where ``x_j`` has k entries, accumulated in float32.

    Args:
      graph: of ``rows`` rows.
      values: [cols, k], float32 or bfloat16.
      columns: [cols, k], uint8 or uint16, distinct in each row.
      dim: columns of ``x``, at most ``_pieces.MOST_COLUMNS``.
      tile: by default what suits the shapes.

    Returns:
      [rows, dim], of the dtype of the values.
    """
    rows = graph.num_rows
    if rows == 0 or values.size == 0 or graph.num_edges == 0:
        return jnp.zeros((rows, dim), values.dtype)
    if tile is None:
        sizes = values.shape[-1], dim, values.dtype.itemsize
        tile = ForwardTile.choose(*sizes, graph.num_edges / rows)
    scale = None
    if values.dtype == jnp.float32:
        scale, graph = graph.col_scale, dataclasses.replace(graph, col_scale=None)
    records = make_records(tile.shape, values, columns, scale)
    y, *partial = _simt.launch(
        _Forward(tile),
        (graph, *records),
        [jax.ShapeDtypeStruct((rows, dim), values.dtype), *graph.partial_sums(dim)],
        name="maxk_spmm",
        grid=_simt.Grid(graph.blocks(tile.warps), tile.warps),
        shared={"sums": ("f32", tile.words)},
    )
    return add_pieces(graph, partial[0], y) if partial else y


@dataclass(frozen=True)
class _Forward:
    """The lanes of a group add one neighbour's entries to sums in shared memory.

    The sums of a warp's groups lie side by side: [column][group]. A long piece is walked by all
    groups of a warp, short ones by a group each. Adding needs no atomics: the lanes of a group hold
    different columns.
    """

    tile: ForwardTile

    def __call__(
        self, warp: Warp, inputs, y: Array, partial: Array | None = None, *, sums: Shared
    ) -> None:
        graph, values, ids = inputs
        group = warp.lane // self.tile.shape.lanes
        part = _ForwardWarp(self.tile, warp, graph, values, ids, sums, group)
        groups = self.tile.groups
        num_long, num_pieces = graph.counts.load(0), graph.counts.load(1)

        share = InFours if self.tile.in_fours else OneByOne

        def add(edges):
            part.clear()
            part.add(edges)

        def take_long(number, _):
            piece = graph.get(warp, number)
            add(share.of(piece, group, groups, warp.lane >= 0))
            part.store_sum(piece, y, partial)

        def take_short(first, _):
            # Behind the last piece there are units that begin none, so this one is read again.
            number = first + group
            exists = number < num_pieces
            piece = graph.get(warp, number.least(num_pieces - 1))
            add(share.of(piece, warp.i32(0), 1, exists))
            part.store_rows(piece, exists, y)
            if partial is not None:
                # The short end of a row of several pieces.
                warp.when(exists & (piece.slot >= 0), lambda: part.store_partial(piece, partial))
            warp.sync()

        warp.loop(warp.number, num_long, warp.count, (), take_long)
        first = num_long + warp.number * groups
        warp.loop(first, num_pieces, warp.count * groups, (), take_short)


@dataclass(frozen=True)
class _ForwardWarp:
    """What a warp of ``_Forward`` does for the pieces that it has at hand."""

    tile: ForwardTile
    warp: Warp
    graph: Pieces
    values: Array
    ids: Array
    sums: Shared
    group: Value

    def clear(self) -> None:
        """Sets the sums to zero."""
        zero = self.warp.f32(0.0)
        words = self.tile.shape.dim * self.tile.groups
        self.warp.strided(words, lambda i: self.sums.store(i, zero))
        self.warp.sync()

    def add(self, share: OneByOne | InFours) -> None:
        """This lane's group adds its edges."""
        for block in range(self.tile.shape.blocks):
            share.walk(self.graph, self.tile.ahead, functools.partial(self._add_neighbours, block))

    def _add_neighbours(self, block, edges, exist, nodes, then):
        """See ``_neighbours.Add``; a block of their records."""
        read = [self._read(block, node) for node in nodes]
        factors = [self.graph.factor(*pair) for pair in zip(edges, nodes, strict=True)]
        following = then()
        for entries, factor, exists in zip(read, factors, exist, strict=True):
            self._add_neighbour(*entries, factor, exists)
        return following

    def _read(self, block, node) -> tuple[list[Value], list[Value]]:
        """This lane's values and columns of a block of a neighbour's record."""
        shape = self.tile.shape
        lane = self.warp.lane % shape.lanes
        first = block * shape.lanes * shape.per_block
        values, ids = self.values.row(node), self.ids.row(node)
        own_values = []
        for chunk in range(shape.chunks):
            at = lane * shape.entries + (first + chunk * shape.lanes * shape.entries)
            words = values.load_words(at, shape.entries)
            own_values += [values.unpack(words, i) for i in range(shape.entries)]
        words = ids.load_words(lane * shape.per_block + first, shape.per_block)
        return own_values, [ids.unpack(words, i) for i in range(shape.per_block)]

    def _add_neighbour(self, values, columns, factor, exists) -> None:
        warp, groups = self.warp, self.tile.groups

        def add():
            places = [column * groups + self.group for column in columns]
            sums = [self.sums.load(place) for place in places]
            for place, total, value in zip(places, sums, values, strict=True):
                added = total + value if factor is None else warp.fma(factor, value, total)
                self.sums.store(place, added)

        if exists is None:
            add()
        else:
            warp.when(exists, add)
        warp.sync()

    def store_sum(self, piece: Piece, y: Array, partial: Array | None) -> None:
        """The sum over groups, for a long piece."""
        warp, groups = self.warp, self.tile.groups
        warp.sync()

        def store_to(row, scale):
            def store(column):
                total = warp.f32(0.0)
                for g in range(groups):
                    total = total + self.sums.load(column * groups + g)
                row.store(column, total if scale is None else scale * total)

            warp.strided(self.tile.shape.dim, store)

        def store_row():
            scales = self.graph.row_scale
            store_to(y.row(piece.row), None if scales is None else scales.load(piece.row))

        if partial is None:
            store_row()
        else:
            warp.when(piece.slot < 0, store_row)
            warp.when(piece.slot >= 0, lambda: store_to(partial.row(piece.slot), None))
        warp.sync()

    def store_partial(self, piece: Piece, partial: Array) -> None:
        """Unscaled sums of this lane's group."""
        lanes, row = self.tile.shape.lanes, partial.row(piece.slot)

        def store(column, _):
            row.store(column, self.sums.load(column * self.tile.groups + self.group))

        self.warp.loop(self.warp.lane % lanes, self.tile.shape.dim, lanes, (), store)

    def store_rows(self, piece: Piece, exists: Value, y: Array) -> None:
        """Each group's own row, all lanes together for one after another."""
        warp, shape, groups = self.warp, self.tile.shape, self.tile.groups
        warp.sync()
        one = warp.f32(1.0)
        scales = self.graph.row_scale
        scale = one if scales is None else scales.load(piece.row)
        mine = warp.select(exists & (piece.slot < 0), piece.row, -1)
        columns = 32 // y.itemsize  # a sector of global memory
        rows = LANES // columns
        for first in range(0, groups, rows):
            g = warp.lane // columns + first
            from_lane = (g % groups) * shape.lanes
            number, factor = warp.shuffle(mine, from_lane), warp.shuffle(scale, from_lane)

            def store(g=g, number=number, factor=factor):
                row = y.row(number)

                def store_column(column, _):
                    row.store(column, factor * self.sums.load(column * groups + g))

                warp.loop(warp.lane % columns, shape.dim, columns, (), store_column)

            warp.when((number >= 0) & (g < groups), store)
        warp.sync()
