"""Reductions over the edges of each row, several of them in one pass over the neighbours.

A warp takes a piece of a row, and each lane some columns. Rows of several pieces write the states
of their pieces to a workspace, and a second kernel merges the pieces of such a row in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.aggregate.parts import Number, Part, State, WarpMaths, parts_of
from pallas_kernels.arguments.aggregate import Form, Statistics
from pallas_kernels.arguments.reductions import REDUCTIONS
from pallas_kernels.attention.forward import for_each_long_row
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Piece, Pieces
from pallas_kernels.graph.spmm import SpmmTile
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

_DTYPES = {"float": jnp.float32, "int": jnp.int32}


def forward(
    graph: Pieces, x: jax.Array, form: Form, keep: bool, tile: SpmmTile | None = None
) -> tuple[jax.Array, Statistics]:
    """Reduces the numbers of the edges of each row.

    Args:
      graph: the graph; its weights and scales are not used.
      x: [cols, dim], or [edges, dim] if the form says so, float32, bfloat16 or float16.
      form: the static description.
      keep: whether to return what the gradients need.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      The reductions side by side, [rows, reductions * dim], of the dtype of ``x``, and the
      statistics of ``form.kept``, all None without ``keep``.
    """
    rows, dim = graph.num_rows, x.shape[-1]
    kept = form.kept() if keep else {}
    shape = rows, len(form.reductions) * dim
    outputs = [jax.ShapeDtypeStruct(shape, x.dtype)]
    outputs += [jax.ShapeDtypeStruct((rows, dim), _DTYPES[kind]) for kind in kept.values()]
    if rows * dim == 0 or x.shape[0] == 0 or graph.num_edges == 0:
        y, *arrays = (jnp.zeros(o.shape, o.dtype) for o in outputs)
        pairs = zip(kept, arrays, strict=True)
        return y, Statistics.of_kept({f: ~a if form.is_holder(f) else a for f, a in pairs})
    if tile is None:
        size = rows, x.shape[0], graph.num_edges, dim, x.dtype.itemsize
        tile = SpmmTile.choose(Chip.current(), *size)
    rule = _Rule(form, keep)
    partial = [spec for _ in rule.kinds for spec in graph.partial_sums(dim)]
    made = simt.launch(
        _Forward(rule, tile),
        (graph, x),
        [*outputs, *partial],
        name="aggregate",
        grid=simt.Grid(
            graph.blocks(tile.warps), tile.warps, -(-dim // (tile.lanes * tile.entries))
        ),
    )
    results, workspace = made[: len(outputs)], made[len(outputs) :]
    if workspace:
        results = simt.launch(
            _MergePieces(rule, dim),
            (graph, list(workspace)),
            [],
            name="aggregate_of_long_rows",
            grid=simt.Grid(graph.full_blocks(tile.warps), tile.warps, -(-dim // LANES)),
            updated=list(results),
        )
    y, *arrays = results
    return y, Statistics.of_kept(dict(zip(kept, arrays, strict=True)))


@dataclass(frozen=True)
class _Rule:
    """The computation for one column: the parts of its state in order, and its results.

    Attributes:
      form: the reductions.
      keep: whether statistics are stored too.
    """

    form: Form
    keep: bool

    @property
    def parts(self) -> list[Part]:
        """The parts of a state."""
        return parts_of(self.form, self.keep)

    @property
    def kinds(self) -> list[str]:
        """The kinds of all numbers of a state."""
        return [kind for part in self.parts for kind in part.kinds]

    @property
    def needs_first(self) -> bool:
        """Whether a state starts with the first number of the row."""
        return "variance" in self.form.totals

    def start(self, warp: Warp, first: Value | None, begin: Value) -> list[State]:
        """Returns the state of no edges."""
        return [part.start(warp, first, begin) for part in self.parts]

    def add(self, warp: Warp, state: list[State], numbers: list[Number]) -> list[State]:
        """Returns the state with more edges."""
        pairs = zip(self.parts, state, strict=True)
        return [part.add(warp, own, numbers) for part, own in pairs]

    def merge(self, warp: Warp, state: list[State], other: list[State], edges) -> list[State]:
        """Returns the state of both sets of edges; the second set has ``edges`` edges."""
        both = zip(self.parts, state, other, strict=True)
        return [part.merge(warp, own, more, edges) for part, own, more in both]

    def split(self, numbers: list[Value]) -> list[State]:
        """Returns the numbers of a state by part."""
        rest = iter(numbers)
        return [[next(rest) for _ in part.kinds] for part in self.parts]

    def store(
        self, warp: Warp, row: Value, column: Value, states: list[list[State]], edges, results: Any
    ) -> None:
        """Stores the results of neighbouring columns of a row.

        Args:
          warp: the warp.
          row: number of the row.
          column: the first column.
          states: the state of each column.
          edges: how many edges the row has, f32.
          results: the array of the reductions, and those of the statistics.
        """
        y, *kept = results
        dim = y.shape[-1] // len(self.form.reductions)
        some = edges > 0.0
        at_least_one = warp.select(some, edges, 1.0)
        named: list[dict[tuple[str, str], Value]] = []
        for state in states:
            totals: dict[str, Value] = {"count": at_least_one}
            for part, numbers in zip(self.parts, state, strict=True):
                totals |= part.results(warp, numbers, at_least_one)
            reduced = self._reduced(warp, totals)
            # The holder of no edges is that of the state with which all begin.
            zeros = {kind: warp.constant(kind, 0) for kind in ("f32", "i32")}
            named.append(
                {
                    name: v if self.form.is_holder(name[1]) else warp.select(some, v, zeros[v.kind])
                    for name, v in reduced.items()
                }
            )
        for place, name in enumerate(self.form.reductions):
            _store(y.row(row), column + place * dim, [of["y", name] for of in named])
        if self.keep:
            for field, array in zip(self.form.kept(), kept, strict=True):
                _store(array.row(row), column, [of["kept", field] for of in named])

    def _reduced(self, warp: Warp, totals: dict[str, Value]) -> dict[tuple[str, str], Value]:
        """The reductions, as ``"y"``, and the statistics, as ``"kept"``, by their names."""
        maths = WarpMaths(warp)
        results = {
            ("y", name): REDUCTIONS[name].of_totals(maths, {**totals, "each": totals.get(name)})
            for name in self.form.reductions
        }
        kept = self.form.kept() if self.keep else ()
        return results | {("kept", field): totals[field] for field in kept}


def _store(array: Array, column: Value, values: list[Value]) -> None:
    """Stores neighbouring numbers, at most 16 bytes at once."""
    at_once = 16 // array.itemsize
    for i in range(0, len(values), at_once):
        array.store(column + i, *values[i : i + at_once])


@dataclass(frozen=True)
class _Forward:
    """Each warp reduces one piece at a time; its groups of lanes take turns at the edges."""

    rule: _Rule
    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, *arrays: Array) -> None:
        graph, x = inputs
        rule, tile, dim = self.rule, self.tile, x.shape[-1]
        count = 1 + (len(rule.form.kept()) if rule.keep else 0)
        results, partial = arrays[:count], arrays[count:]
        groups = LANES // tile.lanes
        step = groups * tile.ahead
        column = (warp.slice * tile.lanes + warp.lane % tile.lanes) * tile.entries
        inside = column < dim
        # Lanes past the last column read the first one, and store nothing.
        read_column = warp.select(inside, column, 0)
        mine = warp.lane // tile.lanes
        entries = range(tile.entries)

        def node_of(edge):
            return edge if rule.form.by_edge else graph.indices.load(edge)

        def words_of(node):
            return x.row(node).load_words(read_column, tile.entries)

        def add(edges, states, end=None):
            """Adds edges to the states; if ``end`` is given, only those before it."""
            inner = [e if end is None else e.at_most(end - 1) for e in edges]
            nodes = [node_of(edge) for edge in inner]
            words = [words_of(node) for node in nodes]
            real = [None if end is None else e < end for e in edges]
            names = [
                (edge.to("i32"), node.to("i32")) for edge, node in zip(inner, nodes, strict=True)
            ]
            made = []
            for i in entries:
                numbers = [
                    Number(x.unpack(read, i), *of_edge, counts)
                    for read, of_edge, counts in zip(words, names, real, strict=True)
                ]
                made.append(rule.add(warp, states[i], numbers))
            return made

        def edges_from(first):
            return [first + (mine + s * groups) for s in range(tile.ahead)]

        def reduce_piece(piece: Piece) -> None:
            firsts = [None] * tile.entries
            if rule.needs_first:
                edge = piece.begin.at_most(graph.num_edges - 1)
                node = node_of(edge)  # a padding slot has undefined contents
                exists = piece.begin < piece.end
                read = words_of(warp.select(exists, node, warp.constant(node.kind, 0)))
                firsts = [x.unpack(read, i) for i in entries]
            begin = piece.begin.to("i32")
            states = [rule.start(warp, first, begin) for first in firsts]
            full_end = piece.end - (step - 1)
            states = warp.loop(
                piece.begin, full_end, step, states, lambda e, s: add(edges_from(e), s)
            )
            # The rest is less than a step, so some of a lane's neighbours may be past the end.
            length = piece.end - piece.begin
            rest = piece.end - length % step
            states = warp.loop(
                rest, piece.end, step, states, lambda e, s: add(edges_from(e), s, piece.end)
            )
            states = [self._of_groups(warp, state) for state in states]
            edges = length.to("i32").to("f32")
            keep = (mine == 0) & inside
            warp.when(keep, lambda: store(piece, states, edges))

        def store(piece: Piece, states, edges) -> None:
            def store_row():
                rule.store(warp, piece.row, column, states, edges, results)

            if not partial:
                return store_row()
            warp.when(piece.slot < 0, store_row)
            warp.when(piece.slot >= 0, lambda: leave(piece, states))

        def leave(piece: Piece, states) -> None:
            flat = [[number for part in state for number in part] for state in states]
            for array, numbers in zip(partial, zip(*flat, strict=True), strict=True):
                _store(array.row(piece.slot), column, [number.bits("f32") for number in numbers])

        graph.for_each(warp, reduce_piece)

    def _of_groups(self, warp: Warp, state: list[State]) -> list[State]:
        """The state of all groups of lanes, which began with the same first number."""
        lanes = self.tile.lanes
        while lanes < LANES:
            other = [[warp.shuffle_xor(number, lanes) for number in part] for part in state]
            # Their first numbers are equal, so no value is shifted, however many edges they have.
            state = self.rule.merge(warp, state, other, warp.f32(0.0))
            lanes *= 2
        return state


@dataclass(frozen=True)
class _MergePieces:
    """Merges the pieces of long rows in order; each slice has 32 columns, a lane has one."""

    rule: _Rule
    dim: int

    def __call__(self, warp: Warp, inputs, *results: Array) -> None:
        graph, partial = inputs
        rule, size = self.rule, graph.edges_per_piece
        own = warp.slice * LANES + warp.lane
        inside = own < self.dim
        column = warp.select(inside, own, 0)

        def state_of(first: Value, end: Value) -> list[State]:
            slot = graph.slot(warp, first, end.at_most(first + size))
            found = [array.row(slot).load(column) for array in partial]
            kinds = zip(found, rule.kinds, strict=True)
            return rule.split([number.bits(kind) for number, kind in kinds])

        def merge_row(row: Value) -> None:
            begin, end = graph.indptr.load(row), graph.indptr.load(row + 1)

            def add(first, state):
                edges = (end.at_most(first + size) - first).to("i32").to("f32")
                return rule.merge(warp, state, state_of(first, end), edges)

            state = warp.loop(begin + size, end, size, state_of(begin, end), add)
            edges = (end - begin).to("i32").to("f32")
            warp.when(inside, lambda: rule.store(warp, row, column, [state], edges, list(results)))

        for_each_long_row(warp, graph, merge_row)
