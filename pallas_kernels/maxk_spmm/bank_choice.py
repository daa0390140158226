"""Chooses one of two places in the sums for each entry, so that few lanes access the same bank.

Lanes that share a row in fours have four banks of shared memory, and the bank of a column is its
number modulo four. Of random columns, one bank gets too many. So half of a warp's groups keep their
sums in another order (``other_place``), in which columns have other banks. Each group adds half of
a lane's entries to sums in the one order, and half to sums in the other. Each lane has a bin of
slots for each half. An entry can go to one of two of the eight bins, given by its bank in the first
order or its bank in the second. These two banks are the entry's type, one of sixteen. The task is
to find how many entries of each type go to their first bin.
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

# Banks of an order: as many as lanes share a row.
BANKS = 4
_TYPES, _BINS = BANKS * BANKS, 2 * BANKS
# Offsets in a row's table: types come first, then the number of surplus entries before each bin and
# of all, then the number of free slots before each bin. The size of a table is odd, so that lanes
# with a row each access different banks.
_SURPLUS, _FREE, _OWN = _TYPES, _TYPES + _BINS + 1, _TYPES + 2 * _BINS + 1
# After the tables of 32 rows, the number of entries of each type seen so far in the current row.
_SEEN = LANES * _OWN
TABLE_WORDS = _SEEN + _TYPES
# Bits of each of the three numbers in a type's word; and most entries of a row, since they are
# counted in bytes, even if columns are not distinct.
_BITS = 10
MOST_ENTRIES = 255


def other_place(column: Any) -> Any:
    """Returns the second place of a column, whose bank is ``column // 4 % 4``; its own inverse."""
    return column - column % 16 + column % 4 * 4 + column // 4 % 4


def num_places(dim: int) -> int:
    """Returns the number of places for ``dim`` columns."""
    return -(-dim // _TYPES) * _TYPES


@dataclass(frozen=True)
class BinChoice:
    """Assigns the entries of up to 32 rows to slots of bins.

    An entry that finds no free slot in its bin is a guest in another bin, where its lane conflicts
    with another lane at a bank. Guests get the last slots of bins, so that few of them conflict.

    Attributes:
      warp: the warp that assigns them.
      size: slots of a bin; bin ``b`` belongs to lane ``b % 4`` in half ``b // 4``.
      table: ``TABLE_WORDS`` words of shared memory.
    """

    warp: Warp
    size: int
    table: Shared

    def plan(self, counts: Sequence[Sequence[Value]]) -> None:
        """Writes the table of this lane's row; the warp has to synchronise before it is used.

        Args:
          counts: how many entries each type has, i32, by ``[bank][other bank]``.
        """
        warp, own = self.warp, self.warp.lane * _OWN
        split = _Split.of(counts, self.size)
        first, second = split.parts
        for a, b in itertools.product(range(BANKS), repeat=2):
            # The number of entries in the first half, and their first slots in both halves.
            before = warp.integer(sum(first[a][:b])), warp.integer(sum(second[b][:a]))
            word = first[a][b] | before[0] << _BITS | before[1] << 2 * _BITS
            self.table.store(own + (a + BANKS * b), word)
        surplus = [*split.surplus[0], *split.surplus[1]]
        surplus_entries = itertools.accumulate(
            (s.at_least(0) for s in surplus), initial=warp.i32(0)
        )
        free_slots = itertools.accumulate(
            ((0 - s).at_least(0) for s in surplus[:-1]), initial=warp.i32(0)
        )
        for first_word, numbers in ((_SURPLUS, surplus_entries), (_FREE, free_slots)):
            for i, number in enumerate(numbers):
                self.table.store(own + (first_word + i), number)

    def start(self) -> None:
        """Resets the counts of a row whose entries come in several batches."""
        warp = self.warp
        warp.sync()
        none = warp.i32(0)
        warp.when(warp.lane < _TYPES, lambda: self.table.store(warp.lane + _SEEN, none))
        warp.sync()

    def place(
        self, row: Value, column: Value, exists: Value, in_batches: bool
    ) -> tuple[Value, Value]:
        """Returns the bin and slot of the entry of a row that each lane has.

        Args:
          row: number of the row among those that were planned.
          column: column of the entry.
          exists: whether the lane has an entry.
          in_batches: whether earlier calls since ``start`` had other entries of the row.
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
            number = self.table.load(own + _SURPLUS + bin_) + (slot - self.size)
            return self._free_slot(row, number)

        return warp.update_when(exists & (slot >= self.size), (bin_, slot), be_guest)

    def _count(self, kind: Value, found: Value, is_first: Value) -> Value:
        """Returns how many entries of each lane's type were seen before; counts the new ones."""
        seen = self.table.load(kind + _SEEN)
        self.warp.sync()
        self.warp.when(is_first, lambda: self.table.store(kind + _SEEN, seen + found))
        self.warp.sync()
        return seen

    def left(self, row: Value, number: Value) -> tuple[Value, Value]:
        """Returns the bin and slot of the ``number``-th slot that surplus entries leave free."""
        return self._free_slot(row, self.table.load(row * _OWN + (_SURPLUS + _BINS)) + number)

    def _free_slot(self, row: Value, number: Value) -> tuple[Value, Value]:
        """Returns the bin and slot of the ``number``-th slot that is free for surplus entries."""
        warp = self.warp
        bin_, first = warp.i32(0), warp.i32(0)
        for i in range(1, _BINS):
            begin = self.table.load(row * _OWN + (_FREE + i))
            is_behind = number >= begin
            bin_, first = warp.select(is_behind, i, bin_), warp.select(is_behind, begin, first)
        return bin_, self.size - 1 - (number - first)


@dataclass
class _Split:
    """The number of entries of each type that go to either of their bins.

    Attributes:
      parts: how many go to the first half, by bank and other bank; and to the second half, by other
        bank and bank.
      surplus: by half and bank, how many more entries there are than slots in the bin.
    """

    parts: tuple[list[list[Value]], list[list[Value]]]
    surplus: tuple[list[Value], list[Value]]

    @classmethod
    def of(cls, counts: Sequence[Sequence[Value]], size: int) -> _Split:
        """Returns a split into about halves; surplus entries move to free slots."""
        rows = [_sum(row) for row in counts]
        columns = [_sum(column) for column in zip(*counts, strict=True)]
        first = [[counts[a][b] for b in range(BANKS)] for a in range(BANKS)]
        for a, b in itertools.product(range(BANKS), repeat=2):
            # Half of them, plus an eighth of the difference of the banks, to even these out. It is
            # rounded down and up in turn.
            eighths = counts[a][b] * 4 + columns[b] - rows[a] + (2 + (a + b) % 2 * 4)
            first[a][b] = (eighths >> 3).at_least(0).at_most(counts[a][b])
        second = [[counts[a][b] - first[a][b] for a in range(BANKS)] for b in range(BANKS)]
        surplus = [[_sum(part) - size for part in half] for half in (first, second)]
        split = cls((first, second), (surplus[0], surplus[1]))
        for half in (0, 1):
            split._move_over(half)
        for half in (0, 1):
            split._move_within(half)
        return split

    def _move(self, half: int, i: int, j: int, count: Value) -> None:
        """Moves entries of a bank and an other bank from one half to the other."""
        ours, theirs = self.parts[half], self.parts[1 - half]
        ours[i][j], theirs[j][i] = ours[i][j] - count, theirs[j][i] + count

    def _move_over(self, half: int) -> None:
        """Moves surplus entries of bins of this half to bins of the other half with free slots."""
        ours, theirs = self.surplus[half], self.surplus[1 - half]
        for i, j in itertools.product(range(BANKS), repeat=2):
            count = _to_move(ours[i], theirs[j]).at_most(self.parts[half][i][j])
            self._move(half, i, j, count)
            ours[i], theirs[j] = ours[i] - count, theirs[j] + count

    def _move_within(self, half: int) -> None:
        """Moves surplus entries to bins of the same half, by exchange through the other half.

        A bin of the other half gives as many entries as it takes.
        """
        ours, (here, there) = self.surplus[half], (self.parts[half], self.parts[1 - half])
        for i, to in itertools.permutations(range(BANKS), 2):
            for j in range(BANKS):
                count = _to_move(ours[i], ours[to]).at_most(here[i][j]).at_most(there[j][to])
                self._move(half, i, j, count)
                self._move(1 - half, j, to, count)
                ours[i], ours[to] = ours[i] - count, ours[to] + count


def _sum(values: Sequence[Value]) -> Value:
    return functools.reduce(Value.__add__, values)


def _to_move(surplus: Value, of_target: Value) -> Value:
    """Returns how many entries to move: the surplus, as far as the target has free slots."""
    return surplus.at_least(0).at_most((0 - of_target).at_least(0))
