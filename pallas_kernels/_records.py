"""Compressed rows as the k-sparse forward kernel reads them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import _simt
from pallas_kernels._pieces import lanes_before, striding_blocks
from pallas_kernels._values import Array, Value
from pallas_kernels._warp import LANES, Warp

# Sums of more columns are too many for eight rows a warp, which take 32 KiB of shared memory.
_MOST_COLUMNS_OF_GROUPS = 1024


@dataclass(frozen=True)
class RecordShape:
    """How the forward kernel wants a compressed row.

    ``lanes`` lanes share it; each owns ``blocks`` blocks of ``chunks * entries`` entries. Which
    entry goes to which lane is free, and chosen so that the lanes meet different banks of shared
    memory: those of lane l should have columns that are l modulo ``lanes``.

    Attributes:
      lanes: lanes that share a neighbour, 4, or all 32 where there are many columns.
      chunks: loads of values a lane makes for a block.
      entries: values of one load.
      blocks: blocks of a lane.
      k: real entries; padding has value zero and a column of its lane's own behind the real ones.
      dim: columns.
    """

    lanes: int
    chunks: int
    entries: int
    blocks: int
    k: int
    dim: int

    @classmethod
    def choose(cls, k: int, dim: int, itemsize: int) -> RecordShape:
        """The one heuristic: few padded entries, few passes over the edges, wide loads."""
        if dim > _MOST_COLUMNS_OF_GROUPS:
            return cls(LANES, 1, 1, -(-k // LANES), k, dim)
        lanes, wide = 4, 16 // itemsize
        entries = 4 if k <= 16 else wide
        options = (1,) if entries < wide else (1, 2, 16 // wide)
        chunks = min(options, key=lambda c: (_cost(k, lanes * entries * c), -c))
        return cls(lanes, chunks, entries, -(-k // (lanes * entries * chunks)), k, dim)

    @property
    def per_block(self) -> int:
        """Entries of a lane in one block."""
        return self.chunks * self.entries

    @property
    def per_lane(self) -> int:
        """Entries of a lane."""
        return self.blocks * self.per_block

    @property
    def size(self) -> int:
        """Entries of a record, padding included."""
        return self.per_lane * self.lanes

    @property
    def id_dtype(self) -> Any:
        """The smallest that holds the columns, those of padding included."""
        columns = self.dim + (self.lanes if self.size > self.k else 0)
        return jnp.uint8 if columns <= 256 else jnp.uint16

    def padding(self, lane: int) -> int:
        """Entries of a lane that are padding."""
        padding = self.size - self.k
        return padding // self.lanes + (lane < padding % self.lanes)

    def value_place(self, lane, slot):
        """Where a value lies in a record: those of a chunk together for all lanes."""
        return (slot // self.entries * self.lanes + lane) * self.entries + slot % self.entries

    def id_place(self, lane, slot):
        """Where a column lies: those of a block together for each lane."""
        own = self.per_block
        return (slot // own * self.lanes + lane) * own + slot % own


def _cost(k: int, block: int) -> int:
    """Entries read for a neighbour, and what a pass over the edges costs beside them."""
    entries_a_pass_costs = 8
    return -(-k // block) * (block + entries_a_pass_costs)


def make_records(
    shape: RecordShape, values: jax.Array, columns: jax.Array, scale: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Values and columns of [rows, k] in records of [rows, size].

    Args:
      shape: of the records.
      values: kept entries.
      columns: their columns.
      scale: float32 factors of the rows, for float32 values only; narrower ones would be rounded
        twice.
    """
    rows, warps = values.shape[0], 8
    outputs = [
        jax.ShapeDtypeStruct((rows, shape.size), dtype) for dtype in (values.dtype, shape.id_dtype)
    ]
    grid = _simt.Grid(striding_blocks(rows, warps), warps)
    made = _simt.launch(
        _MakeRecords(shape), (values, columns, scale), outputs, name="make_records", grid=grid
    )
    return made[0], made[1]


@dataclass(frozen=True)
class _MakeRecords:
    """A warp a row, whose entries it deals out to the lanes of a group."""

    shape: RecordShape

    def __call__(self, warp: Warp, inputs, record_values: Array, record_ids: Array) -> None:
        values, columns, scales = inputs
        shape = self.shape

        def take(number, _):
            entries, ids = values.row(number), columns.row(number)
            to_values, to_ids = record_values.row(number), record_ids.row(number)
            scale = None if scales is None else scales.load(number)

            def read(first):
                """An entry for each lane, whether it is one, and its column."""
                index = first + warp.lane
                inner = index.least(shape.k - 1)
                entry = entries.load(inner) if scale is not None else entries.load_words(inner)
                return entry, index < shape.k, ids.load(inner)

            def put(entry, is_real, column, lane, slot):
                def store():
                    at = shape.value_place(lane, slot)
                    if scale is None:
                        to_values.store_words(at, entry)
                    else:
                        to_values.store(at, scale * entry)
                    to_ids.store(shape.id_place(lane, slot), column)

                warp.when(is_real, store)

            order = self._in_order if shape.lanes == LANES else self._by_bank
            self._pad(warp, order(warp, read, put), to_values, to_ids)

        warp.loop(warp.number, values.shape[0], warp.count, (), take)

    def _in_order(self, warp, read, put):
        """With as many lanes as banks there is nothing to choose; where padding goes."""
        lanes, k = self.shape.lanes, self.shape.k

        def take(first, _):
            put(*read(first), warp.lane, first // lanes)

        warp.loop(0, k, lanes, (), take)
        return lambda i: ((k + i) % lanes, (k + i) // lanes)

    def _by_bank(self, warp, read, put):
        """Deals with the entries in batches of a warp's width; where padding goes."""
        shape, lanes = self.shape, range(self.shape.lanes)

        def vote(entries):
            """The lane where each entry is at home, and as bits, those of each lane."""
            _, is_real, column = entries
            home = column % shape.lanes
            return home, [warp.ballot(is_real & (home == lane)) for lane in lanes]

        def add(counts, members):
            return [c + warp.population(m) for c, m in zip(counts, members, strict=True)]

        def deal_out(entries, votes, seen):
            home, members = votes
            before = add(seen, [m & lanes_before(warp) for m in members])
            put(*entries, *deal.place(home, _pick(home, before)))
            return add(seen, members)

        # Padding comes first: it stays at home, which it is if dim is a multiple of the lanes.
        padding = [warp.i32(shape.padding(lane)) for lane in lanes]
        if shape.k <= LANES:
            entries = read(warp.i32(0))
            votes = vote(entries)
            deal = _Deal.of(warp, shape.per_lane, add(padding, votes[1]))
            deal_out(entries, votes, padding)
        else:
            start, stop = warp.i32(0), shape.k

            def count(first, counts):
                return add(counts, vote(read(first))[1])

            def take(first, seen):
                entries = read(first)
                return deal_out(entries, vote(entries), seen)

            counts = warp.loop(start, stop, LANES, padding, count)
            deal = _Deal.of(warp, shape.per_lane, counts)
            warp.loop(start, stop, LANES, padding, take)
        return lambda i: deal.place(i % shape.lanes, i // shape.lanes)

    def _pad(self, warp, place, to_values, to_ids):
        """Writes zeros at the ``place`` of each padded entry."""
        shape = self.shape
        zero = warp.constant("u32", 0)

        def pad(i):
            lane, slot = place(i)
            to_values.store_words(shape.value_place(lane, slot), [zero])
            to_ids.store(shape.id_place(lane, slot), shape.dim + lane)

        if shape.size > shape.k:
            warp.strided(shape.size - shape.k, pad)


@dataclass(frozen=True)
class _Deal:
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
    def of(cls, warp: Warp, size: int, counts: list[Value]) -> _Deal:
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
        left = _wrap(_pick(own, self.free) + behind, self.tail)
        slot = self.warp.select(behind < 0, rank, self.size - 1 - left)
        # A guest has a number, the rooms as well, and slots come by turns.
        number = _pick(own, self.guests) + (rank - self.size)
        lane = sum(((number >= first).to("i32") for first in self.rooms[1:]), self.warp.i32(0))
        turn = _wrap(_wrap(number, self.tail), self.tail)
        return (
            self.warp.select(is_guest, lane, own),
            self.warp.select(is_guest, self.size - 1 - turn, slot),
        )


def _wrap(number: Value, size: Value) -> Value:
    """Less ``size``, if it is not less than that."""
    return number.warp.select(number >= size, number - size, number)


def _pick(own: Value, values: Sequence[Value]) -> Value:
    """The value of the lane's own number."""
    picked = values[0]
    for number, value in enumerate(values[1:], 1):
        picked = own.warp.select(own == number, value, picked)
    return picked
