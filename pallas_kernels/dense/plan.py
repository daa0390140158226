"""Plan of the backward pass of one or two dense layers, and division among warpgroups.

This module is arithmetic of shapes only. ``dense.backward`` explains the roles: walkers go through
tiles of rows, and summers accumulate the gradients of parameters.
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
# Slots of each team: for inputs that are summed, and for those that only walkers read.
_AHEAD = ((4, 2), (3, 2), (2, 2), (3, 1), (2, 1))
_COLUMNS_PER_SUMMER = 256  # columns of 64 rows that a warpgroup sums, in 128 registers a thread
# Registers of a thread: of all four warpgroups together, of each if they share equally, and what a
# summer needs besides its sums. Registers are allocated in multiples of eight.
_REGISTERS, _EQUAL_REGISTERS, _REGISTERS_BESIDE_SUMS = 512, 128, 32


@dataclass(frozen=True)
class LayerChunk:
    """A chunk of 64 columns of the input of a layer, or of its ``dz``.

    Attributes:
      layer: number of the layer, 0 or 1.
      number: number of the chunk.
    """

    layer: int
    number: int


@dataclass(frozen=True)
class BackwardPlan:
    """The computation of a block in the backward pass of a stack.

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
        """Representation of the numbers for tensor cores."""
        return Terms.of(self.stack.dtype)

    @property
    def columns_per_part(self) -> int:
        """Columns of x, and of dx, that a block has."""
        return self.stack.widths[0] // self.parts

    @property
    def recomputes(self) -> bool:
        """Whether the first preactivation is recomputed, for which all columns of x are needed."""
        last = self.stack.last_activation
        return self.stack.layers > 1 or not (last is None or last.of_output)

    @functools.cached_property
    def summed_inputs(self) -> dict[str, int]:
        """Widths of the inputs that summers read; their tiles stay until they have been summed."""
        last = self.stack.widths[-1]
        return {"x": self.columns_per_part} | (
            {"dy": last} if self.stack.last_activation is None else {}
        )

    @functools.cached_property
    def read_once_inputs(self) -> dict[str, int]:
        """Widths of the inputs that only walkers read; their slots are free once dz is computed."""
        width, last = self.stack.widths[-1], self.stack.last_activation
        if last is None:
            return {}
        return {"dy": width} | ({"y": width} if last.of_output else {})

    @functools.cached_property
    def walker_outputs(self) -> dict[str, int]:
        """Widths of the tiles that walkers compute for the summers."""
        width, two = self.stack.widths[1], self.stack.layers > 1
        made = {"hidden": width} if two else {}
        return made | ({"dz": width} if two or self.stack.last_activation is not None else {})

    @functools.cached_property
    def kernel_chunks(self) -> list[LayerChunk]:
        """Chunks whose products are the kernels' gradients: of x, and of dy for a second layer.

        The sums of the first layer are ``xᵀ dz``; those of the second are transposed, ``dyᵀ h``.
        Each chunk takes 64 rows of sums.
        """
        first = [LayerChunk(0, chunk) for chunk in range(self.columns_per_part // COLUMNS)]
        second = self.stack.widths[2] // COLUMNS if self.stack.layers > 1 else 0
        return first + [LayerChunk(1, chunk) for chunk in range(second)]

    @functools.cached_property
    def bias_chunks(self) -> list[LayerChunk]:
        """Chunks of dz whose sums are the biases' gradients, numbered within a block."""
        layers = itertools.compress(range(self.stack.layers), self.stack.biased)
        return [
            LayerChunk(layer, chunk)
            for layer in layers
            for chunk in range(self.stack.widths[layer + 1] // COLUMNS // self._sharers(layer))
        ]

    def _sharers(self, layer: int) -> int:
        """Returns how many parts share the chunks of dz.

        If the chunks can not be divided, each part has all of them.
        """
        chunks = self.stack.widths[layer + 1] // COLUMNS
        return 1 if chunks % self.parts else self.parts

    def bias_chunk_index(self, chunk: LayerChunk, part):
        """Returns the number of a bias chunk among all chunks, in a block of this ``part``."""
        own = self.stack.widths[chunk.layer + 1] // COLUMNS // self._sharers(chunk.layer)
        return part * own + chunk.number if self._sharers(chunk.layer) > 1 else chunk.number

    def bias_locations(self, layer: int) -> list[tuple[int, int, int, int]]:
        """Returns where each chunk of a bias is summed: part, summer, and ``mark_of``."""
        places = [
            (part, chunk.number, (part, summer, *self.mark_of(index)))
            for part in range(self._sharers(layer))
            for summer in range(self.summers)
            for index, chunk in enumerate(self.chunks_of_summer(summer)[1])
            if chunk.layer == layer
        ]
        return [place for *_, place in sorted(places)]

    @property
    def summers(self) -> int:
        """Number of warpgroups that hold all sums in registers."""
        each = _COLUMNS_PER_SUMMER // self.stack.widths[1]
        return self.stack.layers if self.summer_per_layer else -(-len(self.kernel_chunks) // each)

    def chunks_of_summer(self, summer: int) -> tuple[list[LayerChunk], list[LayerChunk]]:
        """Returns the chunks of kernels and of biases that a summer has; the latter by mark."""
        if self.summer_per_layer:
            chunks = [chunk for chunk in self.kernel_chunks if chunk.layer == summer]
            return chunks, [chunk for chunk in self.bias_chunks if chunk.layer == summer]
        each = -(-len(self.kernel_chunks) // self.summers)
        chunks = self.kernel_chunks[summer * each : (summer + 1) * each]
        return chunks, self.bias_chunks[summer :: self.summers]

    @property
    def marks(self) -> tuple[int, int]:
        """Number of sums for biases of a summer, and of matrices that mark their columns.

        Each bias chunk needs a pair of its own. Where shared memory is scarce, one matrix serves
        several sums; where registers are scarce, one sum has a column for each matrix.
        """
        count = max(len(self.chunks_of_summer(summer)[1]) for summer in range(self.summers))
        scarce = self.terms.split and not self.summer_per_layer
        return (count, min(count, 1)) if scarce else (min(count, 1), count)

    def mark_of(self, number: int) -> tuple[int, int]:
        """Returns which sum and which matrix the bias chunk of this ``number`` uses."""
        sums, matrices = self.marks
        return min(number, sums - 1), min(number, matrices - 1)

    @property
    def needs_bias(self) -> bool:
        """Whether the bias of the first layer is read, to recompute its preactivation."""
        return self.recomputes and self.stack.biased[0]

    @property
    def loaded_biases(self) -> tuple[int, ...]:
        """Widths of the biases in shared memory.

        With a summer per layer there is no room for any.
        """
        return (self.stack.widths[1],) if self.needs_bias and not self.summer_per_layer else ()

    @property
    def summer_registers(self) -> int:
        """Registers of a thread of the summer with the most sums."""
        chunks = max(len(self.chunks_of_summer(summer)[0]) for summer in range(self.summers))
        return chunks * self.stack.widths[1] // 2 + _REGISTERS_BESIDE_SUMS

    @property
    def parameter_bytes(self) -> int:
        """Shared bytes of parameters and marks, which stay for the whole kernel."""
        kernels = dataclasses.replace(self.stack, biased=(False,) * self.stack.layers)
        biases = (tc.aligned(w * self.stack.dtype.itemsize) for w in self.loaded_biases)
        marks = self.marks[1] * tc.aligned(MARKS * tc.ROWS * _TERM_BYTES)
        return kernels.parameter_bytes(self.parts) + sum(biases) + marks

    @property
    def can_overlay(self) -> bool:
        """Whether dx may be staged in the memory of dz: both have the same size."""
        return (
            self.terms.split and self.walker_outputs.get("dz") == self.columns_per_part == COLUMNS
        )

    def shared_bytes(self, slots: int, read_once_slots: int, overlay: bool = False) -> int:
        """Returns the shared bytes of a team's tiles.

        With ``overlay`` dx is in the memory of dz.
        """
        row = [0 if overlay else self.columns_per_part, *self.walker_outputs.values()]
        row += [*self.summed_inputs.values()] * slots + [
            *self.read_once_inputs.values()
        ] * read_once_slots
        return self.stack.row_bytes(*row)


@dataclass(frozen=True)
class BackwardTile:
    """Division of the work among blocks and warpgroups.

    Attributes:
      blocks: how many blocks have the same columns, at most; with all parts there is one for each
        multiprocessor.
      parts: blocks that share the columns of ``x``.
      teams: teams of walkers in a block; each works on a tile of its own.
      members: walkers of a team, which share the columns of its tile.
      slots: slots of each team for tiles of inputs that are summed.
      read_once_slots: slots of each team for tiles of inputs that only walkers read.
      overlay: whether dx is staged in the memory of the terms of dz; for teams of one member.
    """

    blocks: int
    parts: int
    teams: int
    members: int
    slots: int
    read_once_slots: int
    overlay: bool = False

    @classmethod
    def choose(cls, chip: Chip, stack: Stack) -> BackwardTile | None:
        """The one heuristic: the fewest parts that fit, or None."""
        if stack.layers > _MOST_LAYERS or max(stack.widths) > tc.MOST_WIDTH:
            return None
        chunks = 1 if BackwardPlan(stack, 1).recomputes else stack.widths[0] // COLUMNS
        plans = (BackwardPlan(stack, n) for n in range(1, chunks + 1) if chunks % n == 0)
        tiles = (cls._fitting(chip, plan) for plan in plans if plan.summers <= _MOST_SUMMERS)
        return next((tile for tile in tiles if tile is not None), None)

    @classmethod
    def _fitting(cls, chip: Chip, plan: BackwardPlan) -> BackwardTile | None:
        """Chooses as many teams as fit, and then reads ahead as far as there is room."""
        stack = plan.stack
        # Two summers leave registers for two walkers, each with one chunk at a time. Of float32
        # tiles there is room for one team.
        few = plan.summers == 2 or plan.terms.split
        members = 2 if few and stack.widths[1] > COLUMNS else 1
        free = _MOST_WARPGROUPS - plan.summers
        # With a third walker, the summer would have too few registers.
        walkers = free if plan.summer_registers <= _EQUAL_REGISTERS or members == 2 else free - 1
        room = chip.shared_bytes - plan.parameter_bytes
        blocks = chip.multiprocessors // plan.parts
        ways = (False, True) if plan.can_overlay and members == 1 else (False,)
        for teams in range(walkers // members, 0, -1):
            for overlay, (slots, read_once_slots) in itertools.product(ways, _AHEAD):
                if teams * plan.shared_bytes(slots, read_once_slots, overlay) <= room:
                    return cls(blocks, plan.parts, teams, members, slots, read_once_slots, overlay)
        return None

    @property
    def walkers(self) -> int:
        """Number of walkers of a block."""
        return self.teams * self.members

    def limited_to(self, rows: int) -> BackwardTile:
        """Returns the same without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))

    def registers(self, plan: BackwardPlan) -> tuple[int, int] | None:
        """Returns the registers of walkers' and summers' threads, or None to leave them equal."""
        return registers(plan, self.walkers)


@dataclass(frozen=True)
class TightTile:
    """Division of the work where shared memory holds only three tiles of two layers.

    Two of the tiles are loaded and one is computed; see ``dense.tight``.

    Attributes:
      blocks: how many blocks there are, at most one for each multiprocessor.
    """

    blocks: int

    walkers = 2
    teams, parts = 1, 1

    @classmethod
    def choose(cls, chip: Chip, stack: Stack) -> TightTile | None:
        """Returns the tile if two float32 layers fit, or else None.

        Numbers of 16 bits are not supported: the kernel reuses the same memory for numbers and for
        their terms.
        """
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
        """Returns the same without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))

    def registers(self, plan: BackwardPlan) -> tuple[int, int] | None:
        """Returns the registers of walkers' and summers' threads, or None to leave them equal."""
        return registers(plan, self.walkers)


def registers(plan: BackwardPlan, walkers: int) -> tuple[int, int] | None:
    """Returns the registers of walkers' and summers' threads, or None to leave them equal."""
    needed = plan.summer_registers
    if walkers + plan.summers < _MOST_WARPGROUPS or needed <= _EQUAL_REGISTERS:
        return None
    rest = (_REGISTERS - plan.summers * needed) // walkers
    return rest // 8 * 8, needed
