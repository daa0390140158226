"""Compressed rows as the k-sparse forward kernel reads them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import _simt
from pallas_kernels._pieces import lanes_before, striding_blocks
from pallas_kernels._two_places import (
    BANKS,
    MOST_ENTRIES,
    TABLE_WORDS,
    Deal,
    num_places,
    other_place,
)
from pallas_kernels._values import Array, Shared, Value
from pallas_kernels._warp import LANES, Warp

# Sums of more columns are too many for eight rows a warp, which take 32 KiB of shared memory.
_MOST_COLUMNS_OF_GROUPS = 1024
# Bytes of the widest load, and of that of lanes that share a row.
_WIDEST, _ALIGNED = 16, 64
# Entries of a lane that are read before the first of them is dealt with.
_READ_AT_ONCE = 4


@dataclass(frozen=True)
class RecordShape:
    """How the forward kernel wants a compressed row: values and columns in one piece of memory.

    ``lanes`` lanes share it; each owns ``blocks`` blocks of ``chunks * entries`` entries. Which
    entry goes to which lane is free, and chosen so that the lanes meet different banks of shared
    memory: those of lane l should have columns that are l modulo ``lanes``.

    The columns follow the values, or where one load has room for all that a lane owns, its own
    values.

    Attributes:
      lanes: lanes that share a neighbour, 4, or all 32 where there are many columns.
      chunks: loads of values a lane makes for a block.
      entries: values of one load.
      blocks: blocks of a lane.
      k: real entries; padding has value zero and a column of its lane's own behind the real ones.
      dim: columns.
      dtype: of the values.
      halves: 2 if each column has two places in the sums, see ``_two_places``; else 1.
    """

    lanes: int
    chunks: int
    entries: int
    blocks: int
    k: int
    dim: int
    dtype: Any
    halves: int

    @classmethod
    def choose(cls, k: int, dim: int, dtype: Any, two_places: bool) -> RecordShape:
        """The one heuristic: few padded entries, few passes over the edges, wide loads.

        Two places pay where rows have many edges, unless sums are too many for them.
        """
        if dim > _MOST_COLUMNS_OF_GROUPS:
            return cls(LANES, 1, 1, -(-k // LANES), k, dim, dtype, halves=1)
        lanes, wide = 4, _WIDEST // jnp.dtype(dtype).itemsize
        entries = 4 if k <= 16 else wide
        options = (1,) if entries < wide else (1, 2, 16 // wide)
        chunks = min(options, key=lambda c: (_cost(k, lanes * entries * c), -c))
        blocks = -(-k // (lanes * entries * chunks))
        halves = 2 if two_places and k <= MOST_ENTRIES else 1
        return cls(lanes, chunks, entries, blocks, k, dim, dtype, halves)

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
    def places(self) -> int:
        """Places of the columns, behind which padding has places of its own."""
        return num_places(self.dim) if self.halves == 2 else self.dim

    @property
    def id_dtype(self) -> Any:
        """The smallest that holds the places, those of padding included."""
        places = self.places + (self.lanes if self.size > self.k else 0)
        return jnp.uint8 if places <= 256 else jnp.uint16

    @property
    def together(self) -> int:
        """Records that lie together: all values, then all columns, each aligned to its loads.

        Where records are seldom in a cache, each had better be in one piece.
        """
        if self.is_one_load or self.halves == 1:
            return 1
        return _ALIGNED // math.gcd(_ALIGNED, self.size * self._id_size)

    @property
    def nbytes(self) -> int:
        """Bytes of the records that lie together."""
        if self.is_one_load:
            return self.lanes * _WIDEST
        return self.together * self.size * (self._itemsize + self._id_size)

    @property
    def _itemsize(self) -> int:
        return jnp.dtype(self.dtype).itemsize

    @property
    def _id_size(self) -> int:
        return jnp.dtype(self.id_dtype).itemsize

    @property
    def is_one_load(self) -> bool:
        """Whether one load has all that a lane owns."""
        nbytes = self.entries * (self._itemsize + self._id_size)
        return self.blocks == self.chunks == 1 and _WIDEST // 2 < nbytes <= _WIDEST

    def padding(self, lane: int) -> int:
        """Entries of a lane that are padding."""
        padding = self.size - self.k
        return padding // self.lanes + (lane < padding % self.lanes)

    def slot(self, half: Any, number: Any) -> Any:
        """A lane's slot, given that it is the ``number``-th of a half; blocks have all halves."""
        own = self.per_block // self.halves
        return number // own * self.per_block + half * own + number % own

    def value_place(self, record: Any, lane: Any, slot: Any) -> Any:
        """Which is the value of a lane's slot, of the ``record``-th of those that lie together."""
        if self.is_one_load:
            return lane * (_WIDEST // self._itemsize) + slot
        chunk = slot // self.entries * self.lanes + lane
        return record * self.size + chunk * self.entries + slot % self.entries

    def id_place(self, record: Any, lane: Any, slot: Any) -> Any:
        """Likewise which is its column; those of a block are next to each other for a lane."""
        own = self.per_block
        if self.is_one_load:
            return lane * (_WIDEST // self._id_size) + own * self._itemsize // self._id_size + slot
        first = self.together * self.size * self._itemsize // self._id_size
        block = slot // own * self.lanes + lane
        return first + record * self.size + block * own + slot % own

    def find(self, records: Array, number: Value) -> tuple[Array, Any]:
        """Those that lie together with a record, and which of them it is."""
        if self.together == 1:
            return records.row(number), 0
        return records.row(number // self.together), number % self.together

    def load(self, records: Array, number: Value, lane: Value, block: int) -> _Words:
        """What a lane owns of a record's block, in words: its values, and their columns."""
        record, at = self.find(records, number)
        if self.is_one_load:
            words = record.load_words(lane * _WIDEST, _WIDEST)
            first, last = (
                self.entries * size // 4
                for size in (self._itemsize, self._itemsize + self._id_size)
            )
            return words[:first], words[first:last]
        values, ids = record.viewed(self.dtype), record.viewed(self.id_dtype)
        first = block * self.per_block
        words = []
        for chunk in range(self.chunks):
            place = self.value_place(at, lane, first + chunk * self.entries)
            words += values.load_words(place, self.entries)
        return words, ids.load_words(self.id_place(at, lane, first), self.per_block)

    def unpack(self, records: Array, words: _Words) -> tuple[list[Value], list[Value]]:
        """The values and columns of a lane's block."""
        values, ids = records.viewed(self.dtype), records.viewed(self.id_dtype)
        entries = range(self.per_block)
        return [values.unpack(words[0], i) for i in entries], [
            ids.unpack(words[1], i) for i in entries
        ]


_Words = tuple[list[Value], list[Value]]


def _cost(k: int, block: int) -> int:
    """Entries read for a neighbour, and what a pass over the edges costs beside them."""
    entries_a_pass_costs = 8
    return -(-k // block) * (block + entries_a_pass_costs)


def make_records(
    shape: RecordShape, values: jax.Array, columns: jax.Array, scale: jax.Array | None
) -> jax.Array:
    """Records of compressed rows, [rows, nbytes] uint8.

    Args:
      shape: of the records.
      values: kept entries, [rows, k].
      columns: their columns, likewise.
      scale: float32 factors of the rows, for float32 values only; narrower ones would be rounded
        twice.
    """
    rows, warps = values.shape[0], 8
    output = jax.ShapeDtypeStruct((-(-rows // shape.together), shape.nbytes), jnp.uint8)
    inputs = values, columns, scale
    if shape.halves == 1:
        grid = _simt.Grid(striding_blocks(rows, warps), warps)
        kernel = _MakeRecords(shape)
        return _simt.launch(kernel, inputs, [output], name="make_records", grid=grid)[0]
    grid = _simt.Grid(striding_blocks(-(-rows // LANES), warps), warps)
    return _simt.launch(
        _MakeTwoPlaced(shape),
        inputs,
        [output],
        name="make_records",
        grid=grid,
        shared={"table": ("i32", TABLE_WORDS)},
    )[0]


@dataclass(frozen=True)
class _Source:
    """Compressed rows, and the records that are made of them."""

    shape: RecordShape
    warp: Warp
    values: Array
    columns: Array
    scales: Array | None
    records: Array

    def read(self, row: Value, first: Any) -> tuple[list[Value], Value, Value]:
        """An entry for each lane, in words, whether it is one, and its column."""
        index = self.warp.lane + first
        inner = index.least(self.shape.k - 1)
        values = self.values.row(row)
        if self.scales is None:
            entry = values.load_words(inner)
        else:
            entry = [(self.scales.load(row) * values.load(inner)).bits("u32")]
        return entry, index < self.shape.k, self.columns.row(row).load(inner)

    def write(self, row: Value, lane: Value, slot: Value, entry: list[Value], place: Value) -> None:
        """An entry with a place of its column."""
        shape = self.shape
        record, at = shape.find(self.records, row)
        values, ids = record.viewed(shape.dtype), record.viewed(shape.id_dtype)
        values.store_words(shape.value_place(at, lane, slot), entry)
        ids.store(shape.id_place(at, lane, slot), place)


@dataclass(frozen=True)
class _MakeTwoPlaced:
    """A warp deals out 32 rows: at first a row a lane, then one row after another."""

    shape: RecordShape

    def __call__(self, warp: Warp, inputs, records: Array, table: Shared) -> None:
        values, columns, scales = inputs
        shape, rows = self.shape, values.shape[0]
        source = _Source(shape, warp, values, columns, scales, records)
        deal = Deal(warp, shape.per_lane // 2, table)
        batches = -(-shape.k // LANES)
        at_once = max(1, _READ_AT_ONCE // batches)

        def put(first, row, exists, read):
            entry, is_real, column = read
            bin_, slot = deal.place(row, column, is_real, batches > 1)

            def write():
                half = bin_ // BANKS
                place = warp.select(half == 0, column, other_place(column))
                source.write(first + row, bin_ % BANKS, shape.slot(half, slot), entry, place)

            warp.when(is_real & exists, write)

        def deal_out(first, count):
            def take(row, _):
                # What is behind the last row is the last one again, and is not written.
                own = [(row + i).least(count - 1) for i in range(at_once)]
                starts = [b * LANES for b in range(batches)]
                read = [[source.read(first + r, start) for start in starts] for r in own]
                for i, r in enumerate(own):
                    if batches > 1:
                        deal.start()
                    for found in read[i]:
                        put(first, r, row + i < count, found)
                    pad(first, r, row + i < count)

            warp.loop(warp.i32(0), count, at_once, (), take)

        def pad(first, row, exists):
            zero = warp.constant("u32", 0)

            def write(i):
                bin_, slot = deal.left(row, i)
                slot = shape.slot(bin_ // BANKS, slot)
                source.write(first + row, bin_ % BANKS, slot, [zero], shape.places + bin_ % BANKS)

            if shape.size > shape.k:
                warp.when(exists, lambda: warp.strided(shape.size - shape.k, write))

        def take_rows(first, _):
            warp.sync()
            row = (first + warp.lane).least(rows - 1)
            deal.plan(self._count(warp, columns.row(row)))
            warp.sync()
            deal_out(first, (rows - first).least(LANES))

        warp.loop(warp.number * LANES, rows, warp.count * LANES, (), take_rows)

    def _count(self, warp, columns):
        """How many entries each type has in this lane's row."""
        k = self.shape.k
        together = math.gcd(k, 4)

        def add(first, words):
            loaded = columns.load_words(first, together)
            for i in range(together):
                column = columns.unpack(loaded, i)
                one = warp.i32(1) << column // BANKS % BANKS * 8
                words = [
                    word + warp.select(column % BANKS == a, one, 0) for a, word in enumerate(words)
                ]
            return words

        words = warp.loop(warp.i32(0), k, together, [warp.i32(0)] * BANKS, add)
        return [[word >> 8 * b & 0xFF for b in range(BANKS)] for word in words]


@dataclass(frozen=True)
class _MakeRecords:
    """A warp a row, whose entries it deals out to the lanes of a group."""

    shape: RecordShape

    def __call__(self, warp: Warp, inputs, records: Array) -> None:
        values, columns, scales = inputs
        shape = self.shape

        def take(number, _):
            entries, ids = values.row(number), columns.row(number)
            record, at = shape.find(records, number)
            to_values, to_ids = record.viewed(shape.dtype), record.viewed(shape.id_dtype)
            scale = None if scales is None else scales.load(number)

            def read(first):
                """An entry for each lane, whether it is one, and its column."""
                index = first + warp.lane
                inner = index.least(shape.k - 1)
                entry = entries.load(inner) if scale is not None else entries.load_words(inner)
                return entry, index < shape.k, ids.load(inner)

            def put(entry, is_real, column, lane, slot):
                def store():
                    place = shape.value_place(at, lane, slot)
                    if scale is None:
                        to_values.store_words(place, entry)
                    else:
                        to_values.store(place, scale * entry)
                    to_ids.store(shape.id_place(at, lane, slot), column)

                warp.when(is_real, store)

            order = self._in_order if shape.lanes == LANES else self._by_bank
            self._pad(warp, at, order(warp, read, put), to_values, to_ids)

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

    def _pad(self, warp, at, place, to_values, to_ids):
        """Writes zeros at the ``place`` of each padded entry."""
        shape = self.shape
        zero = warp.constant("u32", 0)

        def pad(i):
            lane, slot = place(i)
            to_values.store_words(shape.value_place(at, lane, slot), [zero])
            to_ids.store(shape.id_place(at, lane, slot), shape.dim + lane)

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
