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
    """What a lane has of a tile: eight neighbouring columns of every stream, of two tokens.

    These are ``lane // 4`` and that plus eight. Only the lane itself reads what it copies.

    Attributes:
      warp: of the lanes.
      tile: who does what.
      n: streams.
      x: [tokens, n dim].
      ring: the tiles in shared memory.
    """

    warp: Warp
    tile: MhcPreClusterTile
    n: int
    x: Array
    ring: Array

    @property
    def column(self) -> Value:
        """The first, of a stream."""
        warp = self.warp
        number = warp.rank * self.tile.warps + warp.thread // LANES % self.tile.warps
        return number * SPAN + warp.lane % 4 * COLUMNS

    def token(self, half: int) -> Value:
        """Of the tile."""
        return self.warp.lane // 4 + 8 * half

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy tile ``i``, of tokens from ``first`` on."""
        self.load_columns(self.ring, i, self.x, first, self.n)

    def load_columns(
        self, ring: Array, i: Value, source: Array, first: Value, streams: int
    ) -> None:
        """Begins to copy the lane's columns of some streams to a ring."""
        to = self.of_lane(ring, i)
        size = source.shape[1] // streams
        for half in (0, 1):
            # Behind the last token it again.
            token = (first + self.token(half)).at_most(source.shape[0] - 1)
            row = source.row(token).shifted(self.column)
            for stream in range(streams):
                to.copy_from((stream * 2 + half) * LANES, row, stream * size // COLUMNS)

    def wait(self, i: Value) -> None:
        """Waits for tile ``i``."""
        self.warp.wait_for_copies(self.tile.ahead)

    def of_lane(self, ring: Array, i: Value) -> Array:
        """What the lane has of tile ``i`` in a ring of [workers, stages, streams, 2, lanes, 8]."""
        stages, size = ring.shape[1], math.prod(ring.shape[2:])
        worker, turn = self.warp.thread // LANES, i // self.tile.teams
        place = (worker * stages + turn % stages) * size + self.warp.lane * COLUMNS
        return ring.shifted(place)

    def read(self, i: Value, stream: int, half: int) -> list[Value]:
        """Words of a token of tile ``i``."""
        return self.of_lane(self.ring, i).load_words(entry(stream, half), COLUMNS)

    def words(self, i: Value, first: Value, half: int) -> list[list[Value]]:
        """Of a token of tile ``i``, of tokens from ``first`` on, in each stream."""
        return [self.read(i, stream, half) for stream in range(self.n)]

    def make_signals(self) -> None:
        """By the first lane of the first helper."""

    def help_first(self, count: Value, first: Callable[[Value], Value]) -> None:
        """What the first helper does before anything else."""

    def help(self, i: Value, count: Value, first: Callable[[Value], Value]) -> None:
        """What a helper does when all warps have put the sums of tile ``i``."""

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


def entry(stream: int, half: int) -> int:
    """Of ``Streams.of_lane``: the constant is part of the instruction that reads there."""
    return (stream * 2 + half) * (LANES * COLUMNS)


def _interleave(upper: list[Value], lower: list[Value]) -> list[list[Value]]:
    """Left fragments of eight rows and eight rows more, of 16 columns each."""
    return [[upper[k], lower[k], upper[k + 1], lower[k + 1]] for k in (0, 2)]
