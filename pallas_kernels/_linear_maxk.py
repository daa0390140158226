"""A linear layer, of whose rows only the k largest entries are written, compressed.

The warpgroups of a block have one of three parts, and pass tiles of 64 rows on to each other::

    loader → multiplier → selectors, by turns

The loader reads chunks of 64 columns into a ring in shared memory. The multiplier, which also keeps
the kernel there, overwrites a tile with its product, rounded; a selector looks for the k largest
entries of its rows, writes them, and gives the chunks back. So products, which the tensor cores
make, and the search, which they hardly take part in, go on side by side, and no dense product
leaves the multiprocessor.
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
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack as dense
from pallas_kernels import _simt
from pallas_kernels._dense_stack import BLOCK, COLUMNS, ROWS, WARPGROUP, Stack
from pallas_kernels._linear_maxk_rows import Format, KeepLargest, LoadChunk

_CHUNK_BYTES = ROWS * COLUMNS * 2
_PRODUCT_WIDTH = 128  # of which a thread has 64 sums in registers
_MOST_AHEAD = 8  # tiles on their way
_LOADER, _MULTIPLIER, _OTHERS = 0, 1, 2
# Of a thread of each part, by selectors: together what all warpgroups begin with, 128 or 96 each.
_REGISTERS = {2: (40, 200, 136), 3: (24, 144, 104)}


@dataclass(frozen=True)
class LinearMaxkTile:
    """How a block shares the work.

    Attributes:
      blocks: at most this many, one for each multiprocessor.
      selectors: warpgroups that select, two or three.
      ring: chunks in shared memory.
    """

    blocks: int
    selectors: int
    ring: int

    @classmethod
    def choose(cls, stack: Stack, k: int) -> LinearMaxkTile | None:
        """The one heuristic: as much of a ring as fits, or None."""
        # Columns fit a byte then, and rows the registers of four lanes.
        if max(stack.widths) > dense.MOST_WIDTH:
            return None
        # Of narrow rows searches are most of the work, and need fewer registers.
        chunks = max(stack.widths) // COLUMNS
        selectors = 3 if chunks <= 2 else 2
        weights = math.prod(stack.widths) * stack.dtype.itemsize
        room = dense.SHARED_BYTES - weights - dense.aligned(selectors * ROWS // 2 * k)
        ring = min(room // _CHUNK_BYTES, _MOST_AHEAD * chunks)
        return cls(dense.MULTIPROCESSORS, selectors, ring) if ring >= chunks else None

    def limited_to(self, rows: int) -> LinearMaxkTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // ROWS)))


def linear_maxk(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    k: int,
    by: str,
    tile: LinearMaxkTile | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The k largest entries of each row of ``x @ kernel + bias``, rounded, as ``maxk`` has them.

    Args:
      x: [rows, in], bfloat16 or float16, in a multiple of 64 up to 256.
      kernel: [in, out], of the same dtype, out likewise.
      bias: [out], or None.
      k: entries to keep, 1 to out.
      by: rank by ``"value"`` or by ``"magnitude"``.
      tile: by default what suits the shapes.

    Returns:
      [rows, k] values, and their columns, uint8, ascending.
    """
    stack, rows = Stack.of(x, (kernel,), (bias,), (None,)), x.shape[0]
    results = [jax.ShapeDtypeStruct((rows, k), dtype) for dtype in (x.dtype, jnp.uint8)]
    if rows == 0:
        values, columns = (jnp.zeros(r.shape, r.dtype) for r in results)
        return values, columns
    tile = tile or LinearMaxkTile.choose(stack, k)
    if tile is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit shared memory")
    tile = tile.limited_to(rows)
    plan = _Plan(stack, tile, rows, k, by == "magnitude")
    call = dense.launch(
        functools.partial(_run, plan),
        "linear_maxk",
        results,
        (tile.blocks, 1),
        _OTHERS + tile.selectors,
        plan.scratch(),
    )
    return call(x, kernel, [b for b in (bias,) if b is not None])


@dataclass(frozen=True)
class _Plan:
    """What the parts know of each other.

    Chunk c of a block's tile i lies at (i chunks + c) modulo ring.

    Attributes:
      stack: the layer.
      tile: who does what.
      rows: of the input.
      k: entries kept.
      by_magnitude: whether entries rank by that.
    """

    stack: Stack
    tile: LinearMaxkTile
    rows: int
    k: int
    by_magnitude: bool

    @property
    def chunks(self) -> int:
        """Of a tile, which is as wide as the input or the output."""
        return max(self.stack.widths) // COLUMNS

    @property
    def ahead(self) -> tuple[int, int]:
        """The ring has room for so many tiles, and so many chunks more."""
        return divmod(self.tile.ring, self.chunks)

    @property
    def waiting(self) -> int:
        """Tiles whose copies may be under way while another's begin.

        A tile is told of that much later: not so late that the multiplier waits for tiles that
        selectors still have.
        """
        return min(3, max(0, self.ahead[0] - 1 - self.tile.selectors))

    @property
    def stages(self) -> int:
        """Barriers of each kind: as many as tiles are on their way, and the same for selectors."""
        tiles, selectors = -(-self.tile.ring // self.chunks), self.tile.selectors
        return -(-tiles // selectors) * selectors

    def registers(self, part: int) -> int:
        """Of each thread."""
        return _REGISTERS[self.tile.selectors][part]

    def scratch(self) -> dict:
        """Shared memory and barriers."""
        barriers = {
            name: plgpu.Barrier(num_barriers=self.stages) for name in ("full", "made", "freed")
        }
        return {
            "weights": dense.tiles(self.stack.dtype, *self.stack.widths),
            "ring": dense.tiles(self.stack.dtype, self.tile.ring, ROWS, COLUMNS),
            "kept": plgpu.SMEM((self.tile.selectors, ROWS // 2 * self.k), jnp.uint8),
            "loaded": plgpu.Barrier(),
            **barriers,
        }

    def chunk(self, i, number):
        """Where in the ring that of tile ``i`` is."""
        return lax.rem(i * self.chunks + number, self.tile.ring)

    def stage(self, i):
        """The barriers of tile ``i``."""
        return lax.rem(i, self.stages)

    def first_row(self, i):
        """Of tile ``i`` of this block."""
        return (lax.axis_index(BLOCK) + i * self.tile.blocks) * ROWS


def _run(plan: _Plan, scratch, x, kernel, biases, values, columns) -> None:
    """A warpgroup's part."""
    part = lax.axis_index(WARPGROUP)
    count = dense.own_tiles(plan.rows, lax.axis_index(BLOCK), plan.tile.blocks)
    parts = (
        lambda: _load(plan, scratch, count, x),
        lambda: _multiply(plan, scratch, count, kernel, biases),
        lambda: _select(plan, scratch, count, part - _OTHERS, values, columns),
    )
    # Branches apart, or registers could not be dealt out anew.
    lax.switch(jnp.minimum(part, _OTHERS), parts)


def _load(plan: _Plan, scratch, count, x) -> None:
    """Begins to copy the tiles, and tells when they are there."""
    tiles, more = plan.ahead
    full, freed, waiting = scratch["full"], scratch["freed"], plan.waiting
    chunks = plan.stack.widths[0] // COLUMNS
    plgpu.set_max_registers(plan.registers(_LOADER), action="decrease")

    def begin(i, numbers):
        for number in numbers:
            if number < chunks:
                chunk = scratch["ring"].at[plan.chunk(i, number)]
                _simt.inline(
                    LoadChunk(number * COLUMNS),
                    [plan.first_row(i)],
                    [(x, ()), (chunk, dense.tiled(x.dtype))],
                )
        _simt.inline(_end_copies, [], [])

    def tell(i):
        """That the copies of a tile have arrived."""
        plgpu.commit_smem()
        plgpu.barrier_arrive(full.at[plan.stage(i)])

    @pl.loop(0, count)
    def _(i):
        # The first chunks take the place of a tile that was waited for before.
        begin(i, range(more))

        def tell_before():
            _simt.inline(_WaitForCopies(2 * waiting + 1), [], [])
            tell(i - 1 - waiting)

        pl.when(i > waiting)(tell_before)
        pl.when(i >= tiles)(lambda: plgpu.barrier_wait(freed.at[plan.stage(i - tiles)]))
        begin(i, range(more, plan.chunks))

    _simt.inline(_WaitForCopies(0), [], [])
    pl.loop(jnp.maximum(count - 1 - waiting, 0), count)(tell)
    # Every completion is waited for, also the last ones.
    pl.loop(jnp.maximum(count - tiles, 0), count)(
        lambda i: plgpu.barrier_wait(freed.at[plan.stage(i)])
    )


def _end_copies(warp) -> None:
    warp.end_copies()


@dataclass(frozen=True)
class _WaitForCopies:
    """Until no more groups of copies than so many are under way."""

    groups: int

    def __call__(self, warp) -> None:
        warp.wait_for_copies(self.groups)


def _multiply(plan: _Plan, scratch, count, kernel, biases) -> None:
    """Puts the product in the place of the input."""
    stack, ring = plan.stack, scratch["ring"]
    weights = scratch["weights"]
    plgpu.set_max_registers(plan.registers(_MULTIPLIER), action="increase")
    plgpu.copy_gmem_to_smem(kernel, weights, scratch["loaded"])
    columns = dense.columns_of(stack.widths[1])
    plgpu.barrier_wait(scratch["loaded"])

    @pl.loop(0, count)
    def _(i):
        plgpu.barrier_wait(scratch["full"].at[plan.stage(i)])
        held = [ring.at[plan.chunk(i, number)] for number in range(plan.chunks)]
        # All products before the first of them takes the place of an operand.
        products = _products(plan, held, weights)
        for number, part in enumerate(columns):
            product, at = divmod(part.start, _PRODUCT_WIDTH)
            z = products[product][:, at : at + COLUMNS]
            for bias in biases:
                # From global memory: of shared memory the ring takes all that there is.
                z = dense.add_bias(z, bias, part)
            held[number][...] = z.astype(stack.dtype)
        plgpu.commit_smem()
        plgpu.barrier_arrive(scratch["made"].at[plan.stage(i)])


def _products(plan: _Plan, chunks, weights) -> Sequence[jax.Array]:
    """The rows of a tile times ``weights``, in parts of some columns."""
    after = plan.stack.widths[1]
    widths = [min(_PRODUCT_WIDTH, after - f) for f in range(0, after, _PRODUCT_WIDTH)]

    def multiply(*sums):
        for n in range(plan.stack.widths[0] // COLUMNS):
            for part, (total, width) in enumerate(zip(sums, widths, strict=True)):
                first = part * _PRODUCT_WIDTH
                columns = slice(first, first + width)
                rows = slice(n * COLUMNS, (n + 1) * COLUMNS)
                plgpu.wgmma(total, chunks[n], weights.at[rows, columns])
        return [total[...] for total in sums]

    shapes = [plgpu.ACC((ROWS, width), jnp.float32) for width in widths]
    return pl.run_scoped(multiply, *shapes)


def _select(plan: _Plan, scratch, count, number, values, columns) -> None:
    """Writes what is kept of every tile whose turn it is."""
    stack, tile = plan.stack, plan.tile
    keep = KeepLargest(
        stack.widths[1], plan.k, plan.by_magnitude, Format.of(stack.dtype), tile.ring
    )
    own, tiled = dense.own(count, number, tile.selectors), dense.tiled(stack.dtype)
    plgpu.set_max_registers(plan.registers(_OTHERS), action="increase")

    @pl.loop(0, own)
    def _(n):
        i = number + n * tile.selectors
        plgpu.barrier_wait(scratch["made"].at[plan.stage(i)])
        kept = scratch["kept"].at[number]
        references = [(scratch["ring"], tiled), *((r, ()) for r in (kept, values, columns))]
        _simt.inline(keep, [plan.chunk(i, 0), plan.first_row(i)], references)
        plgpu.barrier_arrive(scratch["freed"].at[plan.stage(i)])
