"""The backward pass of the k-sparse product over edges that are grouped by block of rows."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import Warp

# Bits of an entry that are the number of its row; the others are the number of its sender.
_ROW_BITS = 9
_NO_ROW = (1 << _ROW_BITS) - 1
# Entries of one load, and entries of a run at most.
_LOADED, _LONGEST_RUN = 4, 128
# Loads of rows in flight.
_ROWS_AHEAD = 4
# Blocks of more rows get as many threads as a block can have; smaller ones run several at a time.
_FEW_ROWS = 64
# If a tile's sums take more than this many times the second-level cache, most additions would miss
# it, which makes them more than twice as slow. Then sums are prefetched.
_CACHE_SHARE = 1.92


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeBlocks:
    """Edges grouped by block of rows and span of senders, sorted by sender within a group.

    Rows are cut into blocks in the order of ``row_order``; a row's place is its position there.
    Groups are numbered ``span * row_blocks + block of rows``. Task ``t`` consists of the entries
    from ``begins[t]`` to before ``ends[t]``, which belong to group ``blocks[t]`` and to one tile of
    senders, a part of the span. In a kernel each array is an ``Array``.

    Attributes:
      row_order: the rows in the order in which they are cut into blocks, [rows] int32, or None if
        that is the order of their numbers.
      entries: ``sender within the span << 9 | row within the block`` of each edge, padded to a
        multiple of eight, [entries] uint32.
      edges: index of each entry's weight in ``weights``, [edges] int32 or int64; None without
        weights.
      blocks: group of each task, [tasks] int32.
      begins: first entry of each task, [tasks], int32 or int64.
      ends: one past the last entry of each task, [tasks], of the dtype of ``begins``.
      weights: weight of each edge, [edges] float32, or None for ones.
      row_scale: factor of each row, [rows] float32, or None for ones.
      col_scale: factor of each sender, [cols] float32, or None for ones.
      rows: rows of a block, less than 512.
      span: senders of a span; entries count senders from its first one on.
      senders: senders of a tile at most; the sums of one tile are added to at a time.
    """

    row_order: Any
    entries: Any
    edges: Any
    blocks: Any
    begins: Any
    ends: Any
    weights: Any
    row_scale: Any
    col_scale: Any
    rows: int = field(metadata={"static": True})
    span: int = field(metadata={"static": True})
    senders: int = field(metadata={"static": True})

    def task(self, number: Value, num_rows: int, batch: int) -> Task:
        """Returns a task, in a kernel that takes ``batch`` entries together."""
        row_blocks, block = -(-num_rows // self.rows), self.blocks.load(number)
        span = block // row_blocks
        first_row = (block - span * row_blocks) * self.rows
        begin, end = self.begins.load(number), self.ends.load(number)
        aligned = begin - begin % batch
        begin, end = (begin - aligned).to("i32"), (end - aligned).to("i32")
        rows = (num_rows - first_row).at_most(self.rows)
        return Task(aligned, begin, end, first_row, span * self.span, rows)

    @property
    def has_many_edges(self) -> bool:
        """Whether rows have so many edges that large blocks pay off."""
        return self.rows > _FEW_ROWS

    def row_at(self, place: Value) -> Value:
        """Returns the number of the row at a place, in a kernel."""
        return place if self.row_order is None else self.row_order.load(place)


@dataclass(frozen=True)
class Task:
    """The entries of a task, which belong to one block of rows.

    Attributes:
      aligned: start of the batch with the first entry; entries are counted from there.
      begin: the first entry, i32.
      end: one past the last entry, i32.
      first_row: place of the block's first row, i32.
      first_sender: first sender of the span, i32.
      rows: rows of the block, i32; the last block may have fewer than the others.
    """

    aligned: Value
    begin: Value
    end: Value
    first_row: Value
    first_sender: Value
    rows: Value


@dataclass(frozen=True)
class BlocksTile:
    """Division of a task among the warps of a block.

    Attributes:
      lanes: lanes that share an entry; each has four kept columns.
      warps: warps of a block.
      held: rows that are in shared memory at once.
      batch: entries that are taken together: one load of them, or a whole sector of memory.
      prefetches: whether the sums of a batch are prefetched to the second-level cache, one batch
        ahead.
    """

    lanes: int
    warps: int
    held: int
    batch: int
    prefetches: bool

    @classmethod
    def choose(
        cls, chip: Chip, rows: int, senders: int, k: int, dim: int, itemsize: int
    ) -> BlocksTile:
        """The one heuristic: all rows of a block at once if shared memory has room for them.

        Args:
          chip: the GPU.
          rows: rows of a block.
          senders: senders of a tile.
          k: kept columns of a row.
          dim: columns of a dense row.
          itemsize: bytes of an entry of ``dy``.
        """
        lanes = next(n for n in (4, 8, 16, 32) if 4 * n >= k or n == 32) if k % 4 == 0 else 8
        row_bytes = dim * itemsize + (4 if itemsize < 4 else 0)
        # One more row is zero; arrays in shared memory begin at multiples of 16 bytes.
        fitting = (chip.shared_bytes - 32) // row_bytes - 1
        held, prefetches = (
            max(1, min(fitting, rows)),
            senders * k * 4 > _CACHE_SHARE * chip.cache_bytes,
        )
        if rows > _FEW_ROWS:
            return cls(lanes, 32, held, 2 * _LOADED, prefetches=False)
        return cls(lanes, 8, held, _LOADED, prefetches)

    def shared(self, dim: int, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shared memory of a block: rows of ``dy``, and scales for narrow dtypes."""
        shared = {"held_rows": jax.ShapeDtypeStruct((self.held + 1, dim), dtype)}
        if dtype != jnp.float32:
            shared["held_scales"] = jax.ShapeDtypeStruct((self.held + 1,), jnp.float32)
        return shared


def add_to_sums(
    graph: EdgeBlocks, columns: jax.Array, dy: jax.Array, tile: BlocksTile | None = None
) -> jax.Array:
    """Computes ``sums_jt = Σ_i w_ij r_i dy_i[column_jt]``; atomic, so its last bits vary.

    Args:
      graph: the edges; without ``col_scale``, which is not used.
      columns: [cols, k], uint8 or uint16.
      dy: [rows, dim], float32 or bfloat16.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [cols, k] float32.
    """
    k, (_, dim) = columns.shape[1], dy.shape
    tile = tile or BlocksTile.choose(
        Chip.current(), graph.rows, graph.senders, k, dim, dy.dtype.itemsize
    )
    return simt.launch(
        _AddToSums(tile),
        (graph, columns, dy),
        [],
        name="maxk_spmm_grad_values_blocks",
        grid=simt.Grid(graph.blocks.shape[-1], tile.warps),
        block_shared=tile.shared(dim, dy.dtype),
        updated=[jnp.zeros(columns.shape, jnp.float32)],
    )[0]


@dataclass(frozen=True)
class _AddToSums:
    """Each block takes a task: it loads rows of ``dy`` into shared memory and walks the entries."""

    tile: BlocksTile

    def __call__(
        self,
        warp: Warp,
        inputs,
        sums: Array,
        held_rows: Array,
        held_scales: Array | None = None,
    ) -> None:
        graph, columns, dy = inputs
        task = graph.task(warp.block, dy.shape[0], self.tile.batch)
        scales = held_scales if graph.row_scale is not None else None
        rows = _HeldRows(warp, held_rows, scales)

        def take(first):
            count = task.rows if first is None else (task.rows - first).at_most(self.tile.held)
            rows.load(graph, dy, task.first_row + (0 if first is None else first), count)
            warp.barrier()
            _Runs(self.tile, warp, graph, task, rows, first, count).add(columns, sums)

        def take_in_passes(first, _):
            warp.barrier()
            take(first)

        def run():
            rows.clear_last()
            if self.tile.held >= graph.rows:
                take(None)
            else:
                warp.loop(warp.i32(0), task.rows, self.tile.held, (), take_in_passes)

        warp.when(task.begin < task.end, run)


@dataclass(frozen=True)
class _HeldRows:
    """Rows of ``dy`` in the shared memory of a block, followed by a row of zeros.

    float32 rows are stored times their scales. Rows of narrower types would be rounded twice, so
    their scales are stored separately, in ``scales``.
    """

    warp: Warp
    rows: Array
    scales: Array | None

    @property
    def last(self) -> int:
        """Index of the row of zeros."""
        return self.rows.shape[0] - 1

    def clear_last(self) -> None:
        """Writes the row of zeros."""
        warp, zero, dim = self.warp, self.warp.f32(0.0), self.rows.shape[1]
        first = self.last * dim
        warp.loop(warp.thread, dim, warp.threads, (), lambda i, _: self.rows.store(first + i, zero))
        scales = self.scales
        if scales is not None:
            warp.when(warp.thread == 0, lambda: scales.store(self.last, zero))

    def load(self, graph: EdgeBlocks, dy: Array, first: Value, count: Value) -> None:
        """Copies the rows of ``count`` places from ``first`` on, by all threads of the block."""
        warp, dim = self.warp, self.rows.shape[1]
        entries = math.gcd(dim, 16 // dy.itemsize)  # entries of one load
        source, row_scale = dataclasses.replace(dy, streamed=True), graph.row_scale
        of_row = dim // entries
        loads = count * of_row

        def copy(begin, _):
            places = [begin + s * warp.threads for s in range(_ROWS_AHEAD)]
            # Past the end, the last entries are read again and not stored.
            inner = [place.at_most(loads - 1) for place in places]
            rows = [graph.row_at(first + at // of_row) for at in inner]
            read = [
                source.row(row).load_words(at % of_row * entries, entries)
                for row, at in zip(rows, inner, strict=True)
            ]
            if row_scale is not None and self.scales is None:
                factors = [row_scale.load(row) for row in rows]
                read = [
                    [(factor * word.bits("f32")).bits("u32") for word in words]
                    for factor, words in zip(factors, read, strict=True)
                ]
            for place, words in zip(places, read, strict=True):

                def store(place=place, words=words):
                    self.rows.store_words(place * entries, words, entries)

                warp.when(place < loads, store)

        warp.loop(warp.thread, loads, _ROWS_AHEAD * warp.threads, (), copy)
        scales = self.scales
        if scales is not None and row_scale is not None:

            def copy_scale(at, _):
                scales.store(at, row_scale.load(graph.row_at(first + at)))

            warp.loop(warp.thread, count, warp.threads, (), copy_scale)


@dataclass(frozen=True)
class _Runs:
    """A group of lanes that takes runs of a task's entries, a batch at a time.

    Values of neighbouring entries with the same sender are added up before they are added to the
    sums.

    Attributes:
      tile: how the warps share the work.
      warp: the warp of these lanes.
      graph: the edges of the graph.
      task: the task whose entries are added.
      rows: the rows that are in shared memory.
      first: the first of these rows within the block, or None if all rows of the block are there.
      count: how many rows are in shared memory.
    """

    tile: BlocksTile
    warp: Warp
    graph: EdgeBlocks
    task: Task
    rows: _HeldRows
    first: Value | None
    count: Value

    def add(self, columns: Array, sums: Array) -> None:
        """Adds the task's entries to the sums."""
        warp, k, end = self.warp, columns.shape[1], self.task.end
        lanes, batch = self.tile.lanes, self.tile.batch
        groups, group = warp.threads // lanes, warp.thread // lanes
        # Runs of equal length, so that no group is idle while others take the last ones.
        share = (end + (groups - 1)) // groups
        rounds = (share + (_LONGEST_RUN - 1)) // _LONGEST_RUN
        length = ((share + (rounds - 1)) // rounds + (batch - 1)) // batch * batch
        first_sender = self.task.first_sender.to("i64") * k

        def take_columns(at, _):
            begin = first_sender + at
            four = _FourColumns(warp, columns.shifted(begin), sums.shifted(begin), at, k)

            def take_run(first):
                self._add_run(four, first, (first + length).at_most(end))
                return first + length * groups

            warp.while_loop(lambda first: first < end, take_run, group * length)

        at = warp.thread % lanes * 4
        if k == 4 * lanes:
            take_columns(at, ())
        else:
            warp.loop(at, k, 4 * lanes, (), take_columns)

    def _add_run(self, four: _FourColumns, first: Value, end: Value) -> None:
        """Adds the entries of a run."""
        warp, task, size = self.warp, self.task, self.tile.batch
        entries = dataclasses.replace(self.graph.entries, streamed=size == _LOADED)
        entries = entries.shifted(task.aligned)
        last = (task.end - 1) // size * size
        ahead = 1 + self.tile.prefetches  # batches whose entries are being loaded

        def load(batch):
            loaded = range(0, size, _LOADED)
            return [word for s in loaded for word in entries.load_words(batch + s, _LOADED)]

        def take(batch, carry):
            (words, *coming), last_sender, kept, sender, totals = carry
            batch_entries = self._mask(batch, words)
            senders = [_sender_of(entry) for entry in batch_entries]
            # If rows come in passes, the totals may belong to an earlier sender: that of the last
            # entry whose row is held.
            before = [last_sender, *senders[:-1]]
            # All loads come before the first use of one of them.
            coming.append(load((batch + ahead * size).at_most(last)))
            if self.tile.prefetches:
                self._prefetch(four, (batch + size).at_most(last), coming[0])
            # Lanes that have the columns already read those of sender 0, which costs little.
            is_new = [of != other for of, other in zip(senders, before, strict=True)]
            places = [warp.select(new, of, 0) for new, of in zip(is_new, senders, strict=True)]
            read = [four.load(place) for place in places]
            weights = self._weights(batch)
            for entry, new, found, weight in zip(batch_entries, is_new, read, weights, strict=True):
                kept = [warp.select(new, *pair) for pair in zip(found, kept, strict=True)]
                sender, totals = self._add_entry(four, entry, kept, weight, sender, totals)
            return coming, senders[-1], kept, sender, totals

        loaded = [load(first), *(load((first + s * size).at_most(last)) for s in range(1, ahead))]
        if self.tile.prefetches:
            self._prefetch(four, first, loaded[0])
        sender = _sender_of(self._mask(first, loaded[0])[0])
        carry = loaded, sender, four.load(sender), sender, [warp.f32(0.0)] * 4
        *_, sender, totals = warp.loop(first, end, size, carry, take)
        four.add(sender, totals)

    def _prefetch(self, four: _FourColumns, batch: Value, words: list[Value]) -> None:
        """Prefetches the sums of a batch, which may belong to the run of another group."""
        senders = [_sender_of(entry) for entry in self._mask(batch, words)]
        four.prefetch(senders[0])
        for of, before in zip(senders[1:], senders[:-1], strict=True):
            self.warp.when(of != before, lambda of=of: four.prefetch(of))

    def _exist(self, batch: Value) -> list[Value]:
        """Returns which entries of a batch belong to the task."""
        from_begin, size = batch - self.task.begin, self.task.end - self.task.begin
        return [(from_begin + s).bits("u32") < size.bits("u32") for s in range(self.tile.batch)]

    def _mask(self, batch: Value, words: list[Value]) -> list[Value]:
        """Returns the entries of a batch; outside of the task, the row of zeros and sender 0."""
        outside = self.rows.last if self.first is None else _NO_ROW
        exist = self._exist(batch)
        return [self.warp.select(e, word, outside) for e, word in zip(exist, words, strict=True)]

    def _weights(self, batch: Value) -> list[Value | None]:
        """Returns the weights of a batch, zero outside of the task."""
        graph, task = self.graph, self.task
        if graph.weights is None:
            return [None] * self.tile.batch
        edges, last = graph.edges.shifted(task.aligned), task.end - 1
        places = [
            edges.load((batch + s).at_least(task.begin).at_most(last))
            for s in range(self.tile.batch)
        ]
        weights = [graph.weights.load(place) for place in places]
        exist = self._exist(batch)
        return [self.warp.select(e, w, 0.0) for e, w in zip(exist, weights, strict=True)]

    def _add_entry(self, four, entry, words, weight, sender, totals):
        """Adds an entry to the totals; returns its sender and the totals.

        If the sender has changed, the totals before are added to the sums first.
        """
        warp, row, of = self.warp, (entry & _NO_ROW).bits("i32"), _sender_of(entry)
        if self.first is not None:
            row = row - self.first
            is_held = row.bits("u32") < self.count.bits("u32")
            row, of = warp.select(is_held, row, self.rows.last), warp.select(is_held, of, sender)
            # The weight is also zeroed, since that of a row that is not held may not be finite.
            weight = None if weight is None else warp.select(is_held, weight, 0.0)

        def flush(totals):
            four.add(sender, totals)
            return [warp.f32(0.0)] * 4

        totals = warp.update_when(of != sender, totals, flush)
        held = self.rows.rows.row(row)
        values = [held.load(column) for column in four.unpack(words)]
        factors = [None if self.rows.scales is None else self.rows.scales.load(row), weight]
        factors = [factor for factor in factors if factor is not None]
        if not factors:
            return of, [total + value for total, value in zip(totals, values, strict=True)]
        factor = factors[0] if len(factors) == 1 else factors[0] * factors[1]
        return of, [warp.fma(factor, v, total) for v, total in zip(values, totals, strict=True)]


def _sender_of(entry: Value) -> Value:
    """Returns the sender of an entry within the span, i32."""
    return (entry >> _ROW_BITS).bits("i32")


@dataclass(frozen=True)
class _FourColumns:
    """A lane's four columns of every sender of a span, and their sums.

    Attributes:
      warp: the warp of the lane.
      columns: kept columns, from the first of the four of the span's first sender on.
      sums: sums, from the first of the four of the span's first sender on.
      at: index of the first of the four among a row's k columns.
      k: kept columns of a row; if k is no multiple of four, a row may end before the fourth.
    """

    warp: Warp
    columns: Array
    sums: Array
    at: Value
    k: int

    def load(self, sender: Value) -> list[Value]:
        """Loads words with a sender's columns.

        Past the end of the row, its last column is repeated.
        """
        row = self.columns.row(sender)
        if self.k % 4 == 0:
            return row.load_words(0, 4)
        behind = self.k - 1 - self.at
        return [row.load_words(behind.at_most(i))[0] for i in range(4)]

    def prefetch(self, sender: Value) -> None:
        """Prefetches the sums of a sender."""
        self.sums.row(sender).prefetch(0)

    def unpack(self, words: list[Value]) -> list[Value]:
        """Returns the four columns that ``load`` loaded, i32."""
        if self.k % 4 == 0:
            return [self.columns.unpack(words, i) for i in range(4)]
        return [self.columns.unpack([word], 0) for word in words]

    def add(self, sender: Value, totals: list[Value]) -> None:
        """Adds totals to the sums of a sender."""
        row = self.sums.row(sender)
        if self.k % 4 == 0:
            row.add(0, *totals)
            return
        for i, total in enumerate(totals):
            self.warp.when(self.at + i < self.k, lambda i=i, total=total: row.add(i, total))
