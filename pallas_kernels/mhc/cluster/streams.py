"""The tiles of ``mhc_pre`` in shared memory, and phi in registers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels.mhc.cluster.tile import COLUMNS, ROWS, SPAN, MhcPreClusterTile
from pallas_kernels.mhc.streams import READ_BYTES
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import split_words

# The error of two parts, 2^-17 of each entry of phi, is that of sums of thousands in float32.
PARTS = 2


@dataclass(frozen=True)
class Streams:
    """A lane's part of the tiles: eight neighbouring columns of every stream, of two tokens.

    The tokens are ``lane // 4`` and ``lane // 4 + 8`` of a tile, its halves. Only the lane itself
    reads what it has copied to shared memory.

    Attributes:
      warp: the warp that runs this.
      tile: how blocks and warps share the work.
      n: number of streams.
      x: the streams, [tokens, n dim].
      ring: the tiles in shared memory, [workers, stages, n, 2, lanes, columns].
    """

    warp: Warp
    tile: MhcPreClusterTile
    n: int
    x: Array
    ring: Array

    @property
    def column(self) -> Value:
        """The first of this lane's columns in a stream."""
        warp = self.warp
        number = warp.rank * self.tile.warps + warp.thread // LANES % self.tile.warps
        return number * SPAN + warp.lane % 4 * COLUMNS

    def token(self, half: int) -> Value:
        """This lane's token in a half of a tile."""
        return self.warp.lane // 4 + 8 * half

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy tile ``i``, of tokens from ``first`` on."""
        self.load_columns(self.ring, i, self.x, first, self.n)

    def load_columns(
        self, ring: Array, i: Value, source: Array, first: Value, streams: int
    ) -> None:
        """Begins to copy this lane's columns of some streams of tile ``i`` to a ring."""
        to = self.lane_part(ring, i)
        size = source.shape[1] // streams
        for half in (0, 1):
            # Tokens past the last are clamped to it.
            token = (first + self.token(half)).at_most(source.shape[0] - 1)
            row = source.row(token).shifted(self.column)
            for stream in range(streams):
                to.copy_from((stream * 2 + half) * LANES, row, stream * size // COLUMNS)

    def wait(self, i: Value) -> None:
        """Waits until this lane's copies of tile ``i`` have completed."""
        self.warp.wait_for_copies(self.tile.ahead)

    def lane_part(self, ring: Array, i: Value) -> Array:
        """This lane's part of tile ``i`` in a ring [workers, stages, streams, 2, lanes, 8]."""
        stages, size = ring.shape[1], math.prod(ring.shape[2:])
        worker, turn = self.warp.thread // LANES, i // self.tile.teams
        place = (worker * stages + turn % stages) * size + self.warp.lane * COLUMNS
        return ring.shifted(place)

    def read(self, i: Value, stream: int, half: int) -> list[Value]:
        """Words of this lane's columns of one stream, for its token in a half of tile ``i``."""
        return self.lane_part(self.ring, i).load_words(lane_offset(stream, half), COLUMNS)

    def words(self, i: Value, first: Value, half: int) -> list[list[Value]]:
        """Words of this lane's columns of each stream; tile ``i`` begins with token ``first``."""
        return [self.read(i, stream, half) for stream in range(self.n)]

    def make_signals(self) -> None:
        """Initializes the signals that this class needs; the first lane of a helper calls it."""

    def start_helper(self, count: Value, first: Callable[[Value], Value]) -> None:
        """Runs in the helpers before their first tile; does nothing here."""

    def tile_summed(self, i: Value, count: Value, first: Callable[[Value], Value]) -> None:
        """Runs in a helper when all warps have put the sums of tile ``i``; does nothing here."""

    def fragments_of(self, phi: Array) -> list[list[list[list[Value]]]]:
        """Left fragments of phi for this lane's columns, [stream][tile][fragment along columns].

        A tile has two groups of eight rows: first all groups of the first part of phi, then all of
        the second.
        """
        dim = self.x.shape[1] // self.n
        made = []
        for stream in range(self.n):
            at = self.column + stream * dim
            groups = [self._words(phi, g, at) for g in range(phi.shape[0] // ROWS)]
            halves = [words for part in zip(*groups, strict=True) for words in part]
            made.append(
                [_interleave(*pair) for pair in zip(halves[::2], halves[1::2], strict=True)]
            )
        return made

    def _words(self, phi: Array, group: int, at: Value) -> list[list[Value]]:
        """Words of the bfloat16 parts of phi, for this lane's columns and its row of a group."""
        row = phi.row(self.warp.lane // 4 + group * ROWS)
        entries = READ_BYTES // phi.itemsize
        values = [
            phi.unpack(words, e)
            for words in (row.load_words(at + k, entries) for k in range(0, COLUMNS, entries))
            for e in range(entries)
        ]
        return split_words(self.warp, values, PARTS)


def lane_offset(stream: int, half: int) -> int:
    """Offset in ``Streams.lane_part``, a constant that becomes part of the load instruction."""
    return (stream * 2 + half) * (LANES * COLUMNS)


def _interleave(upper: list[Value], lower: list[Value]) -> list[list[Value]]:
    """Left fragments of two groups of eight rows, of 16 columns each."""
    return [[upper[k], lower[k], upper[k + 1], lower[k + 1]] for k in (0, 2)]
