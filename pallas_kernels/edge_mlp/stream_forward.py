"""Layers between both ends of edges and a sum, forward, whose kernels do not fit shared memory.

The walkers of a block go through neighbouring groups of 64 rows, the edges of each one after the
other, all through the same slices of kernels at about the same time; those that have fewer edges go
through tiles of none. A walker has all columns of its tile. What one layer reads another does not
overwrite: inputs of layers take two places by turns, the first of them that of the senders.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import Stack, add_bias
from pallas_kernels.edge_mlp import stream
from pallas_kernels.edge_mlp.forward import row_results
from pallas_kernels.edge_mlp.gather_scatter import WaitForAllCopies
from pallas_kernels.edge_mlp.places import ROWS, EdgeLayers, Places, Tables, whole_tile_bytes
from pallas_kernels.edge_mlp.stream import Ring, Slices
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.tensor_cores import BLOCK, WARPGROUP


@dataclass(frozen=True)
class StreamTile:
    """How blocks and walkers share the work.

    Attributes:
      blocks: one a multiprocessor.
      walkers: of a block.
      slots: of its ring of slices of kernels.
    """

    blocks: int
    walkers: int
    slots: int

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, *, features: bool = False) -> StreamTile | None:
        """The one heuristic: as many walkers as fit, or None."""
        if not stack.layers or not stream.suits(stack):
            return None
        first, last = stack.widths[0], stack.widths[-1]
        columns = first * (2 if features else 1) + sum(width for _, width in _places(stack))
        columns += 0 if first == last else 2 * last
        found = Slices.of(stack).choose(chip, whole_tile_bytes(columns))
        return None if found is None else cls(chip.multiprocessors, *found)

    def ring(self, stack: Stack) -> Ring:
        """Of slices of kernels."""
        return Ring(Slices.of(stack), self.walkers, self.slots)


def _place(stack: Stack, layer: int) -> tuple[int, int]:
    """Where the input of a layer is: which of the two places, and how wide that is."""
    return layer % 2, stack.widths[layer]


def _places(stack: Stack) -> list[tuple[int, int]]:
    """All of them; the first is that of what belongs to senders."""
    return list(dict.fromkeys(_place(stack, layer) for layer in range(stack.layers)))


def forward(
    places: Places,
    tables: Tables,
    layers: EdgeLayers,
    activation: str | None,
    activate_last: bool,
    partial_slots: int,
    tile: StreamTile | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """As ``edge_mlp.forward.forward``, for widths that are multiples of 64 up to 256."""
    plan = Plan.of(places, layers, activation, activate_last)
    tile = tile or StreamTile.choose(Chip.current(), plan.stack, features=plan.has_features)
    if tile is None:
        raise ValueError(f"layers of widths {plan.stack.widths} do not fit a multiprocessor")
    units = -(-places.groups // tile.walkers)
    tile = dataclasses.replace(tile, blocks=min(tile.blocks, units))
    ring = tile.ring(plan.stack)
    call = tc.launch(
        functools.partial(_forward, plan, tile),
        "edge_mlp_aggregate_stream",
        row_results(plan, plan.stack.widths[-1], partial_slots),
        (tile.blocks, 1),
        ring.warpgroups,
        _scratch(plan, tile),
    )
    biases = [bias for bias in layers.biases if bias is not None]
    given = layers._replace(kernels=[], biases=biases)
    y, *partial = call(ring.slices.arranged(layers.kernels), given, tables)
    return y, partial[0] if partial else None


def _scratch(plan: Plan, tile: StreamTile) -> dict:
    walkers, first, last = tile.walkers, plan.stack.widths[0], plan.stack.widths[-1]
    return tile.ring(plan.stack).form(plan) | {
        "receivers": plan.tiles(walkers, ROWS, first),
        "features": plan.tiles(walkers, 1, ROWS, first) if plan.has_features else None,
        "inputs": [plan.tiles(walkers, 1, ROWS, width) for _, width in _places(plan.stack)],
        "factors": plan.factors(walkers, 2),
        "sums": None if first == last else plan.tiles(walkers, 2, ROWS, last),
    }


def _forward(plan: Plan, tile: StreamTile, scratch, slices, layers, tables, *results) -> None:
    """A warpgroup's part."""
    number, ring = lax.axis_index(WARPGROUP), tile.ring(plan.stack)
    named = scratch | {"senders": scratch["inputs"][0]}
    tiles = Tiles(plan, named, layers, tables, number)
    walker = _Walker(tile, ring, tiles, results)
    load = lambda: ring.load(slices, scratch, walker.all_steps())  # noqa: E731
    ring.share(number, scratch, load, walker.run)


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that goes through groups of rows; values are parts, by columns.

    Attributes:
      tile: who does what.
      ring: of slices of kernels.
      tiles: of the warpgroup.
      results: in memory.
    """

    tile: StreamTile
    ring: Ring
    tiles: Tiles
    results: Sequence

    @property
    def _stack(self) -> Stack:
        return self.tiles.plan.stack

    @property
    def _units(self) -> Any:
        """Of the block: groups of all walkers, neighbouring units to different multiprocessors."""
        units = -(-self.tiles.plan.places.groups // self.tile.walkers)
        return tc.count_strided(units, lax.axis_index(BLOCK), self.tile.blocks)

    def _group(self, i, walker) -> Any:
        """Of a walker in the block's i-th unit; there may be none of this number."""
        unit = lax.axis_index(BLOCK) + i * self.tile.blocks
        return unit * self.tile.walkers + walker

    def _steps(self, i) -> Any:
        """The most of all walkers."""
        places = self.tiles.plan.places
        groups = (self._group(i, walker) for walker in range(self.tile.walkers))
        steps = [places.steps(_least(places, group), self.tiles.tables) for group in groups]
        return functools.reduce(jnp.maximum, steps)

    def all_steps(self) -> Any:
        """Tiles that each walker goes through."""
        return lax.fori_loop(0, self._units, lambda i, total: total + self._steps(i), jnp.int32(0))

    def run(self) -> None:
        """All groups."""
        tiles, places = self.tiles, self.tiles.plan.places
        zeros = [tiles.zeros(part.stop - part.start) for part in self._parts(self._stack.layers)]

        @pl.loop(0, self._units, init_carry=jnp.int32(0))
        def _(i, before):
            found = self._group(i, tiles.number)
            group, steps = _least(places, found), self._steps(i)
            tiles.gather_rows(group, tiles.layers.receivers, "receivers")
            if self._gathers_ahead:
                tiles.gather(group, jnp.int32(0), steps, 0, 0)

            def add(step, sums):
                # The compiler knows the steps of a graph of one degree, but not that all are few.
                number = tiles.number + tc.opaque_zero(before + step)
                own = dataclasses.replace(tiles, number=number)
                walker = dataclasses.replace(self, tiles=own)
                return walker._add(group, steps, before, step, sums)

            sums = lax.fori_loop(0, steps, add, tuple(zeros))
            simt.inline(WaitForAllCopies(), [], [])
            tc.commit_smem()  # all warps have read what was there
            pl.when(found < places.groups)(lambda: self._write(group, sums))
            return before + steps

    def _parts(self, layer: int) -> list[slice]:
        return stream.parts(self._stack.widths[layer])

    @property
    def _last_use(self) -> int:
        """The last layer that reads the place of senders."""
        stack = self._stack
        return max(n for n in range(stack.layers) if _place(stack, n) == _place(stack, 0))

    @property
    def _gathers_ahead(self) -> bool:
        """Whether the next tile is gathered while layers still are at this one."""
        return self._last_use < self._stack.layers - 1

    def _input(self, layer: int) -> Any:
        number = _places(self._stack).index(_place(self._stack, layer))
        return self.tiles.scratch["inputs"][number].at[(self.tiles.number, 0)]

    def _add(self, group, steps, before, step, sums) -> tuple:
        """A tile."""
        tiles, stack = self.tiles, self._stack
        if not self._gathers_ahead:
            tc.commit_smem()  # all warps have multiplied what was there
            tiles.gather(group, step, steps, 0, lax.rem(step, 2))
        simt.inline(WaitForAllCopies(), [], [])
        tc.commit_smem()  # all warps have their copies
        for columns, z in zip(self._parts(0), self._preactivations(), strict=True):
            self._keep(0, columns, z, tiles.plan.first_activation)
        made = []
        for layer in range(stack.layers):
            tc.commit_smem()
            is_last = layer == stack.layers - 1
            done = functools.partial(self._sum, step, sums) if is_last else self._pass_on
            made = self.ring.product(
                tiles.scratch,
                self._input(layer),
                layer,
                before + step,
                functools.partial(done, layer),
            )
            if self._gathers_ahead and layer == self._last_use:
                tc.commit_smem()  # all warps have multiplied
                tiles.gather(group, step + 1, steps, 0, lax.rem(step + 1, 2))
        return tuple(made)

    def _preactivations(self) -> Iterator:
        """Of what belongs to both ends and to the edges, part by part: registers are few."""
        names = ["receivers", "features"] if self.tiles.plan.has_features else ["receivers"]
        others = [self.tiles.at(name, *[0] * (name == "features")) for name in names]
        places = [self._input(0), *others]
        for columns in self._parts(0):
            yield functools.reduce(
                jnp.add, (tc.load_float32(place.at[:, columns]) for place in places)
            )

    def _keep(self, layer: int, columns, z, activation) -> None:
        """As a part of what a layer reads."""
        z = z if activation is None else activation.value(z)
        self._input(layer).at[:, columns][...] = z.astype(self._stack.dtype)

    def _biased(self, layer: int, columns, z) -> jax.Array:
        return add_bias(z, self._stack.bias_of(self.tiles.layers.biases, layer), columns)

    def _pass_on(self, layer: int, columns, z) -> None:
        """From a layer to the next."""
        z = self._biased(layer, columns, z)
        self._keep(layer + 1, columns, z, self._stack.activation(layer))

    def _sum(self, step, sums, layer: int, columns, z) -> jax.Array:
        """Adds to a part of the sums."""
        z, activation = self._biased(layer, columns, z), self._stack.activation(layer)
        z = z if activation is None else activation.value(z)
        before = sums[self._parts(layer + 1).index(columns)]
        return before + self.tiles.scaled(z, lax.rem(step, 2))

    def _write(self, group, sums) -> None:
        """The sums of a group."""
        tiles, dtype = self.tiles, self._stack.dtype
        if tiles.scratch["sums"] is None:
            tile, other = tiles.at("receivers"), tiles.at("senders", 0)
        else:
            tile, other = tiles.at("sums", 0), tiles.at("sums", 1)
        for columns, part in zip(self._parts(self._stack.layers), sums, strict=True):
            rounded = part.astype(dtype)
            tile.at[:, columns][...] = rounded
            if tiles.plan.lists_pieces:
                left = part - rounded.astype(jnp.float32)
                other.at[:, columns][...] = left.astype(dtype)
        tiles.scatter(group, self.results, tile, other)


def _least(places: Places, group) -> Any:
    """A group that there is."""
    return jnp.minimum(group, places.groups - 1)
