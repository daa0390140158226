"""The tiles of ``mhc_pre`` in shared memory, and phi in registers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels._bfloat16_parts import split_words
from pallas_kernels._mhc_cluster_tile import COLUMNS, ROWS, SPAN, TOKENS, MhcPreClusterTile
from pallas_kernels._streams import READ_BYTES
from pallas_kernels._values import Array, Signals, Value
from pallas_kernels._warp import LANES, Warp

# The error of two parts, 2^-17 of each entry of phi, is that of sums of thousands in float32.
PARTS = 2
BOX = (TOKENS, SPAN)


@dataclass(frozen=True)
class Streams:
    """What a lane has of a tile: eight neighbouring columns of every stream, of two tokens.

    These are ``lane // 4`` and that plus eight. A lane copies what it reads; or the copy engine a
    box with what the warp reads, when one lane tells it to.

    Attributes:
      warp: of the lanes.
      tile: who does what.
      n: streams.
      x: [tokens, n, dim].
      ring: the tiles in shared memory.
      here: a warp's box has come, or None.
    """

    warp: Warp
    tile: MhcPreClusterTile
    n: int
    x: Array
    ring: Array
    here: Signals | None

    @staticmethod
    def signals(warp: Warp, tile: MhcPreClusterTile, here: Array | None) -> Signals | None:
        """Those of the warp's boxes, among those of the block; None without boxes."""
        if here is None:
            return None
        shape = (1 + tile.ahead, 2)
        own = here.shifted(warp.thread // LANES * math.prod(shape))
        return Signals(dataclasses.replace(own, shape=shape))

    @property
    def column(self) -> Value:
        """The first, of a stream."""
        return self.first_column + self.warp.lane % 4 * COLUMNS

    @property
    def first_column(self) -> Value:
        """Of the warp, likewise."""
        warp = self.warp
        return (warp.rank * self.tile.warps + warp.thread // LANES % self.tile.warps) * SPAN

    def token(self, half: int) -> Value:
        """Of the tile."""
        return self.warp.lane // 4 + 8 * half

    @property
    def parts(self) -> list[tuple[Array, Array]]:
        """Rings, and what comes there, [tokens, streams, dim]."""
        return [(self.ring, self.x)]

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy tile ``i``, of tokens from ``first`` on."""
        here = self.here
        self.make_room()
        if here is None:
            for ring, source in self.parts:
                self._load_columns(ring, i, source, first)
        else:
            self.warp.sync()  # other lanes have read what was there
            self.warp.when(self.warp.lane == 0, lambda: self._fetch_boxes(here, i, first))

    def end_load(self) -> None:
        """After ``load``, or without it where there is no tile."""
        if self.here is None:
            self.warp.end_copies()

    def _fetch_boxes(self, here: Signals, i: Value, first: Value) -> None:
        """By one lane."""
        turn, parts = i // self.tile.teams, self.parts
        nbytes = sum(math.prod(ring.shape[2:]) * ring.itemsize for ring, _ in parts)
        here.give(turn, self.warp.i32(nbytes))
        for ring, source in parts:
            place = self.of_warp(ring, i), source, (first, self.first_column), BOX
            ring.fetch_box(*place, here, turn)

    def make_room(self) -> None:
        """Waits until the copy engine has read what is overwritten next."""

    def _load_columns(self, ring: Array, i: Value, source: Array, first: Value) -> None:
        """Begins to copy the lane's columns of some streams to a ring."""
        to = self.of_lane(ring, i)
        _, streams, size = source.shape
        for half in (0, 1):
            # Behind the last token it again.
            token = (first + self.token(half)).least(source.shape[0] - 1)
            row = source.row(token).shifted(self.column)
            for stream in range(streams):
                to.copy_from((stream * 2 + half) * LANES, row, stream * size // COLUMNS)

    def wait(self, i: Value) -> None:
        """Waits for tile ``i``."""
        if self.here is None:
            self.warp.wait_for_copies(self.tile.ahead)
        else:
            self.here.wait(i // self.tile.teams)

    def of_lane(self, ring: Array, i: Value) -> Array:
        """What the lane has of tile ``i`` in a ring of [workers, stages, streams, 2, lanes, 8].

        Of each stream that is [tokens, columns of the warp].
        """
        return ring.shifted(self.of_warp(ring, i) + self.warp.lane * COLUMNS)

    def of_warp(self, ring: Array, i: Value) -> Value:
        """The first entry of what the warp has."""
        stages, size = ring.shape[1], math.prod(ring.shape[2:])
        worker, turn = self.warp.thread // LANES, i // self.tile.teams
        return (worker * stages + turn % stages) * size

    def read(self, i: Value, stream: int, half: int) -> list[Value]:
        """Words of a token of tile ``i``."""
        return self.of_lane(self.ring, i).load_words(entry(stream, half), COLUMNS)

    def words(self, i: Value, first: Value, half: int) -> list[list[Value]]:
        """Of a token of tile ``i``, of tokens from ``first`` on, in each stream."""
        return [self.read(i, stream, half) for stream in range(self.n)]

    def finish(self, i: Value, first: Value) -> None:
        """When all words of tile ``i`` were taken."""

    def end(self) -> None:
        """When all tiles were mixed."""

    def make_own_signals(self) -> None:
        """By the first lane of a warp."""
        if self.here is not None:
            self.here.make(1)

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
        dim = self.x.shape[2]
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
