"""Products of tensor cores on their way out of registers, in vectors of 16 bytes.

Tensor cores leave two neighbours of a row to a lane, and those eight columns further on. Four lanes
exchange theirs, so that each has eight neighbours: what is written then is whole sectors, to global
memory or to the shared memory of another block, with no way through the own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.simt.values import Array, Signals, Value
from pallas_kernels.simt.warp import LANES, Warp

_COLUMNS = 64  # of a chunk of 16-bit numbers: what lies together in shared memory
_ENTRIES = 8  # of a vector
_WORDS_PER_VECTOR = 4
_CHUNK_WORDS = 64 * _COLUMNS // 2
_WARP_ROWS, _GROUP = 16, 8
_ACK_BYTES = 4

_Words = Sequence[Sequence[Value]]


def vectors(warp: Warp, words: _Words) -> Iterator[tuple[Value, Value, list[Value]]]:
    """Rows, numbers in the row, and words of the vectors that a lane has after the exchange.

    Args:
      warp: of a warpgroup.
      words: of a chunk of columns, as ``simt.inline`` gives them.
    """
    group, lane = warp.lane // _WORDS_PER_VECTOR, warp.lane % _WORDS_PER_VECTOR
    for half in range(2):
        row = warp.thread // LANES * _WARP_ROWS + half * _GROUP + group
        for first in range(0, len(words), _WORDS_PER_VECTOR):
            own = [pair[half] for pair in words[first : first + _WORDS_PER_VECTOR]]
            yield row, lane + first, transpose_in_quads(warp, own)


def transpose_in_quads(warp: Warp, words: Sequence[Value]) -> list[Value]:
    """Word i of lane q of each four becomes word q of lane i."""
    words = list(words)
    for mask in (1, 2):
        upper = (warp.lane & mask) != 0
        for low in (i for i in range(_WORDS_PER_VECTOR) if not i & mask):
            a, b = words[low], words[low | mask]
            got = warp.shuffle_xor(warp.select(upper, a, b), mask)
            words[low] = warp.select(upper, got, a)
            words[low | mask] = warp.select(upper, b, got)
    return words


@dataclass(frozen=True)
class StoreChunk:
    """Writes a chunk of columns of a tile to global memory, but no rows behind the last one.

    Attributes:
      column: the first of the chunk.
    """

    column: int

    def __call__(self, warp: Warp, first_row: Value, result: Array, words: _Words) -> None:
        for row, number, vector in vectors(warp, words):
            at = first_row + row
            column = number * _ENTRIES + self.column

            def write(at=at, column=column, vector=vector):
                result.row(at).store_words(column, vector, _ENTRIES)

            warp.when(at < result.shape[0], write)


@dataclass(frozen=True)
class TileChannel:
    """How the first block of a cluster sends tiles to the second, which says when it has read them.

    Attributes:
      steps: signals of each kind; a tile has that of its number, in turn.
      rank: of the block that is sent to.
    """

    steps: int
    rank: int = 0

    @property
    def signals(self) -> tuple[int, int]:
        """Shape of 32-bit words in shared memory.

        Those of tiles that have filled, of places that are free, and what is sent to say so.
        """
        return 3 * self.steps, 2

    def _part(self, array: Array, number: int) -> Array:
        first = array.warp.i32(2 * self.steps * number)
        return dataclasses.replace(array.shifted(first), shape=(self.steps, 2))

    def filled(self, array: Array) -> Signals:
        """Of tiles, in the second block."""
        return Signals(self._part(array, 0))

    def free(self, array: Array) -> Signals:
        """Of places of tiles, in the first block."""
        return Signals(self._part(array, 1))


class InitChannel(TileChannel):
    """Before anything is sent, all warps of the cluster wait until the signals are made."""

    def __call__(self, warp: Warp, warpgroup: Value, signals: Array) -> None:
        def make():
            self.filled(signals).init(1)
            self.free(signals).init(1)

        warp.when((warpgroup == 0) & (warp.thread == 0), make)
        warp.cluster_arrive()
        warp.cluster_wait()


@dataclass(frozen=True)
class SendChunk(TileChannel):
    """Sends a chunk of columns of a tile, to where tensor cores look for it."""

    def __call__(
        self, warp: Warp, chunk: Value, step: Value, tiles: Array, signals: Array, words: _Words
    ) -> None:
        target, filled = dataclasses.replace(tiles, dtype=jnp.uint32), self.filled(signals)
        for row, number, vector in vectors(warp, words):
            # Within eight rows, vectors lie in another order in each.
            place = row * (_COLUMNS // _ENTRIES) + (number ^ row % _GROUP)
            target.send(
                self.rank, chunk * _CHUNK_WORDS + place * _WORDS_PER_VECTOR, vector, filled, step
            )


@dataclass(frozen=True)
class WaitForTile(TileChannel):
    """Until all of a tile of so many bytes has filled."""

    nbytes: int = 0

    def __call__(self, warp: Warp, step: Value, signals: Array) -> None:
        filled = self.filled(signals)
        warp.when(warp.thread == 0, lambda: filled.arrive(step, warp.i32(self.nbytes)))
        filled.wait(step)


class ReleaseSlot(TileChannel):
    """Lets the first block write where a tile was that all warps of the warpgroup have read."""

    def __call__(self, warp: Warp, step: Value, signals: Array) -> None:
        words, free = self._part(signals, 2), self.free(signals)
        number, _ = free.slot_and_phase(step)
        word = warp.constant("u32", 0)
        warp.when(warp.thread == 0, lambda: words.send(self.rank, number * 2, [word], free, step))


class WaitForSlot(TileChannel):
    """Until the place of a tile is free again."""

    def __call__(self, warp: Warp, step: Value, signals: Array) -> None:
        free = self.free(signals)
        warp.when(warp.thread == 0, lambda: free.arrive(step, warp.i32(_ACK_BYTES)))
        free.wait(step)


def store(values: jax.Array, result, first_row, column: int) -> None:
    """A chunk of 16-bit numbers, as products lie in registers, straight to global memory.

    Args:
      values: [ROWS, COLUMNS].
      result: [rows, width], which may end before the chunk does.
      first_row: where the chunk begins.
      column: likewise.
    """
    simt.inline(StoreChunk(column), [first_row], [(result, ())], [values])
