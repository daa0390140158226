"""Layers between both ends of edges and a sum, forward: nothing of an edge leaves the chip.

A warpgroup goes through a group of 64 rows, the edges of each one after the other, while the copy
engine of each warp gathers what the senders of the next edges have. All layers of a tile are
products whose left side is in registers, and so is the sum.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack as dense
from pallas_kernels import _simt
from pallas_kernels._dense_stack import BLOCK, WARPGROUP, Stack
from pallas_kernels._edge_places import (
    ROWS,
    EdgeLayers,
    GatherEdges,
    GatherRows,
    Layout,
    Places,
    ScatterRows,
    Tables,
    WaitForCopies,
    common_swizzle,
    whole_tile_bytes,
)

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
      slots: tiles of senders of each warpgroup, those on their way and the one worked on.
    """

    blocks: int
    warpgroups: int
    slots: int

    @classmethod
    def choose(cls, stack: Stack) -> EdgeTile | None:
        """The one heuristic: what fits, or None."""
        widest, (first, *_, last) = max(stack.widths), (*stack.widths, stack.widths[-1])
        if common_swizzle(stack.widths) is None or widest > MOST_WIDTH:
            return None
        warpgroups = next(n for width, n in _WARPGROUPS.items() if widest <= width)
        room = dense.SHARED_BYTES - stack.parameter_bytes() - warpgroups * _MOST_SLOTS * 1024
        # Of the results two tiles, where they can not take the place of others.
        other = 0 if first == last else 2 * whole_tile_bytes(last)
        slots = (room // warpgroups - other) // whole_tile_bytes(first) - 1
        return (
            cls(dense.MULTIPROCESSORS, warpgroups, min(_MOST_SLOTS, slots)) if slots > 1 else None
        )

    def limited_to(self, groups: int) -> EdgeTile:
        """Without blocks that would have no groups."""
        return dataclasses.replace(self, blocks=min(self.blocks, groups))


@dataclass(frozen=True)
class Plan:
    """What is known when the kernel is made.

    Attributes:
      stack: the layers behind the first; an activation in front of each is that of the one before.
      first: the activation in front of all of them.
      places: the edges.
      tile: who does what.
      own_weights: whether each element of the batch has its own weights; None without weights.
    """

    stack: Stack
    first: str | None
    places: Places
    tile: EdgeTile
    own_weights: bool | None

    @classmethod
    def of(
        cls,
        places: Places,
        layers: EdgeLayers,
        activation: str | None,
        activate_last: bool,
        tile: EdgeTile | None,
    ) -> Plan:
        """Of arguments of ``forward``."""
        weights, kernels, biases = layers[2:]
        # In front of the first kernel, and behind each.
        first, *others = [activation] * len(kernels) + [activation if activate_last else None]
        stack = Stack.of(layers.receivers, kernels, biases, others)
        tile = tile or EdgeTile.choose(stack)
        if tile is None:
            raise ValueError(f"layers of widths {stack.widths} do not fit a multiprocessor")
        own_weights = None if weights is None else places.batch > 1 and weights.shape[0] > 1
        return cls(stack, first, places, tile.limited_to(places.groups), own_weights)

    @functools.cached_property
    def swizzle(self) -> int:
        """Of all tiles."""
        swizzle = common_swizzle(self.stack.widths)
        assert swizzle is not None
        return swizzle

    def layout(self, width: int) -> Layout:
        """Of a tile."""
        return Layout(width, self.swizzle)

    @property
    def lists_pieces(self) -> bool:
        """Whether there are ``Tables`` of them."""
        return self.places.degree is None

    @property
    def has_factors(self) -> bool:
        """Whether tiles have numbers that multiply their rows: weights, or zeros for no edges."""
        return self.lists_pieces or self.own_weights is not None

    def scratch(self) -> dict:
        """Shared memory."""
        stack, tile = self.stack, self.tile
        tiles = functools.partial(dense.tiles, stack.dtype, swizzle=self.swizzle)
        first, last = stack.widths[0], stack.widths[-1]
        biases = itertools.compress(stack.widths[1:], stack.biased)
        parameters = stack.layers + sum(stack.biased)
        return {
            "kernels": [tiles(1, *shape) for shape in stack.shapes],
            "biases": [plgpu.SMEM((width,), stack.dtype) for width in biases],
            "loaded": plgpu.Barrier(num_arrivals=parameters) if parameters else None,
            "receivers": tiles(tile.warpgroups, ROWS, first),
            "senders": tiles(tile.warpgroups, tile.slots, ROWS, first),
            "factors": plgpu.SMEM((tile.warpgroups, tile.slots, ROWS), jnp.float32)
            if self.has_factors
            else None,
            # The sum takes the place of the receivers where it is as wide.
            "sums": None if first == last else tiles(tile.warpgroups, 2, ROWS, last),
        }


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
    plan = Plan.of(places, layers, activation, activate_last, tile)
    last = plan.stack.widths[-1]
    results = [jax.ShapeDtypeStruct((places.batch * places.rows, last), plan.stack.dtype)]
    if plan.lists_pieces:
        form = (places.batch, partial_slots, last)
        results.append(jax.ShapeDtypeStruct(form, jnp.float32))
    call = dense.launch(
        functools.partial(_forward, plan),
        "edge_mlp_aggregate",
        results,
        (plan.tile.blocks, 1),
        plan.tile.warpgroups,
        plan.scratch(),
    )
    y, *partial = call(layers._replace(biases=[b for b in layers.biases if b is not None]), tables)
    return y, partial[0] if partial else None


def _forward(plan: Plan, scratch, layers: EdgeLayers, tables: Tables, *results) -> None:
    """A warpgroup's part."""
    if scratch["loaded"] is not None:
        targets = [*(kernel.at[0] for kernel in scratch["kernels"]), *scratch["biases"]]
        dense.ask_for([*layers.kernels, *layers.biases], targets, scratch["loaded"])
        plgpu.barrier_wait(scratch["loaded"])
    _Worker(plan, scratch, layers, tables, results).run()


@dataclass(frozen=True)
class _Worker:
    """A warpgroup that goes through groups of rows.

    Attributes:
      plan: what there is to do.
      scratch: shared memory.
      layers: in memory.
      tables: likewise.
      results: likewise.
    """

    plan: Plan
    scratch: dict
    layers: EdgeLayers
    tables: Tables
    results: Sequence

    def run(self) -> None:
        """Groups by turns: neighbouring ones to different multiprocessors."""
        tile, places = self.plan.tile, self.plan.places
        worker = lax.axis_index(WARPGROUP) * tile.blocks + lax.axis_index(BLOCK)
        workers = tile.blocks * tile.warpgroups

        @pl.loop(0, dense.own(places.groups, worker, workers))
        def _(i):
            group = worker + i * workers
            steps = places.steps(group, self.tables)
            self._gather_rows(group)
            for step in range(tile.slots - 1):
                self._gather(group, jnp.int32(step), steps)
            sums = lax.fori_loop(
                0, steps, functools.partial(self._add, group, steps), self._zeros()
            )
            self._write(group, sums)

    def _zeros(self):
        form = (ROWS, self.plan.stack.widths[-1])
        return plgpu.layout_cast(jnp.zeros(form, jnp.float32), plgpu.Layout.WGMMA)

    @property
    def _listed(self) -> list:
        """The references to tables."""
        return [(reference, ()) for reference in jax.tree.leaves(self.tables)]

    def _own(self, name: str, *place):
        """A tile of this warpgroup, with its transforms."""
        tiled = dense.tiled(self.plan.stack.dtype, self.plan.swizzle)
        return self.scratch[name].at[(lax.axis_index(WARPGROUP), *place)], tiled

    def _gather_rows(self, group) -> None:
        layout = self.plan.layout(self.plan.stack.widths[0])
        references = [(self.layers.receivers, ()), self._own("receivers"), *self._listed]
        _simt.inline(GatherRows(self.plan.places, layout), [group], references)

    def _gather(self, group, step, steps) -> None:
        """The senders of a tile, if there is one."""
        plan, slot = self.plan, lax.rem(step, self.plan.tile.slots)
        layout = plan.layout(plan.stack.widths[0])
        kernel = GatherEdges(plan.places, layout, plan.own_weights, plan.has_factors)
        references = [(self.layers.senders, ()), self._own("senders", slot)]
        if plan.has_factors:
            references.append((self._factors(slot), ()))
        if self.layers.weights is not None:
            references.append((self.layers.weights, ()))
        _simt.inline(kernel, [group, step, steps], [*references, *self._listed])

    def _factors(self, slot):
        return self.scratch["factors"].at[lax.axis_index(WARPGROUP), slot]

    def _add(self, group, steps, step, sums):
        """A tile."""
        slots = self.plan.tile.slots
        slot = lax.rem(step, slots)
        _simt.inline(WaitForCopies(slots - 2), [], [])
        # All warps have their copies, and have read the tile before: its place is free.
        plgpu.commit_smem()
        self._gather(group, step + (slots - 1), steps)
        values = self._values(step, slot)
        if self.plan.has_factors:
            factors = plgpu.load(
                self._factors(slot), layout=plgpu.Layout.WGMMA.reduce(1), optimized=False
            )
            values = values * lax.broadcast_in_dim(factors, values.shape, (0,))
        return sums + values

    def _values(self, step, slot):
        """What the layers make of a tile."""
        stack = self.plan.stack
        z = dense.load(self._own("receivers")[0]) + dense.load(self._own("senders", slot)[0])
        if self.plan.first is not None:
            z = dense.ACTIVATIONS[self.plan.first].value(z)
        zero = dense.zero_in(step)
        for layer, kernel in enumerate(self.scratch["kernels"]):
            z = multiply(z.astype(stack.dtype), kernel.at[zero])
            bias = stack.bias_of(self.scratch["biases"], layer)
            z = dense.add_bias(z, bias, slice(0, stack.widths[layer + 1]))
            activation = stack.activation(layer)
            z = z if activation is None else activation.value(z)
        return z

    def _write(self, group, sums) -> None:
        """Through shared memory, where whole rows lie."""
        plan = self.plan
        layout = plan.layout(plan.stack.widths[-1])
        rounded = sums.astype(plan.stack.dtype)
        if self.scratch["sums"] is None:
            tile, other = self._own("receivers"), self._own("senders", 0)
        else:
            tile, other = self._own("sums", 0), self._own("sums", 1)
        plgpu.commit_smem()  # all warps have read what was there
        tile[0][...] = rounded
        result, left = [(self.results[0], ())], []
        if plan.lists_pieces:
            left = [other, (self.results[1], ())]
            other[0][...] = (sums - rounded.astype(jnp.float32)).astype(plan.stack.dtype)
        plgpu.commit_smem()
        kernel = ScatterRows(plan.places, layout)
        _simt.inline(kernel, [group], [*result, tile, *left, *self._listed])
        # Before what was read and written is used anew.
        plgpu.commit_smem()


def multiply(a: jax.Array, kernel) -> jax.Array:
    """The product of what is in registers and a matrix in shared memory, in float32 registers."""

    def run(sums):
        plgpu.wgmma(sums, a, kernel)
        return sums[...]

    return pl.run_scoped(run, plgpu.ACC((a.shape[0], kernel.shape[1]), jnp.float32))
