"""The layout of compressed rows in memory that the k-sparse forward kernel reads: records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from pallas_kernels.maxk_spmm.bank_choice import MOST_ENTRIES, num_places
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES

# With more columns, the sums of eight rows a warp would take more than 32 KiB of shared memory.
_MOST_COLUMNS_OF_GROUPS = 1024
# Bytes of the widest load, and of one by all lanes that share a row.
_WIDEST, _ALIGNED = 16, 64

# Words of the values and of the columns that a lane owns.
Words = tuple[list[Value], list[Value]]


@dataclass(frozen=True)
class RecordShape:
    """The layout of a record: the values and columns of a compressed row in one piece of memory.

    ``lanes`` lanes share a record; each owns ``blocks`` blocks of ``chunks * entries`` entries.
    Entries may go to any lane, and are assigned so that lanes access different banks of shared
    memory: lane l should have columns that are l modulo ``lanes``. In memory, the columns follow
    the values. If one load can hold everything that a lane owns, its columns follow its own values.

    Attributes:
      lanes: lanes that share a neighbour: 4, or all 32 where there are many columns.
      chunks: loads of values that a lane makes for a block.
      entries: values of one load.
      blocks: blocks of a lane.
      k: entries of a row. Padding has value zero, and a column of its lane's own past the real
        ones.
      dim: columns of a dense row.
      dtype: dtype of the values.
      halves: 2 if each column has two places in the sums, as ``maxk_spmm.bank_choice`` explains;
        else 1.
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

        Two places are possible for up to ``MOST_ENTRIES`` entries, which four lanes share.
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
        """Number of entries of a lane in one block."""
        return self.chunks * self.entries

    @property
    def per_lane(self) -> int:
        """Number of entries of a lane."""
        return self.blocks * self.per_block

    @property
    def size(self) -> int:
        """Number of entries of a record, padding included."""
        return self.per_lane * self.lanes

    @property
    def places(self) -> int:
        """Number of places for columns; places of padding come after them."""
        return num_places(self.dim) if self.halves == 2 else self.dim

    @property
    def id_dtype(self) -> Any:
        """The smallest dtype for places, those of padding included."""
        places = self.places + (self.lanes if self.size > self.k else 0)
        return jnp.uint8 if places <= 256 else jnp.uint16

    @property
    def is_one_load(self) -> bool:
        """Whether one load holds everything that a lane owns."""
        nbytes = self.entries * (self._itemsize + self._id_size)
        return self.blocks == self.chunks == 1 and _WIDEST // 2 < nbytes <= _WIDEST

    @property
    def records_per_group(self) -> int:
        """Number of records that are stored together: all values, then all columns.

        Grouping aligns the columns to their loads. Where records are seldom in a cache, it is
        better to store each in one piece.
        """
        if self.is_one_load or self.halves == 1:
            return 1
        return _ALIGNED // math.gcd(_ALIGNED, self.size * self._id_size)

    @property
    def nbytes(self) -> int:
        """Bytes of the records that are stored together."""
        if self.is_one_load:
            return self.lanes * _WIDEST
        return self.records_per_group * self.size * (self._itemsize + self._id_size)

    @property
    def _itemsize(self) -> int:
        return jnp.dtype(self.dtype).itemsize

    @property
    def _id_size(self) -> int:
        return jnp.dtype(self.id_dtype).itemsize

    def padding(self, lane: int) -> int:
        """Returns how many entries of a lane are padding."""
        padding = self.size - self.k
        return padding // self.lanes + (lane < padding % self.lanes)

    def slot(self, half: Any, number: Any) -> Any:
        """Returns the slot of a lane's ``number``-th entry of a half.

        Each block has both halves.
        """
        own = self.per_block // self.halves
        return number // own * self.per_block + half * own + number % own

    def value_place(self, record: Any, lane: Any, slot: Any) -> Any:
        """Returns the index of the value in a lane's slot, for the ``record``-th of a group."""
        if self.is_one_load:
            return lane * (_WIDEST // self._itemsize) + slot
        chunk = slot // self.entries * self.lanes + lane
        return record * self.size + chunk * self.entries + slot % self.entries

    def id_place(self, record: Any, lane: Any, slot: Any) -> Any:
        """Returns the index of the column in a lane's slot, for the ``record``-th of a group.

        The columns of a lane's block are next to each other.
        """
        own = self.per_block
        if self.is_one_load:
            return lane * (_WIDEST // self._id_size) + own * self._itemsize // self._id_size + slot
        first = self.records_per_group * self.size * self._itemsize // self._id_size
        block = slot // own * self.lanes + lane
        return first + record * self.size + block * own + slot % own

    def find(self, records: Array, number: Value) -> tuple[Array, Any]:
        """Returns the group of a record, and the number of the record in it."""
        if self.records_per_group == 1:
            return records.row(number), 0
        return records.row(number // self.records_per_group), number % self.records_per_group

    def load(self, records: Array, number: Value, lane: Value, block: int) -> Words:
        """Loads words of a lane's values and columns in a block of a record."""
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

    def unpack(self, records: Array, words: Words) -> tuple[list[Value], list[Value]]:
        """Unpacks the values and columns of a lane's block."""
        values, ids = records.viewed(self.dtype), records.viewed(self.id_dtype)
        entries = range(self.per_block)
        return (
            [values.unpack(words[0], i) for i in entries],
            [ids.unpack(words[1], i) for i in entries],
        )


def _cost(k: int, block: int) -> int:
    """Returns the cost of a neighbour in entries: those read, and the overhead of each pass."""
    entries_a_pass_costs = 8
    return -(-k // block) * (block + entries_a_pass_costs)
