"""Orders the entries of a row so that few lanes access the same bank of the sums at once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp


@dataclass(frozen=True)
class SlotOrder:
    """Assigns the entries of a record to slots of lanes, ``size`` for each lane.

    The home of an entry is the lane of its column's bank. Entries that find no free slot at home
    are guests: they go to lanes with free slots, where they conflict with entries of their own home
    lane. So guests get the last slots of all lanes, the tail, which is as short as possible without
    two guests of the same lane in a slot.

    Attributes:
      warp: the warp that assigns them.
      size: slots of a lane.
      tail: length of the tail, i32.
      guests: how many guests the lanes before each lane have, i32.
      rooms: how many slots for guests the lanes before each lane have, i32.
      free: for each lane, the first slot of the tail, from its end, after those of guests in the
        lane, i32.
    """

    warp: Warp
    size: int
    tail: Value
    guests: list[Value]
    rooms: list[Value]
    free: list[Value]

    @classmethod
    def of(cls, warp: Warp, size: int, counts: list[Value]) -> SlotOrder:
        """Returns the order for ``counts`` entries at home in each lane."""
        spare = [(count - size).at_least(0) for count in counts]
        room = [(size - count).at_least(0) for count in counts]
        *guests, total = itertools.accumulate(spare, initial=warp.i32(0))
        *rooms, _ = itertools.accumulate(room, initial=warp.i32(0))
        # At most two guests share a slot: of three, two would be of the same lane.
        tail = functools.reduce(Value.at_least, [*spare, *room, (total + 1) >> 1]).at_most(size)
        taken = [_wrap(_wrap(before, tail), tail) for before in rooms]
        free = [_wrap(t + own, tail) for t, own in zip(taken, room, strict=True)]
        return cls(warp, size, tail, guests, rooms, free)

    def place(self, own: Value, rank: Value) -> tuple[Value, Value]:
        """Returns the lane and slot of the ``rank``-th entry that is at home in a lane."""
        is_guest = rank >= self.size
        # Entries at home get slots from the front, and then those of the tail that are left.
        behind = rank - (self.size - self.tail)
        left = _wrap(pick(own, self.free) + behind, self.tail)
        slot = self.warp.select(behind < 0, rank, self.size - 1 - left)
        # Guests are numbered, as are the slots for guests; slots of the tail are taken in turn.
        number = pick(own, self.guests) + (rank - self.size)
        lane = sum(((number >= first).to("i32") for first in self.rooms[1:]), self.warp.i32(0))
        turn = _wrap(_wrap(number, self.tail), self.tail)
        return (
            self.warp.select(is_guest, lane, own),
            self.warp.select(is_guest, self.size - 1 - turn, slot),
        )


def _wrap(number: Value, size: Value) -> Value:
    """Subtracts ``size`` from a number that is not less than it."""
    return number.warp.select(number >= size, number - size, number)


def pick(own: Value, values: Sequence[Value]) -> Value:
    """Returns the value of the lane ``own``."""
    picked = values[0]
    for number, value in enumerate(values[1:], 1):
        picked = own.warp.select(own == number, value, picked)
    return picked
