"""Sizes of the backward pass of layers on edges: shared memory, registers and products of a block.

Only shapes are computed here. ``edge_mlp.backward`` explains walkers and summers.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.activations import Activation
from pallas_kernels.dense.plan import MARKS
from pallas_kernels.edge_mlp.edge_tiles import ROWS, Places, whole_tile_bytes
from pallas_kernels.edge_mlp.tiles import Plan

_MOST_WIDTH = 128
UNIT = 64  # rows of a product that a summer accumulates
# Registers of a multiprocessor for each thread of a warpgroup; they are allocated in eights.
_REGISTERS, _MOST_REGISTERS, _EIGHT = 512, 248, 8
_MOST_WARPGROUPS = 4
_OTHER_REGISTERS = 32  # registers that a summer needs besides its sums
_MOST_PARTS = 8


@dataclass(frozen=True)
class BackwardNeeds:
    """Resources of a block that runs the backward pass of a plan.

    Attributes:
      plan: the layers and the edges.
    """

    plan: Plan

    @property
    def layers(self) -> int:
        """Number of layers with a kernel."""
        return self.plan.stack.layers

    def activation(self, layer: int) -> Activation | None:
        """Activation before ``layer``; for ``self.layers``, that after the last one."""
        return self.plan.first_activation if layer == 0 else self.plan.stack.activation(layer - 1)

    @property
    def ones(self) -> int:
        """Columns of ones beside a layer's input: one swizzle span of them."""
        return self.plan.swizzle // 2

    def has_column(self, layer: int) -> bool:
        """Whether a column of ones beside a layer's input gives the gradient of its bias."""
        stack = self.plan.stack
        before, after = stack.widths[layer : layer + 2]
        return stack.biased[layer] and bool(before % UNIT or after % UNIT)

    @property
    def marked(self) -> list[int]:
        """Layers whose gradient of the bias is a product of its own."""
        biased = self.plan.stack.biased
        return [n for n in range(self.layers) if biased[n] and not self.has_column(n)]

    def padded(self, layer: int) -> int:
        """Columns of a layer's input, with the columns of ones if any, padded to whole units."""
        width = self.plan.stack.widths[layer] + (self.ones if self.has_column(layer) else 0)
        return -(-width // UNIT) * UNIT

    def keeps_slope(self, layer: int) -> bool:
        """Whether the slope of the activation is kept, as the input does not determine it."""
        activation = self.activation(layer)
        return activation is not None and not activation.of_output

    @property
    def shares_dz(self) -> bool:
        """Whether gradients of senders reuse the memory of the last layer's dz."""
        widths = self.plan.stack.widths
        return self.layers > 0 and widths[0] == widths[-1]

    def sum_registers(self, layer: int) -> int:
        """Registers of a thread of the summer that accumulates the gradients of a layer."""
        width = self.plan.stack.widths[layer + 1]
        marks = width // UNIT * MARKS // 2 if layer in self.marked else 0
        return self.padded(layer) // UNIT * width // 2 + marks

    def shares(self, summers: int) -> list[list[int]]:
        """The layers of each summer, in the order of the backward pass."""
        backwards = list(reversed(range(self.layers)))
        return [backwards[number::summers] for number in range(summers)]

    def summer_registers(self, summers: int) -> int:
        """Registers of a thread of the summer that needs the most."""
        sums = max(sum(map(self.sum_registers, share)) for share in self.shares(summers))
        return -(-(sums + _OTHER_REGISTERS) // _EIGHT) * _EIGHT

    @property
    def walker_registers(self) -> int:
        """Registers of a thread of a walker: gradients of receivers, a product, and others."""
        widest = max(self.plan.stack.widths)
        return self.plan.stack.widths[0] // 2 + widest // 2 + 40

    def shared_bytes(self, walkers: int) -> int:
        """Shared memory of a block, in bytes."""
        ones = tc.aligned(MARKS * ROWS * 2) if self.marked else 0
        # Factors and gradients of edge weights, each double-buffered.
        numbers = 2 * tc.aligned(walkers * 2 * ROWS * 4)
        return self.plan.stack.parameter_bytes() + ones + numbers + walkers * self.tile_bytes

    @property
    def tile_bytes(self) -> int:
        """Shared memory of the tiles of a walker, in bytes."""
        first, *others = widths = self.plan.stack.widths
        columns = 2 * first + widths[-1] + sum(others)
        columns += first if self.plan.has_features else 0
        columns += sum(self.padded(layer) for layer in range(self.layers))
        columns += sum(widths[n] for n in range(self.layers) if self.keeps_slope(n))
        columns += 0 if self.shares_dz else first
        return whole_tile_bytes(columns)


@dataclass(frozen=True)
class BackwardTile:
    """Division of the work of a block.

    Attributes:
      blocks: blocks of the grid, one for each multiprocessor.
      walkers: warpgroups of a block that process tiles.
      summers: warpgroups of a block that accumulate gradients of kernels, each of some layers.
      parts: parts that the steps of a group are cut into, for different walkers. A divisor of the
        degree where all rows have one degree, otherwise 1.
    """

    blocks: int
    walkers: int
    summers: int
    parts: int = 1

    @classmethod
    def choose(cls, chip: Chip, needs: BackwardNeeds) -> BackwardTile | None:
        """The only heuristic: the fewest summers, then the most walkers that fit; or None."""
        stack = needs.plan.stack
        if max(stack.widths) > _MOST_WIDTH:
            return None
        for summers in range(min(1, needs.layers), needs.layers + 1):
            needed = needs.summer_registers(summers) if summers else 0
            if needed > _MOST_REGISTERS:
                continue
            rest = (_REGISTERS - summers * needed) // needs.walker_registers
            for walkers in range(min(rest, _MOST_WARPGROUPS - summers), 0, -1):
                if needs.shared_bytes(walkers) <= chip.shared_bytes:
                    return cls(chip.multiprocessors, walkers, summers)
        return None

    def suited_to(self, places: Places) -> BackwardTile:
        """This tile for a graph: without idle blocks, and groups cut to balance the walkers."""
        divisors = (n for n in range(1, _MOST_PARTS + 1) if (places.degree or 1) % n == 0)
        parts = min(divisors, key=functools.partial(self._rounds, places))
        blocks = min(self.blocks, places.groups * parts)
        return dataclasses.replace(self, blocks=blocks, parts=parts)

    def _rounds(self, places: Places, parts: int) -> int:
        """Steps of the busiest walker, with one added for the overhead of each part."""
        units = places.groups * parts
        return -(-units // (self.blocks * self.walkers)) * ((places.degree or 1) // parts + 1)

    def registers(self, needs: BackwardNeeds) -> tuple[int, int] | None:
        """Registers of a thread of walkers and of summers; None to keep an equal distribution."""
        warpgroups = self.walkers + self.summers
        fair = _REGISTERS // warpgroups // _EIGHT * _EIGHT
        if self.summers == 0 or (needed := needs.summer_registers(self.summers)) <= fair:
            return None
        rest = (warpgroups * fair - self.summers * needed) // self.walkers
        return rest // _EIGHT * _EIGHT, needed
