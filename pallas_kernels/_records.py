"""Compressed rows as the k-sparse forward kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import _simt
from pallas_kernels._pieces import lanes_before, striding_blocks
from pallas_kernels._values import Array
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

    def capacity(self, lane: int) -> int:
        """Entries of a lane that are real; those behind them are padding."""
        padding = self.size - self.k
        return self.per_lane - padding // self.lanes - (lane < padding % self.lanes)

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
    """A warp a row: first the entries that find room in the lane of their column, then others."""

    shape: RecordShape

    def __call__(self, warp: Warp, inputs, record_values: Array, record_ids: Array) -> None:
        values, columns, scales = inputs
        shape = self.shape

        def take(number, _):
            value, column = values.row(number), columns.row(number)
            to_values, to_ids = record_values.row(number), record_ids.row(number)
            scale = None if scales is None else scales.load(number)

            def place(index, is_real, lane, slot):
                def store():
                    at = shape.value_place(lane, slot)
                    if scale is None:
                        to_values.store_words(at, value.load_words(index))
                    else:
                        to_values.store(at, scale * value.load(index))
                    to_ids.store(shape.id_place(lane, slot), column.load(index))

                warp.when(is_real, store)

            if shape.lanes == LANES:
                self._in_order(warp, place)
            else:
                self._by_bank(warp, column, place)
            self._pad(warp, to_values, to_ids)

        warp.loop(warp.number, values.shape[0], warp.count, (), take)

    def _in_order(self, warp, place):
        """With as many lanes as banks there is nothing to choose."""
        lanes = self.shape.lanes
        warp.strided(self.shape.k, lambda i: place(i, warp.lane >= 0, i % lanes, i // lanes))

    def _by_bank(self, warp, column, place):
        """Deals with the entries in batches of a warp's width."""
        shape, classes = self.shape, range(self.shape.lanes)

        def vote(first):
            """The lane of each entry's column, and as bits, which entries share it."""
            index = first + warp.lane
            is_real = index < shape.k
            own = column.load(index.least(shape.k - 1)) % shape.lanes
            members = [warp.ballot(is_real & (own == c)) for c in classes]
            return index, is_real, own, members

        def count(first, wanted):
            members = vote(first)[-1]
            return [w + warp.population(m) for w, m in zip(wanted, members, strict=True)]

        none = [warp.i32(0) for _ in classes]
        wanted = warp.loop(warp.i32(0), shape.k, LANES, none, count)
        room = [(shape.capacity(c) - w).most(0) for c, w in zip(classes, wanted, strict=True)]

        def deal(first, carry):
            seen, homeless = carry
            index, is_real, own, members = vote(first)
            lane, slot, fits = self._at_home(warp, own, seen, members)
            waiting = warp.ballot(is_real & ~fits)
            rank = homeless + warp.population(waiting & lanes_before(warp))
            lane, slot = self._elsewhere(warp, fits, rank, room, lane, slot)
            place(index.least(shape.k - 1), is_real, lane, slot)
            seen = [s + warp.population(m) for s, m in zip(seen, members, strict=True)]
            return seen, homeless + warp.population(waiting)

        warp.loop(warp.i32(0), shape.k, LANES, (none, warp.i32(0)), deal)

    def _at_home(self, warp, own, seen, members):
        """The place behind earlier entries of the same lane, and whether there is room for it."""
        slot, capacity = warp.i32(0), warp.i32(0)
        for c in range(self.shape.lanes):
            earlier = seen[c] + warp.population(members[c] & lanes_before(warp))
            slot = warp.select(own == c, earlier, slot)
            capacity = warp.select(own == c, self.shape.capacity(c), capacity)
        return own, slot, slot < capacity

    def _elsewhere(self, warp, fits, rank, room, lane, slot):
        """For entries that found no room, the ``rank``-th place that is left."""
        for c in range(self.shape.lanes):
            here = ~fits & (rank >= 0) & (rank < room[c])
            lane = warp.select(here, c, lane)
            slot = warp.select(here, self.shape.capacity(c) - room[c] + rank, slot)
            rank = rank - room[c]
        return lane, slot

    def _pad(self, warp, to_values, to_ids):
        """Behind the real entries of each lane, or where lanes have no say, of the record."""
        shape = self.shape
        zero = warp.constant("u32", 0)

        def pad(i):
            if shape.lanes == LANES:
                at = shape.k + i
                lane, slot = at % shape.lanes, at // shape.lanes
            else:
                lane, slot = i % shape.lanes, shape.per_lane - 1 - i // shape.lanes
            to_values.store_words(shape.value_place(lane, slot), [zero])
            to_ids.store(shape.id_place(lane, slot), shape.dim + lane)

        if shape.size > shape.k:
            warp.strided(shape.size - shape.k, pad)
