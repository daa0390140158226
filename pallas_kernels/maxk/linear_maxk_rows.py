"""What warps do with tiles of 64 rows beside the tensor cores' products, in SIMT code.

A tile lies in chunks of 64 columns, as the tensor cores take them: rows of 128 bytes, whose pieces
of 16 bytes change places with the row. The chunks are neighbours in a ring.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pallas_kernels.maxk import selection
from pallas_kernels.maxk.selection import Format, Selection
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

ROWS, COLUMNS = 64, 64  # of a chunk
WARPS = 4  # of a warpgroup
ROWS_PER_WARP = selection.ROWS  # rows of a tile, that a warp selects from
ROWS_PER_WARPGROUP = WARPS * ROWS_PER_WARP  # that a warpgroup does
_VECTORS_PER_ROW = 8  # of a row of a chunk, 16 bytes each
_VECTOR_COLUMNS = COLUMNS // _VECTORS_PER_ROW


def kept_columns(width: int, k: int) -> int:
    """That a warpgroup which keeps k of this width has in shared memory."""
    return WARPS * selection.kept_columns(width, k)


@dataclass(frozen=True)
class ReleaseTile:
    """Before the copy engine overwrites a tile."""

    def __call__(self, warp: Warp) -> None:
        """What all lanes have read and written comes first."""
        warp.fence_async_proxy()
        warp.sync()


@dataclass(frozen=True)
class KeepLargest:
    """Writes the k largest entries of each row of half of a tile, and their columns.

    Attributes:
      width: of a row, a multiple of 64 up to 256.
      k: entries kept.
      by_magnitude: whether entries rank by that.
      format: of the entries.
    """

    width: int
    k: int
    by_magnitude: bool
    format: Format

    def __call__(
        self,
        warp: Warp,
        first: Value,
        first_row: Value,
        half: Value,
        chunks: Array,
        kept: Array,
        values: Array,
        columns: Array,
    ) -> None:
        """All eight rows of each warp.

        Args:
          warp: of a warpgroup.
          first: chunk of the ring, with the first 64 columns.
          first_row: of the tile.
          half: of the tile, 0 or 1.
          chunks: the ring, [ring, 64, 64].
          kept: shared memory of the warpgroup for as many columns.
          values: [rows, k], the result.
          columns: likewise.
        """
        in_tile = half * ROWS_PER_WARPGROUP + warp.thread // LANES * ROWS_PER_WARP
        chooser = Selection(self.width, self.k, self.by_magnitude, self.format, neighbours=2)
        marks = chooser.choose(warp, self._load(warp, first, in_tile, chunks))
        # What is made of the lane would take registers during the search; zero tells no compiler
        # that it is the same for all tiles.
        lane = warp.lane + (first_row >> 31)
        results = values.row(first_row + in_tile), columns.row(first_row + in_tile)
        rows = values.shape[0] - first_row - in_tile
        source = _RingEntries(chunks, kept, first, in_tile)
        chooser.write(warp, lane, marks, kept, results, rows, source)

    def _load(self, warp, first, in_tile, chunks) -> list[list[Value]]:
        """Words of the lane's row, each with two of every eight columns, four of each slab."""
        matrix, row = warp.lane // 8, warp.lane % 8
        # Of a slab, rows g of the operand are the first half.
        vector = matrix % 2 * 2 + matrix // 2
        within = [
            (in_tile + row) * COLUMNS + (row ^ (vector + at)) * _VECTOR_COLUMNS
            for at in (0, _VECTORS_PER_ROW // 2)
        ]
        bases = [(first + n) * (ROWS * COLUMNS) for n in range(self.width // COLUMNS)]
        slabs = [
            chunks.load_matrices(base + place) for base, place in itertools.product(bases, within)
        ]
        if self.by_magnitude:
            slabs = [[word & 0x7FFF7FFF for word in slab] for slab in slabs]
        return slabs


@dataclass(frozen=True)
class _RingEntries:
    """Of entries in the ring.

    Attributes:
      chunks: the ring.
      kept: what columns are listed in.
      first: chunk of the tile.
      in_tile: the first of the rows.
    """

    chunks: Array
    kept: Array
    first: Value
    in_tile: Value

    def load_entries(self, row: Value, words: list[Value], count: int) -> list[Value]:
        """See ``Source``."""
        row = self.in_tile + row
        place = self.first * (ROWS * COLUMNS) + row * COLUMNS
        # Of all columns in a word, the pieces' numbers as they lie there.
        turn = (row % _VECTORS_PER_ROW * (_VECTOR_COLUMNS * 0x01010101)).bits("u32")
        turned = [word ^ turn for word in words]

        def entry(column):
            chunk = column // COLUMNS * (ROWS * COLUMNS)
            return self.chunks.load_words(place + (chunk | column % COLUMNS))[0]

        return [entry(self.kept.unpack(turned, i)) for i in range(count)]
