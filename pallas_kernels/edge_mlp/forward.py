"""Layers between both ends of edges and a sum, forward: nothing of an edge leaves the chip.

A warpgroup goes through a group of 64 rows, the edges of each one after the other, while what the
senders of the next edges have is on its way. All layers of a tile are products whose left side is
in registers, and so is the sum.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import Stack, add_bias
from pallas_kernels.edge_mlp.gather_scatter import WaitForCopies
from pallas_kernels.edge_mlp.places import (
    ROWS,
    EdgeLayers,
    Places,
    Tables,
    common_swizzle,
    whole_tile_bytes,
)
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.tensor_cores import BLOCK, WARPGROUP

MOST_WIDTH = 128  # of a tile whose sum, product and input are in registers
# Warpgroups that have registers for that, by width.
_WARPGROUPS = {64: 4, 96: 3, 128: 2}
_MOST_SLOTS = 4


@dataclass(frozen=True)
class EdgeTile:
    """How blocks and warpgroups share the work.

    Attributes:
      blocks: one a multiprocessor.
      warpgroups: that each have groups of their own.
      slots: tiles of senders of each worker, those on their way and the one worked on.
    """

    blocks: int
    warpgroups: int
    slots: int

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, *, features: bool = False) -> EdgeTile | None:
        """The one heuristic: what fits, or None.

        Args:
          chip: the GPU.
          stack: the layers.
          features: whether edges have something of their own.
        """
        widest, first, last = max(stack.widths), stack.widths[0], stack.widths[-1]
        if common_swizzle(stack.widths) is None or widest > MOST_WIDTH:
            return None
        most = next(n for width, n in _WARPGROUPS.items() if widest <= width)
        # Of the results two tiles, where they can not take the place of others.
        other = 0 if first == last else 2 * whole_tile_bytes(last)
        for warpgroups in range(most, 0, -1) if features else (most,):
            room = chip.shared_bytes - stack.parameter_bytes() - warpgroups * _MOST_SLOTS * 1024
            slots = (room // warpgroups - other) // whole_tile_bytes(first) - 1
            slots = min(_MOST_SLOTS, slots // 2 if features else slots)
            if slots > 1:
                return cls(chip.multiprocessors, warpgroups, slots)
        return None

    @property
    def workers(self) -> int:
        """Of a block, that have groups of their own."""
        return self.warpgroups

    def limited_to(self, groups: int) -> Self:
        """Without blocks that would have no groups."""
        return dataclasses.replace(self, blocks=min(self.blocks, groups))


def forward(
    places: Places,
    tables: Tables,
    layers: EdgeLayers,
    activation: str | None,
    activate_last: bool,
    partial_slots: int,
    tile: EdgeTile | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """``y_i = Σ_j w_ij layers(receivers_i + senders_j)``, accumulated in float32.

    Args:
      places: the graph.
      tables: likewise.
      layers: see there; nodes of all of the batch along one axis, widths multiples of 32 up to
        ``MOST_WIDTH``.
      activation: in front of each kernel.
      activate_last: whether it also stands behind the last.
      partial_slots: of pieces of rows; where tables list pieces, at least one.
      tile: by default what suits the shapes.

    Returns:
      [batch rows, last], of the dtype of ``receivers``, without rows of several pieces; and sums of
      their pieces, [batch slots, last] float32, where tables list pieces.
    """
    plan = Plan.of(places, layers, activation, activate_last)
    tile = tile or EdgeTile.choose(Chip.current(), plan.stack, features=plan.has_features)
    if tile is None:
        raise ValueError(f"layers of widths {plan.stack.widths} do not fit a multiprocessor")
    tile = tile.limited_to(places.groups)
    call = tc.launch(
        functools.partial(_forward, plan, tile),
        "edge_mlp_aggregate",
        row_results(plan, plan.stack.widths[-1], partial_slots),
        (tile.blocks, 1),
        tile.warpgroups,
        _scratch(plan, tile),
    )
    y, *partial = call(layers._replace(biases=[b for b in layers.biases if b is not None]), tables)
    return y, partial[0] if partial else None


def row_results(plan: Plan, width: int, partial_slots: int) -> list[jax.ShapeDtypeStruct]:
    """The forms of what ``Tiles.write`` writes."""
    places = plan.places
    results = [jax.ShapeDtypeStruct((places.batch * places.rows, width), plan.stack.dtype)]
    if plan.lists_pieces:
        form = (places.batch, partial_slots, width)
        results.append(jax.ShapeDtypeStruct(form, jnp.float32))
    return results


def parameters(plan: Plan) -> dict:
    """Shared memory for what all tiles are multiplied with."""
    stack = plan.stack
    biases = itertools.compress(stack.widths[1:], stack.biased)
    count = stack.layers + sum(stack.biased)
    return {
        "kernels": [plan.tiles(1, *shape) for shape in stack.shapes],
        "biases": [tc.SMEM((width,), stack.dtype) for width in biases],
        "loaded": tc.Barrier(num_arrivals=count) if count else None,
    }


def ask_for_parameters(scratch: dict, layers: EdgeLayers) -> None:
    """The first warpgroup does; ``wait_for_parameters`` waits."""
    if scratch["loaded"] is not None:
        targets = [*(kernel.at[0] for kernel in scratch["kernels"]), *scratch["biases"]]
        tc.start_loads([*layers.kernels, *layers.biases], targets, scratch["loaded"])


def wait_for_parameters(scratch: dict) -> None:
    """By every warpgroup that reads them."""
    if scratch["loaded"] is not None:
        tc.barrier_wait(scratch["loaded"])


def _scratch(plan: Plan, tile: EdgeTile) -> dict:
    first, last, warpgroups = plan.stack.widths[0], plan.stack.widths[-1], tile.warpgroups
    return parameters(plan) | {
        "receivers": plan.tiles(warpgroups, ROWS, first),
        "senders": plan.tiles(warpgroups, tile.slots, ROWS, first),
        "features": plan.tiles(warpgroups, tile.slots, ROWS, first) if plan.has_features else None,
        "factors": plan.factors(warpgroups, tile.slots),
        "sums": None if first == last else plan.tiles(warpgroups, 2, ROWS, last),
    }


def _forward(plan: Plan, tile: EdgeTile, scratch, layers, tables, *results) -> None:
    """A warpgroup's part."""
    ask_for_parameters(scratch, layers)
    wait_for_parameters(scratch)
    tiles = Tiles(plan, scratch, layers, tables, lax.axis_index(WARPGROUP))
    Worker(tile, tiles, results).run()


@dataclass(frozen=True)
class Worker:
    """A warpgroup that goes through groups of rows.

    Attributes:
      tile: who does what.
      tiles: of the warpgroup.
      results: in memory.
    """

    tile: EdgeTile
    tiles: Tiles
    results: Sequence

    @property
    def number(self):
        """Among those of the block that have groups of their own."""
        return lax.axis_index(WARPGROUP)

    def run(self) -> None:
        """Groups by turns: neighbouring ones to different multiprocessors."""
        tile, tiles, plan = self.tile, self.tiles, self.tiles.plan
        worker = self.number * tile.blocks + lax.axis_index(BLOCK)
        workers = tile.blocks * tile.workers

        @pl.loop(0, tc.count_strided(plan.places.groups, worker, workers))
        def _(i):
            group = worker + i * workers
            steps = plan.places.steps(group, tiles.tables)
            tiles.gather_rows(group, tiles.layers.receivers, "receivers")
            for step in range(tile.slots - 1):
                tiles.gather(group, jnp.int32(step), steps, step)
            add, zeros = functools.partial(self._add, group, steps), plan.stack.widths[-1]
            sums = lax.fori_loop(0, steps, add, tiles.zeros(zeros))
            if tiles.scratch["sums"] is None:
                places = tiles.at("receivers"), tiles.at("senders", 0)
            else:
                places = tiles.at("sums", 0), tiles.at("sums", 1)
            simt.inline(WaitForCopies(0), [], [])
            self._have_read()
            tiles.write(group, sums, self.results, *places)

    def _have_read(self) -> None:
        """Waits until all warps have read what was in the tiles."""
        tc.commit_smem()

    def _add(self, group, steps, step, sums):
        """A tile."""
        slots, tiles = self.tile.slots, self.tiles
        slot, ahead = lax.rem(step, slots), step + (slots - 1)

        def gather():
            tiles.gather(group, ahead, steps, lax.rem(ahead, slots))

        simt.inline(WaitForCopies(slots - 2), [], [])
        # All warps have their copies, and have read the tile before: its place is free.
        tc.commit_smem()
        return sums + tiles.scaled(self._values(step, slot, gather), slot)

    def _values(self, step, slot, gather):
        """What the layers make of a tile; ``gather`` asks for one into the place of the last."""
        gather()
        plan, scratch = self.tiles.plan, self.tiles.scratch
        z, activation = self.tiles.preactivation(slot), plan.first_activation
        zero = tc.opaque_zero(step)
        for layer, kernel in enumerate(scratch["kernels"]):
            z = z if activation is None else activation.value(z)
            z = multiply(z.astype(plan.stack.dtype), kernel.at[zero])
            bias = plan.stack.bias_of(scratch["biases"], layer)
            z = add_bias(z, bias, slice(0, plan.stack.widths[layer + 1]))
            activation = plan.stack.activation(layer)
        return z if activation is None else activation.value(z)


def multiply(a: jax.Array, kernel) -> jax.Array:
    """The product of what is in registers and a matrix in shared memory, in float32 registers."""

    def run(sums):
        tc.wgmma(sums, a, kernel)
        return sums[...]

    return pl.run_scoped(run, tc.ACC((a.shape[0], kernel.shape[1]), jnp.float32))
