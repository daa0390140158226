"""Sums of neighbours that are filtered channel by channel, where the filters are given.

A warp takes a piece of a row. For each edge it reads the row of the sender and that of the filter,
multiplies and adds them. The sums at the senders are those of the transposed graph, which reads the
filters in another order. The gradient to the filters reads the row of a receiver once for a piece.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.filters.walk import Walk, or_zero
from pallas_kernels.graph.rows import Piece, Pieces, add_pieces
from pallas_kernels.graph.spmm import SpmmTile
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

# Edges that a lane reads before it adds them: two rows of 16 bytes for each.
_AHEAD = 4


def tile_for(itemsize: int, *widths: int, ahead: int = _AHEAD) -> SpmmTile:
    """Chooses how the warps share the work.

    A lane reads 16 bytes if all rows have a multiple of as many entries, and a group has as few
    lanes as the narrowest row needs.

    Args:
      itemsize: bytes of the widest number that is read.
      *widths: numbers of columns of the rows.
      ahead: edges that a lane reads at once.
    """
    wide = 16 // itemsize
    entries = wide if all(width % wide == 0 for width in widths) else 1
    lanes = LANES
    while lanes > 4 and lanes * entries >= 2 * max(widths):
        lanes //= 2
    return SpmmTile(lanes, entries, ahead)


def filtered_sum(
    graph: Pieces,
    slots: jax.Array | None,
    x: jax.Array,
    filters: jax.Array,
    tile: SpmmTile | None = None,
) -> jax.Array:
    """Computes ``y_i = Σ_j x_j ⊙ w_ij``, accumulated in float32.

    Args:
      graph: the graph, without weights and scales.
      slots: the row of the filters that each edge reads, [edges]; None for its own number.
      x: [cols, columns], float32 or bfloat16.
      filters: [edges, width], float32 or bfloat16; ``width`` divides ``columns``, and the filters
        repeat.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [rows, columns], of the dtype of ``x``.
    """
    rows, columns = graph.num_rows, x.shape[1]
    if rows * columns == 0 or x.shape[0] == 0 or graph.num_edges == 0:
        return jnp.zeros((rows, columns), x.dtype)
    itemsize = max(x.dtype.itemsize, filters.dtype.itemsize)
    tile = tile or tile_for(itemsize, columns, filters.shape[1])
    y, *partial = simt.launch(
        _FilteredSum(tile),
        (graph, slots, x, filters),
        [jax.ShapeDtypeStruct((rows, columns), x.dtype), *graph.partial_sums(columns)],
        name="filtered_sum",
        grid=_grid(graph, tile, columns),
    )
    return add_pieces(graph, partial[0], y) if partial else y


def _grid(graph: Pieces, tile: SpmmTile, columns: int) -> simt.Grid:
    slices = -(-columns // (tile.lanes * tile.entries))
    return simt.Grid(graph.blocks(tile.warps), tile.warps, slices)


@dataclass(frozen=True)
class _FilteredSum:
    """Each warp sums one piece at a time."""

    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, y: Array, partial: Array | None = None) -> None:
        graph, slots, x, filters = inputs
        walk = Walk(warp, self.tile, x.shape[1])
        filters = dataclasses.replace(filters, streamed=True)
        column = walk.readable_column
        of_filter = column if filters.shape[1] == x.shape[1] else column % filters.shape[1]

        def add(edges, real, sums):
            nodes = [graph.indices.load(edge) for edge in edges]
            places = [edge if slots is None else slots.load(edge) for edge in edges]
            rows = [walk.load(x.row(node), column) for node in nodes]
            factors = [walk.load(filters.row(place), of_filter) for place in places]
            for i in range(len(edges)):
                known = None if real is None else real[i]
                pairs = zip(sums, rows[i], factors[i], strict=True)
                sums = [
                    warp.fma(or_zero(warp, known, a), or_zero(warp, known, b), total)
                    for total, a, b in pairs
                ]
            return sums

        def sum_piece(piece: Piece) -> None:
            zeros = [warp.f32(0.0) for _ in range(self.tile.entries)]
            walk.store_sums(piece, walk.fold(piece, zeros, add), y, partial)

        graph.for_each(warp, sum_piece)


def filter_products(
    graph: Pieces,
    slots: jax.Array | None,
    x: jax.Array,
    dy: jax.Array,
    width: int,
    dtype: Any,
    tile: SpmmTile | None = None,
) -> jax.Array:
    """Computes the gradient to the filters, ``dw_ij = x_j ⊙ dy_i``.

    Args:
      graph: the graph, without weights and scales.
      slots: the row of the result of each edge, [edges]; None for its own number.
      x: [cols, columns], float32 or bfloat16.
      dy: [rows, columns], float32 or bfloat16.
      width: number of columns of a filter; the products of its repetitions are summed.
      dtype: dtype of the result.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [edges, width], zero in padding slots.
    """
    shape = graph.num_edges, width
    if 0 in (*shape, x.size, dy.size):
        return jnp.zeros(shape, dtype)
    itemsize = max(x.dtype.itemsize, dy.dtype.itemsize, jnp.dtype(dtype).itemsize)
    if tile is None:  # a lane keeps its columns of all repetitions of a filter
        tile = tile_for(itemsize, width, ahead=max(1, _AHEAD * width // x.shape[1]))
    return simt.launch(
        _FilterProducts(tile),
        (graph, slots, x, dy),
        [jax.ShapeDtypeStruct(shape, dtype)],
        name="filter_products",
        grid=_grid(graph, tile, width),
    )[0]


@dataclass(frozen=True)
class _FilterProducts:
    """Each warp has the row of the receiver of its piece in registers."""

    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, filters: Array) -> None:
        graph, slots, x, dy = inputs
        width = filters.shape[1]
        walk = Walk(warp, self.tile, width)
        column = walk.readable_column
        places = [column + width * i for i in range(x.shape[1] // width)]

        def store(edge: Value, real: Value | None, values: list[Value]) -> None:
            row, keep = filters.row(edge if slots is None else slots.load(edge)), real
            if walk.is_cut:
                inside = walk.column < width
                keep = inside if real is None else real & inside
            if keep is None:
                walk.store(row, values)
            else:
                warp.when(keep, lambda: walk.store(row, values))

        def take(piece: Piece) -> None:
            own = [walk.load(dy.row(piece.row), place) for place in places]

            def multiply(edges, real, _):
                nodes = [graph.indices.load(edge) for edge in edges]
                rows = [[walk.load(x.row(node), place) for place in places] for node in nodes]
                for i, edge in enumerate(edges):
                    products = [warp.f32(0.0)] * self.tile.entries
                    for values, slopes in zip(rows[i], own, strict=True):
                        parts = zip(values, slopes, products, strict=True)
                        products = [warp.fma(a, b, total) for a, b, total in parts]
                    store(edge, None if real is None else real[i], products)
                return ()

            walk.fold(piece, (), multiply)

        graph.for_each(warp, take)
        zeros = [warp.f32(0.0)] * self.tile.entries
        first = graph.indptr.load(graph.num_rows) + (warp.number * walk.groups + walk.group)
        step = warp.count * walk.groups
        warp.loop(first, graph.num_edges, step, (), lambda edge, _: store(edge, None, zeros))
