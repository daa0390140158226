"""Sums of neighbours whose filters are products of features of edges and one kernel.

    y_i = Σ_j x_j ⊙ (basis_ij · kernel) = Σ_b kernel_b ⊙ Σ_j basis_ijb x_j

No filter is stored. The sums over j of all features b are in registers while a warp walks through
a piece of a row, and are multiplied with the kernel at its end. The gradient to the kernel has its
sums in registers, too, over all pieces of a warp. The gradient to the basis keeps the kernel there.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.filters.walk import Walk, or_zero
from pallas_kernels.graph.rows import Piece, Pieces, add_pieces
from pallas_kernels.graph.spmm import SpmmTile
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

# Numbers that a lane keeps for its columns and all features, and numbers that it reads ahead.
_KEPT, _READ_AHEAD = 96, 56
# Warps of a multiprocessor that sum the gradient to the kernel.
_SUMMING_WARPS = 16


def tile_for(itemsize: int, columns: int, features: int) -> SpmmTile:
    """Chooses how the warps share the work: as many columns to a lane as its registers allow.

    Args:
      itemsize: bytes of the widest number of a row.
      columns: number of columns of the rows.
      features: number of features of the basis.
    """
    fitting = (n for n in (4, 2) if n * features <= _KEPT and n * itemsize <= 16)
    entries = next((n for n in fitting if columns % n == 0), 1)
    lanes = LANES
    while lanes > 8 and lanes * entries >= 2 * columns:
        lanes //= 2
    ahead = next((n for n in (2,) if n * (features + entries) <= _READ_AHEAD), 1)
    return SpmmTile(lanes, entries, ahead)


def padded_basis(basis: jax.Array) -> jax.Array:
    """Returns the basis in float32 with columns of zeros, so that rows are aligned to 16 bytes."""
    return jnp.pad(basis.astype(jnp.float32), ((0, 0), (0, -basis.shape[1] % 4)))


def made_sum(
    graph: Pieces,
    slots: jax.Array | None,
    x: jax.Array,
    basis: jax.Array,
    kernel: jax.Array,
    tile: SpmmTile | None = None,
) -> jax.Array:
    """Computes ``y_i = Σ_j x_j ⊙ (basis_ij · kernel)``, accumulated in float32.

    Args:
      graph: the graph, without weights and scales.
      slots: the row of the basis that each edge reads, [edges]; None for its own number.
      x: [cols, columns], float32 or bfloat16.
      basis: [edges, features]; at most about 64, as they have registers.
      kernel: [features, columns].
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [rows, columns], of the dtype of ``x``.
    """
    (features, columns), rows = kernel.shape, graph.num_rows
    if 0 in (rows * columns, features, x.shape[0], graph.num_edges):
        return jnp.zeros((rows, columns), x.dtype)
    tile = tile or tile_for(x.dtype.itemsize, columns, features)
    y, *partial = simt.launch(
        _MadeSum(tile),
        (graph, slots, x, padded_basis(basis), kernel.astype(jnp.float32)),
        [jax.ShapeDtypeStruct((rows, columns), x.dtype), *graph.partial_sums(columns)],
        name="made_filtered_sum",
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps, _slices(tile, columns)),
    )
    return add_pieces(graph, partial[0], y) if partial else y


def _slices(tile: SpmmTile, columns: int) -> int:
    return -(-columns // (tile.lanes * tile.entries))


def _features_of(basis: Array, edge: Value, features: int) -> list[Value]:
    """Loads the features of an edge."""
    row = basis.row(edge)
    words = [word for i in range(0, features, 4) for word in row.load_words(i, 4)]
    return [row.unpack(words, b) for b in range(features)]


@dataclass(frozen=True)
class _MadeSum:
    """A lane sums the rows of a piece by feature, for its columns."""

    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, y: Array, partial: Array | None = None) -> None:
        graph, slots, x, basis, kernel = inputs
        walk = Walk(warp, self.tile, x.shape[1])
        column, features = walk.readable_column, kernel.shape[0]

        def add(edges, real, sums):
            nodes = [graph.indices.load(edge) for edge in edges]
            places = [edge if slots is None else slots.load(edge) for edge in edges]
            rows = [walk.load(x.row(node), column) for node in nodes]
            factors = [_features_of(basis, place, features) for place in places]
            for i in range(len(edges)):
                known = None if real is None else real[i]
                row = [or_zero(warp, known, value) for value in rows[i]]
                factor = [or_zero(warp, known, value) for value in factors[i]]
                sums = [
                    [warp.fma(f, value, total) for value, total in zip(row, of_f, strict=True)]
                    for f, of_f in zip(factor, sums, strict=True)
                ]
            return sums

        def sum_piece(piece: Piece) -> None:
            zeros = [[warp.f32(0.0)] * self.tile.entries for _ in range(features)]
            sums = walk.fold(piece, zeros, add)
            total = [warp.f32(0.0)] * self.tile.entries
            for b, of_b in enumerate(sums):
                own = walk.load(kernel.row(warp.i32(b)), column)
                parts = zip(own, of_b, total, strict=True)
                total = [warp.fma(k, value, t) for k, value, t in parts]
            walk.store_sums(piece, total, y, partial)

        graph.for_each(warp, sum_piece)


def kernel_products(
    graph: Pieces,
    slots: jax.Array | None,
    x: jax.Array,
    dy: jax.Array,
    basis: jax.Array,
    tile: SpmmTile | None = None,
) -> jax.Array:
    """Computes the gradient to the kernel, ``Σ_ij basis_ij ⊗ (x_j ⊙ dy_i)``.

    Args:
      graph: the graph, without weights and scales.
      slots: the row of the basis that each edge reads, [edges]; None for its own number.
      x: [cols, columns], float32 or bfloat16.
      dy: [rows, columns], float32 or bfloat16.
      basis: [edges, features]; at most about 64, as they have registers.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [features, columns] float32.
    """
    features, columns = basis.shape[1], x.shape[1]
    if 0 in (features, x.size, dy.size, graph.num_edges):
        return jnp.zeros((features, columns), jnp.float32)
    itemsize = max(x.dtype.itemsize, dy.dtype.itemsize)
    tile = tile or tile_for(itemsize, columns, features)
    most = -(-_SUMMING_WARPS * Chip.current().multiprocessors // tile.warps)
    blocks = min(graph.blocks(tile.warps), most)
    sums = simt.launch(
        _KernelProducts(tile),
        (graph, slots, x, dy, padded_basis(basis)),
        [jax.ShapeDtypeStruct((blocks * tile.warps, features, columns), jnp.float32)],
        name="kernel_products",
        grid=simt.Grid(blocks, tile.warps, _slices(tile, columns)),
    )[0]
    return jnp.sum(sums, axis=0)


@dataclass(frozen=True)
class _KernelProducts:
    """Each warp sums all of its pieces, in a fixed order, and stores its sums."""

    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, sums: Array) -> None:
        graph, slots, x, dy, basis = inputs
        _, features, columns = sums.shape
        walk = Walk(warp, self.tile, columns)
        column = walk.readable_column

        def take(number: Value, total):
            piece = graph.get(warp, number)
            own = walk.load(dy.row(piece.row), column)

            def add(edges, real, total):
                nodes = [graph.indices.load(edge) for edge in edges]
                rows = [walk.load(x.row(node), column) for node in nodes]
                places = [edge if slots is None else slots.load(edge) for edge in edges]
                factors = [_features_of(basis, place, features) for place in places]
                for i in range(len(edges)):
                    known = None if real is None else real[i]
                    products = [a * b for a, b in zip(rows[i], own, strict=True)]
                    products = [or_zero(warp, known, value) for value in products]
                    factor = [or_zero(warp, known, value) for value in factors[i]]
                    total = [
                        [warp.fma(f, p, t) for p, t in zip(products, of_f, strict=True)]
                        for f, of_f in zip(factor, total, strict=True)
                    ]
                return total

            return walk.fold(piece, total, add)

        zeros = [[warp.f32(0.0)] * self.tile.entries for _ in range(features)]
        total = warp.loop(warp.number, graph.counts.load(1), warp.count, zeros, take)
        total = [[warp.sum_groups(t, self.tile.lanes) for t in of_f] for of_f in total]
        keep = walk.group == 0
        if walk.is_cut:
            keep = keep & (walk.column < columns)

        def store() -> None:
            own = dataclasses.replace(sums, shape=(sums.shape[0] * features, columns))
            for b, of_b in enumerate(total):
                walk.store(own.row(warp.number * features + b), of_b)

        warp.when(keep, store)


def basis_products(
    graph: Pieces,
    slots: jax.Array | None,
    x: jax.Array,
    dy: jax.Array,
    kernel: jax.Array,
    tile: SpmmTile | None = None,
) -> jax.Array:
    """Computes the gradient to the basis, ``(x_j ⊙ dy_i) · kernelᵀ``.

    Args:
      graph: the graph, without weights and scales.
      slots: the row of the result of each edge, [edges]; None for its own number.
      x: [cols, columns], float32 or bfloat16.
      dy: [rows, columns], float32 or bfloat16.
      kernel: [features, columns]; at most about 64 features, as they have registers.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [edges, features] float32, zero in padding slots.
    """
    features, columns = kernel.shape
    shape = graph.num_edges, features
    if 0 in (*shape, x.size, dy.size):
        return jnp.zeros(shape, jnp.float32)
    tile = tile or tile_for(max(x.dtype.itemsize, dy.dtype.itemsize), columns, features)
    slices = _slices(tile, columns)
    made = simt.launch(
        _BasisProducts(tile),
        (graph, slots, x, dy, kernel.astype(jnp.float32)),
        [jax.ShapeDtypeStruct((slices * graph.num_edges, features), jnp.float32)],
        name="basis_products",
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps, slices),
    )[0]
    return made if slices == 1 else jnp.sum(made.reshape(slices, *shape), axis=0)


@dataclass(frozen=True)
class _BasisProducts:
    """Each warp keeps the kernel and the row of the receiver of its piece in registers.

    Each slice of the columns stores sums of its own.
    """

    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, basis: Array) -> None:
        graph, slots, x, dy, kernel = inputs
        features, columns = kernel.shape
        walk = Walk(warp, self.tile, columns)
        column = walk.readable_column
        inside = walk.column < columns if walk.is_cut else None
        of_slice = basis.shifted(warp.slice.to("i64") * (graph.num_edges * features))
        kept = [walk.load(kernel.row(warp.i32(b)), column) for b in range(features)]
        kept = [[or_zero(warp, inside, k) for k in of_b] for of_b in kept]
        places = _Places.of(warp, features, self.tile.lanes)

        def row_of(edge: Value) -> Array:
            return of_slice.row(edge if slots is None else slots.load(edge))

        def take(piece: Piece) -> None:
            own = walk.load(dy.row(piece.row), column)

            def multiply(edges, real, _):
                nodes = [graph.indices.load(edge) for edge in edges]
                rows = [walk.load(x.row(node), column) for node in nodes]
                for i, edge in enumerate(edges):
                    products = [a * b for a, b in zip(rows[i], own, strict=True)]
                    products = [or_zero(warp, inside, p) for p in products]
                    sums = [_inner_product(warp, products, of_b) for of_b in kept]
                    store(edge, None if real is None else real[i], places.scattered(sums))
                return ()

            walk.fold(piece, (), multiply)

        def store(edge: Value, real: Value | None, sums: list[Value]) -> None:
            row = row_of(edge)
            for (index, is_there), total in zip(places.indices, sums, strict=True):
                keep = is_there if real is None else is_there & real
                warp.when(keep, lambda at=index, total=total: row.store(at, total))

        graph.for_each(warp, take)
        first = graph.indptr.load(graph.num_rows) + (warp.number * LANES + warp.lane)

        def clear(edge: Value, _) -> None:
            row, zero = row_of(edge), warp.f32(0.0)
            for b in range(features):
                row.store(b, zero)

        warp.loop(first, graph.num_edges, warp.count * LANES, (), clear)


def _inner_product(warp: Warp, a: list[Value], b: list[Value]) -> Value:
    total = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        total = warp.fma(x, y, total)
    return total


@dataclass(frozen=True)
class _Places:
    """A reduce-scatter of several values over the lanes of a group.

    Each step halves the values: a lane keeps the upper or the lower half and sends the other one to
    its partner. ``Warp.sum_scatter`` pads the values to a multiple of the lanes first; here each
    step pads by at most one, so that 20 values take 21 exchanges instead of 31.

    Attributes:
      warp: the warp.
      steps: the bit of the lane's number, and the number of values that are kept, of each step.
      indices: of each sum that a lane gets, the index of the value, and whether it is one.
    """

    warp: Warp
    steps: tuple[tuple[int, int], ...]
    indices: list[tuple[Value, Value]]

    @classmethod
    def of(cls, warp: Warp, count: int, lanes: int) -> _Places:
        """The places of ``count`` values among groups of ``lanes`` lanes."""
        steps: list[tuple[int, int]] = []
        left, bit = count, lanes // 2
        while bit:
            left = -(-left // 2)
            steps.append((bit, left))
            bit //= 2
        indices = [cls._index(warp, steps, count, i) for i in range(left)]
        return cls(warp, tuple(steps), indices)

    @staticmethod
    def _index(
        warp: Warp, steps: list[tuple[int, int]], count: int, last: int
    ) -> tuple[Value, Value]:
        """The index of a lane's sum number ``last``, and whether there is such a value."""
        # From the last step back: a position among the values kept becomes one among those before.
        sizes = [count, *(kept for _, kept in steps)]
        index = warp.i32(last)
        is_there = index < sizes[-1]
        for (bit, kept), before in zip(reversed(steps), reversed(sizes[:-1]), strict=True):
            index = index + warp.select((warp.lane & bit) != 0, kept, warp.i32(0))
            is_there = is_there & (index < before)
        return index, is_there

    def scattered(self, values: list[Value]) -> list[Value]:
        """Sums the values over the group; each lane gets the sums of its indices."""
        warp = self.warp
        for bit, kept in self.steps:
            values = [*values, *[warp.f32(0.0)] * (2 * kept - len(values))]
            upper = (warp.lane & bit) != 0
            values = [
                warp.select(upper, b, a) + warp.shuffle_xor(warp.select(upper, a, b), bit)
                for a, b in zip(values[:kept], values[kept:], strict=True)
            ]
        return values
