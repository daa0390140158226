"""New features of edges and their sums: normalisation, residual and sum, read and written once.

A warp takes a piece of a row of the graph. Some lanes share an edge, each with some of its columns,
and groups of lanes take turns at the edges. The statistics of an edge are sums over its lanes, and
the sum over the edges of the row stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Piece, Pieces, add_pieces
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

# Blocks for each multiprocessor in the backward pass: each has its own sums over all edges.
_BACKWARD_BLOCKS = 8


@dataclass(frozen=True)
class Form:
    """The static description of an update.

    Attributes:
      norm: ``"layer"``, ``"rms"`` or None.
      eps: number that is added to the variance, or to the mean square.
      sums_edges: whether the new features of edges are summed, not the update.
      is_padded: whether some edge slots may be padding.
    """

    norm: str | None
    eps: float
    sums_edges: bool
    is_padded: bool = True


class Operands(NamedTuple):
    """Arrays of an update, or the gradients to them.

    Attributes:
      y: result of the layers, [edges, dim] float32 or bfloat16.
      bias: what is added to it, [dim], or None.
      e: features of the edges, [edges, dim] of the dtype of ``y``, or None.
      scale: factors of the normalised features, [dim], or None.
      offset: what is added to them, [dim], or None.
    """

    y: Any
    bias: Any
    e: Any
    scale: Any
    offset: Any


@dataclass(frozen=True)
class UpdateTile:
    """Division of the features of an edge among lanes.

    Attributes:
      lanes: lanes that share an edge, a power of two.
      entries: neighbouring columns that a lane reads at once.
      vectors: how often a lane reads so many columns.
      ahead: edges that a lane reads before it uses them.
      warps: warps of a block.
    """

    lanes: int
    entries: int
    vectors: int
    ahead: int = 1
    warps: int = 4

    @property
    def columns(self) -> int:
        """Columns of all lanes, at least those of a row."""
        return self.lanes * self.entries * self.vectors

    @classmethod
    def choose(cls, chip: Chip, dim: int, itemsize: int) -> UpdateTile:
        """The one heuristic: 16 bytes at once, and two edges ahead where registers allow it."""
        del chip
        entries = min(16 // itemsize, dim & -dim)
        lanes = min(1 << (-(-dim // entries) - 1).bit_length(), LANES)
        vectors = -(-dim // (lanes * entries))
        return cls(lanes, entries, vectors, ahead=2 if entries * vectors <= 8 else 1)


def update_edges(
    graph: Pieces,
    order: jax.Array | None,
    operands: Operands,
    form: Form,
    tile: UpdateTile | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes new features of edges, and sums them over the edges of each row.

    Args:
      graph: the rows; their weights and scales are not used.
      order: position in the arrays of edges of each edge slot, [edges] int32; None if they are in
        the order of the slots.
      operands: the arrays.
      form: the static description.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [edges, dim], zero in padding, and [rows, dim], of the dtype of ``y``.
    """
    edges, dim = operands.y.shape
    shapes = [(edges, dim), (graph.num_rows, dim)]
    outputs = [jax.ShapeDtypeStruct(shape, operands.y.dtype) for shape in shapes]
    if edges * dim == 0 or graph.num_rows == 0:
        made, sums = (jnp.zeros(o.shape, o.dtype) for o in outputs)
        return made, sums
    tile = tile or UpdateTile.choose(Chip.current(), dim, operands.y.dtype.itemsize)
    made, sums, *partial = simt.launch(
        _Update(form, tile),
        (graph, order, _in_float32(operands)),
        [*outputs, *graph.partial_sums(dim)],
        name="interaction_update",
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps),
    )
    return made, add_pieces(graph, partial[0], sums) if partial else sums


def update_edges_backward(
    graph: Pieces,
    order: jax.Array | None,
    operands: Operands,
    dedges: jax.Array,
    dsums: jax.Array,
    form: Form,
    tile: UpdateTile | None = None,
) -> Operands:
    """Computes gradients of ``update_edges``.

    Args:
      graph: the rows; their weights and scales are not used.
      order: as in ``update_edges``.
      operands: the arrays; ``e`` is not read, it is None if there was none.
      dedges: gradient to the new features, [edges, dim].
      dsums: gradient to the sums, [rows, dim].
      form: the static description.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      The gradients, of the dtypes of the operands; zero in padding.
    """
    y, e = operands.y, operands.e
    edges, dim = y.shape
    if edges * dim == 0 or graph.num_rows == 0:
        return Operands(*(None if a is None else jnp.zeros_like(a) for a in operands))
    tile = tile or UpdateTile.choose(Chip.current(), dim, y.dtype.itemsize)
    names = [n for n in ("bias", "scale", "offset") if getattr(operands, n) is not None]
    blocks = min(graph.blocks(tile.warps), _BACKWARD_BLOCKS * Chip.current().multiprocessors)
    stores_de = e is not None and form.sums_edges
    outputs = [jax.ShapeDtypeStruct(y.shape, y.dtype)] * (2 if stores_de else 1)
    outputs += [jax.ShapeDtypeStruct((blocks, dim), jnp.float32) for _ in names]
    dy, *rest = simt.launch(
        _UpdateBackward(form, tile, tuple(names), stores_de),
        (graph, order, _in_float32(operands._replace(e=None, offset=None)), dedges, dsums),
        outputs,
        name="interaction_update_backward",
        grid=simt.Grid(blocks, tile.warps),
        block_shared={name: jax.ShapeDtypeStruct((tile.columns,), jnp.float32) for name in names},
    )
    de = rest.pop(0) if stores_de else None
    if e is not None and de is None:
        de = _without_padding(graph, order, dedges) if form.is_padded else dedges
    sums = {
        name: jnp.sum(total, axis=0).astype(getattr(operands, name).dtype)
        for name, total in zip(names, rest, strict=True)
    }
    return Operands(dy, sums.get("bias"), de, sums.get("scale"), sums.get("offset"))


def _in_float32(operands: Operands) -> Operands:
    """The operands, with what all edges share in float32."""
    of_edges = {"y": operands.y, "e": operands.e}
    shared = {
        name: None if array is None else array.astype(jnp.float32)
        for name, array in operands._asdict().items()
        if name not in of_edges
    }
    return Operands(**of_edges, **shared)


def _without_padding(graph: Pieces, order: jax.Array | None, of_edges: jax.Array) -> jax.Array:
    slots = jnp.arange(graph.num_edges, dtype=graph.indptr.dtype)
    is_real = slots < graph.indptr[-1]
    if order is not None:
        is_real = jnp.zeros_like(is_real).at[order].set(is_real, unique_indices=True)
    return jnp.where(is_real[:, None], of_edges, 0)


class _Lane:
    """The columns of a lane, and the edges of its group."""

    def __init__(self, warp: Warp, tile: UpdateTile, dim: int):
        self.warp, self.tile, self.dim = warp, tile, dim
        own = warp.lane % tile.lanes
        self.group = warp.lane // tile.lanes
        self.groups = LANES // tile.lanes
        self.places, self.columns, self.inside = [], [], []
        for vector in range(tile.vectors):
            column = (own + vector * tile.lanes) * tile.entries
            self.places.append(column)
            is_whole = (vector + 1) * tile.lanes * tile.entries <= dim
            self.inside.append(None if is_whole else column < dim)
            # Lanes past the last column read the first one, and store nothing.
            self.columns.append(column if is_whole else warp.select(column < dim, column, 0))

    @property
    def count(self) -> int:
        """Columns of a lane."""
        return self.tile.vectors * self.tile.entries

    def zeros(self) -> list[Value]:
        """A zero for each column."""
        return [self.warp.f32(0.0) for _ in range(self.count)]

    def words(self, row: Array, padded: bool = False) -> list[list[Value]]:
        """Reads the columns of a row, packed; of a ``padded`` one, those past the last too."""
        at_once = min(self.tile.entries, 16 // row.itemsize)
        return [
            row.load_words(column + i, at_once)
            for column in (self.places if padded else self.columns)
            for i in range(0, self.tile.entries, at_once)
        ]

    def numbers(self, row: Array, words: list[list[Value]]) -> list[Value]:
        """The numbers of packed columns; undefined outside of the row."""
        at_once = min(self.tile.entries, 16 // row.itemsize)
        return [row.unpack(word, i) for word in words for i in range(at_once)]

    def load(self, row: Array | None) -> list[Value] | None:
        """Reads the columns of a row; None for None."""
        return None if row is None else self.numbers(row, self.words(row))

    def store(self, row: Array, values: Sequence[Value], condition: Value) -> None:
        """Stores the columns where the condition holds; floats are rounded."""
        entries = self.tile.entries
        at_once = min(entries, 16 // row.itemsize)

        def put(vector: int) -> None:
            for i in range(0, entries, at_once):
                first = vector * entries + i
                row.store(self.columns[vector] + i, *values[first : first + at_once])

        for vector, inside in enumerate(self.inside):
            where = condition if inside is None else condition & inside
            self.warp.when(where, lambda vector=vector: put(vector))

    def store_padded(self, row: Array, values: Sequence[Value]) -> None:
        """Stores all columns of the lanes to a float32 row that is long enough."""
        at_once = min(self.tile.entries, 4)
        for vector, place in enumerate(self.places):
            for i in range(0, self.tile.entries, at_once):
                first = vector * self.tile.entries + i
                row.store(place + i, *values[first : first + at_once])

    def only_inside(self, values: Sequence[Value]) -> list[Value]:
        """The values, with zeros outside of the row."""
        entries = self.tile.entries
        inside = [i for i in self.inside for _ in range(entries)]
        pairs = zip(values, inside, strict=True)
        return [v if i is None else self.warp.select(i, v, 0.0) for v, i in pairs]

    def mean(self, values: Sequence[Value]) -> Value:
        """The mean over the columns of a row, of values that are zero outside of it."""
        total = values[0]
        for value in values[1:]:
            total = total + value
        return self.warp.sum_lanes(total, self.tile.lanes) * (1.0 / self.dim)

    def edges(self, piece: Piece, carry: Any, body: Callable[..., Any]) -> Any:
        """Repeats ``carry = body(slots, is_real, carry)`` over the edges of a piece.

        Each group of lanes has some slots at a time. Slots past the last are the last one, and are
        not real.
        """
        step = self.groups * self.tile.ahead

        def take(first, carry):
            slots = [first + (self.group + s * self.groups) for s in range(self.tile.ahead)]
            is_real = [slot < piece.end for slot in slots]
            return body([slot.at_most(piece.end - 1) for slot in slots], is_real, carry)

        return self.warp.loop(piece.begin, piece.end, step, carry, take)

    def zero_padding(self, graph: Pieces, order: Array | None, arrays: Sequence[Array]) -> None:
        """Sets the rows of padding to zero."""
        warp = self.warp
        first = graph.indptr.load(graph.num_rows) + (warp.number * self.groups + self.group)
        always = warp.lane >= 0

        def clear(slot, _):
            at = slot if order is None else order.load(slot)
            for array in arrays:
                self.store(array.row(at), self.zeros(), always)

        warp.loop(first, graph.num_edges, warp.count * self.groups, (), clear)


def _normalized(
    lane: _Lane, form: Form, y: Sequence[Value], bias: Sequence[Value] | None
) -> tuple[list[Value], Value | None]:
    """The normalised columns of an edge, zero outside, and the factor of the normalisation."""
    warp = lane.warp
    if bias is not None:
        y = [a + b for a, b in zip(y, bias, strict=True)]
    y = lane.only_inside(y)
    if form.norm is None:
        return y, None
    if form.norm == "layer":
        mean = lane.mean(y)
        y = lane.only_inside([a - mean for a in y])
    factor = warp.rsqrt(lane.mean([a * a for a in y]) + form.eps)
    return [a * factor for a in y], factor


@dataclass(frozen=True)
class _Update:
    """Each warp takes one piece at a time."""

    form: Form
    tile: UpdateTile

    def __call__(self, warp: Warp, inputs, edges: Array, sums: Array, *partial: Array) -> None:
        graph, order, operands = inputs
        form = self.form
        lane = _Lane(warp, self.tile, edges.shape[-1])

        def update(slots, is_real, totals):
            places = [slot if order is None else order.load(slot) for slot in slots]
            of_edges = [operands.y, *([] if operands.e is None else [operands.e])]
            words = [[lane.words(a.row(at)) for a in of_edges] for at in places]
            for at, real, read in zip(places, is_real, words, strict=True):
                y, *e = (lane.numbers(a, w) for a, w in zip(of_edges, read, strict=True))
                made, _ = _normalized(lane, form, y, lane.load(operands.bias))
                made = _scaled(warp, made, lane.load(operands.scale), lane.load(operands.offset))
                new = [a + b for a, b in zip(made, e[0], strict=True)] if e else made
                lane.store(edges.row(at), new, real)
                added = new if form.sums_edges else made
                totals = [t + warp.select(real, a, 0.0) for t, a in zip(totals, added, strict=True)]
            return totals

        def take(piece: Piece) -> None:
            totals = lane.edges(piece, lane.zeros(), update)
            totals = [warp.sum_groups(total, self.tile.lanes) for total in totals]
            is_first = lane.group == 0
            if not partial:
                return lane.store(sums.row(piece.row), totals, is_first)
            lane.store(sums.row(piece.row), totals, is_first & (piece.slot < 0))
            row = partial[0].row(piece.slot.at_least(0))
            lane.store(row, totals, is_first & (piece.slot >= 0))

        graph.for_each(warp, take)
        if form.is_padded:
            lane.zero_padding(graph, order, [edges])


def _scaled(warp: Warp, values: list[Value], scale, offset) -> list[Value]:
    if scale is not None:
        values = [a * s for a, s in zip(values, scale, strict=True)]
    return values if offset is None else [a + o for a, o in zip(values, offset, strict=True)]


@dataclass(frozen=True)
class _UpdateBackward:
    """Each warp takes one piece at a time, and keeps its part of the sums over all edges.

    Attributes:
      form: the static description.
      tile: how the work is divided.
      names: the operands whose gradients are sums over all edges.
      stores_de: whether the gradient to the features of edges is stored.
    """

    form: Form
    tile: UpdateTile
    names: tuple[str, ...]
    stores_de: bool

    def __call__(self, warp: Warp, inputs, *arrays: Array, **shared: Array) -> None:
        graph, order, operands, dedges, dsums = inputs
        of_edges = arrays[: 2 if self.stores_de else 1]
        lane = _Lane(warp, self.tile, operands.y.shape[-1])

        def take(number, totals):
            piece = graph.get(warp, number)
            row = dsums.row(piece.row)
            of_row = lane.numbers(row, lane.words(row))

            def pull_back(slots, is_real, totals):
                places = [slot if order is None else order.load(slot) for slot in slots]
                both = operands.y, dedges
                words = [[lane.words(a.row(at)) for a in both] for at in places]
                for at, real, read in zip(places, is_real, words, strict=True):
                    y, du = (lane.numbers(a, w) for a, w in zip(both, read, strict=True))
                    du = lane.only_inside([a + b for a, b in zip(du, of_row, strict=True)])
                    dy, by_name = self._pull_back(lane, y, du, operands)
                    lane.store(of_edges[0].row(at), dy, real)
                    if self.stores_de:
                        lane.store(of_edges[1].row(at), du, real)
                    totals = [
                        [t + warp.select(real, a, 0.0) for t, a in zip(own, more, strict=True)]
                        for own, more in zip(totals, by_name, strict=True)
                    ]
                return totals

            return lane.edges(piece, totals, pull_back)

        zeros = [lane.zeros() for _ in self.names]
        count = graph.counts.load(1)
        totals = warp.loop(warp.number, count, warp.count, zeros, take)
        if self.form.is_padded:
            lane.zero_padding(graph, order, of_edges)
        for name, total, array in zip(self.names, totals, arrays[len(of_edges) :], strict=True):
            total = [warp.sum_groups(t, self.tile.lanes) for t in total]
            self._add_up(warp, lane, total, shared[name], array)

    def _pull_back(self, lane: _Lane, y, du, operands) -> tuple[list[Value], list[list[Value]]]:
        """The gradient to y of an edge, and its part of the sums by name."""
        form = self.form
        y, factor = _normalized(lane, form, y, lane.load(operands.bias))
        scale = lane.load(operands.scale)
        dy = du if scale is None else [a * s for a, s in zip(du, scale, strict=True)]
        dy = lane.only_inside(dy)
        if factor is not None:
            along = lane.mean([a * b for a, b in zip(dy, y, strict=True)])
            if form.norm == "layer":
                mean = lane.mean(dy)
                dy = [a - mean for a in dy]
            dy = [(a - b * along) * factor for a, b in zip(dy, y, strict=True)]
        parts = {"bias": dy, "offset": du}
        if "scale" in self.names:
            parts["scale"] = [a * b for a, b in zip(du, y, strict=True)]
        return dy, [parts[name] for name in self.names]

    def _add_up(self, warp: Warp, lane: _Lane, totals, shared: Array, result: Array) -> None:
        """Adds the sums of the warps of a block, one after the other, and stores them."""
        number = warp.thread // LANES
        always = warp.lane >= 0

        def take(turn: int) -> None:
            before = lane.zeros()
            if turn:
                before = lane.numbers(shared, lane.words(shared, padded=True))
            total = [a + b for a, b in zip(totals, before, strict=True)]
            if turn == self.tile.warps - 1:
                return lane.store(result.row(warp.block), total, always)
            lane.store_padded(shared, total)

        for turn in range(self.tile.warps):
            mine = (number == turn) & (lane.group == 0)
            warp.when(mine, lambda turn=turn: take(turn))
            warp.barrier()
