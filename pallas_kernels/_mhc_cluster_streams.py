"""The tiles of ``mhc_pre`` in shared memory, and who fetches, reads and frees them."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels._bfloat16_parts import split_words
from pallas_kernels._mhc_cluster_tile import COLUMNS, PAIRS, ROWS, SPAN, TOKENS, MhcPreClusterTile
from pallas_kernels._streams import READ_BYTES
from pallas_kernels._values import Array, Signals, Value
from pallas_kernels._warp import LANES, Warp

# The error of two parts, 2^-17 of each entry of phi, is that of sums of thousands in float32.
PARTS = 2


@dataclass(frozen=True)
class Streams:
    """What a lane has of a tile: eight neighbouring columns of every stream, of two tokens.

    These are ``lane // 4`` and that plus eight. One warp fetches the tiles for all of the block.

    Attributes:
      warp: of the lanes.
      tile: who does what.
      n: streams.
      x: [tokens, n dim].
      ring: the tiles in shared memory.
      come: a tile is there.
      mixed: it is not needed any more.
    """

    warp: Warp
    tile: MhcPreClusterTile
    n: int
    x: Array
    ring: Array
    come: Signals
    mixed: Signals

    @property
    def column(self) -> Value:
        """The first, of a stream."""
        warp = self.warp
        number = warp.rank * self.tile.warps + self.number
        return number * SPAN + warp.lane % 4 * COLUMNS

    @property
    def number(self) -> Value:
        """Of the warp in its team."""
        return self.warp.thread // LANES % self.tile.warps

    def token(self, half: int) -> Value:
        """Of the tile."""
        return self.warp.lane // 4 + 8 * half

    def make_signals(self) -> None:
        """By the first lane of the warp that fetches."""
        self.come.make(1)
        self.mixed.make(self.tile.warps)

    def fetch(self, i: Value, first: Value) -> None:
        """Begins to copy tile ``i``, of tokens from ``first`` on, when there is room."""
        warp = self.warp
        # The first ones find empty room.
        warp.when(i >= self.tile.stages, lambda: self.mixed.wait(i - self.tile.stages))
        warp.when(warp.lane == 0, lambda: self.come.give(i, self.expected(first)))
        stage = i % self.tile.stages * self.n
        self.fetch_rows(i, first, self.x, self.ring, stage, self.n)

    def expected(self, first: Value) -> Value:
        """Bytes of a tile."""
        return self.warp.i32(self.n * TOKENS * self.tile.pitch * 16)

    def fetch_rows(
        self, i: Value, first: Value, source: Array, ring: Array, stage: Value, streams: int
    ) -> None:
        """The block's columns of some streams, each token's by one lane."""
        warp, tile, size = self.warp, self.tile, source.shape[1] // COLUMNS
        column = warp.rank * tile.pitch

        def fetch(number, _):
            stream, token = number // TOKENS, number % TOKENS
            # Behind the last token it again.
            row = (first + token).least(source.shape[0] - 1).to("i64")
            at = row * size + (stream * (size // streams) + column)
            to = (stage + stream) * tile.stream + tile.place(token)
            ring.fetch(to, source, at, tile.pitch, self.come, i)

        warp.loop(warp.lane, streams * TOKENS, LANES, (), fetch)

    def of_lane(self, ring: Array, stage: Value) -> Array:
        """From the lane's columns of its first token on; streams of all stages are counted."""
        part = self.number * (SPAN // COLUMNS) + self.warp.lane % 4
        place = stage * self.tile.stream + self.tile.place(self.token(0)) + part
        return ring.shifted(place * COLUMNS)

    def tile_of_lane(self, i: Value) -> Array:
        """Tile ``i``; see ``of_lane`` and ``entry``."""
        return self.of_lane(self.ring, i % self.tile.stages * self.n)

    def entry(self, stream: int, half: int) -> int:
        """Of what a lane has: the constant is part of the instruction that reads there."""
        return (stream * self.tile.stream + half * (PAIRS // 2) * self.tile.pitch) * COLUMNS

    def read(self, i: Value, stream: int, half: int) -> list[Value]:
        """Words of a token of tile ``i``."""
        return self.tile_of_lane(i).load_words(self.entry(stream, half), COLUMNS)

    def words(self, i: Value, first: Value, half: int) -> list[list[Value]]:
        """Of a token of tile ``i``, of tokens from ``first`` on, in each stream."""
        return [self.read(i, stream, half) for stream in range(self.n)]

    def used_up(self, i: Value) -> None:
        """All words of tile ``i`` were taken."""

    def free(self, i: Value) -> None:
        """This warp does not need tile ``i`` any more."""
        self.warp.sync()
        self.warp.when(self.warp.lane == 0, lambda: self.mixed.give(i))

    def fragments_of(self, phi: Array) -> list[list[list[list[Value]]]]:
        """Left fragments, [stream][tile][fragment along the columns]: of the same columns.

        The groups of rows, of the first part and then of the second, fill up the tiles.
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
        """For each part, the words of the lane's columns."""
        row = phi.row(self.warp.lane // 4 + group * ROWS)
        entries = READ_BYTES // phi.itemsize
        values = [
            phi.unpack(words, e)
            for words in (row.load_words(at + k, entries) for k in range(0, COLUMNS, entries))
            for e in range(entries)
        ]
        return split_words(self.warp, values, PARTS)


def _interleave(upper: list[Value], lower: list[Value]) -> list[list[Value]]:
    """Left fragments of eight rows and eight rows more, of 16 columns each."""
    return [[upper[k], lower[k], upper[k + 1], lower[k + 1]] for k in (0, 2)]
