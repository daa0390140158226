"""A linear layer that writes only the k largest entries of each row, compressed.

The warpgroups of a block have one of two roles, and pass tiles of 64 rows on to each other::

    multiplier → pairs of selectors, in turn

A selector asks the copy engine to load rows into the slots that it has finished with. The
multiplier, which also keeps the kernel in shared memory, overwrites a tile with its rounded
product. Each selector of a pair then selects the k largest entries of half of the tile's rows and
writes them. So products, on tensor cores, overlap with selections, which hardly use them, and no
dense product leaves the multiprocessor. A selection mostly waits for its own results, so there are
many warps with few rows each, while there is room for few tiles. Some rows take longer than others,
so no warp that selects waits for another one: each loads its own rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import Stack
from pallas_kernels.maxk.linear_maxk_rows import (
    ROWS_PER_WARP,
    ROWS_PER_WARPGROUP,
    WARPS,
    Format,
    KeepLargest,
    ReleaseTile,
    kept_columns,
)
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, ROWS, WARPGROUP

_MOST_AHEAD = 8  # tiles in the ring at most
_MULTIPLIER, _SELECTOR = 0, 1
_THREADS_PER_WARPGROUP = 128
_SELECTORS_PER_TILE = 2  # each has half of the rows


@dataclass(frozen=True)
class LinearMaxkTile:
    """Division of the work among the warpgroups of a block.

    Attributes:
      blocks: how many blocks there are, at most one for each multiprocessor.
      pairs: pairs of selectors in a block, two or three.
      ring: tiles in shared memory.
    """

    blocks: int
    pairs: int
    ring: int

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, k: int) -> LinearMaxkTile | None:
        """The one heuristic: as many tiles in the ring as fit, or None."""
        # Up to this width, column numbers fit a byte, and a row fits the registers of four lanes.
        if max(stack.widths) > tc.MOST_WIDTH:
            return None
        # For narrow rows, selections are most of the work, and need fewer registers.
        pairs = 3 if max(stack.widths) <= 2 * COLUMNS else 2
        if _REGISTER_SPLITS[pairs].of_block(pairs * _SELECTORS_PER_TILE) > chip.registers:
            return None
        weights = math.prod(stack.widths) * stack.dtype.itemsize
        kept = pairs * _SELECTORS_PER_TILE * kept_columns(stack.widths[1], k)
        room = chip.shared_bytes - weights - tc.aligned(kept)
        ring = min(room // stack.row_bytes(max(stack.widths)), _MOST_AHEAD)
        return cls(chip.multiprocessors, pairs, ring) if ring else None

    @property
    def warpgroups(self) -> int:
        """Number of warpgroups of a block: the multiplier and the selectors."""
        return _SELECTOR + self.pairs * _SELECTORS_PER_TILE

    def limited_to(self, rows: int) -> LinearMaxkTile:
        """Returns the same without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // ROWS)))


@dataclass(frozen=True)
class _RegisterSplit:
    """Division of the registers of a multiprocessor between the two roles.

    Attributes:
      registers: registers of a thread of the multiplier, and of a selector; multiples of each
        eight, which together fit in what all warpgroups start with.
      product: columns of a product that are computed at once; their sums have to fit the registers
        that a warpgroup starts with.
    """

    registers: tuple[int, int]
    product: int

    def of_block(self, selectors: int) -> int:
        """Registers of one multiplier and ``selectors`` selectors."""
        multiplier, selector = self.registers
        return _THREADS_PER_WARPGROUP * (multiplier + selectors * selector)


_REGISTER_SPLITS = {2: _RegisterSplit((160, 80), 128), 3: _RegisterSplit((168, 56), 64)}


def linear_maxk(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    k: int,
    by: str,
    tile: LinearMaxkTile | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes the k largest entries of each row of ``x @ kernel + bias``, rounded, as ``maxk``.

    Args:
      x: [rows, in], bfloat16 or float16; in is a multiple of 64 up to 256.
      kernel: [in, out], of the dtype of ``x``; out is a multiple of 64 up to 256.
      bias: [out], or None.
      k: entries to keep, 1 to out.
      by: rank by ``"value"`` or by ``"magnitude"``.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [rows, k] values, and [rows, k] columns of uint8, ascending.
    """
    stack, rows = Stack.of(x, (kernel,), (bias,), (None,)), x.shape[0]
    results = [jax.ShapeDtypeStruct((rows, k), dtype) for dtype in (x.dtype, jnp.uint8)]
    if rows == 0:
        values, columns = (jnp.zeros(r.shape, r.dtype) for r in results)
        return values, columns
    tile = tile or LinearMaxkTile.choose(Chip.current(), stack, k)
    if tile is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit shared memory")
    tile = tile.limited_to(rows)
    plan = _Plan(stack, tile, rows, k, by == "magnitude")
    call = tc.launch(
        functools.partial(_run, plan),
        "linear_maxk",
        results,
        (tile.blocks, 1),
        tile.warpgroups,
        plan.scratch(),
        barriers=False,
    )
    return call(x, kernel, [b for b in (bias,) if b is not None])


@dataclass(frozen=True)
class _Plan:
    """Description of a launch that both roles share.

    Attributes:
      stack: the linear layer.
      tile: how the work is divided.
      rows: rows of the input.
      k: entries kept of each row.
      by_magnitude: whether entries rank by their magnitude.
    """

    stack: Stack
    tile: LinearMaxkTile
    rows: int
    k: int
    by_magnitude: bool

    @property
    def chunks(self) -> int:
        """Chunks of a tile, which is as wide as the wider of input and output."""
        return max(self.stack.widths) // COLUMNS

    @property
    def stages(self) -> int:
        """Barriers of each kind: at least one for each tile, and a whole number for each pair."""
        return -(-self.tile.ring // self.tile.pairs) * self.tile.pairs

    @property
    def register_split(self) -> _RegisterSplit:
        """Division of the registers, for this number of pairs."""
        return _REGISTER_SPLITS[self.tile.pairs]

    def scratch(self) -> dict:
        """Returns the scratch memory and barriers of a block."""
        width, dtype = self.stack.widths[0], self.stack.dtype
        kept = self.tile.pairs * _SELECTORS_PER_TILE, kept_columns(self.stack.widths[1], self.k)
        copies = _SELECTORS_PER_TILE * WARPS * (width // COLUMNS)
        return {
            "weights": tc.tiles(dtype, 1, *self.stack.widths),
            "ring": tc.copied_tiles(dtype, self.tile.ring * self.chunks, ROWS, COLUMNS),
            "kept": tc.SMEM(kept, jnp.uint8),
            "loaded": tc.Barrier(),
            "full": tc.Barrier(num_arrivals=copies, num_barriers=self.stages),
            "made": tc.Barrier(num_barriers=self.stages),
        }

    @property
    def parts(self) -> list[slice]:
        """Slices of the columns that are multiplied at once."""
        width = self.stack.widths[1]
        whole = tc.columns_of(width, self.register_split.product)
        return [slice(part.start, min(part.stop, width)) for part in whole]

    def first_chunk(self, i):
        """Returns the number of the first chunk of tile ``i`` in the ring."""
        return lax.rem(i, self.tile.ring) * self.chunks

    def stage(self, i):
        """Returns the number of the barriers of tile ``i``."""
        return lax.rem(i, self.stages)

    def first_row(self, i):
        """Returns the first row of tile ``i`` of this block."""
        return (lax.axis_index(BLOCK) + i * self.tile.blocks) * ROWS


def _run(plan: _Plan, scratch, x, kernel, biases, values, columns) -> None:
    """Runs the multiplier or the selector that this warpgroup is."""
    part = lax.axis_index(WARPGROUP)
    count = tc.count_strided_tiles(plan.rows, lax.axis_index(BLOCK), plan.tile.blocks)
    parts = (
        lambda: _multiply(plan, scratch, count, kernel, biases),
        lambda: _select(plan, scratch, count, part - _SELECTOR, x, values, columns),
    )
    # Registers can only be reallocated in separate branches.
    lax.switch(jnp.minimum(part, _SELECTOR), parts)


def _multiply(plan: _Plan, scratch, count, kernel, biases) -> None:
    """Runs the multiplier: overwrites each tile of the input with its product."""
    stack, weights = plan.stack, scratch["weights"]
    ring, _ = tc.tile_views(scratch["ring"])
    tc.set_max_registers(plan.register_split.registers[_MULTIPLIER], action="increase")
    tc.copy_gmem_to_smem(kernel, weights.at[0], scratch["loaded"])
    columns = tc.columns_of(stack.widths[1])
    tc.barrier_wait(scratch["loaded"])

    @pl.loop(0, count)
    def _(i):
        first, zero = plan.first_chunk(i), tc.opaque_zero(i)
        # This runs while the tile is still being loaded.
        sums = [_sums_before(plan, biases, zero, part) for part in plan.parts]
        tc.barrier_wait(scratch["full"].at[plan.stage(i)])
        held = [ring.at[first + number] for number in range(plan.chunks)]
        # All warps compute all products before the first of these overwrites an operand.
        products = _add_products(plan, sums, held, weights.at[zero])
        tc.commit_smem()
        for number, part in enumerate(columns):
            product, at = divmod(part.start, plan.register_split.product)
            z = products[product][:, at : at + COLUMNS]
            held[number][...] = z.astype(stack.dtype)
        tc.commit_smem()
        tc.barrier_arrive(scratch["made"].at[plan.stage(i)])


def _sums_before(plan: _Plan, biases, zero, part: slice) -> jax.Array:
    """Returns the initial sums of a product: the bias in every row of a tile, or zeros."""
    width = part.stop - part.start
    if not biases:
        return tc.layout_cast(jnp.zeros((ROWS, width), jnp.float32), tc.Layout.WGMMA)
    # The bias is read from global memory, since the ring takes all of shared memory.
    (bias,) = biases
    return tc.rows_of_bias(bias, pl.ds(pl.multiple_of(zero + part.start, COLUMNS), width))


def _add_products(plan: _Plan, sums: Sequence[jax.Array], chunks, weights) -> Sequence[jax.Array]:
    """Adds the product of a tile and ``weights`` to ``sums``, one for each part of the columns."""

    def multiply(totals):
        for n in range(plan.stack.widths[0] // COLUMNS):
            rows = slice(n * COLUMNS, (n + 1) * COLUMNS)
            for total, part in zip(totals, plan.parts, strict=True):
                tc.wgmma(total, chunks[n], weights.at[rows, part])

    return tc.accumulate_into(sums, multiply)


def _select(plan: _Plan, scratch, count, number, x, values, columns) -> None:
    """Runs a selector: writes the k largest entries of its half of tiles, and loads others."""
    stack, tile = plan.stack, plan.tile
    pair, half = number // _SELECTORS_PER_TILE, lax.rem(number, _SELECTORS_PER_TILE)
    keep = KeepLargest(stack.widths[1], plan.k, plan.by_magnitude, Format.of(stack.dtype))
    ring, _ = tc.tile_views(scratch["ring"])
    tc.set_max_registers(plan.register_split.registers[_SELECTOR], action="decrease")

    def load(i):
        pl.when(i < count)(lambda: _load(plan, scratch, i, half, x))

    def load_own(n):
        load(pair + n * tile.pairs)

    # All multiprocessors start to load at once. The kernel and the first tile should come first.
    of_first_tile = jnp.int32(pair == 0)
    pl.loop(0, of_first_tile)(load_own)
    tc.barrier_wait(scratch["loaded"])
    pl.loop(of_first_tile, tc.count_strided(tile.ring, pair, tile.pairs))(load_own)

    @pl.loop(0, tc.count_strided(count, pair, tile.pairs))
    def _(n):
        i = pair + n * tile.pairs
        tc.barrier_wait(scratch["made"].at[plan.stage(i)])
        kept = scratch["kept"].at[number]
        tiled = tc.tiled(stack.dtype)
        references = [(ring, tiled), *((r, ()) for r in (kept, values, columns))]
        simt.inline(keep, [plan.first_chunk(i), plan.first_row(i), half], references)
        simt.inline(ReleaseTile(), [], [])
        load(i + tile.ring)


def _load(plan: _Plan, scratch, i, half, x) -> None:
    """Starts to load half of the rows of tile ``i``; each warp loads its own rows."""
    _, ring = tc.tile_views(scratch["ring"])
    first, full = plan.first_chunk(i), scratch["full"].at[plan.stage(i)]

    def ask(warp):
        in_tile = half * ROWS_PER_WARPGROUP + warp * ROWS_PER_WARP
        rows, own = (pl.ds(start + in_tile, ROWS_PER_WARP) for start in (plan.first_row(i), 0))
        for number, columns in enumerate(tc.columns_of(plan.stack.widths[0])):
            tc.copy_gmem_to_smem(x.at[rows, columns], ring.at[first + number, own], full)

    tc.warp_map(ask)
