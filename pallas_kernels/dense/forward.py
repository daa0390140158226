"""The forward pass of a stack of dense layers, and the gradient to its last preactivation.

The warpgroups of a block take turns at its tiles of rows. A tile stays in its place in shared
memory from the input to the output, as every layer overwrites what it read; or what is between
layers stays in registers, where the next one takes it from there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.products import PRODUCTS
from pallas_kernels.dense.stack import Stack, add_bias
from pallas_kernels.tensor_cores import BLOCK, PART, WARPGROUP, Ring, TiledInput

# A thread has 128 sums of 256 columns, for which only two warpgroups have registers.
_NARROW_COLUMNS, _WIDE_WARPGROUPS = 128, 2
_AHEAD = 4  # tiles for each warpgroup
# Less than that may be in the cache; of two layers, blocks that stay were as good there.
_WAVES_FROM_BYTES = 64 << 20
_LEAST_TILES = 2  # of a block that comes in waves


@dataclass(frozen=True)
class _Waves:
    """Blocks that come one after another, where the time is that of the memory.

    Not all multiprocessors get the same share of it: several blocks on each, and waves of them, let
    the fast ones do more.

    Attributes:
      resident: blocks on a multiprocessor.
      count: waves of them, at most.
      warpgroups: of a block.
      slots: likewise.
    """

    resident: int
    count: int
    warpgroups: int
    slots: int


# As timed with a million rows and relu, behind a layer or between two; by widths and
# ``Stack.precision``.
_TIMED = (("relu",), ("relu", None))
_WAVES: dict[tuple[tuple[int, ...], str | None], _Waves] = {
    ((64, 64), None): _Waves(3, 16, 1, 2),
    ((128, 128), None): _Waves(3, 16, 1, 2),
    ((64, 64, 64), None): _Waves(3, 16, 1, 3),
    ((128, 128, 128), None): _Waves(1, 4, 4, 8),
    ((64, 64, 64), "tf32"): _Waves(3, 16, 1, 2),
}


@dataclass(frozen=True)
class DenseTile:
    """How blocks and warpgroups share the work.

    Attributes:
      blocks: at most this many have the same columns; with all parts one a multiprocessor, but for
        those that come in waves.
      warpgroups: that take turns at the tiles of a block.
      slots: tiles in shared memory, those read ahead and those worked on.
      parts: blocks that share the columns of the result.
      direct: whether results, of 16 bits of ``forward``, are written from registers, so that a
        place is free once its product is made; else the copy engine writes them from there.
    """

    blocks: int
    warpgroups: int
    slots: int
    parts: int = 1
    direct: bool = False

    def __post_init__(self):
        if self.slots <= self.warpgroups:
            # None would be read ahead; such a kernel was seen to wait for ever.
            expected = f"more than the {self.warpgroups} warpgroups"
            raise ValueError(f"DenseTile: slots: expected {expected}, got {self.slots}")

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, rows: int = 0) -> DenseTile | None:
        """The heuristic of the forward pass, for so many rows, if known: what fits, or None."""
        if max(stack.widths) > tc.MOST_WIDTH:
            return None
        waves = _WAVES.get((stack.widths, stack.precision))
        many = rows * stack.widths[0] * stack.dtype.itemsize >= _WAVES_FROM_BYTES
        if waves and many and stack.activations in _TIMED:
            blocks = chip.multiprocessors * waves.resident * waves.count
            blocks = min(blocks, rows // (tc.ROWS * _LEAST_TILES))
            return cls(blocks, waves.warpgroups, waves.slots)
        # Layers one by one are better than a stack that leaves no room to read ahead.
        least = 2 if stack.layers == 1 else 3
        tile = cls._fitting(chip, stack, stack.row_bytes(max(stack.widths)), least)
        if tile is None or stack.layers > 1 or stack.dtype.itemsize != 2:
            return tile
        # Where few tiles fit, none of them should wait for the one before to be written.
        return dataclasses.replace(tile, direct=tile.slots < 2 * tile.warpgroups)

    @classmethod
    def choose_pull_back(cls, chip: Chip, stack: Stack) -> DenseTile | None:
        """The heuristic of ``pull_back``: the fewest parts that leave room to read ahead."""
        before, after = stack.widths
        if max(stack.widths) > tc.MOST_WIDTH:
            return None
        chunks = after // tc.COLUMNS
        for parts in (n for n in range(1, chunks + 1) if chunks % n == 0):
            tile = cls._fitting(chip, stack, stack.row_bytes(before, after // parts), 3, parts)
            if tile is not None:
                return tile
        return None

    @classmethod
    def _fitting(
        cls, chip: Chip, stack: Stack, slot: int, least: int, parts: int = 1
    ) -> DenseTile | None:
        fitting = (chip.shared_bytes - stack.parameter_bytes(parts)) // slot
        if fitting < least:
            return None
        narrow = max(stack.widths[1:]) // parts <= _NARROW_COLUMNS
        most = PRODUCTS[stack.precision].warpgroups if narrow else _WIDE_WARPGROUPS
        warpgroups = min(most, fitting - 1)
        slots = min(fitting, _AHEAD * warpgroups)
        if slots >= 2 * warpgroups:
            slots -= slots % warpgroups
        return cls(chip.multiprocessors // parts, warpgroups, slots, parts)

    @property
    def barriers(self) -> int:
        """One for each pair of a slot and a warpgroup that waits for it."""
        return math.lcm(self.slots, self.warpgroups)

    def limited_to(self, rows: int) -> DenseTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))


def forward(
    x, kernels, biases, activations, tile: DenseTile | None = None, precision: str | None = None
) -> jax.Array:
    """The output of the last layer.

    Args:
      x: [rows, width], bfloat16, float16 or float32.
      kernels: [width of the layer before, width] each, multiples of 64.
      biases: [width] or None, each.
      activations: name or None, each.
      tile: by default what suits the shapes.
      precision: of float32, ``"tf32"`` or ``"bf16x3"``; else None.

    Returns:
      [rows, last width], of the dtype of ``x``.
    """
    stack = Stack.of(x, kernels, biases, activations, precision)
    tile = tile or DenseTile.choose(Chip.current(), stack, x.shape[0])
    return _launch("dense_forward", stack, tile, [x], kernels, biases)


def pull_back(x, kernel, bias, activation: str, dy, tile: DenseTile | None = None) -> jax.Array:
    """``dy activation'(x @ kernel + bias)``, where the preactivation is not known.

    Args:
      x: [rows, width], bfloat16 or float16.
      kernel: [width, last width], multiples of 64.
      bias: [last width] or None.
      activation: one that is not ``of_output``.
      dy: [rows, last width].
      tile: by default what suits the shapes.

    Returns:
      [rows, last width], of the dtype of ``x``.
    """
    stack = Stack.of(x, (kernel,), (bias,), (activation,))
    tile = tile or DenseTile.choose_pull_back(Chip.current(), stack)
    return _launch("dense_pull_back", stack, tile, [x, dy], (kernel,), (bias,))


def _launch(name: str, stack: Stack, tile: DenseTile | None, inputs, kernels, biases) -> jax.Array:
    if tile is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit shared memory")
    if tile.direct and (len(inputs) > 1 or tile.parts > 1 or stack.dtype.itemsize != 2):
        raise ValueError("only whole rows of 16-bit results of forward are written from registers")
    rows, x = inputs[0].shape[0], inputs[0]
    if rows == 0:
        return jnp.zeros((0, stack.widths[-1]), x.dtype)
    tile = tile.limited_to(rows)
    call = tc.launch(
        functools.partial(_forward, stack, tile),
        name,
        jax.ShapeDtypeStruct((rows, stack.widths[-1]), x.dtype),
        (tile.blocks, tile.parts),
        tile.warpgroups,
        _scratch(stack, tile, len(inputs)),
    )
    prepared = tuple(PRODUCTS[stack.precision].prepare(kernel) for kernel in kernels)
    return call(inputs, prepared, tuple(b for b in biases if b is not None))


def _scratch(stack: Stack, tile: DenseTile, inputs: int) -> dict:
    """The layers' parameters, of the last its part of the columns; and the ring."""
    widths = [*stack.widths[:-1], stack.widths[-1] // tile.parts]
    biases = (width for width, biased in zip(widths[1:], stack.biased, strict=True) if biased)
    streamed = [widths[0], widths[-1]][:inputs]
    room = [max(widths)] if inputs == 1 else streamed
    places, barriers = (tile.slots,), (tile.barriers,)
    place = PRODUCTS[stack.precision].allocate
    return {
        "kernels": [place(stack.dtype, *shape) for shape in itertools.pairwise(widths)],
        "biases": [tc.SMEM((width,), stack.dtype) for width in biases],
        "ring": Ring.scratch(stack.dtype, streamed, places, barriers=barriers, room=room),
        "loaded": tc.Barrier(num_arrivals=stack.layers + sum(stack.biased)),
    }


def _forward(stack: Stack, tile: DenseTile, scratch, sources, kernels, biases, result) -> None:
    """A warpgroup's part."""
    x, *dy = sources
    share = stack.widths[-1] // tile.parts
    first = 0
    if tile.parts > 1:  # of one layer
        first = lax.axis_index(PART) * share
        kernels = [kernel.at[:, pl.ds(first, share)] for kernel in kernels]
        biases = [bias.at[pl.ds(first, share)] for bias in biases]
    targets = [*(kernel.at[0] for kernel in scratch["kernels"]), *scratch["biases"]]
    tc.start_loads([*kernels, *biases], targets, scratch["loaded"])
    inputs = [TiledInput(x, stack.widths[0]), *(TiledInput(array, share, first) for array in dy)]
    ring = Ring(scratch["ring"], inputs)
    _Worker(stack, tile, scratch["kernels"], scratch["biases"], ring, result, first, bool(dy)).run(
        lambda: tc.barrier_wait(scratch["loaded"])
    )


@dataclass(frozen=True)
class _Worker:
    """A warpgroup that goes through tiles.

    Attributes:
      stack: the layers.
      tile: who does what.
      kernels: in shared memory.
      biases: in shared memory, those that there are.
      ring: of x, and of dy where the gradient is asked for.
      result: in memory.
      first: of the columns that the block makes.
      pulls_back: whether the gradient is asked for.
    """

    stack: Stack
    tile: DenseTile
    kernels: Sequence
    biases: Sequence
    ring: Ring
    result: Any
    first: Any
    pulls_back: bool

    def run(self, wait_for_parameters) -> None:
        """The tiles of the block whose number is the warpgroup's, modulo warpgroups."""
        tile, warpgroup, block = self.tile, lax.axis_index(WARPGROUP), lax.axis_index(BLOCK)
        count = tc.count_strided_tiles(self.result.shape[0], block, tile.blocks)

        def rows(n):
            return tc.rows_of(block + n * tile.blocks)

        def load(n):
            place, barrier = lax.rem(n, tile.slots), lax.rem(n, tile.barriers)
            pl.when(n < count)(lambda: self.ring.load(rows(n), (place,), (barrier,)))

        def reload(n):
            """Into the place of the tile before, once that was written from there."""
            tc.wait_smem_to_gmem(0, wait_read_only=True)
            before = n - tile.warpgroups
            pl.when(before >= 0)(lambda: load(before + tile.slots))

        for turn in range(-(-tile.slots // tile.warpgroups)):
            n = warpgroup + turn * tile.warpgroups
            pl.when(n < tile.slots)(functools.partial(load, n))
        wait_for_parameters()

        @pl.loop(0, tc.count_strided(count, warpgroup, tile.warpgroups))
        def _(i):
            n = warpgroup + i * tile.warpgroups
            self.ring.wait((lax.rem(n, tile.barriers),))
            kernels = [kernel.at[tc.opaque_zero(i)] for kernel in self.kernels]
            place = (lax.rem(n, tile.slots),)
            if tile.direct:
                z = self._multiply(kernels, place, _nothing)
                load(n + tile.slots)
                self._store((block + n * tile.blocks) * tc.ROWS, z)
            else:
                z = self._multiply(kernels, place, functools.partial(reload, n))
                self._copy(rows(n), z, place)

        if not tile.direct:
            tc.wait_smem_to_gmem(0)

    def _multiply(self, kernels, place, reload) -> jax.Array:
        """All layers of a tile, as far as the last product."""
        held, *_ = self.ring.tiles(place)
        products, x = PRODUCTS[self.stack.precision], held
        for layer, kernel in enumerate(kernels):
            z = products.multiply(held, kernel, _nothing if layer else reload)
            if layer + 1 == len(kernels):
                return z
            if products.from_registers:
                held = self._finish(layer, z, slice(0, z.shape[1]), None)
            else:
                self._overwrite(layer, z, x)
        raise AssertionError("a stack has a layer")

    def _copy(self, rows, z, place) -> None:
        """The last layer, by the copy engine."""
        self._overwrite(self.stack.layers - 1, z, self.ring.tiles(place)[-1])
        copied = self.ring.copy_tiles(place)[-1]
        size = copied.shape[-1]
        share = self.stack.widths[-1] // self.tile.parts
        for chunk in range(share // size):
            columns = tc.columns_at(self.first, chunk, size)
            tc.copy_smem_to_gmem(copied.at[chunk], self.result.at[rows, columns])

    def _store(self, first_row, z) -> None:
        """The last layer, from registers."""
        for columns in tc.columns_of(z.shape[1]):
            values = self._finish(self.stack.layers - 1, z, columns, None)
            tc.store(values.astype(self.stack.dtype), self.result, first_row, columns.start)

    def _overwrite(self, layer: int, z, tile) -> None:
        """A tile with what a layer makes of its product."""
        for chunk, columns in enumerate(tc.columns_of(z.shape[1], tile.shape[-1])):
            target = tile.at[chunk]
            target[...] = self._finish(layer, z, columns, target).astype(self.stack.dtype)
        tc.commit_smem()

    def _finish(self, layer: int, z, columns: slice, dy) -> jax.Array:
        """What a layer makes of these columns of its product."""
        bias = self.stack.bias_of(self.biases, layer)
        return self._activate(layer, add_bias(z[:, columns], bias, columns), dy)

    def _activate(self, layer: int, z, dy):
        """The output, or the gradient to z where ``dy`` is an array."""
        activation = self.stack.activation(layer)
        if activation is None:
            return z
        if not self.pulls_back:
            return activation.value(z)
        _, slope = activation.value_and_slope(z)
        return activation.pull_back(slope, tc.load_float32(dy))


def _nothing() -> None:
    pass
