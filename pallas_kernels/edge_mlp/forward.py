"""Forward pass of layers on edges and a sum over each row; values of edges stay on the chip.

A warpgroup processes a group of 64 rows. Step k has a tile with the k-th edge of each row, and the
senders of the next steps are copied meanwhile. The layers multiply the tile in registers by kernels
in shared memory, and the sum over the steps is in registers too.
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
from pallas_kernels.edge_mlp.edge_tiles import (
    ROWS,
    EdgeLayers,
    Places,
    Tables,
    common_swizzle,
    whole_tile_bytes,
)
from pallas_kernels.edge_mlp.gather_scatter import WaitForCopies
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.tensor_cores import BLOCK, WARPGROUP

MOST_WIDTH = 128  # sum, product and input of a tile then fit the registers of a warpgroup
# Warpgroups of a block that have enough registers, by the largest width.
_WARPGROUPS = {64: 4, 96: 3, 128: 2}
_MOST_SLOTS = 4


@dataclass(frozen=True)
class EdgeTile:
    """Division of the work among blocks and warpgroups.

    Attributes:
      blocks: blocks of the grid, one for each multiprocessor.
      warpgroups: warpgroups of a block, each with groups of rows of its own.
      slots: stages of the pipeline of tiles of senders, the present one included.
    """

    blocks: int
    warpgroups: int
    slots: int

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, *, features: bool = False) -> EdgeTile | None:
        """The only heuristic: as many warpgroups and stages as fit, or None.

        Args:
          chip: the GPU.
          stack: the layers.
          features: whether edges have features of their own.
        """
        widest, first, last = max(stack.widths), stack.widths[0], stack.widths[-1]
        if common_swizzle(stack.widths) is None or widest > MOST_WIDTH:
            return None
        most = next(n for width, n in _WARPGROUPS.items() if widest <= width)
        # Two more tiles for results, unless they have the width of tiles that can be reused.
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
        """Workers of a block, which have groups of rows of their own."""
        return self.warpgroups

    def limited_to(self, groups: int) -> Self:
        """This tile without blocks that would have no groups."""
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
    """``y_i = Σ_j w_ij layers(receivers_i + senders_j + features_ij)``, accumulated in float32.

    Args:
      places: the shape of the graph, and how its edges are assigned to tiles.
      tables: the senders of edges, and the pieces of rows unless all rows have one degree.
      layers: nodes of the whole batch along one axis, widths multiples of 32 up to ``MOST_WIDTH``.
      activation: name of the activation before each kernel, or None.
      activate_last: whether the activation is also applied after the last kernel.
      partial_slots: number of partial sums of pieces of rows, at least one if tables list pieces.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      [batch rows, last], of the dtype of ``receivers``, where rows of several pieces are not
      written; and the partial sums of their pieces, [batch, partial_slots, last] float32, or None
      unless tables list pieces.
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
    """Shapes of the results that ``Tiles.write`` writes: rows, and partial sums of pieces."""
    places = plan.places
    results = [jax.ShapeDtypeStruct((places.batch * places.rows, width), plan.stack.dtype)]
    if plan.lists_pieces:
        form = (places.batch, partial_slots, width)
        results.append(jax.ShapeDtypeStruct(form, jnp.float32))
    return results


def parameters(plan: Plan) -> dict:
    """Shared memory for the kernels and biases of all layers, and the barrier of their copy."""
    stack = plan.stack
    biases = itertools.compress(stack.widths[1:], stack.biased)
    count = stack.layers + sum(stack.biased)
    return {
        "kernels": [plan.tiles(1, *shape) for shape in stack.shapes],
        "biases": [tc.SMEM((width,), stack.dtype) for width in biases],
        "loaded": tc.Barrier(num_arrivals=count) if count else None,
    }


def load_parameters(scratch: dict, layers: EdgeLayers) -> None:
    """Begins to copy kernels and biases to shared memory; see ``wait_for_parameters``."""
    if scratch["loaded"] is not None:
        targets = [*(kernel.at[0] for kernel in scratch["kernels"]), *scratch["biases"]]
        tc.start_loads([*layers.kernels, *layers.biases], targets, scratch["loaded"])


def wait_for_parameters(scratch: dict) -> None:
    """Waits for kernels and biases; every warpgroup that reads them calls it."""
    if scratch["loaded"] is not None:
        tc.barrier_wait(scratch["loaded"])


def _scratch(plan: Plan, tile: EdgeTile) -> dict:
    """Shared memory and barriers of a block."""
    first, last, warpgroups = plan.stack.widths[0], plan.stack.widths[-1], tile.warpgroups
    return parameters(plan) | {
        "receivers": plan.tiles(warpgroups, ROWS, first),
        "senders": plan.tiles(warpgroups, tile.slots, ROWS, first),
        "features": plan.tiles(warpgroups, tile.slots, ROWS, first) if plan.has_features else None,
        "factors": plan.factors(warpgroups, tile.slots),
        "sums": None if first == last else plan.tiles(warpgroups, 2, ROWS, last),
    }


def _forward(plan: Plan, tile: EdgeTile, scratch, layers, tables, *results) -> None:
    """Runs one warpgroup of the kernel."""
    load_parameters(scratch, layers)
    wait_for_parameters(scratch)
    tiles = Tiles(plan, scratch, layers, tables, lax.axis_index(WARPGROUP))
    Worker(tile, tiles, results).run()


@dataclass(frozen=True)
class Worker:
    """A warpgroup that processes groups of rows, one after the other.

    Attributes:
      tile: how blocks share the work.
      tiles: the tiles of this warpgroup in shared memory.
      results: rows and partial sums in global memory, as ``row_results`` describes them.
    """

    tile: EdgeTile
    tiles: Tiles
    results: Sequence

    @property
    def number(self):
        """Index of this worker in its block."""
        return lax.axis_index(WARPGROUP)

    def run(self) -> None:
        """Processes this worker's groups; neighbouring groups are on different multiprocessors."""
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
            add, zeros = functools.partial(self._add_tile, group, steps), plan.stack.widths[-1]
            sums = lax.fori_loop(0, steps, add, tiles.zeros(zeros))
            if tiles.scratch["sums"] is None:
                places = tiles.at("receivers"), tiles.at("senders", 0)
            else:
                places = tiles.at("sums", 0), tiles.at("sums", 1)
            simt.inline(WaitForCopies(0), [], [])
            self._wait_until_read()
            tiles.write(group, sums, self.results, *places)

    def _wait_until_read(self) -> None:
        """Waits until all warps have read their tiles, so that they may be overwritten."""
        tc.commit_smem()

    def _add_tile(self, group, steps, step, sums):
        """``sums`` plus the output of the layers for the tile of one step."""
        slots, tiles = self.tile.slots, self.tiles
        slot, ahead = lax.rem(step, slots), step + (slots - 1)

        def gather():
            tiles.gather(group, ahead, steps, lax.rem(ahead, slots))

        simt.inline(WaitForCopies(slots - 2), [], [])
        # All warps have their copies, and have read the previous tile, which may be overwritten.
        tc.commit_smem()
        return sums + tiles.scaled(self._values(step, slot, gather), slot)

    def _values(self, step, slot, gather):
        """The output of the layers for a tile; ``gather()`` begins to copy a later tile."""
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
    """The product of a tile in registers and a kernel in shared memory, accumulated in float32."""

    def run(sums):
        tc.wgmma(sums, a, kernel)
        return sums[...]

    return pl.run_scoped(run, tc.ACC((a.shape[0], kernel.shape[1]), jnp.float32))
