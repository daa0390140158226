"""Softmax over the edges of each row, and its gradient.

Both sum over a row, and then make a number of each of its edges. A warp keeps what it has read of a
piece in shared memory in between, as far as that goes. Rows of several pieces leave what was summed
of each; a second kernel puts that together and finishes them.
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

# How many edges a lane reads before it uses them, where a row has more than so many for each lane.
_AHEAD = ((8, 8), (4, 2), (2, 1))
# Of rows so long as much as there is room for waits in shared memory to be used once more. The
# rest, and shorter rows, is read again, from the first-level cache if it has it.
_KEPT_FROM_EDGES = 128
_KEPT_BYTES = 8 * 1024  # that a warp has in shared memory at most


@dataclass(frozen=True)
class SoftmaxTile:
    """How the lanes of a warp share a piece.

    Attributes:
      lanes: that have an edge, a power of two.
      entries: heads that a lane has of an edge, which lie in as many bytes as they are aligned to.
      ahead: edges that a lane reads before it uses them.
      kept: times that it does so, whose numbers stay in shared memory.
      warps: of a block.
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
        """The one heuristic: 16 bytes a lane, less where rows are short; see ``_AHEAD``."""
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
        # Rows half as long again as the average stay in shared memory.
        times = -(-3 * average // (2 * at_once * ahead))
        room = _KEPT_BYTES // (4 * LANES * ahead * entries * arrays)
        return cls(lanes, entries, ahead, min(times, room))

    @staticmethod
    def _lanes(heads: int, entries: int) -> int:
        return min(1 << (heads // entries - 1).bit_length(), LANES)

    def slices(self, heads: int) -> int:
        """Passes over the edges, each for other heads."""
        return -(-heads // (self.lanes * self.entries))


def segment_softmax(graph: Pieces, logits: jax.Array, tile: SoftmaxTile | None = None) -> jax.Array:
    """``exp(l_e) / Σ exp(l_e')`` over the edges of a row.

    Args:
      graph: of which only the structure plays a part.
      logits: [edges, heads], float32 or bfloat16.
      tile: by default what suits the shapes.

    Returns:
      As ``logits``; zero in padding slots.
    """
    return _by_row(Softmax(), graph, [logits], tile, "segment_softmax")


def grad_logits(
    graph: Pieces, probabilities: jax.Array, dy: jax.Array, tile: SoftmaxTile | None = None
) -> jax.Array:
    """``p_e (dy_e - Σ p_e' dy_e')`` over the edges of a row.

    Args:
      graph: as in ``segment_softmax``.
      probabilities: [edges, heads], what that returned.
      dy: the gradient to it, likewise.
      tile: by default what suits the shapes.

    Returns:
      As ``dy``; zero in padding slots.
    """
    return _by_row(SoftmaxGradient(), graph, [probabilities, dy], tile, "segment_softmax_grad")


def _by_row(
    rule: Rule, graph: Pieces, arrays: list[jax.Array], tile: SoftmaxTile | None, name: str
) -> jax.Array:
    """Pieces first, then what is left of rows of several."""
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
    """A warp's part of the edges of a piece, and what its lanes do with them.

    Neighbouring lanes have the heads of an edge; groups of them have an edge each.

    Attributes:
      rule: what is made of them.
      tile: how lanes share them.
      warp: the warp.
      arrays: numbers of the edges, [edges, heads] each.
    """

    rule: Rule
    tile: SoftmaxTile
    warp: Warp
    arrays: Sequence[Array]

    @property
    def groups(self) -> int:
        """Edges that the lanes have at once."""
        return LANES // self.tile.lanes

    @property
    def group(self) -> Value:
        """That the lane belongs to."""
        return self.warp.lane // self.tile.lanes

    @property
    def head(self) -> Value:
        """The first of the lane's."""
        lane = self.warp.slice * self.tile.lanes + self.warp.lane % self.tile.lanes
        return lane * self.tile.entries

    @property
    def has_heads(self) -> Value:
        """Whether it is one."""
        return self.head < self.arrays[0].shape[-1]

    def edges(self, piece: Piece, time: Value) -> list[Value]:
        """That the lane reads at some time, behind one another; some may lie behind the piece."""
        first = piece.begin + (time * (self.groups * self.tile.ahead) + self.group)
        return [first + i * self.groups for i in range(self.tile.ahead)]

    def times(self, piece: Piece) -> Value:
        """How often the lanes read."""
        step = self.groups * self.tile.ahead
        return ((piece.end - piece.begin + (step - 1)) // step).to("i32")

    def read(self, piece: Piece, time: Value) -> list[list[list[Value]]]:
        """Numbers by edge, head and array; of what lies behind the piece those that add nothing."""
        warp, tile = self.warp, self.tile
        # Lanes without heads read the first, and store nothing.
        head = warp.select(self.has_heads, self.head, 0)
        edges = self.edges(piece, time)
        words = [
            [array.row(edge.least(piece.end - 1)).load_words(head, tile.entries) for edge in edges]
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
        """The sums of each head with what was read."""
        return [
            self.rule.add(self.warp, sums[head], [edge[head] for edge in numbers])
            for head in range(self.tile.entries)
        ]

    def store(self, piece: Piece, time: Value, numbers, finished, results: Array) -> None:
        """Writes what is made of what was read."""
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
        """Puts what was read to where ``kept_at`` finds it."""
        for at, number in enumerate(_flat(numbers)):
            kept.store(self._place(time, at), number)

    def load_kept(self, kept: Shared, time: Value) -> list[list[list[Value]]]:
        """What this lane read at some time."""
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
        """Sets the entries behind the last edge to zero."""
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
    """Whole rows; of pieces of longer ones the sums."""

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

                warp.loop(warp.i32(0), times.least(tile.kept), 1, (), from_kept)
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
    """Rows of several pieces: a full piece a warp, the last one with what is left of the row."""

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
                others = sums_of(graph.slot(warp, begin, row_end.least(begin + size)))
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
            # The longest come first.
            piece = graph.get(warp, number.least(num_pieces - 1))
            return (number < num_pieces) & (piece.end - piece.begin == size)

        def take(number):
            piece = graph.get(warp, number)
            # A row of just one full piece is done.
            warp.when(piece.slot >= 0, lambda: finish(piece))
            return number + warp.count

        warp.while_loop(is_full, take, warp.number)


def _store_floats(array: Array, index: Value, values: list[Value]) -> None:
    """Neighbours, 16 bytes at once."""
    for i in range(0, len(values), 4):
        array.store(index + i, *values[i : i + 4])


def _load_floats(array: Array, index: Value, count: int) -> list[Value]:
    """Neighbours, 16 bytes at once."""
    values = []
    for i in range(0, count, 4):
        entries = min(count, 4)
        words = array.load_words(index + i, entries)
        values += [array.unpack(words, entry) for entry in range(entries)]
    return values
