"""Two dense layers whose kernels do not fit one multiprocessor, in clusters of two blocks.

Each block keeps the kernel of one layer. The first block loads tiles of rows, multiplies them, and
sends the output of its layer from registers to the shared memory of the second block. That one
multiplies again and lets the copy engine store the result. So hidden rows never go through global
memory, and rows are read and written once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import Stack, finish
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, RANK, ROWS, WARPGROUP, Ring, TiledInput
from pallas_kernels.tensor_cores.stores import (
    InitChannel,
    ReleaseSlot,
    SendChunk,
    TileChannel,
    WaitForSlot,
    WaitForTile,
)

_LAYERS = 2
_WARPGROUPS = 2  # more do not have registers for 128 sums a thread
_MIN_SLOTS, _MAX_SLOTS = 3, 8  # tiles in shared memory
_FIRST, _SECOND = 0, 1


@dataclass(frozen=True)
class PairTile:
    """Division of the work among clusters and warpgroups.

    Attributes:
      pairs: how many clusters there are.
      warpgroups: warpgroups of each block, which take turns at its tiles.
      slots: tiles in the shared memory of each block.
    """

    pairs: int
    warpgroups: int
    slots: int

    @classmethod
    def choose(cls, chip: Chip, stack: Stack) -> PairTile | None:
        """The one heuristic: as many slots as fit, or None if the layers do not fit."""
        is_wide = max(stack.widths) > tc.MOST_WIDTH
        if stack.layers != _LAYERS or stack.dtype.itemsize != 2 or is_wide:
            return None
        parameters = max(stack.part(n, n + 1).parameter_bytes() for n in range(_LAYERS))
        room = chip.shared_bytes - parameters - tc.aligned(1)
        slots = min(room // stack.row_bytes(max(stack.widths)), _MAX_SLOTS)
        if slots < _MIN_SLOTS:
            return None
        return cls(chip.multiprocessors // _LAYERS, _WARPGROUPS, slots)

    @property
    def barriers(self) -> int:
        """Number of barriers: one for each pair of a slot and its waiting warpgroup."""
        return math.lcm(self.slots, self.warpgroups)

    def limited_to(self, rows: int) -> PairTile:
        """Returns the same without clusters that would have no rows."""
        return dataclasses.replace(self, pairs=min(self.pairs, -(-rows // ROWS)))


def forward(x, kernels, biases, activations, tile: PairTile | None = None) -> jax.Array:
    """Computes the output of the second layer.

    Args:
      x: [rows, width], bfloat16 or float16.
      kernels: two, [width of the layer before, width], of widths that are multiples of 64.
      biases: [width] or None, each.
      activations: name or None, for each layer.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [rows, last width], of the dtype of ``x``.
    """
    stack = Stack.of(x, kernels, biases, activations)
    tile = tile or PairTile.choose(Chip.current(), stack)
    if tile is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit two multiprocessors")
    rows = x.shape[0]
    if rows == 0:
        return jnp.zeros((0, stack.widths[-1]), x.dtype)
    tile = tile.limited_to(rows)
    call = tc.launch(
        functools.partial(_forward, stack, tile),
        "dense_pair",
        jax.ShapeDtypeStruct((rows, stack.widths[-1]), x.dtype),
        (tile.pairs, 1),
        tile.warpgroups,
        _scratch(stack, tile),
        cluster=_LAYERS,
    )
    return call(x, tuple(kernels), tuple(b for b in biases if b is not None))


def _scratch(stack: Stack, tile: PairTile) -> dict:
    """Returns scratch memory for blocks of both ranks, with the parameters of one layer."""
    width, room = stack.widths[0], max(stack.widths)
    kernels = [tc.tiles(stack.dtype, 1, *shape) for shape in stack.shapes]
    loads = [1 + biased for biased in stack.biased]
    ring = Ring.scratch(
        stack.dtype, [width], (tile.slots,), barriers=(tile.barriers,), slot_widths=[room]
    )
    return {
        "kernel": tc.RefUnion(*kernels),
        "bias": tc.SMEM((max(stack.widths[1:]),), stack.dtype) if any(stack.biased) else None,
        "ring": ring,
        "loaded": [tc.Barrier(num_arrivals=count) for count in loads],
        "signals": tc.SMEM(TileChannel(tile.barriers).signals, jnp.uint32),
    }


def _forward(stack: Stack, tile: PairTile, scratch, x, kernels, biases, result) -> None:
    """Runs this warpgroup by the rank of its block."""
    block = _Block(stack, tile, scratch, x, kernels, biases, result)
    for rank, run in ((_FIRST, block.run_first), (_SECOND, block.run_second)):
        pl.when(lax.axis_index(RANK) == rank)(run)


@dataclass(frozen=True)
class _Block:
    """A warpgroup of a block, of either rank.

    Attributes:
      stack: the layers.
      tile: how the work is divided.
      scratch: shared memory and barriers.
      x: the input in global memory.
      kernels: the kernels in global memory.
      biases: the biases in global memory, without those that are None.
      result: the result in global memory.
    """

    stack: Stack
    tile: PairTile
    scratch: dict
    x: Any
    kernels: Any
    biases: Any
    result: Any

    @property
    def _count(self):
        """Number of tiles of the cluster."""
        return tc.count_strided_tiles(self.x.shape[0], lax.axis_index(BLOCK), self.tile.pairs)

    def _row(self, n):
        """Returns the first row of the cluster's n-th tile."""
        return (lax.axis_index(BLOCK) + n * self.tile.pairs) * ROWS

    def _slot(self, n):
        return lax.rem(n, self.tile.slots)

    def _use_channel(self, kind, numbers, references=(), products=(), **options) -> None:
        """Runs an operation of the channel between the blocks, a subclass of ``TileChannel``."""
        pair = kind(self.tile.barriers, **options)
        references = [*references, (self.scratch["signals"], ())]
        simt.inline(pair, numbers, references, products, cluster=_LAYERS)

    def _begin(self, layer: int) -> None:
        """Starts to load the layer's parameters, and initialises the channel between the blocks."""
        sources, targets = [self.kernels[layer]], [self.scratch["kernel"][layer].at[0]]
        bias = self.stack.bias_of(self.biases, layer)
        if bias is not None:
            sources.append(bias)
            targets.append(self.scratch["bias"].at[pl.ds(0, bias.shape[0])])
        tc.start_loads(sources, targets, self.scratch["loaded"][layer])
        self._use_channel(InitChannel, [lax.axis_index(WARPGROUP)])
        tc.barrier_wait(self.scratch["loaded"][layer])

    def _for_each_tile(self, body) -> None:
        """Calls ``body`` for every tile of the warpgroup, with its number and an opaque zero."""
        warpgroup, step = lax.axis_index(WARPGROUP), self.tile.warpgroups

        @pl.loop(0, tc.count_strided(self._count, warpgroup, step))
        def _(i):
            body(warpgroup + i * step, tc.opaque_zero(i))

    def _product(self, layer: int, tile, zero) -> jax.Array:
        """Multiplies a tile by the kernel of a layer."""
        chunks = [tile.at[chunk] for chunk in range(self.stack.widths[layer] // COLUMNS)]
        kernel = self.scratch["kernel"][layer].at[zero]
        rows = tc.columns_of(kernel.shape[0])
        return tc.product(
            *((chunk, kernel.at[part]) for chunk, part in zip(chunks, rows, strict=True))
        )

    def _finished(self, layer: int, z):
        """Adds the bias and applies the activation to a product.

        Yields columns and rounded values.
        """
        bias = self.scratch["bias"] if self.stack.biased[layer] else None
        for columns in tc.columns_of(z.shape[1]):
            values = finish(self.stack, layer, z, columns, bias)
            yield columns, values.astype(self.stack.dtype)

    def run_first(self) -> None:
        """Loads tiles, and sends the output of the first layer."""
        tile, count = self.tile, self._count
        ring = Ring(self.scratch["ring"], [TiledInput(self.x, self.stack.widths[0])])
        matrices, _ = tc.tile_views(self.scratch["ring"]["tiles"][0])
        chunks = matrices.shape[1]

        def load(n):
            place, barrier = (self._slot(n),), (lax.rem(n, tile.barriers),)
            rows = pl.ds(self._row(n), ROWS)
            pl.when(n < count)(lambda: ring.load(rows, place, barrier))

        for turn in range(-(-tile.slots // tile.warpgroups)):
            n = lax.axis_index(WARPGROUP) + turn * tile.warpgroups
            pl.when(n < tile.slots)(functools.partial(load, n))
        self._begin(_FIRST)

        def make(n, zero):
            ring.wait((lax.rem(n, tile.barriers),))
            z = self._product(_FIRST, matrices.at[self._slot(n)], zero)
            load(n + tile.slots)
            pl.when(n >= tile.slots)(lambda: self._use_channel(WaitForSlot, [n - tile.slots]))
            for columns, values in self._finished(_FIRST, z):
                number = self._slot(n) * chunks + columns.start // COLUMNS
                memory = [(matrices, tc.tiled(self.stack.dtype))]
                self._use_channel(SendChunk, [number, n], memory, [values], rank=_SECOND)

        self._for_each_tile(make)

    def run_second(self) -> None:
        """Receives tiles, and stores the output of the second layer."""
        matrices, copied = tc.tile_views(self.scratch["ring"]["tiles"][0])
        nbytes = self.stack.row_bytes(self.stack.widths[1])
        self._begin(_SECOND)

        def make(n, zero):
            place = matrices.at[self._slot(n)]
            self._use_channel(WaitForTile, [n], nbytes=nbytes)
            tc.commit_smem()  # makes what was sent visible to the tensor cores
            z = self._product(_SECOND, place, zero)
            for columns, values in self._finished(_SECOND, z):
                place.at[columns.start // COLUMNS][...] = values
            tc.commit_smem()
            for chunk, columns in enumerate(tc.columns_of(self.stack.widths[-1])):
                target = self.result.at[pl.ds(self._row(n), ROWS), columns]
                tc.copy_smem_to_gmem(copied.at[self._slot(n), chunk], target)
            tc.wait_smem_to_gmem(0, wait_read_only=True)
            self._give_back(n)

        self._for_each_tile(make)
        tc.wait_smem_to_gmem(0)

    def _give_back(self, n) -> None:
        """Releases the slot of a tile, if another tile will be sent to it."""

        def give_back():
            tc.commit_smem()  # all warps have read it
            self._use_channel(ReleaseSlot, [n])

        pl.when(n + self.tile.slots < self._count)(give_back)
