"""Layers of edges, backward, whose kernels have gradients that are too large for registers.

A loop goes through chunks of tiles of 64 edges. A kernel gathers both ends of a chunk's edges,
makes its layers again and goes back through them; of what it makes, the inputs of the layers and
their dz go to memory, in places that every chunk overwrites and that stay in the cache. Products of
a library then add them up::

    dkernel_l += Σ a_lᵀ dz_l,  dbias_l += Σ dz_l

A warpgroup has a tile, all columns of it. Of what the layers made it keeps in shared memory what
their derivatives need; everything else takes one place in turn.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import add_bias
from pallas_kernels.edge_mlp import stream
from pallas_kernels.edge_mlp.gather_scatter import (
    AddToReceivers,
    AddToSenders,
    GatherFeatures,
    GiveToFeatures,
    StoreByEdge,
    WaitForAllCopies,
)
from pallas_kernels.edge_mlp.places import ROWS, EdgeLayers, Places, Tables, whole_tile_bytes
from pallas_kernels.edge_mlp.stream import Ring, Slices
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.edge_mlp.work import Work
from pallas_kernels.tensor_cores import BLOCK, WARPGROUP

# What a chunk leaves in memory, as a part of the second-level cache.
_CACHE_SHARE = 0.72
_MOST_TURNS = 16
_BEHIND_ALL = 2**30  # a step that no row has


@dataclass(frozen=True)
class ChunkTile:
    """How a chunk is made.

    Attributes:
      blocks: one a multiprocessor.
      walkers: of a block.
      slots: of its ring of slices of kernels; none without layers.
      turns: tiles of a walker.
    """

    blocks: int
    walkers: int
    slots: int
    turns: int

    @classmethod
    def choose(cls, chip: Chip, work: Work) -> ChunkTile | None:
        """The one heuristic: as many walkers as fit, as many tiles as the cache holds; or None."""
        stack = work.plan.stack
        if not stream.suits(stack):
            return None
        found = _slices(work).choose(chip, _tile_bytes(work))
        if found is None:
            return None
        walkers, slots = found
        tiles = chip.multiprocessors * walkers
        staged = sum(map(whole_tile_bytes, _staged_widths(work)))
        cached = int(_CACHE_SHARE * chip.cache_bytes)
        turns = cached // (tiles * staged) if staged else _MOST_TURNS
        turns = max(1, min(_MOST_TURNS, turns))
        return cls(chip.multiprocessors, walkers, slots, turns)

    def suited_to(self, places: Places) -> ChunkTile:
        """Without blocks and turns that would have nothing to do."""
        about = _about(places)
        blocks = max(1, min(self.blocks, -(-about // self.walkers)))
        turns = max(1, min(self.turns, -(-about // (blocks * self.walkers))))
        return dataclasses.replace(self, blocks=blocks, turns=turns)

    @property
    def tiles(self) -> int:
        """Of a chunk."""
        return self.blocks * self.walkers * self.turns

    def ring(self, work: Work) -> Ring:
        """Of slices of kernels."""
        return Ring(_slices(work), self.walkers, self.slots)


def _slices(work: Work) -> Slices:
    return Slices.of(work.plan.stack, back=True)


def _about(places: Places) -> int:
    """Tiles there are; where tables list them, if pieces of a group have as many edges each."""
    if places.degree is not None:
        return places.groups * places.degree
    return places.groups + places.batch * places.edges // ROWS


def _staged_widths(work: Work) -> list[int]:
    """Of inputs of layers, then of their dz."""
    widths = work.plan.stack.widths if work.layers else ()
    return [*widths[:-1], *widths[1:]]


def _kept_widths(work: Work) -> tuple[int, ...]:
    """Of what a walker keeps of each layer; in the first place lies what belongs to senders."""
    return work.plan.stack.widths[: max(work.layers, 1)]


def _tile_bytes(work: Work) -> int:
    """Of those that a walker has in shared memory."""
    return whole_tile_bytes(sum(_kept_widths(work)) + sum(set(work.plan.stack.widths)))


def supported(plan: Plan) -> bool:
    """Whether there is a tile for these layers."""
    return ChunkTile.choose(Chip.current(), Work(plan)) is not None


def backward(
    places: Places,
    tables: Tables,
    layers: EdgeLayers,
    dy: jax.Array,
    activation: str | None,
    activate_last: bool,
    tile: ChunkTile | None = None,
) -> EdgeLayers:
    """As ``edge_mlp.backward.backward``, for widths that are multiples of 64 up to 256."""
    work = Work(Plan.of(places, layers, activation, activate_last))
    stack = work.plan.stack
    chosen = tile or ChunkTile.choose(Chip.current(), work)
    if chosen is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit a multiprocessor")
    tile = tile or chosen.suited_to(places)
    ring = tile.ring(work)
    biases = [bias for bias in layers.biases if bias is not None]
    given = layers._replace(kernels=[], biases=biases)
    kernels = [*layers.kernels, *(kernel.T for kernel in reversed(layers.kernels))]
    slices = [ring.slices.arranged(kernels)] if kernels else []
    call = tc.launch(
        functools.partial(_chunk, work, tile),
        "edge_mlp_aggregate_backward_chunk",
        _staged(work, tile),
        (tile.blocks, 1),
        ring.warpgroups,
        _scratch(work, tile),
    )
    total = _total(places, tables)

    def add(i, sums):
        ends, dkernels, dbiases = sums
        units = _units(places, tables, i * tile.tiles, tile.tiles, total)
        references = jax.tree.map(jax.new_ref, ends)
        made = call(units, slices, given, dy, tables, references)
        inputs, dzs = made[: work.layers], made[work.layers :]
        pairs = zip(dkernels, inputs, dzs, strict=True)
        dkernels = [dkernel + _product(a, dz) for dkernel, a, dz in pairs]
        biased = [dz for dz, is_biased in zip(dzs, stack.biased, strict=True) if is_biased]
        dbiases = [
            dbias + jnp.sum(dz, axis=0, dtype=jnp.float32)
            for dbias, dz in zip(dbiases, biased, strict=True)
        ]
        return jax.tree.map(jax.freeze, references), dkernels, dbiases

    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    sums = _ends(work, layers), [zeros(k.shape) for k in layers.kernels]
    sums = *sums, [zeros(bias.shape) for bias in biases]
    ends, dkernels, dbiases = lax.fori_loop(0, -(-total // tile.tiles), add, sums)
    return _gradients(work, ends, dkernels, dbiases)


def _product(a: jax.Array, dz: jax.Array) -> jax.Array:
    """``aᵀ dz``, summed in float32."""
    contracted = (((0,), (0,)), ((), ()))
    return lax.dot_general(a, dz, contracted, preferred_element_type=jnp.float32)


def _ends(work: Work, layers: EdgeLayers) -> dict[str, jax.Array]:
    """Sums and results that kernels add to or write: of both ends, and of edges if they have some.

    Features of each element of a batch have gradients of their dtype, all others are float32.
    """
    plan, places = work.plan, work.plan.places
    made = {"receivers": layers.receivers.shape, "senders": layers.senders.shape}
    if plan.own_weights is not None:
        made["weights"] = (places.batch, places.edges)
    ends = {name: jnp.zeros(shape, jnp.float32) for name, shape in made.items()}
    if layers.features is not None:
        dtype = plan.stack.dtype if plan.own_features else jnp.float32
        ends["features"] = jnp.zeros(layers.features.shape, dtype)
    return ends


def _gradients(work: Work, ends: dict, dkernels: list, dbiases: list) -> EdgeLayers:
    """Of the dtypes of the layers, but those of weights and of shared features."""
    stack, left = work.plan.stack, list(dbiases)
    biases = [left.pop(0).astype(stack.dtype) if biased else None for biased in stack.biased]
    return EdgeLayers(
        ends["receivers"].astype(stack.dtype),
        ends["senders"].astype(stack.dtype),
        ends.get("weights"),
        tuple(dkernel.astype(stack.dtype) for dkernel in dkernels),
        tuple(biases),
        ends.get("features"),
    )


# -- which tiles there are -------------------------------------------------------------------------


def _total(places: Places, tables: Tables) -> Any:
    """Of all of the batch; known if all rows have one degree."""
    if places.degree is not None:
        return places.groups * places.degree
    return places.batch * jnp.sum(tables.steps)


def _units(places: Places, tables: Tables, first, count: int, total) -> jax.Array:
    """Group and step of each tile of a chunk, [count, 2]; behind the last, of none of the edges."""
    numbers = jnp.int32(first) + jnp.arange(count, dtype=jnp.int32)
    if places.degree is not None:
        # Behind the last are groups without rows.
        return jnp.stack([numbers // places.degree, numbers % places.degree], axis=1)
    ends = jnp.cumsum(tables.steps, dtype=jnp.int32)
    is_real = numbers < total
    each = jnp.maximum(ends[-1], 1).astype(jnp.int32)
    element, within = jnp.divmod(jnp.where(is_real, numbers, 0), each)
    group = jnp.searchsorted(ends, within, side="right").astype(jnp.int32)
    step = within - (ends[group] - tables.steps[group])
    group += element * tables.steps.shape[0]
    return jnp.stack([group, jnp.where(is_real, step, _BEHIND_ALL)], axis=1)


# -- the kernel ------------------------------------------------------------------------------------


def _staged(work: Work, tile: ChunkTile) -> list[jax.ShapeDtypeStruct]:
    """The forms of inputs and dz of all layers."""
    dtype, rows = work.plan.stack.dtype, tile.tiles * ROWS
    return [jax.ShapeDtypeStruct((rows, width), dtype) for width in _staged_widths(work)]


def _scratch(work: Work, tile: ChunkTile) -> dict:
    plan, walkers = work.plan, tile.walkers
    dweights = tc.SMEM((walkers, ROWS), jnp.float32)
    return tile.ring(work).form(plan) | {
        "kept": [plan.tiles(walkers, 1, ROWS, width) for width in _kept_widths(work)],
        "work": {width: plan.tiles(walkers, ROWS, width) for width in set(plan.stack.widths)},
        "factors": plan.factors(walkers, 1),
        "dweights": None if plan.own_weights is None else dweights,
    }


def _chunk(work: Work, tile: ChunkTile, scratch, units, slices, layers, dy, tables, ends, *staged):
    """A warpgroup's part."""
    number, stack = lax.axis_index(WARPGROUP), work.plan.stack

    def walk():
        named = {
            "receivers": scratch["work"][stack.widths[0]],
            "senders": scratch["kept"][0],
            "dy": scratch["work"][stack.widths[-1]],
        }

        @pl.loop(0, tile.turns)
        def _(turn):
            unit = (turn * tile.walkers + number) * tile.blocks + lax.axis_index(BLOCK)
            group, step = units[unit, 0], units[unit, 1]
            # The compiler knows how often this is done, but not that groups are fewer.
            own = number + tc.opaque_zero(group)
            tiles = Tiles(work.plan, scratch | named, layers, tables, own)
            _Walker(work, tile.ring(work), tiles, dy, ends, staged).walk(turn, unit, group, step)

        tc.wait_smem_to_gmem(0)

    ring = tile.ring(work)
    ring.share(number, scratch, lambda: ring.load(slices[0], scratch, tile.turns), walk)


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that goes through tiles.

    Attributes:
      work: what there is to do.
      ring: of slices of kernels.
      tiles: of the warpgroup.
      dy: in memory.
      ends: gradients of both ends, of weights and of features, as far as there are.
      staged: inputs of the layers, then their dz.
    """

    work: Work
    ring: Ring
    tiles: Tiles
    dy: Any
    ends: dict
    staged: Sequence

    def walk(self, turn, unit, group, step) -> None:
        """Forth and back through a tile; values are parts, by columns."""
        work, layers = self.work, range(self.work.layers)
        z = self._preactivation(group, step)
        for layer in layers:
            a = self._keep(layer, z)
            self._stage(a, layer, unit)
            if layer == 0 and not self._multiplies_work:
                self._gather_dy(group)
            z = self._product(a, layer, turn)
            z = self._add_bias(layer, z)
        if self._multiplies_work:
            tc.wait_smem_to_gmem(0, wait_read_only=True)  # and all have multiplied
        if self._multiplies_work or not layers:
            self._gather_dy(group)
        dz = self._through_last(z, group, step)
        for layer in reversed(layers):
            place = self._put(dz, layer + 1)
            self._stage(place, work.layers + layer, unit)
            da = self._product(place, 2 * work.layers - 1 - layer, turn)
            tc.wait_smem_to_gmem(0, wait_read_only=True)
            dz = self._pull_back(layer, da)
        self._send(dz, group, step)

    # -- places in shared memory -------------------------------------------------------------------

    @property
    def _multiplies_work(self) -> bool:
        """Whether inputs of layers take the place that what belongs to edges has in turn."""
        return any(self.work.keeps_slope(layer) for layer in range(self.work.layers))

    def _work(self, layer: int) -> Any:
        """The place for all in turn, as wide as the input of a layer; ``layers`` for the result."""
        width = self.work.plan.stack.widths[layer]
        return self.tiles.scratch["work"][width].at[self.tiles.number]

    def _kept(self, layer: int) -> Any:
        return self.tiles.scratch["kept"][layer].at[(self.tiles.number, 0)]

    def _parts(self, layer: int) -> list[slice]:
        return stream.parts(self.work.plan.stack.widths[layer])

    def _put(self, values: Iterable, layer: int) -> Any:
        """Into the place for all, each part as soon as it is made: registers are few."""
        place = self._work(layer)
        for columns, part in zip(self._parts(layer), values, strict=True):
            place.at[:, columns][...] = part.astype(self.work.plan.stack.dtype)
        tc.commit_smem()
        return place

    def _stage(self, place, number: int, unit) -> None:
        """Begins to copy a tile to memory; ``wait_smem_to_gmem`` is for who overwrites it."""
        rows = pl.ds(pl.multiple_of(unit * ROWS, ROWS), ROWS)
        tc.copy_smem_to_gmem(place, self.staged[number].at[rows])

    def _wait_for_copies(self) -> None:
        simt.inline(WaitForAllCopies(), [], [])
        tc.commit_smem()

    # -- a tile ------------------------------------------------------------------------------------

    def _preactivation(self, group, step) -> list:
        """What both ends and features make together; then both places are free."""
        tiles, plan = self.tiles, self.work.plan
        tiles.gather_rows(group, tiles.layers.receivers, "receivers")
        tiles.gather_senders(group, step, step + 1, 0)
        self._wait_for_copies()
        ends = self._work(0), self._kept(0)
        z = [
            tc.load_float32(ends[0].at[:, columns]) + tc.load_float32(ends[1].at[:, columns])
            for columns in self._parts(0)
        ]
        tc.commit_smem()  # all warps have read them
        if plan.own_features is not None:
            tile = tiles.scratch["receivers"].at[tiles.number]
            kernel = GatherFeatures(plan.places, tiles.layout(tile.shape[1]), plan.own_features)
            arrays = [(tiles.layers.features, False), (tile, True)]
            tiles.inline(kernel, [group, step, step + 1], arrays)
            self._wait_for_copies()
            pairs = zip(self._parts(0), z, strict=True)
            z = [part + tc.load_float32(tile.at[:, columns]) for columns, part in pairs]
            tc.commit_smem()
        return z

    def _gather_dy(self, group) -> None:
        self.tiles.gather_rows(group, self.dy, "dy")

    def _keep(self, layer: int, z: list) -> Any:
        """What a layer reads, and on the way back its activation; the place of the former."""
        activation, dtype = self.work.activation(layer), self.work.plan.stack.dtype
        kept = self._kept(layer)
        if self.work.keeps_slope(layer):
            assert activation is not None
            if layer > 0:
                tc.wait_smem_to_gmem(0, wait_read_only=True)

            def values():
                for columns, part in zip(self._parts(layer), z, strict=True):
                    value, slope = activation.value_and_slope(part)
                    kept.at[:, columns][...] = slope.astype(dtype)
                    yield value

            return self._put(values(), layer)
        for columns, part in zip(self._parts(layer), z, strict=True):
            value = part if activation is None else activation.value(part)
            kept.at[:, columns][...] = value.astype(dtype)
        tc.commit_smem()
        return kept

    def _product(self, place, number: int, turn) -> list:
        return self.ring.product(self.tiles.scratch, place, number, turn, lambda _, z: z)

    def _add_bias(self, layer: int, z: list) -> list:
        bias = self.work.plan.stack.bias_of(self.tiles.layers.biases, layer)
        pairs = zip(self._parts(layer + 1), z, strict=True)
        return [add_bias(part, bias, columns) for columns, part in pairs]

    def _through_last(self, z: list, group, step) -> Iterator:
        """The gradient to the last preactivation; those to the weights on the way."""
        self._wait_for_copies()
        last = self.work.layers
        activation, place = self.work.activation(last), self._work(last)
        dweights = []
        for columns, part in zip(self._parts(last), z, strict=True):
            dy = tc.load_float32(place.at[:, columns])
            if activation is None:
                values = known = part
            elif activation.of_output:
                values = known = activation.value(part)
            else:
                values, known = activation.value_and_slope(part)
            dweights.append(jnp.sum(dy * values, axis=1))
            dvalues = self.tiles.scaled(dy, 0)
            yield dvalues if activation is None else activation.pull_back(known, dvalues)
        if self.work.plan.own_weights is not None:
            self._store_dweights(group, step, sum(dweights[1:], dweights[0]))

    def _store_dweights(self, group, step, numbers) -> None:
        tiles = self.tiles
        place = tiles.at("dweights")
        place[...] = numbers
        tc.commit_smem()
        arrays = [(self.ends["weights"], False), (place, False)]
        tiles.inline(StoreByEdge(tiles.plan.places), [group, step], arrays)

    def _pull_back(self, layer: int, da: list) -> Iterator:
        """The gradient to the preactivation in front of a layer."""
        activation = self.work.activation(layer)
        for columns, part in zip(self._parts(layer), da, strict=True):
            known = self._kept(layer).at[:, columns]
            yield part if activation is None else activation.pull_back(tc.load_float32(known), part)

    def _send(self, dz: Iterable, group, step) -> None:
        """Adds to the gradients of both ends; those of features."""
        tiles, plan = self.tiles, self.work.plan
        tile = self._put(dz, 0)
        layout = tiles.layout(tile.shape[1])
        kernels: dict[str, Any] = {
            "receivers": AddToReceivers(plan.places, layout),
            "senders": AddToSenders(plan.places, layout),
        }
        if plan.own_features is not None:
            kernels["features"] = GiveToFeatures(plan.places, layout, plan.own_features)
        for name, kernel in kernels.items():
            tiles.inline(kernel, [group, step], [(self.ends[name], False), (tile, True)])
        tc.commit_smem()  # all warps have read it
