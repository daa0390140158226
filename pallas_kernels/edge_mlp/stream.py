"""Kernels of layers that stream through shared memory, for stacks that it does not hold.

They come in slices, each of 64 rows of a kernel and the columns that a product makes at once, or of
as many times 64 rows as have room side by side. One warpgroup of a block, the loader, asks for
slices in the order in which all the others, the walkers, multiply tiles of their own by them.
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
from pallas_kernels.edge_mlp.places import ROWS
from pallas_kernels.edge_mlp.tiles import Plan

SLICE = 64  # rows
MOST_WIDTH = 256
_MOST_COLUMNS = 128  # of a product: sums of all columns are in registers as well
_MOST_SLOTS = 8
# Of a thread of a walker and of the loader, where two walkers share a multiprocessor with it.
_REGISTERS = {2: (232, 40)}
# Of a block beside tiles and slices: of each edge a factor and the gradient to it, in places that
# are aligned, or two factors.
_NUMBER_BYTES = 2 * 1024


def suits(stack: Stack) -> bool:
    """Whether slices of these layers are whole."""
    return max(stack.widths) <= MOST_WIDTH and not any(width % SLICE for width in stack.widths)


def parts(width: int) -> list[slice]:
    """Columns of each of the products that make a tile of this width."""
    firsts = range(0, width, _MOST_COLUMNS)
    return [slice(first, min(width, first + _MOST_COLUMNS)) for first in firsts]


@dataclass(frozen=True)
class Slices:
    """Those of kernels that a tile is multiplied by, one after the other.

    Attributes:
      shapes: of the kernels.
    """

    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, stack: Stack, *, back: bool = False) -> Slices:
        """Of the layers; ``back`` through them as well, by the transposed kernels."""
        forth = stack.shapes
        return cls(forth + tuple((after, before) for before, after in reversed(forth) if back))

    @property
    def columns(self) -> int:
        """Of a slice."""
        return min(_MOST_COLUMNS, max((columns for _, columns in self.shapes), default=0))

    @property
    def total(self) -> int:
        """How many there are."""
        return self.first(len(self.shapes))

    def first(self, number: int) -> int:
        """The first of a kernel."""
        return sum(
            self.count(rows, part)
            for rows, columns in self.shapes[:number]
            for part in parts(columns)
        )

    def count(self, rows: int, part: slice) -> int:
        """How many of a kernel with so many rows a part of its columns has."""
        return -(-rows // (SLICE * self.beside(part)))

    def beside(self, part: slice) -> int:
        """How many times 64 rows lie side by side."""
        return self.columns // (part.stop - part.start)

    def nbytes(self, slots: int) -> int:
        """Of a ring of so many, 16 bits a number."""
        return slots * SLICE * self.columns * 2

    def arranged(self, kernels: Sequence[jax.Array]) -> jax.Array:
        """[total, 64, columns], of kernels of these ``shapes``."""

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
        """Walkers of a block, whose tiles take so many bytes each, and slots of its ring."""
        for walkers in (2, 1):
            room = chip.shared_bytes - walkers * tile_bytes - _NUMBER_BYTES
            if not self.shapes and room >= 0:
                return walkers, 0
            slots = min(_MOST_SLOTS, room // self.nbytes(1)) if self.shapes else 0
            if slots > 1:
                return walkers, slots
        return None


@dataclass(frozen=True)
class Ring:
    """Slices in shared memory.

    Attributes:
      slices: in their order.
      walkers: of a block.
      slots: for so many at once.
    """

    slices: Slices
    walkers: int
    slots: int

    @property
    def warpgroups(self) -> int:
        """Of a block: walkers, and if there is something to load, the loader."""
        return self.walkers + (1 if self.slots else 0)

    def form(self, plan: Plan) -> dict:
        """Of its memory."""
        if not self.slots:
            return {}
        return {
            "slices": plan.tiles(self.slots, SLICE, self.slices.columns),
            "full": tc.Barrier(num_barriers=self.slots),
            "free": tc.Barrier(num_arrivals=self.walkers, num_barriers=self.slots),
        }

    def share(self, number, scratch: dict, load, walk) -> None:
        """``load()`` in the loader; ``walk()`` in the others, which get its registers.

        Before that, these free all slots.
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
        """All slices, for each of so many ``tiles``; by the loader."""
        total = self.slices.total

        # The first slices wait as well: where they did not, LLVM took them out of the loop, and
        # ptxas 13.0 then read the coordinates of a copy before it had set them.
        @pl.loop(0, tiles * total)
        def _(i):
            slot = lax.rem(i, jnp.int32(self.slots))
            tc.barrier_wait(scratch["free"].at[slot])
            target, full = scratch["slices"].at[slot], scratch["full"].at[slot]
            tc.copy_gmem_to_smem(source.at[lax.rem(i, jnp.int32(total))], target, full)

        # Every completion is waited for, also the last.
        @pl.loop(0, self.slots)
        def _(slot):
            tc.barrier_wait(scratch["free"].at[slot])

    def product(self, scratch: dict, tile, number: int, turn, done) -> list[Any]:
        """What ``done(columns, product)`` makes of each part of a tile's product, float32.

        Args:
          scratch: with the memory of the ring.
          tile: [64, rows of the kernel] in shared memory.
          number: of the kernel.
          turn: how many tiles all walkers had before.
          done: is called in order; the next part reads ``tile`` as well.
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
        """Of a product; ``slots`` are those of its slices."""
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
                    tc.wgmma_wait(asked)  # those of the slice before are over
                    tc.barrier_arrive(scratch["free"].at[slots[number - 1]])
            value = sums[...]
            tc.barrier_arrive(scratch["free"].at[slots[-1]])
            return value

        return pl.run_scoped(multiply, tc.ACC((ROWS, size), jnp.float32))
