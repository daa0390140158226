"""Doubly stochastic matrices from logits, by Sinkhorn and Knopp's iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.simt.blocks import striding_blocks, warps_with_rows
from pallas_kernels.simt.values import Array, Shared, Value, fold_in_pairs
from pallas_kernels.simt.warp import LANES, Warp

_TINY = float(jnp.finfo(jnp.float32).tiny)
Matrix = list[list[Value]]  # [row][column], the rows that a lane has


@dataclass(frozen=True)
class SinkhornTile:
    """Layout of matrices in the registers of lanes.

    Attributes:
      lanes: neighbouring lanes that share a matrix, each with an equal number of its rows.
      warps: the most warps of a block.
    """

    lanes: int
    warps: int = 4

    @classmethod
    def choose(cls, chip: Chip, n: int) -> SinkhornTile:
        """The only heuristic: no lane has more than four rows."""
        return cls(max(1, n // 4))

    def words(self, n: int, iterations: int) -> int:
        """Words of shared memory of a warp for the sums of all iterations."""
        return iterations * (n + n // self.lanes) * LANES


def most_iterations(n: int) -> int:
    """The most iterations whose sums fit shared memory in the backward pass."""
    chip = Chip.current()
    return chip.shared_bytes // (4 * SinkhornTile.choose(chip, n).words(n, 1))


def sinkhorn(
    logits: jax.Array,
    *,
    iterations: int,
    eps: float,
    last: str,
    tile: SinkhornTile | None = None,
) -> jax.Array:
    """Divides ``exp(logits)`` in turn by its sums along both axes, ``iterations`` times.

    Args:
      logits: [matrices, n, n] float32, n 2, 4 or 8.
      iterations: pairs of divisions.
      eps: added to the result of the first division and to every later sum; if it is zero,
        everything is done in logarithms.
      last: whether the ``"rows"`` or the ``"columns"`` are normalised last.
      tile: how lanes hold matrices; by default chosen for the shape.

    Returns:
      The matrices, of the shape of ``logits``.
    """
    count, n, _ = logits.shape
    if count == 0:
        return logits
    tile = tile or SinkhornTile.choose(Chip.current(), n)
    return simt.launch(
        _Forward(tile, iterations, eps, last == "rows"),
        logits,
        [jax.ShapeDtypeStruct(logits.shape, logits.dtype)],
        name="sinkhorn",
        grid=_grid(count, tile, tile.warps),
    )[0]


def sinkhorn_backward(
    logits: jax.Array,
    dh: jax.Array,
    *,
    iterations: int,
    eps: float,
    last: str,
    tile: SinkhornTile | None = None,
) -> jax.Array:
    """The exact gradient to ``logits``: recomputes the iterations, then undoes them by their sums.

    Args:
      logits: [matrices, n, n] float32, n 2, 4 or 8.
      dh: gradient of the matrices, of the shape of ``logits``.
      iterations: pairs of divisions, at most ``most_iterations(n)``.
      eps: added to the result of the first division and to every later sum; zero for logarithms.
      last: whether the ``"rows"`` or the ``"columns"`` are normalised last.
      tile: how lanes hold matrices; by default chosen for the shape.

    Returns:
      The gradient, of the shape of ``logits``.
    """
    count, n, _ = logits.shape
    if count == 0:
        return jnp.zeros_like(logits)
    tile = tile or SinkhornTile.choose(Chip.current(), n)
    words = tile.words(n, iterations)
    return simt.launch(
        _Backward(tile, iterations, eps, last == "rows"),
        (logits, dh),
        [jax.ShapeDtypeStruct(logits.shape, logits.dtype)],
        name="sinkhorn_backward",
        grid=_grid(count, tile, warps_with_rows(Chip.current(), 4 * words, tile.warps)),
        shared={"sums": ("f32", words)},
    )[0]


def _grid(count: int, tile: SinkhornTile, warps: int) -> simt.Grid:
    return simt.Grid(striding_blocks(count, LANES // tile.lanes * warps), warps)


def _add(a: Value, b: Value) -> Value:
    return a + b


def _subtract(a: Value, b: Value) -> Value:
    return a - b


def _multiply(a: Value, b: Value) -> Value:
    return a * b


@dataclass(frozen=True)
class _Matrices:
    """Operations on matrices of ``n`` rows in the registers of neighbouring lanes.

    Attributes:
      warp: the warp that runs this.
      n: rows and columns of a matrix.
      lanes: neighbouring lanes that share a matrix.
      eps: added to sums; zero if matrices are held as logarithms.
    """

    warp: Warp
    n: int
    lanes: int
    eps: float

    @property
    def own(self) -> int:
        """Number of rows of a lane."""
        return self.n // self.lanes

    def for_each(self, count: int, body: Callable[[Value, Value], None]) -> None:
        """Calls ``body(number, inside)``; lanes past the last matrix get it, and not inside."""
        warp, at_once = self.warp, LANES // self.lanes

        def take(first, _):
            number = first + warp.lane // self.lanes
            body(number.at_most(count - 1), number < count)

        warp.loop(warp.number * at_once, count, warp.count * at_once, (), take)

    def load(self, array: Array, number: Value) -> Matrix:
        """Loads the rows of a matrix that this lane has."""
        n, own = self.n, self.own
        words = array.row(number).load_words(self._first(), own * n)
        return [[array.unpack(words, r * n + c) for c in range(n)] for r in range(own)]

    def store(self, array: Array, number: Value, matrix: Matrix) -> None:
        """Writes the rows of a matrix that this lane has."""
        to, at_once = array.row(number), min(4, self.n)
        for r, row in enumerate(matrix):
            for c in range(0, self.n, at_once):
                to.store(self._first() + (r * self.n + c), *row[c : c + at_once])

    def _first(self) -> Value:
        """Offset of this lane's first entry in a matrix."""
        return self.warp.lane % self.lanes * (self.own * self.n)

    def load_finite(self, array: Array, number: Value) -> Matrix:
        """Loads this lane's rows; all NaN if the matrix has a NaN or an infinity anywhere."""
        matrix = self.load(array, number)
        rows = [[value * 0.0 for value in row] for row in matrix]
        spread = self.warp.sum_lanes(
            fold_in_pairs([fold_in_pairs(row, _add) for row in rows], _add), self.lanes
        )
        return [[value + spread for value in row] for row in matrix]

    # -- along an axis: one number for each row of the lane, or for each column -----------------

    def reduce(self, matrix: Matrix, by_rows: bool, fold: Callable = _add) -> list[Value]:
        """Sums of rows or columns, or their reductions by another ``fold``."""
        if by_rows:
            return [fold_in_pairs(row, fold) for row in matrix]
        columns = [fold_in_pairs(column, fold) for column in zip(*matrix, strict=True)]
        step = 1
        while step < self.lanes:
            columns = [fold(c, self.warp.shuffle_xor(c, step)) for c in columns]
            step *= 2
        return columns

    def combine(self, matrix: Matrix, parts: list[Value], by_rows: bool, operation) -> Matrix:
        """``operation(entry, part)`` of every entry and the number of its row or column."""
        return [
            [operation(entry, parts[r if by_rows else c]) for c, entry in enumerate(row)]
            for r, row in enumerate(matrix)
        ]

    def map(self, matrix: Matrix, *others: Matrix, operation: Callable[..., Value]) -> Matrix:
        """``operation`` of the entries of several matrices at the same position."""
        return [
            [operation(*entries) for entries in zip(*rows, strict=True)]
            for rows in zip(matrix, *others, strict=True)
        ]

    # -- the iteration ---------------------------------------------------------------------------

    def softmax(self, logits: Matrix, by_rows: bool, log: bool = False) -> Matrix:
        """The softmax along an axis, or its logarithm."""
        warp = self.warp
        shifted = self.combine(
            logits, self.reduce(logits, by_rows, Value.at_least), by_rows, _subtract
        )
        powers = self.map(shifted, operation=warp.exp)
        sums = self.reduce(powers, by_rows)
        if log:
            return self.combine(shifted, [warp.log(s) for s in sums], by_rows, _subtract)
        return self.combine(powers, [warp.normal_reciprocal(s) for s in sums], by_rows, _multiply)

    def start(self, logits: Matrix, by_rows: bool) -> Matrix:
        """The matrix after the first division; its logarithm if eps is zero."""
        if self.eps == 0:
            return self.softmax(logits, by_rows, log=True)
        return self.map(self.softmax(logits, by_rows), operation=lambda p: p + self.eps)

    def divide(self, m: Matrix, by_rows: bool) -> tuple[Matrix, list[Value]]:
        """``m`` divided by its sums along an axis, and the sums; all logarithms if eps is zero."""
        warp = self.warp
        if self.eps == 0:
            largest = self.reduce(m, by_rows, Value.at_least)
            powers = self.combine(m, largest, by_rows, lambda e, top: warp.exp(e - top))
            sums = self.reduce(powers, by_rows)
            sums = [top + warp.log(s) for top, s in zip(largest, sums, strict=True)]
            return self.combine(m, sums, by_rows, _subtract), sums
        sums = [s + self.eps for s in self.reduce(m, by_rows)]
        factors = [self.reciprocal(s) for s in sums]
        return self.combine(m, factors, by_rows, _multiply), sums

    def reciprocal(self, total: Value) -> Value:
        """The reciprocal of a number of at least eps."""
        warp = self.warp
        return (warp.normal_reciprocal if self.eps >= _TINY else warp.reciprocal)(total)

    def undo(
        self, state: tuple[Matrix, Matrix], sums: list[Value], by_rows: bool
    ) -> tuple[Matrix, Matrix]:
        """The gradient and the matrix before a division, from those after it.

        Gradients are those to the logarithm of the matrix.
        """
        z, m = state
        z = self.centred(z, self.entries(m), by_rows)
        operation = _add if self.eps == 0 else _multiply
        return z, self.combine(m, sums, by_rows, operation)

    def centred(self, z: Matrix, m: Matrix, by_rows: bool) -> Matrix:
        """``z - m Σz``, with the sum along an axis: the gradient through a division by sums."""
        negative = [s * -1.0 for s in self.reduce(z, by_rows)]
        weighted = self.combine(m, negative, by_rows, _multiply)
        return self.map(z, weighted, operation=_add)

    def entries(self, m: Matrix) -> Matrix:
        """The matrix itself, exponentiated if matrices are held as logarithms."""
        return self.map(m, operation=self.warp.exp) if self.eps == 0 else m


@dataclass(frozen=True)
class _Forward:
    """The iteration, with a matrix in the registers of a lane or of a few neighbours."""

    tile: SinkhornTile
    iterations: int
    eps: float
    rows_last: bool

    def __call__(self, warp: Warp, logits: Array, h: Array) -> None:
        by_rows, again = self.rows_last, self.iterations - 1
        matrices = _Matrices(warp, logits.shape[1], self.tile.lanes, self.eps)

        def iterate(_, m):
            m, _ = matrices.divide(m, not by_rows)
            return matrices.divide(m, by_rows)[0]

        def take(number, inside):
            m = matrices.start(matrices.load_finite(logits, number), not by_rows)
            m, _ = matrices.divide(m, by_rows)
            m = matrices.entries(warp.loop(0, again, 1, m, iterate))
            warp.when(inside, lambda: matrices.store(h, number, m))

        matrices.for_each(logits.shape[0], take)


@dataclass(frozen=True)
class _Backward:
    """Recomputes the iteration, keeping the sums of every division, then undoes it."""

    tile: SinkhornTile
    iterations: int
    eps: float
    rows_last: bool

    def __call__(self, warp: Warp, inputs, dlogits: Array, sums: Shared) -> None:
        logits, dh = inputs
        n, again = logits.shape[1], self.iterations - 1
        matrices = _Matrices(warp, n, self.tile.lanes, self.eps)
        kept = _KeptSums(warp, sums, n, matrices.own)
        first, second = not self.rows_last, self.rows_last

        def iterate(number, m):
            for by_rows in (first, second):
                m, divided_by = matrices.divide(m, by_rows)
                kept.store(number + 1, by_rows, divided_by)
            return m

        def undo(i, state):
            number = again - i  # from the last to iteration 1
            for by_rows in (second, first):
                state = matrices.undo(state, kept.load(number, by_rows), by_rows)
            return state

        def take(number, inside):
            m = matrices.start(matrices.load_finite(logits, number), first)
            m, divided_by = matrices.divide(m, second)
            kept.store(warp.i32(0), second, divided_by)
            m = warp.loop(0, again, 1, m, iterate)
            z = matrices.map(matrices.entries(m), matrices.load(dh, number), operation=_multiply)
            z, m = warp.loop(0, again, 1, (z, m), undo)
            z, _ = matrices.undo((z, m), kept.load(warp.i32(0), second), second)
            p = matrices.softmax(matrices.load_finite(logits, number), first)
            if self.eps:
                z = matrices.map(
                    z, p, operation=lambda z, p: z * (p * matrices.reciprocal(p + self.eps))
                )
            made = matrices.centred(z, p, first)
            warp.when(inside, lambda: matrices.store(dlogits, number, made))

        matrices.for_each(logits.shape[0], take)


@dataclass(frozen=True)
class _KeptSums:
    """The sums of every iteration in shared memory; a lane reads only what it wrote itself."""

    warp: Warp
    memory: Shared
    n: int
    own: int

    def _index(self, iteration: Value, by_rows: bool, i: int) -> Value:
        """Index of the sum of this lane's i-th row, or of the i-th column."""
        slot = i + (self.n if by_rows else 0)
        return (iteration * (self.n + self.own) + slot) * LANES + self.warp.lane

    def store(self, iteration: Value, by_rows: bool, sums: list[Value]) -> None:
        """Stores the sums of one division."""
        for i, value in enumerate(sums):
            self.memory.store(self._index(iteration, by_rows, i), value)

    def load(self, iteration: Value, by_rows: bool) -> list[Value]:
        """Loads the sums that ``store`` kept."""
        count = self.own if by_rows else self.n
        return [self.memory.load(self._index(iteration, by_rows, i)) for i in range(count)]
