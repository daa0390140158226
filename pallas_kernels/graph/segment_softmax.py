"""Softmax over the edges of each row, and its gradient.

Both compute sums over a row, and then a result for each of its edges. In between, a warp keeps what
it has read of a piece in shared memory, as far as it fits. Rows of several pieces write the
sums of each piece to a workspace, and a second kernel combines them and computes the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Piece, Pieces
from pallas_kernels.graph.softmax_rules import Rule, Softmax, SoftmaxGradient
from pallas_kernels.simt.values import Array, Shared, Value
from pallas_kernels.simt.warp import LANES, Warp

# Pairs: how many edges a lane reads before it uses them, and the edges of a row for each
# group of lanes above which this is used.
_AHEAD = ((8, 8), (4, 2), (2, 1))
# Rows of at least this average length keep the numbers in shared memory for their second use, as
# far as they fit. Other numbers are read again, mostly from the first-level cache.
_KEPT_FROM_EDGES = 128
_KEPT_BYTES = 8 * 1024  # shared memory of a warp at most


@dataclass(frozen=True)
class SoftmaxTile:
    """Division of a piece of a row among the lanes of a warp.

    Attributes:
      lanes: lanes that share an edge, a power of two.
      entries: heads of an edge that a lane has; it loads them at once.
      ahead: edges that a lane reads before it uses them.
      kept: how many such batches of a piece stay in shared memory.
      warps: warps of a block.
    """

    lanes: int
    entries: int
    ahead: int
    kept: int
    warps: int = 8

    @classmethod
    def choose(
        cls, chip: Chip, rows: int, edges: int, heads: int, arrays: int, itemsize: int
    ) -> SoftmaxTile:
        """The one heuristic: 16 bytes a lane, fewer where rows are short; batches by ``_AHEAD``."""
        average = edges // rows + 1
        entries = min(16 // itemsize, heads & -heads)
        while entries > 1 and average * cls._lanes(heads, entries) < 4 * LANES:
            entries //= 2
        lanes = cls._lanes(heads, entries)
        at_once = LANES // lanes
        enough = (n for n, times in _AHEAD if average > times * at_once and n * entries <= 32)
        ahead = next(enough, 1)
        if average < _KEPT_FROM_EDGES:
            return cls(lanes, entries, ahead, 0)
        # Rows of up to one and a half times the average length stay in shared memory.
        times = -(-3 * average // (2 * at_once * ahead))
        room = _KEPT_BYTES // (4 * LANES * ahead * entries * arrays)
        return cls(lanes, entries, ahead, min(times, room))

    @staticmethod
    def _lanes(heads: int, entries: int) -> int:
        return min(1 << (heads // entries - 1).bit_length(), LANES)

    def slices(self, heads: int) -> int:
        """Returns how many passes over the edges there are, each for other heads."""
        return -(-heads // (self.lanes * self.entries))


def segment_softmax(graph: Pieces, logits: jax.Array, tile: SoftmaxTile | None = None) -> jax.Array:
    """Computes ``exp(l_e) / Σ exp(l_e')`` over the edges of each row.

    Args:
      graph: the graph; its weights and scales are not used.
      logits: [edges, heads], float32 or bfloat16.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [edges, heads], of the dtype of ``logits``; zero in padding slots.
    """
    return _by_row(Softmax(), graph, [logits], tile, "segment_softmax")


def grad_logits(
    graph: Pieces, probabilities: jax.Array, dy: jax.Array, tile: SoftmaxTile | None = None
) -> jax.Array:
    """Computes ``p_e (dy_e - Σ p_e' dy_e')`` over the edges of each row.

    Args:
      graph: the graph; its weights and scales are not used.
      probabilities: [edges, heads], the result of ``segment_softmax``.
      dy: [edges, heads], the gradient to the probabilities.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [edges, heads], of the dtype of ``dy``; zero in padding slots.
    """
    return _by_row(SoftmaxGradient(), graph, [probabilities, dy], tile, "segment_softmax_grad")


def _by_row(
    rule: Rule, graph: Pieces, arrays: list[jax.Array], tile: SoftmaxTile | None, name: str
) -> jax.Array:
    """Runs the kernel over all pieces, then the one over rows of several pieces."""
    like, heads = arrays[-1], arrays[-1].shape[-1]
    if like.size == 0 or graph.num_rows == 0:
        return jnp.zeros_like(like)
    if tile is None:
        shape = graph.num_rows, graph.num_edges, heads
        tile = SoftmaxTile.choose(Chip.current(), *shape, rule.arrays, like.dtype.itemsize)
    partial = graph.partial_sums(heads) * rule.sums
    grid = simt.Grid(graph.blocks(tile.warps), tile.warps, tile.slices(heads))
    numbers = LANES * tile.kept * tile.ahead * tile.entries * rule.arrays
    result, *sums = simt.launch(
        _PiecesKernel(rule, tile),
        (graph, arrays),
        [jax.ShapeDtypeStruct(like.shape, like.dtype), *partial],
        name=name,
        grid=grid,
        shared={"kept": ("f32", numbers)},
    )
    if not sums:
        return result
    return simt.launch(
        _LongRowsKernel(rule, tile),
        (graph, arrays, sums),
        [],
        name=f"{name}_of_long_rows",
        grid=dataclasses.replace(grid, blocks=graph.full_blocks(tile.warps)),
        updated=[result],
    )[0]


@dataclass(frozen=True)
class _Lanes:
    """Reads, sums and stores of the edges of a piece by the lanes of a warp.

    Neighbouring lanes have the heads of one edge, and each such group of lanes has another edge.

    Attributes:
      rule: the sums and results to compute.
      tile: how the lanes share a piece.
      warp: the warp of these lanes.
      arrays: the numbers of the edges, [edges, heads] each.
    """

    rule: Rule
    tile: SoftmaxTile
    warp: Warp
    arrays: Sequence[Array]

    @property
    def groups(self) -> int:
        """Number of edges that the warp has at once."""
        return LANES // self.tile.lanes

    @property
    def group(self) -> Value:
        """Number of the group that the lane belongs to."""
        return self.warp.lane // self.tile.lanes

    @property
    def head(self) -> Value:
        """The first head of the lane."""
        lane = self.warp.slice * self.tile.lanes + self.warp.lane % self.tile.lanes
        return lane * self.tile.entries

    @property
    def has_heads(self) -> Value:
        """Whether the lane has any heads, or only padding."""
        return self.head < self.arrays[0].shape[-1]

    def edges(self, piece: Piece, time: Value) -> list[Value]:
        """Returns the edges of a batch that the lane reads.

        Some may be past the end of the piece.
        """
        first = piece.begin + (time * (self.groups * self.tile.ahead) + self.group)
        return [first + i * self.groups for i in range(self.tile.ahead)]

    def times(self, piece: Piece) -> Value:
        """Returns how many batches the lanes read of a piece."""
        step = self.groups * self.tile.ahead
        return ((piece.end - piece.begin + (step - 1)) // step).to("i32")

    def read(self, piece: Piece, time: Value) -> list[list[list[Value]]]:
        """Reads a batch: numbers by edge, head and array.

        Past the end of the piece the numbers are neutral.
        """
        warp, tile = self.warp, self.tile
        # Lanes without heads read the first, and store nothing.
        head = warp.select(self.has_heads, self.head, 0)
        edges = self.edges(piece, time)
        words = [
            [
                array.row(edge.at_most(piece.end - 1)).load_words(head, tile.entries)
                for edge in edges
            ]
            for array in self.arrays
        ]

        def number(array, at, head):
            value = self.arrays[array].unpack(words[array][at], head)
            return warp.select(edges[at] < piece.end, value, self.rule.neutral[array])

        return [
            [[number(a, at, h) for a in range(self.rule.arrays)] for h in range(tile.entries)]
            for at in range(tile.ahead)
        ]

    def add(self, sums: list[list[Value]], numbers: list[list[list[Value]]]) -> list[list[Value]]:
        """Adds the numbers of a batch to the sums of each head."""
        return [
            self.rule.add(self.warp, sums[head], [edge[head] for edge in numbers])
            for head in range(self.tile.entries)
        ]

    def store(self, piece: Piece, time: Value, numbers, finished, results: Array) -> None:
        """Computes and stores the results of a batch of edges."""
        warp = self.warp
        for edge, heads in zip(self.edges(piece, time), numbers, strict=True):
            made = [
                self.rule.result(warp, of_head, read)
                for of_head, read in zip(finished, heads, strict=True)
            ]
            warp.when(
                (edge < piece.end) & self.has_heads,
                lambda edge=edge, made=made: results.row(edge).store(self.head, *made),
            )

    def store_kept(self, kept: Shared, time: Value, numbers) -> None:
        """Keeps the numbers of a batch in shared memory, from where ``load_kept`` loads them."""
        for at, number in enumerate(_flat(numbers)):
            kept.store(self._place(time, at), number)

    def load_kept(self, kept: Shared, time: Value) -> list[list[list[Value]]]:
        """Loads the numbers of a batch that this lane has kept in shared memory."""
        tile, arrays = self.tile, self.rule.arrays

        def number(at, head, array):
            return kept.load(self._place(time, (at * tile.entries + head) * arrays + array))

        return [
            [[number(at, head, a) for a in range(arrays)] for head in range(tile.entries)]
            for at in range(tile.ahead)
        ]

    def _place(self, time: Value, at: int) -> Value:
        each = self.tile.ahead * self.tile.entries * self.rule.arrays
        return (time * each + at) * LANES + self.warp.lane

    def zero_padding(self, graph: Pieces, results: Array) -> None:
        """Sets the results past the last edge to zero."""
        warp = self.warp
        zeros = [warp.f32(0.0)] * self.tile.entries
        first = graph.indptr.load(graph.num_rows) + (warp.number * self.groups + self.group)

        def store(edge, _):
            warp.when(self.has_heads, lambda: results.row(edge).store(self.head, *zeros))

        warp.loop(first, graph.num_edges, warp.count * self.groups, (), store)


def _flat(numbers: list[list[list[Value]]]) -> list[Value]:
    return [number for heads in numbers for of_head in heads for number in of_head]


@dataclass(frozen=True)
class _PiecesKernel:
    """Computes the results of rows that are one piece, and the partial sums of other pieces."""

    rule: Rule
    tile: SoftmaxTile

    def __call__(self, warp: Warp, inputs, results: Array, *partial: Array, kept: Shared) -> None:
        graph, arrays = inputs
        rule, tile = self.rule, self.tile
        lanes = _Lanes(rule, tile, warp, arrays)

        def take(piece):
            times = lanes.times(piece)

            def read(time, sums):
                numbers = lanes.read(piece, time)
                warp.when(time < tile.kept, lambda: lanes.store_kept(kept, time, numbers))
                return lanes.add(sums, numbers)

            nothing = [rule.start(warp) for _ in range(tile.entries)]
            sums = warp.loop(warp.i32(0), times, 1, nothing, read)
            sums = [rule.reduce_lanes(warp, of_head, tile.lanes) for of_head in sums]

            def finish():
                finished = [rule.finalize(warp, of_head) for of_head in sums]

                def from_kept(time, _):
                    numbers = lanes.load_kept(kept, time)
                    lanes.store(piece, time, numbers, finished, results)

                def from_memory(time, _):
                    lanes.store(piece, time, lanes.read(piece, time), finished, results)

                warp.loop(warp.i32(0), times.at_most(tile.kept), 1, (), from_kept)
                warp.loop(warp.i32(tile.kept), times, 1, (), from_memory)

            def leave():
                for number, array in enumerate(partial):
                    heads = [of_head[number] for of_head in sums]
                    _store_floats(array.row(piece.slot), lanes.head, heads)

            if not partial:
                return finish()
            warp.when(piece.slot < 0, finish)
            warp.when((piece.slot >= 0) & (lanes.group == 0) & lanes.has_heads, leave)

        graph.for_each_found_by_lanes(warp, take)
        lanes.zero_padding(graph, results)


@dataclass(frozen=True)
class _LongRowsKernel:
    """Computes the results of rows of several pieces from their partial sums.

    Each warp takes a full piece. The one with the last full piece of a row also takes the rest of
    the row.
    """

    rule: Rule
    tile: SoftmaxTile

    def __call__(self, warp: Warp, inputs, results: Array) -> None:
        graph, arrays, partial = inputs
        rule, size = self.rule, graph.edges_per_piece
        lanes = _Lanes(rule, self.tile, warp, arrays)
        head = warp.select(lanes.has_heads, lanes.head, 0)

        def sums_of(slot):
            parts = [_load_floats(a.row(slot), head, self.tile.entries) for a in partial]
            return [list(of_head) for of_head in zip(*parts, strict=True)]

        def finish(piece):
            row_begin, row_end = graph.indptr.load(piece.row), graph.indptr.load(piece.row + 1)

            def merge(begin, sums):
                others = sums_of(graph.slot(warp, begin, row_end.at_most(begin + size)))
                return [rule.merge(warp, *both) for both in zip(sums, others, strict=True)]

            nothing = [rule.start(warp) for _ in range(self.tile.entries)]
            own = row_begin + lanes.group * size
            sums = warp.loop(own, row_end, lanes.groups * size, nothing, merge)
            sums = [rule.reduce_lanes(warp, of_head, self.tile.lanes) for of_head in sums]
            finished = [rule.finalize(warp, of_head) for of_head in sums]
            is_last_full_piece = row_end - piece.end < size
            whole = piece._replace(end=warp.select(is_last_full_piece, row_end, piece.end))

            def store(time, _):
                lanes.store(whole, time, lanes.read(whole, time), finished, results)

            warp.loop(warp.i32(0), lanes.times(whole), 1, (), store)

        num_pieces = graph.counts.load(1)

        def is_full(number):
            # The longest pieces come first, so the loop ends at the first one that is not full.
            piece = graph.get(warp, number.at_most(num_pieces - 1))
            return (number < num_pieces) & (piece.end - piece.begin == size)

        def take(number):
            piece = graph.get(warp, number)
            # A row of exactly one full piece was finished by the first kernel.
            warp.when(piece.slot >= 0, lambda: finish(piece))
            return number + warp.count

        warp.while_loop(is_full, take, warp.number)


def _store_floats(array: Array, index: Value, values: list[Value]) -> None:
    """Stores neighbouring float32 values, 16 bytes at a time."""
    for i in range(0, len(values), 4):
        array.store(index + i, *values[i : i + 4])


def _load_floats(array: Array, index: Value, count: int) -> list[Value]:
    """Loads neighbouring float32 values, 16 bytes at a time."""
    values = []
    for i in range(0, count, 4):
        entries = min(count, 4)
        words = array.load_words(index + i, entries)
        values += [array.unpack(words, entry) for entry in range(entries)]
    return values
