"""The product of a sparse matrix and a k-sparse one; ``backward`` has its gradients."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Piece, Pieces, add_pieces
from pallas_kernels.maxk_spmm.backward import grad_values, grad_values_blocks, grad_weights
from pallas_kernels.maxk_spmm.bank_choice import other_place
from pallas_kernels.maxk_spmm.neighbours import InFours, OneByOne
from pallas_kernels.maxk_spmm.record_shape import RecordShape
from pallas_kernels.maxk_spmm.records import make_records
from pallas_kernels.simt.blocks import warps_with_rows
from pallas_kernels.simt.values import Array, Shared, Value
from pallas_kernels.simt.warp import LANES, Warp

__all__ = ["ForwardTile", "grad_values", "grad_values_blocks", "grad_weights", "maxk_spmm"]


# Edges of a row on average. The graphs that were timed had 478, and 50 and 10.
_MANY_EDGES = 128


@dataclass(frozen=True)
class ForwardTile:
    """Division of the work of ``maxk_spmm`` among warps.

    Attributes:
      shape: layout of the records that hold compressed rows.
      ahead: neighbours that a lane reads before it adds them.
      in_fours: whether indices of neighbours are loaded four at a time.
      warps: warps of a block.
    """

    shape: RecordShape
    ahead: int
    in_fours: bool
    warps: int

    @classmethod
    def choose(cls, chip: Chip, k: int, dim: int, dtype: Any, edges_of_a_row: float) -> ForwardTile:
        """The one heuristic: the most neighbours ahead that fit the registers.

        Loads of four indices pay off where rows are much longer than the parts at their ends that
        are not aligned.
        """
        in_fours = edges_of_a_row >= _MANY_EDGES
        shape = RecordShape.choose(k, dim, dtype, two_places=in_fours)
        ahead = 4 if shape.per_block >= 16 else 8
        if not in_fours and not shape.is_one_load:
            ahead //= 2
        tile = cls(shape, ahead, in_fours, 1)
        return dataclasses.replace(tile, warps=warps_with_rows(chip, 4 * tile.words, 4))

    @property
    def groups(self) -> int:
        """Number of groups of lanes of a warp."""
        return LANES // self.shape.lanes

    @property
    def words(self) -> int:
        """Number of sums of a warp in shared memory, those of padding included."""
        return (self.shape.places + self.shape.lanes) * self.groups


def maxk_spmm(
    graph: Pieces, values: jax.Array, columns: jax.Array, dim: int, tile: ForwardTile | None = None
) -> jax.Array:
    """Computes ``y_i = r_i Σ_j w_ij c_j x_j``, where ``x_j`` has k entries, in float32.

    Args:
      graph: the sparse matrix of ``rows`` rows, with its weights and scales.
      values: [cols, k], float32 or bfloat16.
      columns: [cols, k], uint8 or uint16, distinct in each row.
      dim: columns of ``x``, at most ``graph.rows.MOST_COLUMNS``.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [rows, dim], of the dtype of the values.
    """
    rows = graph.num_rows
    if rows == 0 or values.size == 0 or graph.num_edges == 0:
        return jnp.zeros((rows, dim), values.dtype)
    if tile is None:
        of_a_row = graph.num_edges / rows
        tile = ForwardTile.choose(Chip.current(), values.shape[-1], dim, values.dtype, of_a_row)
    scale = None
    if values.dtype == jnp.float32:
        scale, graph = graph.col_scale, dataclasses.replace(graph, col_scale=None)
    records = make_records(tile.shape, values, columns, scale)
    y, *partial = simt.launch(
        _Forward(tile),
        (graph, records),
        [jax.ShapeDtypeStruct((rows, dim), values.dtype), *graph.partial_sums(dim)],
        name="maxk_spmm",
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps),
        shared={"sums": ("f32", tile.words)},
    )
    return add_pieces(graph, partial[0], y) if partial else y


@dataclass(frozen=True)
class _Forward:
    """The lanes of a group add one neighbour's entries to sums in shared memory.

    The sums of a warp's groups are interleaved: [column][group]. A long piece is processed by all
    groups of a warp, short ones by a group each. The additions need no atomics, since the lanes of
    a group have different columns.

    Where columns have two places, the first half of the groups keeps its sums in the first order,
    the other half in the second. Groups work in pairs: each adds to the sums of both, but one half
    of its entries after the other, and never to the same sums as its partner at the same time. Then
    a pair processes a short piece together.
    """

    tile: ForwardTile

    def __call__(
        self, warp: Warp, inputs, y: Array, partial: Array | None = None, *, sums: Shared
    ) -> None:
        graph, records = inputs
        shape = self.tile.shape
        group = warp.lane // shape.lanes
        part = _ForwardWarp(self.tile, warp, graph, records, sums, group)
        groups, at_once = self.tile.groups, self.tile.groups // shape.halves
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
            # Groups past the last piece read it again, and store nothing.
            number = first + group % at_once
            exists = number < num_pieces
            piece = graph.get(warp, number.at_most(num_pieces - 1))
            add(share.of(piece, group // at_once, shape.halves, exists))
            part.store_rows(piece, exists, y)
            if partial is not None:
                # The last, short piece of a row of several pieces.
                warp.when(exists & (piece.slot >= 0), lambda: part.store_partial(piece, partial))
            warp.sync()

        warp.loop(warp.number, num_long, warp.count, (), take_long)
        first = num_long + warp.number * at_once
        warp.loop(first, num_pieces, warp.count * at_once, (), take_short)


@dataclass(frozen=True)
class _ForwardWarp:
    """The work of a warp of ``_Forward`` on its current pieces."""

    tile: ForwardTile
    warp: Warp
    graph: Pieces
    records: Array
    sums: Shared
    group: Value

    def clear(self) -> None:
        """Sets the sums to zero."""
        zero = self.warp.f32(0.0)
        words = self.tile.shape.places * self.tile.groups
        self.warp.strided(words, lambda i: self.sums.store(i, zero))
        self.warp.sync()

    def add(self, share: OneByOne | InFours) -> None:
        """Adds the edges of this lane's group to the sums."""
        for block in range(self.tile.shape.blocks):
            share.walk(self.graph, self.tile.ahead, functools.partial(self._add_neighbours, block))

    def _add_neighbours(self, block, edges, exist, nodes, load_next):
        """Adds a block of the neighbours' records; an ``AddNeighbours`` once ``block`` is bound."""
        read = [self._read(block, node) for node in nodes]
        factors = [self.graph.factor(*pair) for pair in zip(edges, nodes, strict=True)]
        following = load_next()
        for entries, factor, exists in zip(read, factors, exist, strict=True):
            self._add_neighbour(*entries, factor, exists)
        return following

    def _read(self, block, node) -> tuple[list[Value], list[Value]]:
        """Loads this lane's values and columns of a block of a neighbour's record."""
        shape = self.tile.shape
        words = shape.load(self.records, node, self.warp.lane % shape.lanes, block)
        if shape.halves == 2:
            words = self._swapped(words[0]), self._swapped(words[1])
        return shape.unpack(self.records, words)

    def _swapped(self, words: list[Value]) -> list[Value]:
        """Swaps the halves of the entries in groups that start with the second half."""
        half = len(words) // 2
        swapped = [*words[half:], *words[:half]] if half else [words[0] << 16 | words[0] >> 16]
        begins_with_other = self.group >= self.tile.groups // 2
        pairs = zip(swapped, words, strict=True)
        return [self.warp.select(begins_with_other, *pair) for pair in pairs]

    def _add_neighbour(self, values, columns, factor, exists) -> None:
        """Adds the entries of a neighbour, times its factor, to the sums."""
        warp, tile = self.warp, self.tile
        size = tile.shape.per_block // tile.shape.halves

        def add(half):
            own = slice(half * size, (half + 1) * size)
            places = [place * tile.groups + self._sums_of(half) for place in columns[own]]
            sums = [self.sums.load(place) for place in places]
            for place, total, value in zip(places, sums, values[own], strict=True):
                added = total + value if factor is None else warp.fma(factor, value, total)
                self.sums.store(place, added)

        for half in range(tile.shape.halves):
            if exists is None:
                add(half)
            else:
                warp.when(exists, functools.partial(add, half))
            warp.sync()

    def _sums_of(self, half: int) -> Value:
        """Returns the group to whose sums this lane adds one half of its entries."""
        return self.group ^ self.tile.groups // 2 if half else self.group

    def store_sum(self, piece: Piece, y: Array, partial: Array | None) -> None:
        """Stores the row of a long piece: the sum over all groups."""
        warp, groups = self.warp, self.tile.groups
        warp.sync()

        def store_to(row, scale):
            def store(column):
                total = warp.f32(0.0)
                for g in range(groups):
                    # Each group starts with its own sum, so that lanes access different banks.
                    total = total + self._load(column, (self.group + g) % groups)
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

    def _load(self, column: Value, number: Value) -> Value:
        """Loads the sum of a column that belongs to group ``number``."""
        tile = self.tile
        if tile.shape.halves == 2:
            is_other = number >= tile.groups // 2
            column = self.warp.select(is_other, other_place(column), column)
        return self.sums.load(column * tile.groups + number)

    def store_partial(self, piece: Piece, partial: Array) -> None:
        """Stores the unscaled sums of each group's or pair's row in the workspace."""
        self._store_row(partial.row(piece.slot), None)

    def store_rows(self, piece: Piece, exists: Value, y: Array) -> None:
        """Stores the row of each group or pair that is a whole row."""
        self.warp.sync()
        scales = self.graph.row_scale

        def store():
            scale = None if scales is None else scales.load(piece.row)
            self._store_row(y.row(piece.row), scale)

        self.warp.when(exists & (piece.slot < 0), store)
        self.warp.sync()

    def _store_row(self, row: Array, scale: Value | None) -> None:
        """Stores the sums of this lane's group or pair, four at a time if rows are aligned."""
        warp, shape, dim = self.warp, self.tile.shape, self.tile.shape.dim
        lanes, at_once = shape.lanes * shape.halves, self.tile.groups // shape.halves
        lane = self.group // at_once * shape.lanes + warp.lane % shape.lanes

        def load(column):
            total = self._load(column, self.group)
            if shape.halves == 2:
                total = total + self._load(column, self.group ^ self.tile.groups // 2)
            return total if scale is None else scale * total

        def store(column, _):
            row.store(column, load(column))

        def store_four(first, _):
            # Each lane starts with another column, so that they access different banks.
            four = [load(first + (lane + i) % 4) for i in range(4)]
            for bit in (1, 2):
                turned = [*four[-bit:], *four[:-bit]]
                four = [
                    warp.select((lane & bit) != 0, *pair) for pair in zip(turned, four, strict=True)
                ]
            row.store(first, *four)

        if shape.lanes == 4 and dim % 4 == 0:
            warp.loop(lane * 4, dim, 4 * lanes, (), store_four)
        else:
            warp.loop(lane, dim, lanes, (), store)
