"""A ring in shared memory for kernels of layers that are too large for it.

The kernels are cut into slices of 64 rows and the columns of one product, or of several times 64
rows side by side where columns are few. One warpgroup of a block, the loader, copies the slices in
the order in which all other warpgroups, the walkers, multiply their tiles by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import Stack
from pallas_kernels.edge_mlp.edge_tiles import ROWS
from pallas_kernels.edge_mlp.tiles import Plan

SLICE = 64  # rows of a slice
MOST_WIDTH = 256
_MOST_COLUMNS = 128  # columns of a product: registers also hold sums of all columns
_MOST_SLOTS = 8
# Registers of a thread of a walker and of the loader, if a block has two walkers.
_REGISTERS = {2: (232, 40)}
# Shared memory besides tiles and slices: for each edge a factor and its gradient, or two factors,
# aligned.
_NUMBER_BYTES = 2 * 1024


def suits(stack: Stack) -> bool:
    """Whether all widths of these layers are whole slices, and narrow enough."""
    return max(stack.widths) <= MOST_WIDTH and not any(width % SLICE for width in stack.widths)


def parts(width: int) -> list[slice]:
    """The columns of the products that together give a tile of this width."""
    firsts = range(0, width, _MOST_COLUMNS)
    return [slice(first, min(width, first + _MOST_COLUMNS)) for first in firsts]


@dataclass(frozen=True)
class KernelSlices:
    """The slices of a sequence of kernels, by which a tile is multiplied one after the other.

    Attributes:
      shapes: shapes of the kernels.
    """

    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, stack: Stack, *, backward: bool = False) -> KernelSlices:
        """The slices of the layers; with ``backward`` also those of the transposed kernels."""
        shapes = stack.shapes
        transposed = ((after, before) for before, after in reversed(shapes) if backward)
        return cls(shapes + tuple(transposed))

    @property
    def columns(self) -> int:
        """Columns of a slice."""
        return min(_MOST_COLUMNS, max((columns for _, columns in self.shapes), default=0))

    @property
    def total(self) -> int:
        """Number of slices of all kernels."""
        return self.first(len(self.shapes))

    def first(self, number: int) -> int:
        """Index of the first slice of a kernel."""
        return sum(
            self.count(rows, part)
            for rows, columns in self.shapes[:number]
            for part in parts(columns)
        )

    def count(self, rows: int, part: slice) -> int:
        """Number of slices of a part of the columns of a kernel with ``rows`` rows."""
        return -(-rows // (SLICE * self.beside(part)))

    def beside(self, part: slice) -> int:
        """Number of groups of 64 rows that are side by side in a slice of a part of the columns."""
        return self.columns // (part.stop - part.start)

    def nbytes(self, slots: int) -> int:
        """Bytes of a ring of ``slots`` slices of 16-bit numbers."""
        return slots * SLICE * self.columns * 2

    def arranged(self, kernels: Sequence[jax.Array]) -> jax.Array:
        """The slices of kernels of these ``shapes`` as an array, [total, 64, columns]."""

        def of_part(kernel: jax.Array, part: slice) -> jax.Array:
            beside, size = self.beside(part), part.stop - part.start
            count = self.count(kernel.shape[0], part)
            behind = count * beside * SLICE - kernel.shape[0]
            made = jnp.pad(kernel[:, part], ((0, behind), (0, 0)))
            made = made.reshape(count, beside, SLICE, size).transpose(0, 2, 1, 3)
            made = made.reshape(count, SLICE, beside * size)
            return jnp.pad(made, ((0, 0), (0, 0), (0, self.columns - beside * size)))

        pairs = [(kernel, part) for kernel in kernels for part in parts(kernel.shape[1])]
        return jnp.concatenate([of_part(*pair) for pair in pairs])

    def choose(self, chip: Chip, tile_bytes: int) -> tuple[int, int] | None:
        """Walkers of a block and stages of its ring, with tiles of ``tile_bytes``; or None."""
        for walkers in (2, 1):
            room = chip.shared_bytes - walkers * tile_bytes - _NUMBER_BYTES
            if not self.shapes and room >= 0:
                return walkers, 0
            slots = min(_MOST_SLOTS, room // self.nbytes(1)) if self.shapes else 0
            if slots > 1:
                return walkers, slots
        return None


@dataclass(frozen=True)
class KernelRing:
    """A ring of slices of kernels in shared memory, filled by a loader and read by walkers.

    Attributes:
      slices: the slices, in the order in which they are used.
      walkers: warpgroups of a block that multiply by the slices.
      slots: stages of the ring; zero if there are no kernels.
    """

    slices: KernelSlices
    walkers: int
    slots: int

    @property
    def warpgroups(self) -> int:
        """Warpgroups of a block: the walkers, and the loader if there are kernels."""
        return self.walkers + (1 if self.slots else 0)

    def scratch(self, plan: Plan) -> dict:
        """Shared memory and barriers of the ring."""
        if not self.slots:
            return {}
        return {
            "slices": plan.tiles(self.slots, SLICE, self.slices.columns),
            "full": tc.Barrier(num_barriers=self.slots),
            "free": tc.Barrier(num_arrivals=self.walkers, num_barriers=self.slots),
        }

    def run_roles(self, number, scratch: dict, load, walk) -> None:
        """Runs ``load()`` in the loader, and ``walk()`` in the walkers, which get its registers.

        The walkers first mark all stages of the ring as free.
        """
        registers = _REGISTERS.get(self.walkers) if self.slots else None

        def in_walkers():
            if registers is not None:
                tc.set_max_registers(registers[0], action="increase")
            for slot in range(self.slots):
                tc.barrier_arrive(scratch["free"].at[slot])
            walk()

        def in_loader():
            if registers is not None:
                tc.set_max_registers(registers[1], action="decrease")
            load()

        pl.when(number < self.walkers)(in_walkers)
        if self.slots:
            pl.when(number == self.walkers)(in_loader)

    def load(self, source, scratch: dict, tiles) -> None:
        """Copies all slices once for each of ``tiles`` tiles; the loader runs it."""
        total = self.slices.total

        # The first slices wait as well. Without this wait, LLVM moved them out of the loop, and
        # ptxas 13.0 then read the coordinates of a copy before it had set them.
        @pl.loop(0, tiles * total)
        def _(i):
            slot = lax.rem(i, jnp.int32(self.slots))
            tc.barrier_wait(scratch["free"].at[slot])
            target, full = scratch["slices"].at[slot], scratch["full"].at[slot]
            tc.copy_gmem_to_smem(source.at[lax.rem(i, jnp.int32(total))], target, full)

        # Every phase of a barrier is waited for, also the last.
        @pl.loop(0, self.slots)
        def _(slot):
            tc.barrier_wait(scratch["free"].at[slot])

    def product(self, scratch: dict, tile, number: int, turn, done) -> list[Any]:
        """Multiplies a tile by a kernel; returns the results of ``done`` for parts of the columns.

        Args:
          scratch: shared memory, with that of the ring.
          tile: [64, rows of the kernel] in shared memory.
          number: index of the kernel.
          turn: number of tiles that the walkers processed before.
          done: ``done(columns, product)``, called for each part in order with its float32 product;
            it must not overwrite ``tile``, which the next part reads.
        """
        rows, width = self.slices.shapes[number]
        before, made = turn * self.slices.total + self.slices.first(number), []
        for part in parts(width):
            count = self.slices.count(rows, part)
            slots = [lax.rem(before + k, jnp.int32(self.slots)) for k in range(count)]
            before += count
            made.append(done(part, self._part(scratch, tile, part, slots)))
        return made

    def _part(self, scratch: dict, tile, part: slice, slots: Sequence) -> jax.Array:
        """A part of the columns of a product; ``slots`` are the stages of its slices."""
        size, beside = part.stop - part.start, self.slices.beside(part)

        def multiply(sums):
            for number, slot in enumerate(slots):
                tc.barrier_wait(scratch["full"].at[slot])
                asked = min(beside, tile.shape[1] // SLICE - number * beside)
                for place in range(asked):
                    first = (number * beside + place) * SLICE
                    columns = slice(place * size, (place + 1) * size)
                    a = tile.at[:, first : first + SLICE]
                    tc.wgmma(sums, a, scratch["slices"].at[slot, :, columns])
                if number > 0:
                    tc.wgmma_wait(asked)  # the products of the previous slice have completed
                    tc.barrier_arrive(scratch["free"].at[slots[number - 1]])
            value = sums[...]
            tc.barrier_arrive(scratch["free"].at[slots[-1]])
            return value

        return pl.run_scoped(multiply, tc.ACC((ROWS, size), jnp.float32))
