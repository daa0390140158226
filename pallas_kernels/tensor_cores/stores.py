"""Stores products of tensor cores from registers, in vectors of 16 bytes.

After a product, a lane has two neighbours of a row, and two more every eight columns. Four lanes
exchange theirs so that each has eight neighbours. Then whole sectors are written, to global memory
or to the shared memory of another block, without a copy in the block's own shared memory.
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

_COLUMNS = 64  # columns of a chunk of 16-bit numbers, contiguous in shared memory
_ENTRIES = 8  # numbers of a vector of 16 bytes
_WORDS_PER_VECTOR = 4
_CHUNK_WORDS = 64 * _COLUMNS // 2
_WARP_ROWS, _GROUP = 16, 8  # rows of a warp, and rows that are swizzled together
_ACK_BYTES = 4  # bytes that are sent to free a slot

_Words = Sequence[Sequence[Value]]


def vectors(warp: Warp, words: _Words) -> Iterator[tuple[Value, Value, list[Value]]]:
    """Yields the row, the number in the row and the words of each vector of 16 bytes of a lane.

    Args:
      warp: a warp of a warpgroup.
      words: pairs of words of a chunk of columns, as ``simt.inline`` passes products.
    """
    group, lane = warp.lane // _WORDS_PER_VECTOR, warp.lane % _WORDS_PER_VECTOR
    for half in range(2):
        row = warp.thread // LANES * _WARP_ROWS + half * _GROUP + group
        for first in range(0, len(words), _WORDS_PER_VECTOR):
            own = [pair[half] for pair in words[first : first + _WORDS_PER_VECTOR]]
            yield row, lane + first, transpose_in_quads(warp, own)


def transpose_in_quads(warp: Warp, words: Sequence[Value]) -> list[Value]:
    """Transposes words among four lanes: word i of lane q becomes word q of lane i."""
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
    """Stores a chunk of columns of a tile to global memory, without rows past the end.

    Attributes:
      column: first column of the chunk in the result.
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
    """The channel through which the first block of a cluster sends tiles to the second one.

    The second block signals when it has read a tile, so that its slot can be overwritten. The
    subclasses are the operations on a channel, as kernels for ``simt.inline``.

    Attributes:
      steps: how many signals there are of each kind; tile n uses signal n modulo ``steps``.
      rank: the block that is sent to.
    """

    steps: int
    rank: int = 0

    @property
    def signals(self) -> tuple[int, int]:
        """Shape of the channel's 32-bit words in shared memory.

        They are the signals of tiles that have arrived, the signals of slots that are free, and the
        words that are sent for the latter.
        """
        return 3 * self.steps, 2

    def _part(self, array: Array, number: int) -> Array:
        """Returns one of the three parts of the channel's words."""
        first = array.warp.i32(2 * self.steps * number)
        return dataclasses.replace(array.shifted(first), shape=(self.steps, 2))

    def filled(self, array: Array) -> Signals:
        """Returns the signals of the second block, which complete when a tile has arrived."""
        return Signals(self._part(array, 0))

    def free(self, array: Array) -> Signals:
        """Returns the signals of the first block, which complete when a slot is free."""
        return Signals(self._part(array, 1))


class InitChannel(TileChannel):
    """Initialises the signals, and waits until all warps of the cluster can use them."""

    def __call__(self, warp: Warp, warpgroup: Value, signals: Array) -> None:
        def make():
            self.filled(signals).init(1)
            self.free(signals).init(1)

        warp.when((warpgroup == 0) & (warp.thread == 0), make)
        warp.cluster_arrive()
        warp.cluster_wait()


@dataclass(frozen=True)
class SendChunk(TileChannel):
    """Sends a chunk of columns of a tile to the second block, in the layout of its tensor cores."""

    def __call__(
        self, warp: Warp, chunk: Value, step: Value, tiles: Array, signals: Array, words: _Words
    ) -> None:
        target, filled = dataclasses.replace(tiles, dtype=jnp.uint32), self.filled(signals)
        for row, number, vector in vectors(warp, words):
            # Vectors are swizzled: within eight rows, each row has them in another order.
            index = row * (_COLUMNS // _ENTRIES) + (number ^ row % _GROUP)
            target.send(
                self.rank, chunk * _CHUNK_WORDS + index * _WORDS_PER_VECTOR, vector, filled, step
            )


@dataclass(frozen=True)
class WaitForTile(TileChannel):
    """Waits until all ``nbytes`` of a tile have arrived."""

    nbytes: int = 0

    def __call__(self, warp: Warp, step: Value, signals: Array) -> None:
        filled = self.filled(signals)
        warp.when(warp.thread == 0, lambda: filled.arrive(step, warp.i32(self.nbytes)))
        filled.wait(step)


class ReleaseSlot(TileChannel):
    """Signals to the first block that all warps of the warpgroup have read a tile.

    Its slot may then be overwritten.
    """

    def __call__(self, warp: Warp, step: Value, signals: Array) -> None:
        words, free = self._part(signals, 2), self.free(signals)
        number, _ = free.slot_and_phase(step)
        word = warp.constant("u32", 0)
        warp.when(warp.thread == 0, lambda: words.send(self.rank, number * 2, [word], free, step))


class WaitForSlot(TileChannel):
    """Waits until the slot of a tile is free again."""

    def __call__(self, warp: Warp, step: Value, signals: Array) -> None:
        free = self.free(signals)
        warp.when(warp.thread == 0, lambda: free.arrive(step, warp.i32(_ACK_BYTES)))
        free.wait(step)


def store(values: jax.Array, result, first_row, column: int) -> None:
    """Stores a chunk of 16-bit numbers from registers directly to global memory.

    Args:
      values: [ROWS, COLUMNS], in the register layout of products.
      result: [rows, width] in global memory; rows past its end are not stored.
      first_row: row of the result where the chunk begins.
      column: column of the result where the chunk begins.
    """
    simt.inline(StoreChunk(column), [first_row], [(result, ())], [values])
