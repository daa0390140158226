"""In which order the entries of a row are added to its sums, so that few lanes meet at a bank."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp


@dataclass(frozen=True)
class SlotOrder:
    """Where the entries of a record go, if lanes have ``size`` slots each.

    An entry is at home in the lane of its column. What finds no room there, the guests, goes to
    lanes that have room left, to meet the columns of its own lane: in the last slots of all lanes,
    ``tail`` of them, as few as there can be, without two guests of the same lane in a slot.

    Attributes:
      warp: the warp.
      size: slots of a lane.
      tail: i32.
      guests: of the lanes before each, i32.
      rooms: likewise, how many guests they have room for.
      free: the first place in the tail, from its end, behind those of a lane's guests, i32.
    """

    warp: Warp
    size: int
    tail: Value
    guests: list[Value]
    rooms: list[Value]
    free: list[Value]

    @classmethod
    def of(cls, warp: Warp, size: int, counts: list[Value]) -> SlotOrder:
        """Given how many entries are at home in each lane."""
        spare = [(count - size).most(0) for count in counts]
        room = [(size - count).most(0) for count in counts]
        *guests, total = itertools.accumulate(spare, initial=warp.i32(0))
        *rooms, _ = itertools.accumulate(room, initial=warp.i32(0))
        # Two guests at most in a slot: more would have to be of the same lane.
        tail = functools.reduce(Value.most, [*spare, *room, (total + 1) >> 1]).least(size)
        taken = [_wrap(_wrap(before, tail), tail) for before in rooms]
        free = [_wrap(t + own, tail) for t, own in zip(taken, room, strict=True)]
        return cls(warp, size, tail, guests, rooms, free)

    def place(self, own: Value, rank: Value) -> tuple[Value, Value]:
        """Lane and slot of the ``rank``-th entry that is at home in a lane."""
        is_guest = rank >= self.size
        # At home: from the front, and what is left of the tail.
        behind = rank - (self.size - self.tail)
        left = _wrap(pick(own, self.free) + behind, self.tail)
        slot = self.warp.select(behind < 0, rank, self.size - 1 - left)
        # A guest has a number, the rooms as well, and slots come by turns.
        number = pick(own, self.guests) + (rank - self.size)
        lane = sum(((number >= first).to("i32") for first in self.rooms[1:]), self.warp.i32(0))
        turn = _wrap(_wrap(number, self.tail), self.tail)
        return (
            self.warp.select(is_guest, lane, own),
            self.warp.select(is_guest, self.size - 1 - turn, slot),
        )


def _wrap(number: Value, size: Value) -> Value:
    """Less ``size``, if it is not less than that."""
    return number.warp.select(number >= size, number - size, number)


def pick(own: Value, values: Sequence[Value]) -> Value:
    """The value of the lane's own number."""
    picked = values[0]
    for number, value in enumerate(values[1:], 1):
        picked = own.warp.select(own == number, value, picked)
    return picked
