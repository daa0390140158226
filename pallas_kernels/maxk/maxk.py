"""The k largest entries of each row, and conversions between dense and compressed rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.maxk.eight_rows import MOST_WIDTH, EightRows
from pallas_kernels.maxk.one_row import OneRow
from pallas_kernels.maxk.selection import ROWS, SLAB, kept_columns
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array
from pallas_kernels.simt.warp import LANES, Warp

# Columns of a row that a warp can hold in registers.
MOST_COLUMNS = 1024


@dataclass(frozen=True)
class MaxkTile:
    """Division of the rows among warps.

    Attributes:
      rows: rows of a warp at a time. Eight need a width that is a multiple of 32 up to 256, and
        columns of uint8; otherwise it is one.
      warps: warps of a block.
    """

    rows: int
    warps: int

    @classmethod
    def choose(cls, chip: Chip, dim: int, column_dtype: jnp.dtype) -> MaxkTile:
        """The one heuristic: eight rows where they are supported."""
        if dim % SLAB == 0 and dim <= MOST_WIDTH and jnp.dtype(column_dtype) == jnp.uint8:
            return cls(ROWS, 4)
        return cls(1, 8)


# Warps of a block in the kernels that have no tile.
_WARPS = 8
# Warps of a block of todense, and the shared bytes of a warp: for narrow rows, and at most.
_TODENSE_WARPS, _TODENSE_BYTES, _MOST_TODENSE_BYTES = 4, 4096, 16384


def maxk(
    x: jax.Array, k: int, by: str, column_dtype: jnp.dtype, tile: MaxkTile | None = None
) -> tuple[jax.Array, jax.Array]:
    """Keeps the k largest entries of each row; exact.

    Ties go to the lowest column, -0 equals +0, and NaN ranks with +inf. The kept entries are copied
    bit by bit.

    Args:
      x: [rows, dim], float32, bfloat16 or float16, dim at most ``MOST_COLUMNS``.
      k: entries to keep, 1 to dim.
      by: rank by ``"value"`` or by ``"magnitude"``.
      column_dtype: uint8 or uint16.
      tile: how the work is divided; chosen by the shape if None.

    Returns:
      [rows, k] values, and their columns, ascending.
    """
    rows, dim = x.shape
    results = [jax.ShapeDtypeStruct((rows, k), dtype) for dtype in (x.dtype, column_dtype)]
    if rows == 0:
        return jnp.zeros((0, k), x.dtype), jnp.zeros((0, k), column_dtype)
    tile = tile or MaxkTile.choose(Chip.current(), dim, column_dtype)
    run = _one_row if tile.rows == 1 else _eight_rows
    values, columns = run(tile, k, by == "magnitude", x, results)
    return values, columns


def _one_row(tile, k, by_magnitude, x, results):
    """Launches the kernel in which a warp selects from one row at a time."""
    rows, dim = x.shape
    return simt.launch(
        OneRow(dim, k, by_magnitude),
        x,
        results,
        name="maxk",
        grid=simt.Grid(striding_blocks(rows, tile.warps), tile.warps),
        shared={"kept": ("i32", k)},
    )


def _eight_rows(tile, k, by_magnitude, x, results):
    """Launches the kernel in which a warp selects from eight rows at once."""
    rows, dim = x.shape
    kept = jax.ShapeDtypeStruct((tile.warps * kept_columns(dim, k),), jnp.uint8)
    return simt.launch(
        EightRows(k, by_magnitude),
        x,
        results,
        name="maxk",
        grid=simt.Grid(-(-rows // (tile.warps * ROWS)), tile.warps),
        block_shared={"kept": kept},
    )


def todense(values: jax.Array, columns: jax.Array, dim: int) -> jax.Array:
    """Scatters kept values into rows of zeros.

    Args:
      values: [rows, k], of 16 or 32 bits each.
      columns: [rows, k], unsigned, distinct in each row.
      dim: columns of the result.

    Returns:
      [rows, dim], of the dtype of the values.
    """
    (rows, _), inputs = values.shape, (values, columns)
    result = jax.ShapeDtypeStruct((rows, dim), values.dtype)
    if values.size == 0:
        return jnp.zeros(result.shape, result.dtype)
    together = _rows_per_warp(dim * values.dtype.itemsize)
    if together is None:
        return _launch_by_rows(_todense, "todense", inputs, result.shape, result.dtype)
    warps = -(-rows // together)
    (dense,) = simt.launch(
        _Todense(together),
        inputs,
        [result],
        name="todense",
        grid=simt.Grid(-(-warps // _TODENSE_WARPS), _TODENSE_WARPS),
        block_shared={"kept": jax.ShapeDtypeStruct((_TODENSE_WARPS, together * dim), values.dtype)},
    )
    return dense


def _rows_per_warp(nbytes: int) -> int | None:
    """Returns how many rows of ``nbytes`` bytes a warp builds in shared memory; None if too wide.

    Rows were timed up to 4 KiB.
    """
    if nbytes > _TODENSE_BYTES:
        return None
    whole = 16 // math.gcd(nbytes, 16)  # the fewest rows whose bytes are a multiple of 16
    rows = max(1, _TODENSE_BYTES // nbytes // whole) * whole
    return rows if rows * nbytes <= _MOST_TODENSE_BYTES else None


def gather_columns(dense: jax.Array, columns: jax.Array) -> jax.Array:
    """Gathers the entries of each row at ``columns``: the transpose of ``todense``.

    Args:
      dense: [rows, dim], of 16 or 32 bits each.
      columns: [rows, k], unsigned.

    Returns:
      [rows, k], of the dtype of ``dense``.
    """
    if columns.size == 0:
        return jnp.zeros(columns.shape, dense.dtype)
    inputs = dense, columns
    return _launch_by_rows(_gather_columns, "gather_columns", inputs, columns.shape, dense.dtype)


def _launch_by_rows(kernel, name, inputs, shape, dtype):
    """Launches a kernel whose warps stride over rows."""
    grid = simt.Grid(striding_blocks(shape[0], _WARPS), _WARPS)
    return simt.launch(kernel, inputs, [jax.ShapeDtypeStruct(shape, dtype)], name=name, grid=grid)[
        0
    ]


@dataclass(frozen=True)
class _Todense:
    """A warp builds neighbouring rows in shared memory, and writes them all at once.

    Attributes:
      together: how many rows a warp has.
    """

    together: int

    def __call__(self, warp: Warp, inputs, dense: Array, kept: Array) -> None:
        first = warp.number * self.together
        warp.when(first < dense.shape[0], lambda: self._make(warp, first, inputs, dense, kept))

    def _make(self, warp, first, inputs, dense, kept) -> None:
        """Clears the rows in shared memory, scatters the values, and copies the rows out."""
        values, columns = inputs
        (rows, dim), k, at_once = dense.shape, values.shape[1], 16 // dense.itemsize
        own = kept.row(warp.thread // LANES)
        zeros = [warp.constant("u32", 0)] * 4
        count = (rows - first).at_most(self.together)
        to, value, column = (array.row(first) for array in (dense, values, columns))
        warp.strided(
            self.together * dim // at_once, lambda i: own.store_words(i * at_once, zeros, at_once)
        )
        # Orders the zeros before the values that other lanes write over them.
        warp.sync()
        warp.strided(
            count * k,
            lambda i: own.store_words(i // k * dim + column.load(i).to("i32"), value.load_words(i)),
        )
        warp.sync()
        whole = count * dim // at_once

        def copy(i):
            to.store_words(i * at_once, own.load_words(i * at_once, at_once), at_once)

        warp.strided(whole, copy)
        # The rest of the last rows is less than 16 bytes.
        rest = whole * at_once + warp.lane
        warp.when(rest < count * dim, lambda: to.store_words(rest, own.load_words(rest)))


def _todense(warp: Warp, inputs, dense: Array) -> None:
    """Clears each row in global memory, and then scatters its values; for wide rows."""
    values, columns = inputs
    zero = [warp.constant("u32", 0)]

    def take(number, _):
        row, value, column = (array.row(number) for array in (dense, values, columns))
        warp.strided(dense.shape[1], lambda i: row.store_words(i, zero))
        # Orders the zeros before the values that other lanes write over them.
        warp.sync()
        warp.strided(
            values.shape[1],
            lambda i: row.store_words(column.load(i).to("i32"), value.load_words(i)),
        )

    warp.loop(warp.number, dense.shape[0], warp.count, (), take)


def _gather_columns(warp: Warp, inputs, values: Array) -> None:
    """Gathers the entries of each row at its columns."""
    dense, columns = inputs

    def take(number, _):
        row, value, column = (array.row(number) for array in (dense, values, columns))
        warp.strided(
            columns.shape[1],
            lambda i: value.store_words(i, row.load_words(column.load(i).to("i32"))),
        )

    warp.loop(warp.number, values.shape[0], warp.count, (), take)
