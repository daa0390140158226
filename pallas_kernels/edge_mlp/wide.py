"""Layers between both ends of edges and a sum, forward, too wide for one warpgroup's registers.

Two warpgroups, a team, go through the same groups of 64 rows as one does in ``edge_mlp.forward``.
Each has one half of the columns: it gathers that half of what the nodes have, makes that half of
what every layer makes, and has that half of the sums. What a layer reads is all columns: the
members of a team write it to shared memory, and meet.
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
from pallas_kernels.edge_mlp.forward import EdgeTile, Worker, row_results
from pallas_kernels.edge_mlp.places import (
    ROWS,
    EdgeLayers,
    Places,
    Tables,
    common_swizzle,
    whole_tile_bytes,
)
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.tensor_cores import WARPGROUP

MEMBERS = 2  # of a team
MOST_WIDTH = 256
_MOST_SLOTS = 4
# Of a thread, by teams of a block; and what it needs beside its sums and a product.
_REGISTERS, _OTHER_REGISTERS = {2: 128, 1: 248}, 48


@dataclass(frozen=True)
class WideTile(EdgeTile):
    """How blocks and teams share the work; see there."""

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, *, features: bool = False) -> WideTile | None:
        """The one heuristic: as many teams as fit, or None; see there."""
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
        """Teams of a block, which have groups of their own."""
        return self.warpgroups // MEMBERS


def _half(stack: Stack) -> Stack | None:
    """As a member of a team has it; None if that does not suit the tensor cores."""
    widths = tuple(width // MEMBERS for width in stack.widths)
    is_whole = all(width % MEMBERS == 0 for width in stack.widths)
    if not is_whole or common_swizzle(widths) is None:
        return None
    return dataclasses.replace(stack, widths=widths)


def _own_places(stack: Stack) -> list[int]:
    """Layers whose input does not take the place of what belongs to senders."""
    return [n for n in range(stack.layers) if stack.widths[n] != stack.widths[0]]


def _shared_bytes(stack: Stack, teams: int, slots: int, features: bool) -> int:
    """Of a block."""
    first, last = stack.widths[0], stack.widths[-1]
    columns = (1 + slots * (2 if features else 1)) * first
    columns += sum(stack.widths[n] for n in _own_places(stack))
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
    """As ``edge_mlp.forward.forward``, for widths that are multiples of 64 up to ``MOST_WIDTH``."""
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
    """Shared memory; of ``own`` widths, those of a member."""
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
        "inputs": [own.tiles(warpgroups, ROWS, stack.widths[n]) for n in _own_places(stack)],
        "factors": own.factors(warpgroups, tile.slots),
        "sums": None if first == last else own.tiles(warpgroups, 2, ROWS, last),
        "met": tc.Barrier(num_arrivals=MEMBERS, num_barriers=tile.workers),
    }


def _ask_for_parameters(own: Plan, scratch: dict, layers: EdgeLayers) -> None:
    """Kernels by halves of their rows and columns; the first of the latter are the member's."""
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
    """A warpgroup's part."""
    if scratch["loaded"] is not None:
        _ask_for_parameters(own, scratch, layers)
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
    """Those of a member."""
    return pl.ds(pl.multiple_of(member * width, width), width)


@dataclass(frozen=True)
class _Member(Worker):
    """A warpgroup of a team, with its half of the columns of everything."""

    @property
    def number(self):
        """That of the team."""
        return lax.div(lax.axis_index(WARPGROUP), MEMBERS)

    @property
    def _member(self):
        return lax.rem(lax.axis_index(WARPGROUP), MEMBERS)

    def _meet(self) -> None:
        """Waits for the other: what both wrote is there, what they read may be overwritten."""
        met = self.tiles.scratch["met"].at[self.number]
        tc.barrier_arrive(met)
        tc.barrier_wait(met)

    def _have_read(self) -> None:
        tc.commit_smem()
        if self.tiles.plan.stack.layers:
            self._meet()

    def _input(self, layer: int, slot, member):
        """Where that half of what a layer reads is."""
        scratch, warpgroup = self.tiles.scratch, self.number * MEMBERS + member
        own = _own_places(self.tiles.plan.stack)
        if layer in own:
            return scratch["inputs"][own.index(layer)].at[warpgroup]
        return scratch["senders"].at[(warpgroup, slot)]

    def _values(self, step, slot, gather):
        """The member's half; each layer's input takes a place that all have read."""
        plan, scratch, member = self.tiles.plan, self.tiles.scratch, self._member
        stack = plan.stack
        z, activation = self.tiles.preactivation(slot), plan.first_activation
        zero, in_slot = tc.opaque_zero(step), False
        if not stack.layers:
            gather()
        for layer, kernel in enumerate(scratch["kernels"]):
            z = z if activation is None else activation.value(z)
            takes_slot = layer not in _own_places(stack)
            if in_slot and takes_slot:
                self._meet()  # the other has read it as well
            in_slot = in_slot or takes_slot
            self._input(layer, slot, member)[...] = z.astype(stack.dtype)
            tc.commit_smem()
            self._meet()
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
