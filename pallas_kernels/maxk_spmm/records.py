"""Builds the records of compressed rows that the k-sparse forward kernel reads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.maxk_spmm import bank_choice, bank_order
from pallas_kernels.maxk_spmm.bank_choice import BANKS, TABLE_WORDS, other_place
from pallas_kernels.maxk_spmm.record_shape import RecordShape
from pallas_kernels.simt.blocks import lanes_before, striding_blocks
from pallas_kernels.simt.values import Array, Shared, Value
from pallas_kernels.simt.warp import LANES, Warp

# Entries that a lane reads before it processes the first of them, unless a row has more.
_READ_AT_ONCE = 4


def make_records(
    shape: RecordShape, values: jax.Array, columns: jax.Array, scale: jax.Array | None
) -> jax.Array:
    """Builds records of compressed rows, uint8: ``shape.nbytes`` for each group of records.

    Args:
      shape: layout of the records.
      values: kept entries, [rows, k].
      columns: columns of the kept entries, [rows, k].
      scale: float32 factors of the rows, [rows], only for float32 values; narrower ones would be
        rounded twice.
    """
    rows, warps = values.shape[0], 8
    output = jax.ShapeDtypeStruct((-(-rows // shape.records_per_group), shape.nbytes), jnp.uint8)
    if shape.halves == 1:
        kernel, rows_of_a_warp, shared = _MakeRecords(shape), 1, None
    else:
        kernel, rows_of_a_warp = _MakeTwoPlaceRecords(shape), LANES
        shared = {"table": ("i32", TABLE_WORDS)}
    grid = simt.Grid(striding_blocks(-(-rows // rows_of_a_warp), warps), warps)
    inputs = values, columns, scale
    made = simt.launch(kernel, inputs, [output], name="make_records", grid=grid, shared=shared)
    return made[0]


@dataclass(frozen=True)
class _RecordRows:
    """Compressed rows, and the records built from them."""

    shape: RecordShape
    warp: Warp
    values: Array
    columns: Array
    scales: Array | None
    records: Array

    def read(self, row: Value, first: Any) -> tuple[list[Value], Value, Value]:
        """Reads one entry of a row per lane: its words, whether there is one, and its column."""
        index = self.warp.lane + first
        inner = index.at_most(self.shape.k - 1)
        values = self.values.row(row)
        if self.scales is None:
            entry = values.load_words(inner)
        else:
            entry = [(self.scales.load(row) * values.load(inner)).bits("u32")]
        return entry, index < self.shape.k, self.columns.row(row).load(inner)

    def write(self, row: Value, lane: Value, slot: Value, entry: list[Value], place: Value) -> None:
        """Writes an entry, and the place of its column, to a slot of a lane."""
        shape = self.shape
        record, at = shape.find(self.records, row)
        values, ids = record.viewed(shape.dtype), record.viewed(shape.id_dtype)
        values.store_words(shape.value_place(at, lane, slot), entry)
        ids.store(shape.id_place(at, lane, slot), place)

    def pad(self, row: Value, find: Callable[[Value], tuple[Value, Value]]) -> None:
        """Writes zeros to the lanes and slots that ``find`` returns for each padded entry."""
        zero = self.warp.constant("u32", 0)

        def write(i):
            lane, slot = find(i)
            self.write(row, lane, slot, [zero], lane + self.shape.places)

        if self.shape.size > self.shape.k:
            self.warp.strided(self.shape.size - self.shape.k, write)


@dataclass(frozen=True)
class _MakeRecords:
    """Each warp takes a row, and distributes its entries over the lanes of a group."""

    shape: RecordShape

    def __call__(self, warp: Warp, inputs, records: Array) -> None:
        values, columns, scales = inputs
        rows = _RecordRows(self.shape, warp, values, columns, scales, records)
        arrange = self._in_order if self.shape.lanes == LANES else self._by_bank

        def take(row, _):
            def put(found, lane, slot):
                entry, is_real, column = found
                warp.when(is_real, lambda: rows.write(row, lane, slot, entry, column))

            rows.pad(row, arrange(warp, functools.partial(rows.read, row), put))

        warp.loop(warp.number, values.shape[0], warp.count, (), take)

    def _in_order(self, warp, read, put):
        """Keeps the order of the entries, for as many lanes as banks.

        Returns the slots of padding.
        """
        lanes, k = self.shape.lanes, self.shape.k

        def take(first, _):
            put(read(first), warp.lane, first // lanes)

        warp.loop(0, k, lanes, (), take)
        return lambda i: ((i + k) % lanes, (i + k) // lanes)

    def _by_bank(self, warp, read, put):
        """Assigns entries to lanes by their banks, a warp's width at a time.

        Returns the slots of padding.
        """
        shape, lanes = self.shape, range(self.shape.lanes)

        def vote(found):
            """Returns the home lane of each entry, and as bits the entries at home in each lane."""
            _, is_real, column = found
            home = column % shape.lanes
            return home, [warp.ballot(is_real & (home == lane)) for lane in lanes]

        def add(counts, members):
            return [c + warp.popcount(m) for c, m in zip(counts, members, strict=True)]

        def write_entries(found, votes, seen):
            home, members = votes
            before = add(seen, [m & lanes_before(warp) for m in members])
            put(found, *order.place(home, bank_order.pick(home, before)))
            return add(seen, members)

        # Padding comes first, so it stays at home: its columns are in the banks of its lanes if dim
        # is a multiple of the lanes.
        padding = [warp.i32(shape.padding(lane)) for lane in lanes]
        if shape.k <= LANES:
            found = read(warp.i32(0))
            votes = vote(found)
            order = bank_order.SlotOrder.of(warp, shape.per_lane, add(padding, votes[1]))
            write_entries(found, votes, padding)
        else:
            start, stop = warp.i32(0), shape.k

            def count(first, counts):
                return add(counts, vote(read(first))[1])

            def take(first, seen):
                found = read(first)
                return write_entries(found, vote(found), seen)

            counts = warp.loop(start, stop, LANES, padding, count)
            order = bank_order.SlotOrder.of(warp, shape.per_lane, counts)
            warp.loop(start, stop, LANES, padding, take)
        return lambda i: order.place(i % shape.lanes, i // shape.lanes)


@dataclass(frozen=True)
class _MakeTwoPlaceRecords:
    """Each warp takes 32 rows: it plans one row per lane, then writes one row after another."""

    shape: RecordShape

    def __call__(self, warp: Warp, inputs, records: Array, table: Shared) -> None:
        values, columns, scales = inputs
        rows = _RecordRows(self.shape, warp, values, columns, scales, records)
        choice = bank_choice.BinChoice(warp, self.shape.per_lane // 2, table)
        count = values.shape[0]

        def take(first, _):
            warp.sync()
            row = (first + warp.lane).at_most(count - 1)
            choice.plan(self._count_types(warp, columns.row(row)))
            warp.sync()
            self._write_rows(warp, rows, choice, first, (count - first).at_most(LANES))

        warp.loop(warp.number * LANES, count, warp.count * LANES, (), take)

    def _count_types(self, warp, columns):
        """Returns how many entries each type has in this lane's row."""
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

    def _write_rows(self, warp, rows, choice, first, count) -> None:
        """Writes the records of ``count`` rows from ``first`` on."""
        starts = range(0, self.shape.k, LANES)
        at_once = max(1, _READ_AT_ONCE // len(starts))

        def lane_and_slot(bin_, slot):
            return bin_ % BANKS, self.shape.slot(bin_ // BANKS, slot)

        def write_row(row, batches):
            if len(batches) > 1:
                choice.start()
            for entry, is_real, column in batches:
                bin_, slot = choice.place(row, column, is_real, len(batches) > 1)
                place = warp.select(bin_ < BANKS, column, other_place(column))
                to = lane_and_slot(bin_, slot)
                warp.when(
                    is_real,
                    lambda to=to, entry=entry, place=place: rows.write(
                        first + row, *to, entry, place
                    ),
                )
            rows.pad(first + row, lambda i: lane_and_slot(*choice.left(row, i)))

        def take(row, _):
            # Past the last row, it is written again with the same result.
            own = [(row + i).at_most(count - 1) for i in range(at_once)]
            read = [[rows.read(first + r, start) for start in starts] for r in own]
            for r, batches in zip(own, read, strict=True):
                write_row(r, batches)

        warp.loop(warp.i32(0), count, at_once, (), take)
