"""Sparse times k-sparse: the forward; its gradients lie next door."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import _simt
from pallas_kernels._maxk_spmm_backward import grad_values, grad_values_blocks, grad_weights
from pallas_kernels._pieces import Piece, Pieces, add_pieces, warps_with_rows
from pallas_kernels._records import RecordShape, make_records
from pallas_kernels._values import Array, Shared, Value
from pallas_kernels._warp import LANES, Warp

__all__ = ["ForwardTile", "grad_values", "grad_values_blocks", "grad_weights", "maxk_spmm"]


@dataclass(frozen=True)
class ForwardTile:
    """How the warps share the work of ``maxk_spmm``.

    Attributes:
      shape: of the records.
      fours: fours of neighbours that a lane reads before it adds them.
      warps: warps of a block.
    """

    shape: RecordShape
    fours: int
    warps: int

    @classmethod
    def choose(cls, k: int, dim: int, itemsize: int, edges_of_a_row: float) -> ForwardTile:
        """The one heuristic: as many neighbours ahead as pay; rows of few edges want more warps."""
        shape = RecordShape.choose(k, dim, itemsize)
        entries_ahead = _MANY_ENTRIES if edges_of_a_row >= _MANY_EDGES else _FEW_ENTRIES
        tile = cls(shape, max(1, min(2, entries_ahead // (_FOUR * shape.per_block))), 1)
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

        def add(share):
            part.clear()
            part.add(share)

        def take_long(number, _):
            piece = graph.get(warp, number)
            add(_Share.of(warp, piece, group, groups, warp.lane >= 0))
            part.store_sum(piece, y, partial)

        def take_short(first, _):
            # Behind the last piece there are units that begin none, so this one is read again.
            number = first + group
            exists = number < num_pieces
            piece = graph.get(warp, number.least(num_pieces - 1))
            add(_Share.of(warp, piece, warp.i32(0), 1, exists))
            part.store_rows(piece, exists, y)
            if partial is not None:
                # The short end of a row of several pieces.
                warp.when(exists & (piece.slot >= 0), lambda: part.store_partial(piece, partial))
            warp.sync()

        warp.loop(warp.number, num_long, warp.count, (), take_long)
        first = num_long + warp.number * groups
        warp.loop(first, num_pieces, warp.count * groups, (), take_short)


# Entries that a lane reads before it adds them, in rows of many edges on average and in others.
_MANY_ENTRIES, _FEW_ENTRIES, _MANY_EDGES = 64, 32, 128
# Neighbours whose numbers are read at once, from an aligned place; and most edges of a share that
# are in no such four.
_FOUR, _ENDS = 4, 6


@dataclass(frozen=True)
class _Share:
    """The edges of a piece that a group of lanes takes: those of some fours, and some at its ends.

    Attributes:
      begin: first edge of the piece.
      head: edges of the piece in front of its first four, i32.
      in_fours: edges in its fours, i32.
      ends: edges in front of and behind its fours that are the group's, i32.
      fours: fours that are the group's, i32.
      number: of the group, among those that share the piece, i32.
      groups: how many do.
    """

    begin: Value
    head: Value
    in_fours: Value
    ends: Value
    fours: Value
    number: Value
    groups: int

    @classmethod
    def of(cls, warp: Warp, piece: Piece, number: Value, groups: int, exists: Value) -> _Share:
        """That of one of the groups; of nothing where the piece does not exist."""
        count = (piece.end - piece.begin).to("i32")
        head = (_FOUR - (piece.begin % _FOUR).to("i32")) % _FOUR
        head = warp.select(count <= _ENDS, count, head)
        rest = count - head
        in_fours = rest - rest % _FOUR

        def share(things):
            mine = (things - number + (groups - 1)) // groups
            return warp.select(exists, mine, 0)

        fours = in_fours // _FOUR
        return cls(
            piece.begin, head, in_fours, share(count - in_fours), share(fours), number, groups
        )

    def end(self, t: Value) -> Value:
        """The ``t``-th edge of the group that is in no four; edge 0 if it has fewer."""
        at = t * self.groups + self.number
        edge = self.begin + at.warp.select(at < self.head, at, at + self.in_fours)
        return at.warp.select(t < self.ends, edge, 0)

    def four(self, t: Value, count: Value | None) -> Value:
        """The first edge of the group's ``t``-th four; edge 0 where there are only ``count``."""
        edge = self.begin + self.head + (t * self.groups + self.number) * _FOUR
        return edge if count is None else t.warp.select(t < count, edge, 0)


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

    def add(self, share: _Share) -> None:
        """This lane's group adds its edges."""
        for block in range(self.tile.shape.blocks):
            self._add_block(block, share)

    def _add_block(self, block, share) -> None:
        warp, together = self.warp, self.tile.fours
        most, least = (warp.reduce(op, share.fours) for op in ("max", "min"))

        def load_nodes(first):
            found = []
            for t in (first + i for i in range(together)):
                words = self.graph.indices.load_words(share.four(t, share.fours), _FOUR)
                found += [word.bits("i32") for word in words]
            return found

        def step(first, nodes, is_full):
            edges, exist = [], []
            for t in (first + i for i in range(together)):
                edge = share.four(t, None if is_full else share.fours)
                edges += [edge + s for s in range(_FOUR)]
                exist += [None if is_full else t < share.fours] * _FOUR
            then = functools.partial(load_nodes, first + together)
            return self._add_neighbours(block, edges, exist, nodes, then)

        # There may be no four edges at all to be read.
        none = [warp.i32(0)] * (_FOUR * together)
        nodes = warp.change(most > 0, none, lambda _: load_nodes(warp.i32(0)))
        self._add_ends(block, share)
        full = least - least % together
        nodes = warp.loop(0, full, together, nodes, lambda t, n: step(t, n, True))
        warp.loop(full, most, together, nodes, lambda t, n: step(t, n, False))

    def _add_ends(self, block, share) -> None:
        warp, together = self.warp, _ENDS // 2

        def step(first, _):
            places = [first + s for s in range(together)]
            edges = [share.end(t) for t in places]
            nodes = [self.graph.indices.load(edge) for edge in edges]
            exist = [t < share.ends for t in places]
            self._add_neighbours(block, edges, exist, nodes, lambda: None)

        warp.loop(0, warp.reduce("max", share.ends), together, (), step)

    def _add_neighbours(self, block, edges, exist, nodes, then):
        """Reads their entries, then what ``then`` reads and returns, and adds the entries."""
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
