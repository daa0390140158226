"""What there is to do in the backward pass of one or two dense layers, and who does it.

Arithmetic of shapes only. Walkers and summers are those of ``dense.backward``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import Stack
from pallas_kernels.dense.terms import Terms
from pallas_kernels.tensor_cores import COLUMNS

MARKS = 8  # columns of the smallest product
_TERM_BYTES = 2
_MOST_LAYERS = 2
_MOST_SUMMERS = 2
_MOST_WARPGROUPS = 4
# Tiles of each team, of the inputs that are summed and of those that are not.
_AHEAD = ((4, 2), (3, 2), (2, 2), (3, 1), (2, 1))
_COLUMNS_PER_SUMMER = 256  # columns of 64 rows that a warpgroup sums, in 128 registers a thread
# Of a thread: what there is for four warpgroups, for each if none gives any away, and what a summer
# needs beside its sums. They are given in eights.
_REGISTERS, _EQUAL_REGISTERS, _REGISTERS_BESIDE_SUMS = 512, 128, 32


@dataclass(frozen=True)
class LayerChunk:
    """A chunk of 64 columns of what a layer reads, or of its ``dz``.

    Attributes:
      layer: 0 or 1.
      chunk: its number.
    """

    layer: int
    chunk: int


@dataclass(frozen=True)
class BackwardPlan:
    """The backward pass of a stack, as far as a block has to do with it.

    Attributes:
      stack: the layers; the second of two has no activation.
      parts: blocks that share the columns of ``x``.
      summer_per_layer: whether each layer has a summer of its own.
    """

    stack: Stack
    parts: int
    summer_per_layer: bool = False

    @property
    def terms(self) -> Terms:
        """Of the numbers."""
        return Terms.of(self.stack.dtype)

    @property
    def columns_per_part(self) -> int:
        """Columns of x, and of dx, of a block."""
        return self.stack.widths[0] // self.parts

    @property
    def recomputes(self) -> bool:
        """Whether the preactivation of the first layer is made again, from all columns of x."""
        last = self.stack.last_activation
        return self.stack.layers > 1 or not (last is None or last.of_output)

    @functools.cached_property
    def summed_inputs(self) -> dict[str, int]:
        """Widths of the inputs that summers read: they stay until a tile is summed."""
        last = self.stack.widths[-1]
        return {"x": self.columns_per_part} | (
            {"dy": last} if self.stack.last_activation is None else {}
        )

    @functools.cached_property
    def brief_inputs(self) -> dict[str, int]:
        """Widths of the inputs that only walkers read: their places are free once dz is made."""
        width, last = self.stack.widths[-1], self.stack.last_activation
        if last is None:
            return {}
        return {"dy": width} | ({"y": width} if last.of_output else {})

    @functools.cached_property
    def walker_outputs(self) -> dict[str, int]:
        """Widths of what walkers make for the summers."""
        width, two = self.stack.widths[1], self.stack.layers > 1
        made = {"hidden": width} if two else {}
        return made | ({"dz": width} if two or self.stack.last_activation is not None else {})

    @functools.cached_property
    def kernel_chunks(self) -> list[LayerChunk]:
        """Of what the sums of the kernels are: x, and dy of a second layer. Each takes 64 rows.

        The sums of the first layer are ``xᵀ dz``; those of the second are transposed, ``dyᵀ h``.
        """
        first = [LayerChunk(0, chunk) for chunk in range(self.columns_per_part // COLUMNS)]
        second = self.stack.widths[2] // COLUMNS if self.stack.layers > 1 else 0
        return first + [LayerChunk(1, chunk) for chunk in range(second)]

    @functools.cached_property
    def bias_chunks(self) -> list[LayerChunk]:
        """Of what the sums of the biases are: chunks of dz, numbered among those of a block."""
        layers = itertools.compress(range(self.stack.layers), self.stack.biased)
        return [
            LayerChunk(layer, chunk)
            for layer in layers
            for chunk in range(self.stack.widths[layer + 1] // COLUMNS // self._sharers(layer))
        ]

    def _sharers(self, layer: int) -> int:
        """Parts that share the chunks of dz; each has all where these can not be divided."""
        chunks = self.stack.widths[layer + 1] // COLUMNS
        return 1 if chunks % self.parts else self.parts

    def bias_chunk(self, layer_chunk: LayerChunk, part):
        """Its number among all chunks, in a block of this ``part``."""
        own = (
            self.stack.widths[layer_chunk.layer + 1] // COLUMNS // self._sharers(layer_chunk.layer)
        )
        return (
            part * own + layer_chunk.chunk
            if self._sharers(layer_chunk.layer) > 1
            else layer_chunk.chunk
        )

    def bias_places(self, layer: int) -> list[tuple[int, int, int, int]]:
        """The part, the summer, and ``mark_of`` each chunk of the layer's bias."""
        places = [
            (part, layer_chunk.chunk, (part, summer, *self.mark_of(number)))
            for part in range(self._sharers(layer))
            for summer in range(self.summers)
            for number, layer_chunk in enumerate(self.chunks_of_summer(summer)[1])
            if layer_chunk.layer == layer
        ]
        return [place for *_, place in sorted(places)]

    @property
    def summers(self) -> int:
        """Warpgroups whose registers hold all sums."""
        each = _COLUMNS_PER_SUMMER // self.stack.widths[1]
        return self.stack.layers if self.summer_per_layer else -(-len(self.kernel_chunks) // each)

    def chunks_of_summer(self, summer: int) -> tuple[list[LayerChunk], list[LayerChunk]]:
        """Units of the kernels and of the biases that a ``summer`` has; the latter by mark."""
        if self.summer_per_layer:
            chunks = [
                layer_chunk for layer_chunk in self.kernel_chunks if layer_chunk.layer == summer
            ]
            return chunks, [
                layer_chunk for layer_chunk in self.bias_chunks if layer_chunk.layer == summer
            ]
        each = -(-len(self.kernel_chunks) // self.summers)
        chunks = self.kernel_chunks[summer * each : (summer + 1) * each]
        return chunks, self.bias_chunks[summer :: self.summers]

    @property
    def marks(self) -> tuple[int, int]:
        """Sums of biases of one summer, and matrices that mark their columns.

        Where memory is scarce, all have the same; where registers are, columns of the same sums.
        """
        count = max(len(self.chunks_of_summer(summer)[1]) for summer in range(self.summers))
        scarce = self.terms.split and not self.summer_per_layer
        return (count, min(count, 1)) if scarce else (min(count, 1), count)

    def mark_of(self, number: int) -> tuple[int, int]:
        """Which of these sums and matrices the chunk of a bias has, by its ``number``."""
        sums, matrices = self.marks
        return min(number, sums - 1), min(number, matrices - 1)

    @property
    def needs_bias(self) -> bool:
        """That of the first layer, if it is made again."""
        return self.recomputes and self.stack.biased[0]

    @property
    def loaded_biases(self) -> tuple[int, ...]:
        """Widths of those in shared memory; for summers of layers there is no room left."""
        return (self.stack.widths[1],) if self.needs_bias and not self.summer_per_layer else ()

    @property
    def summer_registers(self) -> int:
        """Of a thread that has the most sums."""
        chunks = max(len(self.chunks_of_summer(summer)[0]) for summer in range(self.summers))
        return chunks * self.stack.widths[1] // 2 + _REGISTERS_BESIDE_SUMS

    @property
    def parameter_bytes(self) -> int:
        """Of what stays in shared memory."""
        kernels = dataclasses.replace(self.stack, biased=(False,) * self.stack.layers)
        biases = (tc.aligned(w * self.stack.dtype.itemsize) for w in self.loaded_biases)
        marks = self.marks[1] * tc.aligned(MARKS * tc.ROWS * _TERM_BYTES)
        return kernels.parameter_bytes(self.parts) + sum(biases) + marks

    @property
    def can_overlay(self) -> bool:
        """Whether the place of dz may be that of dx: both take the same room."""
        return (
            self.terms.split and self.walker_outputs.get("dz") == self.columns_per_part == COLUMNS
        )

    def shared_bytes(self, slots: int, brief: int, over: bool = False) -> int:
        """Of a team's tiles in shared memory; dx may lie ``over`` dz."""
        row = [0 if over else self.columns_per_part, *self.walker_outputs.values()]
        row += [*self.summed_inputs.values()] * slots + [*self.brief_inputs.values()] * brief
        return self.stack.row_bytes(*row)


@dataclass(frozen=True)
class BackwardTile:
    """How blocks and warpgroups share the work.

    Attributes:
      blocks: at most this many have the same columns; with all parts one a multiprocessor.
      parts: blocks that share the columns of ``x``.
      teams: tiles that the walkers of a block are at.
      members: walkers of a team, which share the columns.
      slots: tiles of each team in shared memory, of the inputs that are summed.
      brief: likewise of the inputs that only walkers read.
      over: whether dx is written from where dz was, of which there are terms; by one member.
    """

    blocks: int
    parts: int
    teams: int
    members: int
    slots: int
    brief: int
    over: bool = False

    @classmethod
    def choose(cls, chip: Chip, stack: Stack) -> BackwardTile | None:
        """The one heuristic: what fits, or None; as few parts as do."""
        if stack.layers > _MOST_LAYERS or max(stack.widths) > tc.MOST_WIDTH:
            return None
        chunks = 1 if BackwardPlan(stack, 1).recomputes else stack.widths[0] // COLUMNS
        plans = (BackwardPlan(stack, n) for n in range(1, chunks + 1) if chunks % n == 0)
        tiles = (cls._fitting(chip, plan) for plan in plans if plan.summers <= _MOST_SUMMERS)
        return next((tile for tile in tiles if tile is not None), None)

    @classmethod
    def _fitting(cls, chip: Chip, plan: BackwardPlan) -> BackwardTile | None:
        """More tiles at a time come before reading ahead further."""
        stack = plan.stack
        # Two summers leave registers for two walkers, and these for a chunk each.
        # Of float32 tiles there is room for one team.
        few = plan.summers == 2 or plan.terms.split
        members = 2 if few and stack.widths[1] > COLUMNS else 1
        free = _MOST_WARPGROUPS - plan.summers
        # A third walker would leave the summer too few.
        walkers = free if plan.summer_registers <= _EQUAL_REGISTERS or members == 2 else free - 1
        room = chip.shared_bytes - plan.parameter_bytes
        blocks = chip.multiprocessors // plan.parts
        ways = (False, True) if plan.can_overlay and members == 1 else (False,)
        for teams in range(walkers // members, 0, -1):
            for over, (slots, brief) in itertools.product(ways, _AHEAD):
                if teams * plan.shared_bytes(slots, brief, over) <= room:
                    return cls(blocks, plan.parts, teams, members, slots, brief, over)
        return None

    @property
    def walkers(self) -> int:
        """Of a block."""
        return self.teams * self.members

    def limited_to(self, rows: int) -> BackwardTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))

    def registers(self, plan: BackwardPlan) -> tuple[int, int] | None:
        """Of the threads of walkers and of summers, None to leave them as they are."""
        return registers(plan, self.walkers)


@dataclass(frozen=True)
class TightTile:
    """As ``BackwardTile`` for two layers that leave room for three tiles, of which one is made.

    Attributes:
      blocks: at most this many; with all of them one a multiprocessor.
    """

    blocks: int

    walkers = 2
    teams, parts = 1, 1

    @classmethod
    def choose(cls, chip: Chip, stack: Stack) -> TightTile | None:
        """What fits, or None; 16-bit numbers are no terms, which all take the same room."""
        if (
            stack.layers != 2
            or stack.last_activation is not None
            or not BackwardPlan(stack, 1).terms.split
        ):
            return None
        # Each walker has one chunk, each layer one summer.
        if max(stack.widths) > cls.walkers * COLUMNS:
            return None
        plan = BackwardPlan(stack, 1, summer_per_layer=True)
        before, between, after = stack.widths
        tiles = stack.row_bytes(*[max(before, after)] * 2, max(before, between))
        fits = plan.parameter_bytes + tiles <= chip.shared_bytes
        return cls(chip.multiprocessors) if fits else None

    def limited_to(self, rows: int) -> TightTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))

    def registers(self, plan: BackwardPlan) -> tuple[int, int] | None:
        """As those of a ``BackwardTile``."""
        return registers(plan, self.walkers)


def registers(plan: BackwardPlan, walkers: int) -> tuple[int, int] | None:
    """Of the threads of walkers and of summers, None to leave them as they are."""
    needed = plan.summer_registers
    if walkers + plan.summers < _MOST_WARPGROUPS or needed <= _EQUAL_REGISTERS:
        return None
    rest = (_REGISTERS - plan.summers * needed) // walkers
    return rest // 8 * 8, needed
