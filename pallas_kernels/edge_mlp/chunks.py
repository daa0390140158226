"""Backward pass of layers on edges whose gradients of kernels are too large for registers.

A loop goes through chunks of tiles of 64 edges. A GPU kernel gathers the receivers and senders of
a chunk, recomputes the layers and runs their backward pass. It writes the inputs a_l of the layers
and the gradients dz_l of their outputs to a staging buffer that every chunk overwrites and that
stays in the second-level cache. XLA's matrix products then accumulate the gradients::

    dkernel_l += Σ a_lᵀ dz_l,  dbias_l += Σ dz_l

A warpgroup has all columns of a tile. It keeps in shared memory the numbers that derivatives of
activations need; everything else shares one buffer for each width.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.stack import add_bias
from pallas_kernels.edge_mlp import kernel_ring
from pallas_kernels.edge_mlp.backward_needs import BackwardNeeds
from pallas_kernels.edge_mlp.edge_tiles import ROWS, EdgeLayers, Places, Tables, whole_tile_bytes
from pallas_kernels.edge_mlp.gather_scatter import (
    AddToReceivers,
    AddToSenders,
    GatherFeatures,
    ScatterFeatures,
    StoreByEdge,
    WaitForAllCopies,
)
from pallas_kernels.edge_mlp.kernel_ring import KernelRing, KernelSlices
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.in_place import call_in_place
from pallas_kernels.tensor_cores import BLOCK, WARPGROUP

# Size of the staging buffer, as a part of the second-level cache.
_CACHE_SHARE = 0.72
_MOST_TURNS = 16
_NO_STEP = 2**30  # a step that no row has


@dataclass(frozen=True)
class ChunkTile:
    """Division of the tiles of a chunk among warpgroups.

    Attributes:
      blocks: blocks of the grid, one for each multiprocessor.
      walkers: warpgroups of a block that process tiles.
      slots: stages of the ring of slices of kernels in shared memory; zero without layers.
      turns: tiles of a chunk that each walker processes.
    """

    blocks: int
    walkers: int
    slots: int
    turns: int

    @classmethod
    def choose(cls, chip: Chip, needs: BackwardNeeds) -> ChunkTile | None:
        """The only heuristic: as many walkers as fit, as many tiles as the cache holds; or None."""
        stack = needs.plan.stack
        if not kernel_ring.suits(stack):
            return None
        found = _slices(needs).choose(chip, _tile_bytes(needs))
        if found is None:
            return None
        walkers, slots = found
        tiles = chip.multiprocessors * walkers
        staged = sum(map(whole_tile_bytes, _staged_widths(needs)))
        cached = int(_CACHE_SHARE * chip.cache_bytes)
        turns = cached // (tiles * staged) if staged else _MOST_TURNS
        turns = max(1, min(_MOST_TURNS, turns))
        return cls(chip.multiprocessors, walkers, slots, turns)

    def suited_to(self, places: Places) -> ChunkTile:
        """This tile for a graph: without idle blocks and turns."""
        tiles = _estimated_tiles(places)
        blocks = max(1, min(self.blocks, -(-tiles // self.walkers)))
        turns = max(1, min(self.turns, -(-tiles // (blocks * self.walkers))))
        return dataclasses.replace(self, blocks=blocks, turns=turns)

    @property
    def tiles(self) -> int:
        """Tiles of a chunk."""
        return self.blocks * self.walkers * self.turns

    def ring(self, needs: BackwardNeeds) -> KernelRing:
        """The ring through which slices of kernels reach the walkers."""
        return KernelRing(_slices(needs), self.walkers, self.slots)


def _slices(needs: BackwardNeeds) -> KernelSlices:
    """The slices of kernels for a forward and a backward pass of the layers."""
    return KernelSlices.of(needs.plan.stack, backward=True)


def _estimated_tiles(places: Places) -> int:
    """Number of tiles; an estimate if tables list pieces, as those of a group differ in length."""
    if places.degree is not None:
        return places.groups * places.degree
    return places.groups + places.batch * places.edges // ROWS


def _staged_widths(needs: BackwardNeeds) -> list[int]:
    """Widths of the arrays in the staging buffer: inputs of the layers, then their dz."""
    widths = needs.plan.stack.widths if needs.layers else ()
    return [*widths[:-1], *widths[1:]]


def _kept_widths(needs: BackwardNeeds) -> tuple[int, ...]:
    """Widths of the tiles that a walker keeps by layer; the first also receives the senders."""
    return needs.plan.stack.widths[: max(needs.layers, 1)]


def _tile_bytes(needs: BackwardNeeds) -> int:
    """Shared memory of the tiles of a walker, in bytes."""
    return whole_tile_bytes(sum(_kept_widths(needs)) + sum(set(needs.plan.stack.widths)))


def supported(plan: Plan) -> bool:
    """Whether this kernel fits a multiprocessor for these layers."""
    return ChunkTile.choose(Chip.current(), BackwardNeeds(plan)) is not None


def backward(
    places: Places,
    tables: Tables,
    layers: EdgeLayers,
    dy: jax.Array,
    activation: str | None,
    activate_last: bool,
    tile: ChunkTile | None = None,
) -> EdgeLayers:
    """Gradients of ``edge_mlp.forward.forward``, for widths that are multiples of 64 up to 256.

    Args:
      places: the shape of the graph, and how its edges are assigned to tiles.
      tables: the senders of edges, and the pieces of rows unless all rows have one degree.
      layers: nodes of the whole batch along one axis.
      dy: [batch rows, last], the gradient of the result.
      activation: name of the activation before each kernel, or None.
      activate_last: whether the activation is also applied after the last kernel.
      tile: how a chunk is shared; by default chosen for the shapes.

    Returns:
      The gradients in the layout of ``layers``. Gradients of edge weights have a row for each
      element of the batch; padding slots of edges hold undefined values.
    """
    needs = BackwardNeeds(Plan.of(places, layers, activation, activate_last))
    stack = needs.plan.stack
    chosen = tile or ChunkTile.choose(Chip.current(), needs)
    if chosen is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit a multiprocessor")
    tile = tile or chosen.suited_to(places)
    ring = tile.ring(needs)
    biases = [bias for bias in layers.biases if bias is not None]
    given = layers._replace(kernels=[], biases=biases)
    operands = _Operands(given, dy, tables)
    kernels = [*layers.kernels, *(kernel.T for kernel in reversed(layers.kernels))]
    slices = [ring.slices.arranged(kernels)] if kernels else []
    call = tc.launch(
        functools.partial(_chunk, needs, tile),
        "edge_mlp_aggregate_backward_chunk",
        _staged(needs, tile),
        (tile.blocks, 1),
        ring.warpgroups,
        _scratch(needs, tile),
    )
    total = _total(places, tables)

    def add(i, sums):
        ends, dkernels, dbiases = sums
        units = _units(places, tables, i * tile.tiles, tile.tiles, total)
        made, ends = call_in_place(call, (units, slices, operands), ends)
        return ends, *_add_parameter_gradients(needs, made, dkernels, dbiases)

    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    sums = _ends(needs, layers), [zeros(k.shape) for k in layers.kernels]
    sums = *sums, [zeros(bias.shape) for bias in biases]
    ends, dkernels, dbiases = lax.fori_loop(0, -(-total // tile.tiles), add, sums)
    return _gradients(needs, ends, dkernels, dbiases)


def _add_parameter_gradients(
    needs: BackwardNeeds, staged: Sequence, dkernels: list, dbiases: list
) -> tuple[list, list]:
    """The gradients of kernels and biases plus those of a chunk, from its staging buffer."""
    inputs, dzs = staged[: needs.layers], staged[needs.layers :]
    triples = zip(dkernels, inputs, dzs, strict=True)
    dkernels = [dkernel + _product(a, dz) for dkernel, a, dz in triples]
    pairs = zip(dzs, needs.plan.stack.biased, strict=True)
    biased = [dz for dz, is_biased in pairs if is_biased]
    dbiases = [
        dbias + jnp.sum(dz, axis=0, dtype=jnp.float32)
        for dbias, dz in zip(dbiases, biased, strict=True)
    ]
    return dkernels, dbiases


def _product(a: jax.Array, dz: jax.Array) -> jax.Array:
    """``aᵀ dz``, summed in float32."""
    contracted = (((0,), (0,)), ((), ()))
    return lax.dot_general(a, dz, contracted, preferred_element_type=jnp.float32)


def _ends(needs: BackwardNeeds, layers: EdgeLayers) -> dict[str, jax.Array]:
    """Zeros for the gradients that chunks write or add to: receivers, senders, weights, features.

    Features that elements of the batch do not share have gradients of their dtype, all others are
    float32.
    """
    plan, places = needs.plan, needs.plan.places
    made = {"receivers": layers.receivers.shape, "senders": layers.senders.shape}
    if plan.own_weights is not None:
        made["weights"] = (places.batch, places.edges)
    ends = {name: jnp.zeros(shape, jnp.float32) for name, shape in made.items()}
    if layers.features is not None:
        dtype = plan.stack.dtype if plan.own_features else jnp.float32
        ends["features"] = jnp.zeros(layers.features.shape, dtype)
    return ends


def _gradients(needs: BackwardNeeds, ends: dict, dkernels: list, dbiases: list) -> EdgeLayers:
    """The gradients cast to the dtype of the layers, except those of weights and features."""
    stack, left = needs.plan.stack, list(dbiases)
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
    """Number of tiles of the batch; a Python int if all rows have one degree."""
    if places.degree is not None:
        return places.groups * places.degree
    return places.batch * jnp.sum(tables.steps)


def _units(places: Places, tables: Tables, first, count: int, total) -> jax.Array:
    """Group and step of each tile of a chunk, [count, 2]; tiles past the last have no edges."""
    numbers = jnp.int32(first) + jnp.arange(count, dtype=jnp.int32)
    if places.degree is not None:
        # Groups past the last have no rows.
        return jnp.stack([numbers // places.degree, numbers % places.degree], axis=1)
    ends = jnp.cumsum(tables.steps, dtype=jnp.int32)
    is_real = numbers < total
    each = jnp.maximum(ends[-1], 1).astype(jnp.int32)
    element, within = jnp.divmod(jnp.where(is_real, numbers, 0), each)
    group = jnp.searchsorted(ends, within, side="right").astype(jnp.int32)
    step = within - (ends[group] - tables.steps[group])
    group += element * tables.steps.shape[0]
    return jnp.stack([group, jnp.where(is_real, step, _NO_STEP)], axis=1)


# -- the kernel ------------------------------------------------------------------------------------


def _staged(needs: BackwardNeeds, tile: ChunkTile) -> list[jax.ShapeDtypeStruct]:
    """Shapes of the staging buffer: inputs of all layers, then their dz."""
    dtype, rows = needs.plan.stack.dtype, tile.tiles * ROWS
    return [jax.ShapeDtypeStruct((rows, width), dtype) for width in _staged_widths(needs)]


class _Operands(NamedTuple):
    """Arrays in global memory from which walkers gather tiles.

    Attributes:
      layers: nodes, edges and biases; the kernels come as slices.
      dy: gradient of the result, [batch rows, last].
      tables: the senders of edges, and the pieces of rows unless all rows have one degree.
    """

    layers: EdgeLayers
    dy: Any
    tables: Tables


def _scratch(needs: BackwardNeeds, tile: ChunkTile) -> dict:
    """Shared memory and barriers of a block."""
    plan, walkers = needs.plan, tile.walkers
    dweights = tc.SMEM((walkers, ROWS), jnp.float32)
    return tile.ring(needs).scratch(plan) | {
        "kept": [plan.tiles(walkers, 1, ROWS, width) for width in _kept_widths(needs)],
        "work": {width: plan.tiles(walkers, ROWS, width) for width in set(plan.stack.widths)},
        "factors": plan.factors(walkers, 1),
        "dweights": None if plan.own_weights is None else dweights,
    }


def _chunk(needs: BackwardNeeds, tile: ChunkTile, scratch, units, slices, operands, ends, *staged):
    """Runs one warpgroup of the kernel, as a walker or as the loader."""
    number, stack = lax.axis_index(WARPGROUP), needs.plan.stack

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
            # The compiler must not know that this index is constant: it would move code out.
            own = number + tc.opaque_zero(group)
            tiles = Tiles(needs.plan, scratch | named, operands.layers, operands.tables, own)
            walker = _Walker(needs, tile.ring(needs), tiles, operands.dy, ends, staged)
            walker.process_tile(turn, unit, group, step)

        tc.wait_smem_to_gmem(0)

    ring = tile.ring(needs)
    ring.run_roles(number, scratch, lambda: ring.load(slices[0], scratch, tile.turns), walk)


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that runs the layers forward and backward, tile after tile.

    Attributes:
      needs: layers, and what their backward pass keeps.
      ring: the slices of kernels in shared memory.
      tiles: the tiles of this warpgroup in shared memory.
      dy: gradient of the result, in global memory.
      ends: gradients of receivers, senders, edge weights and features, those that exist.
      staged: the staging buffer: inputs of the layers, then their dz.
    """

    needs: BackwardNeeds
    ring: KernelRing
    tiles: Tiles
    dy: Any
    ends: dict
    staged: Sequence

    def process_tile(self, turn, unit, group, step) -> None:
        """Runs the layers forward and backward; each value is a list of parts by columns."""
        needs, layers = self.needs, range(self.needs.layers)
        z = self._preactivation(group, step)
        for layer in layers:
            a = self._keep(layer, z)
            self._stage(a, layer, unit)
            if layer == 0 and not self._inputs_share_buffer:
                self._gather_dy(group)
            z = self._product(a, layer, turn)
            z = self._add_bias(layer, z)
        if self._inputs_share_buffer:
            tc.wait_smem_to_gmem(0, wait_read_only=True)  # and all warps have multiplied
        if self._inputs_share_buffer or not layers:
            self._gather_dy(group)
        dz = self._through_last(z, group, step)
        for layer in reversed(layers):
            place = self._put(dz, layer + 1)
            self._stage(place, needs.layers + layer, unit)
            da = self._product(place, 2 * needs.layers - 1 - layer, turn)
            tc.wait_smem_to_gmem(0, wait_read_only=True)
            dz = self._pull_back(layer, da)
        self._add_to_ends(dz, group, step)

    # -- tiles in shared memory --------------------------------------------------------------------

    @property
    def _inputs_share_buffer(self) -> bool:
        """Whether inputs of layers are in the shared buffer, so that dy is copied later."""
        return any(self.needs.keeps_slope(layer) for layer in range(self.needs.layers))

    def _shared_buffer(self, layer: int) -> Any:
        """The shared buffer as wide as the input of a layer; ``needs.layers`` for the output."""
        width = self.needs.plan.stack.widths[layer]
        return self.tiles.scratch["work"][width].at[self.tiles.number]

    def _kept(self, layer: int) -> Any:
        """The tile in which a layer keeps its input, or the slope of its activation."""
        return self.tiles.scratch["kept"][layer].at[(self.tiles.number, 0)]

    def _parts(self, layer: int) -> list[slice]:
        """Columns of the parts of the input of a layer."""
        return kernel_ring.parts(self.needs.plan.stack.widths[layer])

    def _put(self, values: Iterable, layer: int) -> Any:
        """Writes values to a shared buffer, each part as it is computed to save registers."""
        place = self._shared_buffer(layer)
        for columns, part in zip(self._parts(layer), values, strict=True):
            place.at[:, columns][...] = part.astype(self.needs.plan.stack.dtype)
        tc.commit_smem()
        return place

    def _stage(self, place, number: int, unit) -> None:
        """Begins to copy a tile to the staging buffer; wait for it before overwriting the tile."""
        rows = pl.ds(pl.multiple_of(unit * ROWS, ROWS), ROWS)
        tc.copy_smem_to_gmem(place, self.staged[number].at[rows])

    def _wait_for_copies(self) -> None:
        """Waits until the copies of all warps to shared memory have completed."""
        simt.inline(WaitForAllCopies(), [], [])
        tc.commit_smem()

    # -- a tile ------------------------------------------------------------------------------------

    def _preactivation(self, group, step) -> list:
        """The sum of receivers, senders and features, whose buffers are free afterwards."""
        tiles, plan = self.tiles, self.needs.plan
        tiles.gather_rows(group, tiles.layers.receivers, "receivers")
        tiles.gather_senders(group, step, step + 1, 0)
        self._wait_for_copies()
        ends = self._shared_buffer(0), self._kept(0)
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
        """Begins to copy the rows of ``dy`` of a group."""
        self.tiles.gather_rows(group, self.dy, "dy")

    def _keep(self, layer: int, z: list) -> Any:
        """Writes a layer's input and, if it is kept, its slope; returns the tile of the input."""
        activation, dtype = self.needs.activation(layer), self.needs.plan.stack.dtype
        kept = self._kept(layer)
        if self.needs.keeps_slope(layer):
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
        """The product of a tile with a kernel of the ring, by parts."""
        return self.ring.product(self.tiles.scratch, place, number, turn, lambda _, z: z)

    def _add_bias(self, layer: int, z: list) -> list:
        bias = self.needs.plan.stack.bias_of(self.tiles.layers.biases, layer)
        pairs = zip(self._parts(layer + 1), z, strict=True)
        return [add_bias(part, bias, columns) for columns, part in pairs]

    def _through_last(self, z: list, group, step) -> Iterator:
        """Parts of the gradient of the last preactivation; stores the gradients of edge weights."""
        self._wait_for_copies()
        last = self.needs.layers
        activation, place = self.needs.activation(last), self._shared_buffer(last)
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
        if self.needs.plan.own_weights is not None:
            self._store_dweights(group, step, sum(dweights[1:], dweights[0]))

    def _store_dweights(self, group, step, numbers) -> None:
        tiles = self.tiles
        place = tiles.at("dweights")
        place[...] = numbers
        tc.commit_smem()
        arrays = [(self.ends["weights"], False), (place, False)]
        tiles.inline(StoreByEdge(tiles.plan.places), [group, step], arrays)

    def _pull_back(self, layer: int, da: list) -> Iterator:
        """Parts of the gradient of a layer's input before activation."""
        activation = self.needs.activation(layer)
        for columns, part in zip(self._parts(layer), da, strict=True):
            known = self._kept(layer).at[:, columns]
            yield part if activation is None else activation.pull_back(tc.load_float32(known), part)

    def _add_to_ends(self, dz: Iterable, group, step) -> None:
        """Adds a tile of gradients to those of receivers, senders and features."""
        tiles, plan = self.tiles, self.needs.plan
        tile = self._put(dz, 0)
        layout = tiles.layout(tile.shape[1])
        kernels: dict[str, Any] = {
            "receivers": AddToReceivers(plan.places, layout),
            "senders": AddToSenders(plan.places, layout),
        }
        if plan.own_features is not None:
            kernels["features"] = ScatterFeatures(plan.places, layout, plan.own_features)
        for name, kernel in kernels.items():
            tiles.inline(kernel, [group, step], [(self.ends[name], False), (tile, True)])
        tc.commit_smem()  # all warps have read it
