"""The k largest entries of rows of a tile in shared memory, in SIMT code.

A tile consists of chunks of 64 columns in the layout of the tensor cores: rows of 128 bytes, whose
vectors of 16 bytes are permuted (swizzled) by the number of the row. The chunks are neighbours in a
ring.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

from pallas_kernels.maxk import selection
from pallas_kernels.maxk.selection import Format, Selection
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

ROWS, COLUMNS = 64, 64  # rows and columns of a chunk
WARPS = 4  # warps of a warpgroup
ROWS_PER_WARP = selection.ROWS  # rows of a tile that a warp selects from
ROWS_PER_WARPGROUP = WARPS * ROWS_PER_WARP
_VECTORS_PER_ROW = 8  # vectors of 16 bytes in a row of a chunk
_VECTOR_COLUMNS = COLUMNS // _VECTORS_PER_ROW


def kept_columns(width: int, k: int) -> int:
    """Returns the shared bytes of a warpgroup for columns, if it keeps k of this width."""
    return WARPS * selection.kept_columns(width, k)


class TileOperands(NamedTuple):
    """Arguments of ``KeepLargest``.

    Attributes:
      first_chunk: number of the tile's first chunk in the ring.
      first_row: row of the results that the tile begins with.
      half: which half of the tile's rows the warpgroup has, 0 or 1.
      chunks: the ring, [chunks, 64, 64].
      kept: shared memory of the warpgroup for ``kept_columns`` columns.
      values: [rows, k], the values that are kept.
      columns: [rows, k], their columns.
    """

    first_chunk: Value
    first_row: Value
    half: Value
    chunks: Array
    kept: Array
    values: Array
    columns: Array


@dataclass(frozen=True)
class ReleaseTile:
    """Releases a warp's rows of a tile, so that the copy engine may overwrite them."""

    def __call__(self, warp: Warp) -> None:
        """Orders all accesses of the lanes before later ones by the copy engine."""
        warp.fence_async_proxy()
        warp.sync()


@dataclass(frozen=True)
class KeepLargest:
    """Stores the k largest entries of each row of half of a tile, and their columns.

    Attributes:
      width: columns of a row, a multiple of 64 up to 256.
      k: entries kept of each row.
      by_magnitude: whether entries rank by their magnitude.
      format: format of the entries.
    """

    width: int
    k: int
    by_magnitude: bool
    format: Format

    def __call__(self, warp: Warp, *operands: Any) -> None:
        """Selects from all eight rows of each warp; ``operands`` are those of ``TileOperands``."""
        tile = TileOperands(*operands)
        row_in_tile = tile.half * ROWS_PER_WARPGROUP + warp.thread // LANES * ROWS_PER_WARP
        chooser = Selection(self.width, self.k, self.by_magnitude, self.format, neighbours=2)
        marks = chooser.choose(warp, self._load(warp, tile, row_in_tile))
        # Adds zero, which the compiler does not know. Otherwise it would compute everything that
        # depends on the lane before the loop over tiles, and keep it in registers in the search.
        lane = warp.lane + (tile.first_row >> 31)
        results = (
            tile.values.row(tile.first_row + row_in_tile),
            tile.columns.row(tile.first_row + row_in_tile),
        )
        rows = tile.values.shape[0] - tile.first_row - row_in_tile
        source = _RingEntries(tile, row_in_tile)
        chooser.write(warp, lane, marks, tile.kept, results, rows, source)

    def _load(self, warp, tile, row_in_tile) -> list[list[Value]]:
        """Loads the lane's part of its row, as operands of ``Warp.mma``: four words for each slab.

        Each word has two neighbours of every eight columns.
        """
        matrix, row = warp.lane // 8, warp.lane % 8
        # The first half of a slab's columns are rows g of the operand, the second half rows g + 8.
        vector = matrix % 2 * 2 + matrix // 2
        within = [
            (row_in_tile + row) * COLUMNS + (row ^ (vector + at)) * _VECTOR_COLUMNS
            for at in (0, _VECTORS_PER_ROW // 2)
        ]
        bases = [(tile.first_chunk + n) * (ROWS * COLUMNS) for n in range(self.width // COLUMNS)]
        slabs = [
            tile.chunks.load_matrices(base + offset)
            for base, offset in itertools.product(bases, within)
        ]
        if self.by_magnitude:
            slabs = [[word & 0x7FFF7FFF for word in slab] for slab in slabs]
        return slabs


@dataclass(frozen=True)
class _RingEntries:
    """The entries of a warp's rows in the ring, as a ``Source``.

    Attributes:
      tile: the tile in the ring.
      row_in_tile: first of the warp's rows in the tile.
    """

    tile: TileOperands
    row_in_tile: Value

    def load_entries(self, row: Value, words: list[Value], count: int) -> list[Value]:
        """Loads entries of a row at columns that are packed in words."""
        row = self.row_in_tile + row
        place = self.tile.first_chunk * (ROWS * COLUMNS) + row * COLUMNS
        # Swizzles the columns of a word at once: the vectors of a row are permuted by its number.
        turn = (row % _VECTORS_PER_ROW * (_VECTOR_COLUMNS * 0x01010101)).bits("u32")
        turned = [word ^ turn for word in words]

        def entry(column):
            chunk = column // COLUMNS * (ROWS * COLUMNS)
            return self.tile.chunks.load_words(place + (chunk | column % COLUMNS))[0]

        return [entry(self.tile.kept.unpack(turned, i)) for i in range(count)]
