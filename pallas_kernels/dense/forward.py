"""The forward pass of a stack of dense layers, and the gradient to its last preactivation.

The warpgroups of a block take turns at its tiles of rows. A tile stays in its slot of shared memory
from the input to the output, as every layer overwrites its input with its output; or the rows
between layers stay in registers, from where the next layer multiplies them.
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

# For products of more columns a thread has up to 128 sums, for which only two warpgroups have
# registers.
_NARROW_COLUMNS, _WIDE_WARPGROUPS = 128, 2
_AHEAD = 4  # slots for each warpgroup
# Inputs of fewer bytes may be in the cache; there, persistent blocks were timed to be as fast.
_WAVES_FROM_BYTES = 64 << 20
_LEAST_TILES = 2  # tiles of a block that comes in waves


@dataclass(frozen=True)
class _Waves:
    """Several resident blocks on each multiprocessor, in waves, for kernels bound by memory.

    Multiprocessors do not all get the same memory bandwidth. With many small blocks the fast ones
    can do more of the work.

    Attributes:
      resident: blocks that run on a multiprocessor at once.
      count: waves of such blocks, at most.
      warpgroups: warpgroups of a block.
      slots: tiles in the shared memory of a block.
    """

    resident: int
    count: int
    warpgroups: int
    slots: int


# As timed with a million rows and relu, after one layer or between two. The keys are the widths and
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
    """Division of the work among blocks and warpgroups.

    Attributes:
      blocks: how many blocks have the same columns, at most. With all parts there is one block for
        each multiprocessor, except where blocks come in waves.
      warpgroups: warpgroups of a block, which take turns at its tiles.
      slots: tiles in shared memory, both those that are loading and those that are worked on.
      parts: blocks that share the columns of the result.
      direct: whether the forward pass stores results of 16 bits from registers. Then a slot is free
        as soon as its product is computed; otherwise the copy engine stores results from the slot.
    """

    blocks: int
    warpgroups: int
    slots: int
    parts: int = 1
    direct: bool = False

    def __post_init__(self):
        if self.slots <= self.warpgroups:
            # No tile would be loaded ahead, and such a kernel was seen to deadlock.
            expected = f"more than the {self.warpgroups} warpgroups"
            raise ValueError(f"DenseTile: slots: expected {expected}, got {self.slots}")

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, rows: int = 0) -> DenseTile | None:
        """Chooses the tile of the forward pass for ``rows`` rows if known; None if none fits."""
        if max(stack.widths) > tc.MOST_WIDTH:
            return None
        waves = _WAVES.get((stack.widths, stack.precision))
        many = rows * stack.widths[0] * stack.dtype.itemsize >= _WAVES_FROM_BYTES
        if waves and many and stack.activations in _TIMED:
            blocks = chip.multiprocessors * waves.resident * waves.count
            blocks = min(blocks, rows // (tc.ROWS * _LEAST_TILES))
            return cls(blocks, waves.warpgroups, waves.slots)
        # Separate layers are faster than a stack that leaves no room to load tiles ahead.
        least = 2 if stack.layers == 1 else 3
        tile = cls._fitting(chip, stack, stack.row_bytes(max(stack.widths)), least)
        if tile is None or stack.layers > 1 or stack.dtype.itemsize != 2:
            return tile
        # Where few tiles fit, a load should not have to wait until the tile before is stored.
        return dataclasses.replace(tile, direct=tile.slots < 2 * tile.warpgroups)

    @classmethod
    def choose_pull_back(cls, chip: Chip, stack: Stack) -> DenseTile | None:
        """Chooses the tile of ``pull_back``: the fewest parts that leave room to read ahead."""
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
        """Returns the tile with as many slots as fit, or None if fewer than ``least`` do.

        ``slot`` is the size of a slot in bytes.
        """
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
        """Number of barriers: one for each pair of a slot and its waiting warpgroup."""
        return math.lcm(self.slots, self.warpgroups)

    def limited_to(self, rows: int) -> DenseTile:
        """Returns the same without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))


def forward(
    x, kernels, biases, activations, tile: DenseTile | None = None, precision: str | None = None
) -> jax.Array:
    """Computes the output of the last layer.

    Args:
      x: [rows, width], bfloat16, float16 or float32.
      kernels: [width of the layer before, width] each, of widths that are multiples of 64.
      biases: [width] or None, each.
      activations: name or None, for each layer.
      tile: how the work is divided; chosen by the shapes if None.
      precision: for float32 ``"tf32"`` or ``"bf16x3"``; else None.

    Returns:
      [rows, last width], of the dtype of ``x``.
    """
    stack = Stack.of(x, kernels, biases, activations, precision)
    tile = tile or DenseTile.choose(Chip.current(), stack, x.shape[0])
    return _launch("dense_forward", stack, tile, [x], kernels, biases)


def pull_back(x, kernel, bias, activation: str, dy, tile: DenseTile | None = None) -> jax.Array:
    """Computes ``dy activation'(x @ kernel + bias)`` and recomputes the preactivation for it.

    Args:
      x: [rows, width], bfloat16 or float16.
      kernel: [width, last width], of widths that are multiples of 64.
      bias: [last width] or None.
      activation: name of an activation that is not ``of_output``.
      dy: [rows, last width].
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [rows, last width], of the dtype of ``x``.
    """
    stack = Stack.of(x, (kernel,), (bias,), (activation,))
    tile = tile or DenseTile.choose_pull_back(Chip.current(), stack)
    return _launch("dense_pull_back", stack, tile, [x, dy], (kernel,), (bias,))


def _launch(name: str, stack: Stack, tile: DenseTile | None, inputs, kernels, biases) -> jax.Array:
    """Launches the kernel over ``inputs``: x, and dy where the gradient is computed."""
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
    """Returns scratch memory for the block's part of the parameters, and for the ring."""
    widths = [*stack.widths[:-1], stack.widths[-1] // tile.parts]
    biases = (width for width, biased in zip(widths[1:], stack.biased, strict=True) if biased)
    streamed = [widths[0], widths[-1]][:inputs]
    room = [max(widths)] if inputs == 1 else streamed
    places, barriers = (tile.slots,), (tile.barriers,)
    place = PRODUCTS[stack.precision].allocate
    return {
        "kernels": [place(stack.dtype, *shape) for shape in itertools.pairwise(widths)],
        "biases": [tc.SMEM((width,), stack.dtype) for width in biases],
        "ring": Ring.scratch(stack.dtype, streamed, places, barriers=barriers, slot_widths=room),
        "loaded": tc.Barrier(num_arrivals=stack.layers + sum(stack.biased)),
    }


def _forward(stack: Stack, tile: DenseTile, scratch, sources, kernels, biases, result) -> None:
    """Loads the block's parameters, and runs this warpgroup over its tiles."""
    x, *dy = sources
    share = stack.widths[-1] // tile.parts
    first = 0
    if tile.parts > 1:  # there is only one layer
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
    """A warpgroup that computes tiles.

    Attributes:
      stack: the layers.
      tile: how the work is divided.
      kernels: the block's part of the kernels, in shared memory.
      biases: the block's part of the biases, without those that are None, in shared memory.
      ring: the ring of the tiles of x, and of dy where the gradient is computed.
      result: the result in global memory.
      first: first column of the result that the block computes.
      pulls_back: whether the gradient is computed instead of the output.
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
        """Computes every tile of the block whose number is the warpgroup's, modulo warpgroups."""
        tile, warpgroup, block = self.tile, lax.axis_index(WARPGROUP), lax.axis_index(BLOCK)
        count = tc.count_strided_tiles(self.result.shape[0], block, tile.blocks)

        def rows(n):
            return tc.rows_of(block + n * tile.blocks)

        def load(n):
            place, barrier = lax.rem(n, tile.slots), lax.rem(n, tile.barriers)
            pl.when(n < count)(lambda: self.ring.load(rows(n), (place,), (barrier,)))

        def reload(n):
            """Loads the next tile into the slot of the tile before, once that has been stored."""
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
        """Applies all layers to a tile, up to the product of the last one, which it returns."""
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
        """Finishes the last layer in the tile's slot, and lets the copy engine store it."""
        self._overwrite(self.stack.layers - 1, z, self.ring.tiles(place)[-1])
        copied = self.ring.copy_tiles(place)[-1]
        size = copied.shape[-1]
        share = self.stack.widths[-1] // self.tile.parts
        for chunk in range(share // size):
            columns = tc.columns_at(self.first, chunk, size)
            tc.copy_smem_to_gmem(copied.at[chunk], self.result.at[rows, columns])

    def _store(self, first_row, z) -> None:
        """Finishes the last layer in registers, and stores it from there."""
        for columns in tc.columns_of(z.shape[1]):
            values = self._finish(self.stack.layers - 1, z, columns, None)
            tc.store(values.astype(self.stack.dtype), self.result, first_row, columns.start)

    def _overwrite(self, layer: int, z, tile) -> None:
        """Overwrites a tile with the output of a layer, from its product."""
        for chunk, columns in enumerate(tc.columns_of(z.shape[1], tile.shape[-1])):
            target = tile.at[chunk]
            target[...] = self._finish(layer, z, columns, target).astype(self.stack.dtype)
        tc.commit_smem()

    def _finish(self, layer: int, z, columns: slice, dy) -> jax.Array:
        """Adds the bias and applies the activation, for these columns of a layer's product."""
        bias = self.stack.bias_of(self.biases, layer)
        return self._activate(layer, add_bias(z[:, columns], bias, columns), dy)

    def _activate(self, layer: int, z, dy):
        """Returns the output, or where ``dy`` is an input the gradient to the preactivation z."""
        activation = self.stack.activation(layer)
        if activation is None:
            return z
        if not self.pulls_back:
            return activation.value(z)
        _, slope = activation.value_and_slope(z)
        return activation.pull_back(slope, tc.load_float32(dy))


def _nothing() -> None:
    pass
