"""Which of its two places in the sums an entry is added to, so that few lanes meet at a bank.

Lanes that share a row in fours have four banks of shared memory, and the bank of a column is its
number modulo four: of random columns, one bank has too many. So half of a warp's groups keep their
sums with each column in another place (``other_place``), and each group adds half of a lane's
entries to sums in the one order, half to sums in the other. A lane has a bin for each half, with
the entries that are at home in its bank there. An entry may go to two of the eight bins; which,
makes it one of sixteen types. To be found is how many entries of each type go to the first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pallas_kernels.simt.blocks import lanes_before
from pallas_kernels.simt.values import Shared, Value
from pallas_kernels.simt.warp import LANES, Warp

# Banks of a place: there are as many lanes that share a row.
BANKS = 4
_TYPES, _BINS = BANKS * BANKS, 2 * BANKS
# A row's table: for each type, for each bin of guests and one more, for each bin of rooms. That it
# is odd, lets lanes with a row each meet different banks.
_GUESTS, _ROOMS, _OWN = _TYPES, _TYPES + _BINS + 1, _TYPES + 2 * _BINS + 1
# Behind the tables of as many rows as there are lanes: what was seen of each type, of one row.
_SEEN = LANES * _OWN
TABLE_WORDS = _SEEN + _TYPES
# Bits of a number, of which a type's word has three; and entries of a row, at most: they are
# counted in bytes, also where columns are not distinct.
_BITS = 10
MOST_ENTRIES = 255


def other_place(column: Any) -> Any:
    """The second place of a column, whose bank is ``column // 4 % 4``; and the other way round."""
    return column - column % 16 + column % 4 * 4 + column // 4 % 4


def num_places(dim: int) -> int:
    """Places that so many columns need."""
    return -(-dim // _TYPES) * _TYPES


@dataclass(frozen=True)
class BinChoice:
    """Deals out the entries of up to 32 rows.

    An entry for which there is no room in its bin is a guest in another one. There it meets another
    lane at its bank, so guests get the last slots of bins.

    Attributes:
      warp: the warp.
      size: slots of a bin; bin ``b`` is that of lane ``b % 4`` in half ``b // 4``.
      table: ``TABLE_WORDS`` words.
    """

    warp: Warp
    size: int
    table: Shared

    def plan(self, counts: Sequence[Sequence[Value]]) -> None:
        """Writes the table of this lane's row; all lanes have to be waited for.

        Args:
          counts: ``[bank][other bank]``, how many entries are of each type, i32.
        """
        warp, own = self.warp, self.warp.lane * _OWN
        split = _Split.of(counts, self.size)
        first, second = split.parts
        for a, b in itertools.product(range(BANKS), repeat=2):
            # How many go to the first, and from which slot on they lie there, and in the second.
            before = warp.integer(sum(first[a][:b])), warp.integer(sum(second[b][:a]))
            word = first[a][b] | before[0] << _BITS | before[1] << 2 * _BITS
            self.table.store(own + (a + BANKS * b), word)
        surplus = [*split.surplus[0], *split.surplus[1]]
        guests = itertools.accumulate((s.most(0) for s in surplus), initial=warp.i32(0))
        rooms = itertools.accumulate(((0 - s).most(0) for s in surplus[:-1]), initial=warp.i32(0))
        for first_word, numbers in ((_GUESTS, guests), (_ROOMS, rooms)):
            for i, number in enumerate(numbers):
                self.table.store(own + (first_word + i), number)

    def start(self) -> None:
        """Before the first entries of a row, where they come in several batches."""
        warp = self.warp
        warp.sync()
        none = warp.i32(0)
        warp.when(warp.lane < _TYPES, lambda: self.table.store(warp.lane + _SEEN, none))
        warp.sync()

    def place(
        self, row: Value, column: Value, exists: Value, in_batches: bool
    ) -> tuple[Value, Value]:
        """Bin and slot of the entry that each lane has of a row.

        Args:
          row: of those that were planned.
          column: of the entry.
          exists: whether there is one.
          in_batches: whether there may be others in earlier calls, all since ``start``.
        """
        warp, kind, own = self.warp, column % _TYPES, row * _OWN
        alike = warp.ballot(exists)
        for bit in range(4):
            has_bit = (kind >> bit) % 2 != 0
            votes = warp.ballot(has_bit)
            alike = alike & warp.select(has_bit, votes, votes ^ 0xFFFFFFFF)
        before = lanes_before(warp)
        rank = warp.popcount(alike & before)
        if in_batches:
            rank = rank + self._count(kind, warp.popcount(alike), exists & (rank == 0))
        numbers = self.table.load(own + kind)
        in_first, from_first, from_second = (
            numbers >> i * _BITS & ((1 << _BITS) - 1) for i in range(3)
        )
        is_first = rank < in_first
        bin_ = warp.select(is_first, kind % BANKS, kind // BANKS + BANKS)
        slot = warp.select(is_first, from_first + rank, from_second + rank - in_first)

        def be_guest(_):
            number = self.table.load(own + _GUESTS + bin_) + (slot - self.size)
            return self._room(row, number)

        return warp.update_when(exists & (slot >= self.size), (bin_, slot), be_guest)

    def _count(self, kind: Value, found: Value, is_first: Value) -> Value:
        """How many of each lane's type were seen before; the first of a type notes those found."""
        seen = self.table.load(kind + _SEEN)
        self.warp.sync()
        self.warp.when(is_first, lambda: self.table.store(kind + _SEEN, seen + found))
        self.warp.sync()
        return seen

    def left(self, row: Value, number: Value) -> tuple[Value, Value]:
        """Bin and slot of the ``number``-th room that the guests of a row leave."""
        return self._room(row, self.table.load(row * _OWN + (_GUESTS + _BINS)) + number)

    def _room(self, row: Value, number: Value) -> tuple[Value, Value]:
        warp = self.warp
        bin_, first = warp.i32(0), warp.i32(0)
        for i in range(1, _BINS):
            begin = self.table.load(row * _OWN + (_ROOMS + i))
            is_behind = number >= begin
            bin_, first = warp.select(is_behind, i, bin_), warp.select(is_behind, begin, first)
        return bin_, self.size - 1 - (number - first)


@dataclass
class _Split:
    """How many entries of each type go to either half.

    Attributes:
      parts: to the first, by bank and other bank; to the second, by other bank and bank.
      surplus: for each half and bank, how many more there are than the bin has slots.
    """

    parts: tuple[list[list[Value]], list[list[Value]]]
    surplus: tuple[list[Value], list[Value]]

    @classmethod
    def of(cls, counts: Sequence[Sequence[Value]], size: int) -> _Split:
        """A split with few guests: near halves, then surplus moved to where there is room."""
        rows = [_sum(row) for row in counts]
        columns = [_sum(column) for column in zip(*counts, strict=True)]
        first = [[counts[a][b] for b in range(BANKS)] for a in range(BANKS)]
        for a, b in itertools.product(range(BANKS), repeat=2):
            # Half, and an eighth of what evens out the banks; by turns rounded down and up.
            eighths = counts[a][b] * 4 + columns[b] - rows[a] + (2 + (a + b) % 2 * 4)
            first[a][b] = (eighths >> 3).most(0).least(counts[a][b])
        second = [[counts[a][b] - first[a][b] for a in range(BANKS)] for b in range(BANKS)]
        surplus = [[_sum(part) - size for part in half] for half in (first, second)]
        split = cls((first, second), (surplus[0], surplus[1]))
        for half in (0, 1):
            split._move_over(half)
        for half in (0, 1):
            split._move_within(half)
        return split

    def _move(self, half: int, i: int, j: int, count: Value) -> None:
        """So many entries of a bank and other bank from one half to the other."""
        ours, theirs = self.parts[half], self.parts[1 - half]
        ours[i][j], theirs[j][i] = ours[i][j] - count, theirs[j][i] + count

    def _move_over(self, half: int) -> None:
        """From bins with surplus to those of the other half that have room."""
        ours, theirs = self.surplus[half], self.surplus[1 - half]
        for i, j in itertools.product(range(BANKS), repeat=2):
            count = _to_move(ours[i], theirs[j]).least(self.parts[half][i][j])
            self._move(half, i, j, count)
            ours[i], theirs[j] = ours[i] - count, theirs[j] + count

    def _move_within(self, half: int) -> None:
        """Likewise of the same half, by way of a bin of the other one, which keeps its number."""
        ours, (here, there) = self.surplus[half], (self.parts[half], self.parts[1 - half])
        for i, to in itertools.permutations(range(BANKS), 2):
            for j in range(BANKS):
                count = _to_move(ours[i], ours[to]).least(here[i][j]).least(there[j][to])
                self._move(half, i, j, count)
                self._move(1 - half, j, to, count)
                ours[i], ours[to] = ours[i] - count, ours[to] + count


def _sum(values: Sequence[Value]) -> Value:
    return functools.reduce(Value.__add__, values)


def _to_move(surplus: Value, of_target: Value) -> Value:
    """As many as there are too many here, and there is room for there."""
    return surplus.most(0).least((0 - of_target).most(0))
