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
# Tiles of each team, of the streams that are summed and of those that are not.
_AHEAD = ((4, 2), (3, 2), (2, 2), (3, 1), (2, 1))
_SUMS = 256  # columns of 64 rows that a warpgroup sums, in 128 registers a thread
# Of a thread: what there is for four warpgroups, for each if none gives any away, and what a summer
# needs beside its sums. They are given in eights.
_REGISTERS, _FAIR_REGISTERS, _OTHER_REGISTERS = 512, 128, 32


@dataclass(frozen=True)
class Unit:
    """A chunk of 64 columns of what a layer reads, or of its ``dz``.

    Attributes:
      layer: 0 or 1.
      chunk: its number.
    """

    layer: int
    chunk: int


@dataclass(frozen=True)
class Work:
    """The backward pass of a stack, as far as a block has to do with it.

    Attributes:
      stack: the layers; the second of two has no activation.
      parts: blocks that share the columns of ``x``.
      by_layer: whether each layer has a summer of its own.
    """

    stack: Stack
    parts: int
    by_layer: bool = False

    @property
    def terms(self) -> Terms:
        """Of the numbers."""
        return Terms.of(self.stack.dtype)

    @property
    def share(self) -> int:
        """Columns of x, and of dx, of a block."""
        return self.stack.widths[0] // self.parts

    @property
    def recomputes(self) -> bool:
        """Whether the preactivation of the first layer is made again, from all columns of x."""
        last = self.stack.last
        return self.stack.layers > 1 or not (last is None or last.of_output)

    @functools.cached_property
    def summed(self) -> dict[str, int]:
        """Widths of the streams that summers read: they stay until a tile is summed."""
        last = self.stack.widths[-1]
        return {"x": self.share} | ({"dy": last} if self.stack.last is None else {})

    @functools.cached_property
    def brief(self) -> dict[str, int]:
        """Widths of the streams that only walkers read: their places are free once dz is made."""
        width, last = self.stack.widths[-1], self.stack.last
        if last is None:
            return {}
        return {"dy": width} | ({"y": width} if last.of_output else {})

    @functools.cached_property
    def kept(self) -> dict[str, int]:
        """Widths of what walkers make for the summers."""
        width, two = self.stack.widths[1], self.stack.layers > 1
        made = {"hidden": width} if two else {}
        return made | ({"dz": width} if two or self.stack.last is not None else {})

    @functools.cached_property
    def units(self) -> list[Unit]:
        """Of what the sums of the kernels are: x, and dy of a second layer. Each takes 64 rows.

        The sums of the first layer are ``xᵀ dz``; those of the second are transposed, ``dyᵀ h``.
        """
        first = [Unit(0, chunk) for chunk in range(self.share // COLUMNS)]
        second = self.stack.widths[2] // COLUMNS if self.stack.layers > 1 else 0
        return first + [Unit(1, chunk) for chunk in range(second)]

    @functools.cached_property
    def bias_units(self) -> list[Unit]:
        """Of what the sums of the biases are: chunks of dz, numbered among those of a block."""
        layers = itertools.compress(range(self.stack.layers), self.stack.biased)
        return [
            Unit(layer, chunk)
            for layer in layers
            for chunk in range(self.stack.widths[layer + 1] // COLUMNS // self._sharers(layer))
        ]

    def _sharers(self, layer: int) -> int:
        """Parts that share the chunks of dz; each has all where these can not be divided."""
        chunks = self.stack.widths[layer + 1] // COLUMNS
        return 1 if chunks % self.parts else self.parts

    def bias_chunk(self, unit: Unit, part):
        """Its number among all chunks, in a block of this ``part``."""
        own = self.stack.widths[unit.layer + 1] // COLUMNS // self._sharers(unit.layer)
        return part * own + unit.chunk if self._sharers(unit.layer) > 1 else unit.chunk

    def bias_places(self, layer: int) -> list[tuple[int, int, int, int]]:
        """The part, the summer, and ``mark_of`` each chunk of the layer's bias."""
        places = [
            (part, unit.chunk, (part, summer, *self.mark_of(number)))
            for part in range(self._sharers(layer))
            for summer in range(self.summers)
            for number, unit in enumerate(self.share_of(summer)[1])
            if unit.layer == layer
        ]
        return [place for *_, place in sorted(places)]

    @property
    def summers(self) -> int:
        """Warpgroups whose registers hold all sums."""
        each = _SUMS // self.stack.widths[1]
        return self.stack.layers if self.by_layer else -(-len(self.units) // each)

    def share_of(self, summer: int) -> tuple[list[Unit], list[Unit]]:
        """Units of the kernels and of the biases that a ``summer`` has; the latter by mark."""
        if self.by_layer:
            units = [unit for unit in self.units if unit.layer == summer]
            return units, [unit for unit in self.bias_units if unit.layer == summer]
        each = -(-len(self.units) // self.summers)
        units = self.units[summer * each : (summer + 1) * each]
        return units, self.bias_units[summer :: self.summers]

    @property
    def marks(self) -> tuple[int, int]:
        """Sums of biases of one summer, and matrices that mark their columns.

        Where memory is scarce, all have the same; where registers are, columns of the same sums.
        """
        count = max(len(self.share_of(summer)[1]) for summer in range(self.summers))
        scarce = self.terms.split and not self.by_layer
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
        return (self.stack.widths[1],) if self.needs_bias and not self.by_layer else ()

    @property
    def summer_registers(self) -> int:
        """Of a thread that has the most sums."""
        units = max(len(self.share_of(summer)[0]) for summer in range(self.summers))
        return units * self.stack.widths[1] // 2 + _OTHER_REGISTERS

    @property
    def parameter_bytes(self) -> int:
        """Of what stays in shared memory."""
        kernels = dataclasses.replace(self.stack, biased=(False,) * self.stack.layers)
        biases = (tc.aligned(w * self.stack.dtype.itemsize) for w in self.loaded_biases)
        marks = self.marks[1] * tc.aligned(MARKS * tc.ROWS * _TERM_BYTES)
        return kernels.parameter_bytes(self.parts) + sum(biases) + marks

    @property
    def may_be_over(self) -> bool:
        """Whether the place of dz may be that of dx: both take the same room."""
        return self.terms.split and self.kept.get("dz") == self.share == COLUMNS

    def shared_bytes(self, slots: int, brief: int, over: bool = False) -> int:
        """Of a team's tiles in shared memory; dx may lie ``over`` dz."""
        row = [0 if over else self.share, *self.kept.values()]
        row += [*self.summed.values()] * slots + [*self.brief.values()] * brief
        return self.stack.row_bytes(*row)


@dataclass(frozen=True)
class BackwardTile:
    """How blocks and warpgroups share the work.

    Attributes:
      blocks: at most this many have the same columns; with all parts one a multiprocessor.
      parts: blocks that share the columns of ``x``.
      teams: tiles that the walkers of a block are at.
      members: walkers of a team, which share the columns.
      slots: tiles of each team in shared memory, of the streams that are summed.
      brief: likewise of the streams that only walkers read.
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
        chunks = 1 if Work(stack, 1).recomputes else stack.widths[0] // COLUMNS
        works = (Work(stack, n) for n in range(1, chunks + 1) if chunks % n == 0)
        tiles = (cls._fitting(chip, work) for work in works if work.summers <= _MOST_SUMMERS)
        return next((tile for tile in tiles if tile is not None), None)

    @classmethod
    def _fitting(cls, chip: Chip, work: Work) -> BackwardTile | None:
        """More tiles at a time come before reading ahead further."""
        stack = work.stack
        # Two summers leave registers for two walkers, and these for a chunk each.
        # Of float32 tiles there is room for one team.
        few = work.summers == 2 or work.terms.split
        members = 2 if few and stack.widths[1] > COLUMNS else 1
        free = _MOST_WARPGROUPS - work.summers
        # A third walker would leave the summer too few.
        walkers = free if work.summer_registers <= _FAIR_REGISTERS or members == 2 else free - 1
        room = chip.shared_bytes - work.parameter_bytes
        blocks = chip.multiprocessors // work.parts
        ways = (False, True) if work.may_be_over and members == 1 else (False,)
        for teams in range(walkers // members, 0, -1):
            for over, (slots, brief) in itertools.product(ways, _AHEAD):
                if teams * work.shared_bytes(slots, brief, over) <= room:
                    return cls(blocks, work.parts, teams, members, slots, brief, over)
        return None

    @property
    def walkers(self) -> int:
        """Of a block."""
        return self.teams * self.members

    def limited_to(self, rows: int) -> BackwardTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))

    def registers(self, work: Work) -> tuple[int, int] | None:
        """Of the threads of walkers and of summers, None to leave them as they are."""
        return registers(work, self.walkers)


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
        if stack.layers != 2 or stack.last is not None or not Work(stack, 1).terms.split:
            return None
        # Each walker has one chunk, each layer one summer.
        if max(stack.widths) > cls.walkers * COLUMNS:
            return None
        work = Work(stack, 1, by_layer=True)
        before, between, after = stack.widths
        tiles = stack.row_bytes(*[max(before, after)] * 2, max(before, between))
        fits = work.parameter_bytes + tiles <= chip.shared_bytes
        return cls(chip.multiprocessors) if fits else None

    def limited_to(self, rows: int) -> TightTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // tc.ROWS)))

    def registers(self, work: Work) -> tuple[int, int] | None:
        """As those of a ``BackwardTile``."""
        return registers(work, self.walkers)


def registers(work: Work, walkers: int) -> tuple[int, int] | None:
    """Of the threads of walkers and of summers, None to leave them as they are."""
    needed = work.summer_registers
    if walkers + work.summers < _MOST_WARPGROUPS or needed <= _FAIR_REGISTERS:
        return None
    rest = (_REGISTERS - work.summers * needed) // walkers
    return rest // 8 * 8, needed
