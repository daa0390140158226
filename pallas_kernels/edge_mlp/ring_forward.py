"""Forward pass of layers on edges whose kernels do not fit shared memory.

Slices of the kernels are streamed through a ring in shared memory. The walkers of a block process
neighbouring groups of 64 rows in lockstep, so that all use the same slices; walkers with fewer
steps process tiles without edges. A walker has all columns of its tile. Inputs of layers alternate
between two buffers, the first of which also receives the senders.
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
from pallas_kernels.edge_mlp import kernel_ring
from pallas_kernels.edge_mlp.edge_tiles import ROWS, EdgeLayers, Places, Tables, whole_tile_bytes
from pallas_kernels.edge_mlp.forward import row_results
from pallas_kernels.edge_mlp.gather_scatter import WaitForAllCopies
from pallas_kernels.edge_mlp.kernel_ring import KernelRing, KernelSlices
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.tensor_cores import BLOCK, WARPGROUP


@dataclass(frozen=True)
class RingTile:
    """Division of the work among blocks and walkers.

    Attributes:
      blocks: blocks of the grid, one for each multiprocessor.
      walkers: warpgroups of a block that process tiles.
      slots: stages of the ring of slices of kernels in shared memory.
    """

    blocks: int
    walkers: int
    slots: int

    @classmethod
    def choose(cls, chip: Chip, stack: Stack, *, features: bool = False) -> RingTile | None:
        """The only heuristic: as many walkers as fit, or None.

        Args:
          chip: the GPU.
          stack: the layers.
          features: whether edges have features of their own.
        """
        if not stack.layers or not kernel_ring.suits(stack):
            return None
        first, last = stack.widths[0], stack.widths[-1]
        columns = first * (2 if features else 1) + sum(width for _, width in _buffers(stack))
        columns += 0 if first == last else 2 * last
        found = KernelSlices.of(stack).choose(chip, whole_tile_bytes(columns))
        return None if found is None else cls(chip.multiprocessors, *found)

    def ring(self, stack: Stack) -> KernelRing:
        """The ring through which slices of kernels reach the walkers."""
        return KernelRing(KernelSlices.of(stack), self.walkers, self.slots)


def _buffer(stack: Stack, layer: int) -> tuple[int, int]:
    """The buffer of the input of a layer: its parity, and its width."""
    return layer % 2, stack.widths[layer]


def _buffers(stack: Stack) -> list[tuple[int, int]]:
    """The distinct buffers of inputs of layers; the first also receives the senders."""
    return list(dict.fromkeys(_buffer(stack, layer) for layer in range(stack.layers)))


def forward(
    places: Places,
    tables: Tables,
    layers: EdgeLayers,
    activation: str | None,
    activate_last: bool,
    partial_slots: int,
    tile: RingTile | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """``edge_mlp.forward.forward`` for widths that are multiples of 64 up to 256.

    Args:
      places: the shape of the graph, and how its edges are assigned to tiles.
      tables: the senders of edges, and the pieces of rows unless all rows have one degree.
      layers: nodes of the whole batch along one axis, one kernel at least.
      activation: name of the activation before each kernel, or None.
      activate_last: whether the activation is also applied after the last kernel.
      partial_slots: number of partial sums of pieces of rows, at least one if tables list pieces.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      [batch rows, last], where rows of several pieces are not written; and the partial sums of
      their pieces, [batch, partial_slots, last] float32, or None unless tables list pieces.
    """
    plan = Plan.of(places, layers, activation, activate_last)
    tile = tile or RingTile.choose(Chip.current(), plan.stack, features=plan.has_features)
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


def _scratch(plan: Plan, tile: RingTile) -> dict:
    """Shared memory and barriers of a block."""
    walkers, first, last = tile.walkers, plan.stack.widths[0], plan.stack.widths[-1]
    return tile.ring(plan.stack).scratch(plan) | {
        "receivers": plan.tiles(walkers, ROWS, first),
        "features": plan.tiles(walkers, 1, ROWS, first) if plan.has_features else None,
        "inputs": [plan.tiles(walkers, 1, ROWS, width) for _, width in _buffers(plan.stack)],
        "factors": plan.factors(walkers, 2),
        "sums": None if first == last else plan.tiles(walkers, 2, ROWS, last),
    }


def _forward(plan: Plan, tile: RingTile, scratch, slices, layers, tables, *results) -> None:
    """Runs one warpgroup of the kernel, as a walker or as the loader."""
    number, ring = lax.axis_index(WARPGROUP), tile.ring(plan.stack)
    named = scratch | {"senders": scratch["inputs"][0]}
    tiles = Tiles(plan, named, layers, tables, number)
    walker = _Walker(tile, ring, tiles, results)
    load = lambda: ring.load(slices, scratch, walker.all_steps())  # noqa: E731
    ring.run_roles(number, scratch, load, walker.run)


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that processes groups of rows; values of a tile are lists of parts by columns.

    Attributes:
      tile: how blocks share the work.
      ring: the slices of kernels in shared memory.
      tiles: the tiles of this warpgroup in shared memory.
      results: rows and partial sums in global memory, as ``row_results`` describes them.
    """

    tile: RingTile
    ring: KernelRing
    tiles: Tiles
    results: Sequence

    @property
    def _stack(self) -> Stack:
        return self.tiles.plan.stack

    @property
    def _units(self) -> Any:
        """Number of units of the block; a unit has one group for each walker."""
        units = -(-self.tiles.plan.places.groups // self.tile.walkers)
        return tc.count_strided(units, lax.axis_index(BLOCK), self.tile.blocks)

    def _group(self, i, walker) -> Any:
        """The group of a walker in the block's i-th unit; it may be past the last group."""
        unit = lax.axis_index(BLOCK) + i * self.tile.blocks
        return unit * self.tile.walkers + walker

    def _steps(self, i) -> Any:
        """Steps of the block's i-th unit: the most of all walkers."""
        places = self.tiles.plan.places
        groups = (self._group(i, walker) for walker in range(self.tile.walkers))
        steps = [
            places.steps(_existing_group(places, group), self.tiles.tables) for group in groups
        ]
        return functools.reduce(jnp.maximum, steps)

    def all_steps(self) -> Any:
        """Number of tiles that each walker processes."""
        return lax.fori_loop(0, self._units, lambda i, total: total + self._steps(i), jnp.int32(0))

    def run(self) -> None:
        """Processes all groups of this walker."""
        tiles, places = self.tiles, self.tiles.plan.places
        zeros = [tiles.zeros(part.stop - part.start) for part in self._parts(self._stack.layers)]

        @pl.loop(0, self._units, init_carry=jnp.int32(0))
        def _(i, before):
            found = self._group(i, tiles.number)
            group, steps = _existing_group(places, found), self._steps(i)
            tiles.gather_rows(group, tiles.layers.receivers, "receivers")
            if self._gathers_ahead:
                tiles.gather(group, jnp.int32(0), steps, 0, 0)

            def add(step, sums):
                # The compiler may know the number of steps. It does not know this index, so it
                # moves nothing that depends on it out of the loop.
                number = tiles.number + tc.opaque_zero(before + step)
                own = dataclasses.replace(tiles, number=number)
                walker = dataclasses.replace(self, tiles=own)
                return walker._add_tile(group, steps, before, step, sums)

            sums = lax.fori_loop(0, steps, add, tuple(zeros))
            simt.inline(WaitForAllCopies(), [], [])
            tc.commit_smem()  # all warps have read the tiles that results overwrite
            pl.when(found < places.groups)(lambda: self._write(group, sums))
            return before + steps

    def _parts(self, layer: int) -> list[slice]:
        """Columns of the parts of the input of a layer."""
        return kernel_ring.parts(self._stack.widths[layer])

    @property
    def _last_use(self) -> int:
        """The last layer whose input is in the buffer that receives the senders."""
        stack = self._stack
        return max(n for n in range(stack.layers) if _buffer(stack, n) == _buffer(stack, 0))

    @property
    def _gathers_ahead(self) -> bool:
        """Whether the next tile is copied while later layers still process this one."""
        return self._last_use < self._stack.layers - 1

    def _input(self, layer: int) -> Any:
        """The tile of shared memory with the input of a layer."""
        number = _buffers(self._stack).index(_buffer(self._stack, layer))
        return self.tiles.scratch["inputs"][number].at[(self.tiles.number, 0)]

    def _add_tile(self, group, steps, before, step, sums) -> tuple:
        """``sums`` plus the output of the layers for the tile of one step."""
        tiles, stack = self.tiles, self._stack
        if not self._gathers_ahead:
            tc.commit_smem()  # all warps have multiplied the tile that the copies overwrite
            tiles.gather(group, step, steps, 0, lax.rem(step, 2))
        simt.inline(WaitForAllCopies(), [], [])
        tc.commit_smem()  # all warps have their copies
        for columns, z in zip(self._parts(0), self._preactivations(), strict=True):
            self._keep(0, columns, z, tiles.plan.first_activation)
        made = []
        for layer in range(stack.layers):
            tc.commit_smem()
            is_last = layer == stack.layers - 1
            done = (
                functools.partial(self._add_to_sums, step, sums)
                if is_last
                else self._write_next_input
            )
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
        """The sum of receivers, senders and features, part by part to save registers."""
        names = ["receivers", "features"] if self.tiles.plan.has_features else ["receivers"]
        others = [self.tiles.at(name, *[0] * (name == "features")) for name in names]
        places = [self._input(0), *others]
        for columns in self._parts(0):
            yield functools.reduce(
                jnp.add, (tc.load_float32(place.at[:, columns]) for place in places)
            )

    def _keep(self, layer: int, columns, z, activation) -> None:
        """Applies the activation and writes a part of the input of a layer."""
        z = z if activation is None else activation.value(z)
        self._input(layer).at[:, columns][...] = z.astype(self._stack.dtype)

    def _biased(self, layer: int, columns, z) -> jax.Array:
        """A part of the output of a layer, with its bias."""
        return add_bias(z, self._stack.bias_of(self.tiles.layers.biases, layer), columns)

    def _write_next_input(self, layer: int, columns, z) -> None:
        """Writes a part of the output of a layer as the input of the next."""
        z = self._biased(layer, columns, z)
        self._keep(layer + 1, columns, z, self._stack.activation(layer))

    def _add_to_sums(self, step, sums, layer: int, columns, z) -> jax.Array:
        """A part of the sums, plus that of the output of the last layer."""
        z, activation = self._biased(layer, columns, z), self._stack.activation(layer)
        z = z if activation is None else activation.value(z)
        before = sums[self._parts(layer + 1).index(columns)]
        return before + self.tiles.scaled(z, lax.rem(step, 2))

    def _write(self, group, sums) -> None:
        """Writes the sums of a group to the results."""
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


def _existing_group(places: Places, group) -> Any:
    """The group, or the last one if there is none of this number."""
    return jnp.minimum(group, places.groups - 1)
