"""Forward pass of layers on edges that are too wide for the registers of one warpgroup.

Two warpgroups, a team, process each group of 64 rows together, as one does in ``edge_mlp.forward``.
Each member has one half of the columns: of the nodes it gathers, of the output of every layer, and
of the sums. Since a layer reads all columns, the members write its input to shared memory and
synchronize.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import Stack, add_bias
from pallas_kernels.edge_mlp.edge_tiles import (
    ROWS,
    EdgeLayers,
    Places,
    Tables,
    common_swizzle,
    whole_tile_bytes,
)
from pallas_kernels.edge_mlp.forward import EdgeTile, Worker, row_results
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.tensor_cores import WARPGROUP

MEMBERS = 2  # warpgroups of a team
MOST_WIDTH = 256
_MOST_SLOTS = 4
# Registers of a thread, by teams of a block; and those it needs besides its sums and a product.
_REGISTERS, _OTHER_REGISTERS = {2: 128, 1: 248}, 48


@dataclass(frozen=True)
class WideTile(EdgeTile):
    """Division of the work among blocks and teams: an ``EdgeTile`` whose workers are teams."""

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, *, features: bool = False) -> WideTile | None:
        """The only heuristic: as many teams and stages as fit, or None.

        Args:
          chip: the GPU.
          stack: the layers.
          features: whether edges have features of their own.
        """
        half = _half(stack)
        if half is None or max(stack.widths) > MOST_WIDTH:
            return None
        needed = half.widths[-1] // 2 + max(half.widths) // 2 + _OTHER_REGISTERS
        for teams, slots in itertools.product(_REGISTERS, range(_MOST_SLOTS, 1, -1)):
            fits = _shared_bytes(stack, teams, slots, features) <= chip.shared_bytes
            if fits and needed <= _REGISTERS[teams]:
                return cls(chip.multiprocessors, teams * MEMBERS, slots)
        return None

    @property
    def workers(self) -> int:
        """Teams of a block, which have groups of rows of their own."""
        return self.warpgroups // MEMBERS


def _half(stack: Stack) -> Stack | None:
    """The layers with half of the widths, as a member has them; None if tensor cores can not."""
    widths = tuple(width // MEMBERS for width in stack.widths)
    is_whole = all(width % MEMBERS == 0 for width in stack.widths)
    if not is_whole or common_swizzle(widths) is None:
        return None
    return dataclasses.replace(stack, widths=widths)


def _with_input_tile(stack: Stack) -> list[int]:
    """Layers whose input has a tile of its own, as it does not fit that of the senders."""
    return [n for n in range(stack.layers) if stack.widths[n] != stack.widths[0]]


def _shared_bytes(stack: Stack, teams: int, slots: int, features: bool) -> int:
    """Shared memory of a block, in bytes."""
    first, last = stack.widths[0], stack.widths[-1]
    columns = (1 + slots * (2 if features else 1)) * first
    columns += sum(stack.widths[n] for n in _with_input_tile(stack))
    columns += 0 if first == last else 2 * last
    factors = tc.aligned(teams * MEMBERS * slots * ROWS * 4)
    return stack.parameter_bytes() + factors + teams * whole_tile_bytes(columns)


def forward(
    places: Places,
    tables: Tables,
    layers: EdgeLayers,
    activation: str | None,
    activate_last: bool,
    partial_slots: int,
    tile: WideTile | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """``edge_mlp.forward.forward`` for widths that are multiples of 64 up to ``MOST_WIDTH``.

    Args:
      places: the shape of the graph, and how its edges are assigned to tiles.
      tables: the senders of edges, and the pieces of rows unless all rows have one degree.
      layers: nodes of the whole batch along one axis.
      activation: name of the activation before each kernel, or None.
      activate_last: whether the activation is also applied after the last kernel.
      partial_slots: number of partial sums of pieces of rows, at least one if tables list pieces.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      [batch rows, last], where rows of several pieces are not written; and the partial sums of
      their pieces, [batch, partial_slots, last] float32, or None unless tables list pieces.
    """
    plan = Plan.of(places, layers, activation, activate_last)
    chosen = tile or WideTile.choose(Chip.current(), plan.stack, features=plan.has_features)
    half = _half(plan.stack)
    if chosen is None or half is None:
        raise ValueError(f"layers of widths {plan.stack.widths} do not fit a multiprocessor")
    tile = chosen.limited_to(places.groups)
    own = dataclasses.replace(plan, stack=half)
    call = tc.launch(
        functools.partial(_forward, own, tile),
        "edge_mlp_aggregate_wide",
        row_results(plan, plan.stack.widths[-1], partial_slots),
        (tile.blocks, 1),
        tile.warpgroups,
        _scratch(own, tile),
    )
    y, *partial = call(layers._replace(biases=[b for b in layers.biases if b is not None]), tables)
    return y, partial[0] if partial else None


def _scratch(own: Plan, tile: WideTile) -> dict:
    """Shared memory and barriers of a block; ``own`` has the widths of a member."""
    stack, warpgroups = own.stack, tile.warpgroups
    first, last = stack.widths[0], stack.widths[-1]
    biases = itertools.compress(stack.widths[1:], stack.biased)
    loads = MEMBERS * MEMBERS * stack.layers + sum(stack.biased)
    return {
        "kernels": [own.tiles(MEMBERS, MEMBERS, *shape) for shape in stack.shapes],
        "biases": [tc.SMEM((MEMBERS * width,), stack.dtype) for width in biases],
        "loaded": tc.Barrier(num_arrivals=loads) if loads else None,
        "receivers": own.tiles(warpgroups, ROWS, first),
        "senders": own.tiles(warpgroups, tile.slots, ROWS, first),
        "features": own.tiles(warpgroups, tile.slots, ROWS, first) if own.has_features else None,
        "inputs": [own.tiles(warpgroups, ROWS, stack.widths[n]) for n in _with_input_tile(stack)],
        "factors": own.factors(warpgroups, tile.slots),
        "sums": None if first == last else own.tiles(warpgroups, 2, ROWS, last),
        "met": tc.Barrier(num_arrivals=MEMBERS, num_barriers=tile.workers),
    }


def _load_parameters(own: Plan, scratch: dict, layers: EdgeLayers) -> None:
    """Begins to copy biases, and kernels as quarters, indexed by member and by half of the rows."""
    sources: list[Any] = [*layers.biases]
    targets = [*scratch["biases"]]
    for kernel, target, (rows, columns) in zip(
        layers.kernels, scratch["kernels"], own.stack.shapes, strict=True
    ):
        for member, part in itertools.product(range(MEMBERS), repeat=2):
            place = pl.ds(part * rows, rows), pl.ds(member * columns, columns)
            sources.append(kernel.at[place])
            targets.append(target.at[member, part])
    tc.start_loads(sources, targets, scratch["loaded"])


def _forward(own: Plan, tile: WideTile, scratch, layers, tables, *results) -> None:
    """Runs one warpgroup of the kernel, a member of a team."""
    if scratch["loaded"] is not None:
        _load_parameters(own, scratch, layers)
        tc.barrier_wait(scratch["loaded"])
    number = lax.axis_index(WARPGROUP)
    member = lax.rem(number, MEMBERS)
    first, last = (_columns(member, own.stack.widths[layer]) for layer in (0, -1))
    halves = layers._replace(
        receivers=layers.receivers.at[:, first],
        senders=layers.senders.at[:, first],
        features=None if layers.features is None else layers.features.at[:, :, first],
    )
    tiles = Tiles(own, scratch, halves, tables, number)
    y, *partial = results
    written = [y.at[:, last], *(sums.at[:, :, last] for sums in partial)]
    _Member(tile, tiles, written).run()


def _columns(member, width: int) -> pl.Slice:
    """The columns of a member."""
    return pl.ds(pl.multiple_of(member * width, width), width)


@dataclass(frozen=True)
class _Member(Worker):
    """A warpgroup of a team, which has its half of the columns of all tiles."""

    @property
    def number(self):
        """Index of the team in its block."""
        return lax.div(lax.axis_index(WARPGROUP), MEMBERS)

    @property
    def _member(self):
        """Index of this warpgroup in its team."""
        return lax.rem(lax.axis_index(WARPGROUP), MEMBERS)

    def _synchronize(self) -> None:
        """Waits for the other member: both have finished their reads and writes before it."""
        met = self.tiles.scratch["met"].at[self.number]
        tc.barrier_arrive(met)
        tc.barrier_wait(met)

    def _wait_until_read(self) -> None:
        tc.commit_smem()
        if self.tiles.plan.stack.layers:
            self._synchronize()

    def _input(self, layer: int, slot, member):
        """The tile of shared memory with a member's half of the input of a layer."""
        scratch, warpgroup = self.tiles.scratch, self.number * MEMBERS + member
        own = _with_input_tile(self.tiles.plan.stack)
        if layer in own:
            return scratch["inputs"][own.index(layer)].at[warpgroup]
        return scratch["senders"].at[(warpgroup, slot)]

    def _values(self, step, slot, gather):
        """This member's half of the output of the layers for a tile."""
        plan, scratch, member = self.tiles.plan, self.tiles.scratch, self._member
        stack = plan.stack
        z, activation = self.tiles.preactivation(slot), plan.first_activation
        zero, in_slot = tc.opaque_zero(step), False
        if not stack.layers:
            gather()
        for layer, kernel in enumerate(scratch["kernels"]):
            z = z if activation is None else activation.value(z)
            reuses_slot = layer not in _with_input_tile(stack)
            if in_slot and reuses_slot:
                self._synchronize()  # the other member has read it as well
            in_slot = in_slot or reuses_slot
            self._input(layer, slot, member)[...] = z.astype(stack.dtype)
            tc.commit_smem()
            self._synchronize()
            if layer == 0:
                gather()
            z = tc.product(
                *(
                    (self._input(layer, slot, part), kernel.at[(member + zero, part)])
                    for part in range(MEMBERS)
                )
            )
            bias = stack.bias_of(scratch["biases"], layer)
            z = add_bias(z, bias, _columns(member, stack.widths[layer + 1]))
            activation = stack.activation(layer)
        return z if activation is None else activation.value(z)
