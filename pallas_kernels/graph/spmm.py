"""The product of a sparse and a dense matrix, and inner products along the edges of a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Pieces, add_pieces, load_row
from pallas_kernels.simt.blocks import warps_with_rows
from pallas_kernels.simt.values import Array, Shared
from pallas_kernels.simt.warp import LANES, Warp

# Numbers of lanes, of 16 bytes each, that read a neighbour. The widest come first, as they need the
# fewest passes over the edges. The slice of x that a pass reads should fit this part of the
# second-level cache.
_LANES = (32, 16, 8)
_CACHE_SHARE = 0.8
_FEW_EDGES = 64
# Neighbours that a lane reads before it adds them, by the bytes of a number. Of 2, 4, 6, 8 and 12
# these were the fastest on graphs of 10, 50 and 475 edges a row on an H100. With 4 for float32 the
# first of these graphs took 1.4 times as long.
_AHEAD = {4: 6, 2: 4}


@dataclass(frozen=True)
class SpmmTile:
    """Division of the work of ``spmm`` among warps.

    Attributes:
      lanes: lanes that read a neighbour together.
      entries: columns that a lane has in a slice.
      ahead: neighbours that a lane reads before it adds them.
      warps: warps of a block.
    """

    lanes: int
    entries: int
    ahead: int = 4
    warps: int = 8

    @classmethod
    def choose(
        cls, chip: Chip, rows: int, cols: int, edges: int, dim: int, itemsize: int, heads: int = 1
    ) -> SpmmTile:
        """The one heuristic: 16 bytes a lane, and the widest slice that stays in cache.

        The columns of a lane belong to one of the ``heads`` that ``dim`` columns are cut into.
        """
        wide, ahead = 16 // itemsize, _AHEAD[itemsize]
        if dim // heads % wide != 0:
            return cls(LANES, 1)
        if dim * itemsize <= 2 * _LANES[-1] * 16:
            return cls(_LANES[-1], wide, ahead)
        if edges < _FEW_EDGES * rows:
            return cls(_LANES[0], wide, ahead)  # a pass over the rows costs as much as their edges
        cached = _CACHE_SHARE * chip.cache_bytes
        fitting = (lanes for lanes in _LANES if cols * lanes * 16 <= cached)
        return cls(next(fitting, _LANES[0]), wide, ahead)


@dataclass(frozen=True)
class SddmmTile:
    """Division of the work of ``sddmm`` among warps.

    Attributes:
      lanes: lanes that read a neighbour together.
      entries: columns that a lane reads at once.
      warps: warps of a block at most.
    """

    lanes: int
    entries: int
    warps: int = 8

    @classmethod
    def choose(cls, chip: Chip, dim: int, itemsize: int) -> SddmmTile:
        """The one heuristic: 16 bytes a lane; ``dim`` is the width of a head."""
        wide = 16 // itemsize
        return cls(8, wide if dim % wide == 0 else 1)


def spmm(graph: Pieces, x: jax.Array, tile: SpmmTile | None = None) -> jax.Array:
    """Computes ``y_i = r_i Σ_j w_ij c_j x_j``, accumulated in float32.

    Args:
      graph: the sparse matrix of ``rows`` rows, with its weights and scales.
      x: [cols, dim], float32 or bfloat16; or [cols, heads, dim] for weights [edges, heads].
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [rows, dim] or [rows, heads, dim], of the dtype of ``x``.
    """
    if x.ndim == 3:  # a row is the heads side by side, and each column has the weight of its head
        y = spmm(graph, x.reshape(x.shape[0], math.prod(x.shape[1:])), tile)
        return y.reshape(graph.num_rows, *x.shape[1:])
    (cols, dim), rows = x.shape, graph.num_rows
    if rows * dim == 0 or cols == 0 or graph.num_edges == 0:
        return jnp.zeros((rows, dim), x.dtype)
    size, heads = x.dtype.itemsize, graph.weight_heads or 1
    tile = tile or SpmmTile.choose(Chip.current(), rows, cols, graph.num_edges, dim, size, heads)
    slices = -(-dim // (tile.lanes * tile.entries))
    outputs = [jax.ShapeDtypeStruct((rows, dim), x.dtype), *graph.partial_sums(dim)]
    grid = simt.Grid(graph.blocks(tile.warps), tile.warps, slices)
    y, *partial = simt.launch(_Spmm(tile), (graph, x), outputs, name="spmm", grid=grid)
    return add_pieces(graph, partial[0], y) if partial else y


@dataclass(frozen=True)
class _Spmm:
    """Each warp sums one piece at a time; its groups of lanes take turns at the edges."""

    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, y: Array, partial: Array | None = None) -> None:
        graph, x = inputs
        tile, dim = self.tile, x.shape[-1]
        groups = LANES // tile.lanes
        step = groups * tile.ahead
        column = (warp.slice * tile.lanes + warp.lane % tile.lanes) * tile.entries
        is_cut = dim % (tile.lanes * tile.entries) != 0
        inside = column < dim
        # Lanes past the last column read the first one, and store nothing.
        read_column = warp.select(inside, column, 0) if is_cut else column
        mine = warp.lane // tile.lanes
        heads = graph.weight_heads
        head = None if heads is None else read_column // (dim // heads)

        def add(edges, sums, end=None):
            """Adds edges to the sums; if ``end`` is given, only those before it."""
            inner = [e if end is None else e.at_most(end - 1) for e in edges]
            nodes = [graph.indices.load(edge) for edge in inner]
            words = [x.row(node).load_words(read_column, tile.entries) for node in nodes]
            factors = [graph.factor(*ends, head) for ends in zip(inner, nodes, strict=True)]
            for edge, factor, read in zip(edges, factors, words, strict=True):
                values = [x.unpack(read, i) for i in range(tile.entries)]
                if end is not None:
                    values = [warp.select(edge < end, value, 0.0) for value in values]
                    factor = None if factor is None else warp.select(edge < end, factor, 0.0)
                sums = [_add_scaled(warp, s, factor, v) for s, v in zip(sums, values, strict=True)]
            return sums

        def edges_from(first):
            return [first + (mine + s * groups) for s in range(tile.ahead)]

        def sum_piece(piece):
            sums = [warp.f32(0.0) for _ in range(tile.entries)]
            full_end = piece.end - (step - 1)
            sums = warp.loop(piece.begin, full_end, step, sums, lambda e, s: add(edges_from(e), s))
            # The rest is less than a step, so some of a lane's neighbours may be past the end.
            length = piece.end - piece.begin
            rest = piece.end - length % step
            sums = warp.loop(
                rest, piece.end, step, sums, lambda e, s: add(edges_from(e), s, piece.end)
            )
            sums = [warp.sum_groups(s, tile.lanes) for s in sums]
            keep = (mine == 0) & inside if is_cut else mine == 0
            warp.when(keep, lambda: store(piece, sums))

        def store(piece, sums):
            def store_row():
                y.row(piece.row).store(column, *(graph.scaled(piece.row, s) for s in sums))

            if partial is None:
                return store_row()
            warp.when(piece.slot < 0, store_row)

            def store_partial():
                to, at_once = partial.row(piece.slot), min(tile.entries, 4)
                for i in range(0, tile.entries, at_once):
                    to.store(column + i, *sums[i : i + at_once])

            warp.when(piece.slot >= 0, store_partial)

        graph.for_each(warp, sum_piece)


def _add_scaled(warp, total, factor, value):
    return total + value if factor is None else warp.fma(factor, value, total)


def sddmm(graph: Pieces, a: jax.Array, b: jax.Array, tile: SddmmTile | None = None) -> jax.Array:
    """Computes ``e_ij = r_i c_j ⟨a_i, b_j⟩``; the weights of the graph are not used.

    Args:
      graph: the sparse matrix of ``rows`` rows.
      a: [rows, dim], or [rows, heads, dim] for a product by head; float32 or bfloat16, at most
        ``graph.rows.MOST_COLUMNS`` columns in all.
      b: [cols, dim] or [cols, heads, dim], of the dtype of ``a``.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [edges] or [edges, heads] float32, zero in padding slots.
    """
    dim, columns = a.shape[-1], math.prod(a.shape[1:])
    shape = graph.num_edges, *a.shape[1:-1]
    if math.prod(shape) == 0 or a.size == 0 or b.size == 0:
        return jnp.zeros(shape, jnp.float32)
    tile = tile or SddmmTile.choose(Chip.current(), dim, a.dtype.itemsize)
    warps = warps_with_rows(Chip.current(), 4 * columns, tile.warps)
    return simt.launch(
        _Sddmm(tile),
        (graph, a.reshape(-1, columns), b.reshape(-1, columns)),
        [jax.ShapeDtypeStruct(shape, jnp.float32)],
        name="sddmm",
        grid=simt.Grid(graph.blocks(warps), warps),
        shared={"row": ("f32", columns)},
    )[0]


@dataclass(frozen=True)
class _Sddmm:
    """Each warp keeps the row of its piece in shared memory; each group takes a neighbour.

    Where ``edges`` has heads, the columns of a head are summed by themselves, one head after the
    other.
    """

    tile: SddmmTile

    def __call__(self, warp: Warp, inputs, edges: Array, row: Shared) -> None:
        graph, a, b = inputs
        lanes, entries = self.tile.lanes, self.tile.entries
        is_plain = len(edges.shape) == 1
        heads = 1 if is_plain else edges.shape[1]
        dim = a.shape[-1] // heads
        mine = warp.lane // lanes

        def inner_product(features, first):
            """Returns the inner product of ``dim`` columns, from ``first`` on."""

            def add(at, total):
                words = features.load_words(at, entries)
                for i in range(entries):
                    total = warp.fma(row.load(at + i), features.unpack(words, i), total)
                return total

            start = warp.lane % lanes * entries
            begin, end = (start, dim) if heads == 1 else (first + start, first + dim)
            return warp.loop(begin, end, lanes * entries, warp.f32(0.0), add)

        def take(piece):
            load_row(warp, graph, piece.row, a, row)

            def take_neighbours(first, _):
                edge = first + mine
                # Groups past the end read the last edge again and store nothing.
                read = edge.at_most(piece.end - 1)
                node = graph.indices.load(read)
                features = b.row(node)

                def take_head(head, _):
                    product = warp.sum_lanes(inner_product(features, head * dim), lanes)

                    def store():
                        scale = None if graph.col_scale is None else graph.col_scale.load(node)
                        value = product if scale is None else scale * product
                        to, at = (edges, edge) if is_plain else (edges.row(edge), head)
                        to.store(at, value)

                    warp.when((edge < piece.end) & (warp.lane % lanes == 0), store)

                if heads == 1:
                    take_head(warp.i32(0), ())
                else:
                    warp.loop(warp.i32(0), heads, 1, (), take_head)

            warp.loop(piece.begin, piece.end, LANES // lanes, (), take_neighbours)

        graph.for_each(warp, take)
        graph.zero_padding(warp, edges)
