"""What there is to do in the backward pass of layers of edges, and who does it.

Arithmetic of shapes only. Walkers and summers are those of ``edge_mlp.backward``.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.activations import Activation
from pallas_kernels.dense.plan import MARKS
from pallas_kernels.edge_mlp.places import ROWS, Places, whole_tile_bytes
from pallas_kernels.edge_mlp.tiles import Plan

_MOST_WIDTH = 128
UNIT = 64  # rows of a product of summers
# Registers of a multiprocessor for each thread of a warpgroup; they are given in eights.
_REGISTERS, _MOST_REGISTERS, _EIGHT = 512, 248, 8
_MOST_WARPGROUPS = 4
_OTHER_REGISTERS = 32  # that a summer needs beside its sums
_MOST_PARTS = 8


@dataclass(frozen=True)
class Work:
    """The backward pass, as far as a block has to do with it.

    Attributes:
      plan: the layers and the edges.
    """

    plan: Plan

    @property
    def layers(self) -> int:
        """How many products there are."""
        return self.plan.stack.layers

    def activation(self, layer: int) -> Activation | None:
        """That makes what ``layer`` reads; ``layers`` for what the last makes."""
        return self.plan.first_activation if layer == 0 else self.plan.stack.activation(layer - 1)

    @property
    def ones(self) -> int:
        """Columns of ones: as many as lie together."""
        return self.plan.swizzle // 2

    def has_column(self, layer: int) -> bool:
        """Whether ones beside what it reads make the gradient of its bias."""
        stack = self.plan.stack
        before, after = stack.widths[layer : layer + 2]
        return stack.biased[layer] and bool(before % UNIT or after % UNIT)

    @property
    def marked(self) -> list[int]:
        """Layers that have a product for that of their bias."""
        biased = self.plan.stack.biased
        return [n for n in range(self.layers) if biased[n] and not self.has_column(n)]

    def padded(self, layer: int) -> int:
        """Columns of what it reads, with ones if there are; whole units."""
        width = self.plan.stack.widths[layer] + (self.ones if self.has_column(layer) else 0)
        return -(-width // UNIT) * UNIT

    def keeps_slope(self, layer: int) -> bool:
        """Whether the derivative of what made its input is kept: that can not be told from it."""
        activation = self.activation(layer)
        return activation is not None and not activation.of_output

    @property
    def shares_dz(self) -> bool:
        """Whether the gradients of senders take the place of the last dz, once that is summed."""
        widths = self.plan.stack.widths
        return self.layers > 0 and widths[0] == widths[-1]

    def sum_registers(self, layer: int) -> int:
        """Of a thread of whoever has the sums of a layer."""
        width = self.plan.stack.widths[layer + 1]
        marks = width // UNIT * MARKS // 2 if layer in self.marked else 0
        return self.padded(layer) // UNIT * width // 2 + marks

    def shares(self, summers: int) -> list[list[int]]:
        """The layers of each summer, in the order in which they are gone back through."""
        backwards = list(reversed(range(self.layers)))
        return [backwards[number::summers] for number in range(summers)]

    def summer_registers(self, summers: int) -> int:
        """Of a thread, the most of all summers."""
        sums = max(sum(map(self.sum_registers, share)) for share in self.shares(summers))
        return -(-(sums + _OTHER_REGISTERS) // _EIGHT) * _EIGHT

    @property
    def walker_registers(self) -> int:
        """Of a thread: gradients of receivers, a product, and the rest."""
        widest = max(self.plan.stack.widths)
        return self.plan.stack.widths[0] // 2 + widest // 2 + 40

    def shared_bytes(self, walkers: int) -> int:
        """Of a block."""
        ones = tc.aligned(MARKS * ROWS * 2) if self.marked else 0
        # Factors and gradients of weights, each in two places.
        numbers = 2 * tc.aligned(walkers * 2 * ROWS * 4)
        return self.plan.stack.parameter_bytes() + ones + numbers + walkers * self.tile_bytes

    @property
    def tile_bytes(self) -> int:
        """Of the tiles of a walker."""
        first, *others = widths = self.plan.stack.widths
        columns = 2 * first + widths[-1] + sum(others)
        columns += first if self.plan.has_features else 0
        columns += sum(self.padded(layer) for layer in range(self.layers))
        columns += sum(widths[n] for n in range(self.layers) if self.keeps_slope(n))
        columns += 0 if self.shares_dz else first
        return whole_tile_bytes(columns)


@dataclass(frozen=True)
class BackwardTile:
    """How a block shares the work.

    Attributes:
      blocks: one a multiprocessor.
      walkers: warpgroups with groups of their own.
      summers: warpgroups that share the layers.
      parts: of the steps of a group, each one walker's; where all rows have one degree, which it
        divides.
    """

    blocks: int
    walkers: int
    summers: int
    parts: int = 1

    @classmethod
    def choose(cls, chip: Chip, work: Work) -> BackwardTile | None:
        """The one heuristic: as many walkers as fit, or None; as few summers as do."""
        stack = work.plan.stack
        if max(stack.widths) > _MOST_WIDTH:
            return None
        for summers in range(min(1, work.layers), work.layers + 1):
            needed = work.summer_registers(summers) if summers else 0
            if needed > _MOST_REGISTERS:
                continue
            rest = (_REGISTERS - summers * needed) // work.walker_registers
            for walkers in range(min(rest, _MOST_WARPGROUPS - summers), 0, -1):
                if work.shared_bytes(walkers) <= chip.shared_bytes:
                    return cls(chip.multiprocessors, walkers, summers)
        return None

    def suited_to(self, places: Places) -> BackwardTile:
        """Without blocks that would have nothing to do, and so that walkers have equal work."""
        divisors = (n for n in range(1, _MOST_PARTS + 1) if (places.degree or 1) % n == 0)
        parts = min(divisors, key=functools.partial(self._rounds, places))
        blocks = min(self.blocks, places.groups * parts)
        return dataclasses.replace(self, blocks=blocks, parts=parts)

    def _rounds(self, places: Places, parts: int) -> int:
        """Steps of the walker that has the most, one more for each part."""
        units = places.groups * parts
        return -(-units // (self.blocks * self.walkers)) * ((places.degree or 1) // parts + 1)

    def registers(self, work: Work) -> tuple[int, int] | None:
        """Of the threads of walkers and of summers, None to leave them as they are."""
        warpgroups = self.walkers + self.summers
        fair = _REGISTERS // warpgroups // _EIGHT * _EIGHT
        if self.summers == 0 or (needed := work.summer_registers(self.summers)) <= fair:
            return None
        rest = (warpgroups * fair - self.summers * needed) // self.walkers
        return rest // _EIGHT * _EIGHT, needed
