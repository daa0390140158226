"""Backward pass of layers on edges and a sum over each row; values of edges are recomputed.

Some warpgroups of a block, the walkers, go through groups of 64 rows. For each tile of edges they
run the forward and the backward pass of the layers, and write the inputs a_l of the layers and the
gradients dz_l of their outputs to shared memory. The other warpgroups, the summers, accumulate the
gradients of the kernels from these, in registers::

    dkernel_l = Σ a_lᵀ dz_l,  dbias_l = Σ 1ᵀ dz_l

If the padding of a_l has room, it holds a column of ones, so that dbias_l is a row of the product
for dkernel_l; otherwise dbias_l takes a product of its own. Gradients of receivers are summed in
registers over the steps of a group that a walker has, and then, like those of senders, added
atomically to memory, in float32 and in no fixed order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import simt
from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense.plan import MARKS
from pallas_kernels.dense.stack import add_bias
from pallas_kernels.edge_mlp.backward_needs import UNIT, BackwardNeeds, BackwardTile
from pallas_kernels.edge_mlp.edge_tiles import ROWS, EdgeLayers, Places, Tables, common_swizzle
from pallas_kernels.edge_mlp.forward import load_parameters, parameters, wait_for_parameters
from pallas_kernels.edge_mlp.gather_scatter import (
    AddToRows,
    AddToSenders,
    ScatterFeatures,
    StoreByEdge,
    WaitForCopies,
)
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.in_place import call_in_place
from pallas_kernels.tensor_cores import BLOCK, WARPGROUP


def backward(
    places: Places,
    tables: Tables,
    layers: EdgeLayers,
    dy: jax.Array,
    activation: str | None,
    activate_last: bool,
    tile: BackwardTile | None = None,
) -> EdgeLayers:
    """Gradients of ``edge_mlp.forward.forward`` to all arrays of ``layers``.

    Args:
      places: the shape of the graph, and how its edges are assigned to tiles.
      tables: the senders of edges, and the pieces of rows unless all rows have one degree.
      layers: nodes of the whole batch along one axis, widths multiples of 32 up to 128.
      dy: [batch rows, last], the gradient of the result.
      activation: name of the activation before each kernel, or None.
      activate_last: whether the activation is also applied after the last kernel.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      The gradients in the layout of ``layers``. Gradients of edge weights have a row for each
      element of the batch; padding slots of edges hold undefined values.
    """
    needs = BackwardNeeds(Plan.of(places, layers, activation, activate_last))
    stack = needs.plan.stack
    chosen = tile or BackwardTile.choose(Chip.current(), needs)
    if chosen is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit a multiprocessor")
    tile = tile or chosen.suited_to(places)
    results = _results_by_edge(needs.plan)
    call = tc.launch(
        functools.partial(_backward, needs, tile, len(results)),
        "edge_mlp_aggregate_backward",
        [*results, *_sums(needs, tile)],
        (tile.blocks, 1),
        tile.walkers + tile.summers,
        _scratch(needs, tile),
    )
    given = layers._replace(biases=[b for b in layers.biases if b is not None])
    summed = [layers.receivers.shape, layers.senders.shape]
    if layers.features is not None and not needs.plan.own_features:
        summed.append(layers.features.shape)
    ends = [jnp.zeros(shape, jnp.float32) for shape in summed]
    ones = [jnp.ones((MARKS, ROWS), stack.dtype)] if needs.marked else []
    made, ends = call_in_place(call, (given, ones, dy, tables), ends)
    by_edge, sums = list(made[: len(results)]), made[len(results) :]
    dweights = by_edge.pop(0) if layers.weights is not None else None
    dreceivers, dsenders, *shared = ends
    nodes = dreceivers.astype(stack.dtype), dsenders.astype(stack.dtype)
    dfeatures = next(iter([*by_edge, *shared]), None)
    return EdgeLayers(*nodes, dweights, *_parameter_gradients(needs, sums), dfeatures)


def _results_by_edge(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    """Shapes of gradients of edge weights and of features that elements do not share, if any."""
    form = plan.places.batch, plan.places.edges
    results = [] if plan.own_weights is None else [jax.ShapeDtypeStruct(form, jnp.float32)]
    if plan.own_features:
        form = (*form, plan.stack.widths[0])
        results.append(jax.ShapeDtypeStruct(form, plan.stack.dtype))
    return results


def _sums(needs: BackwardNeeds, tile: BackwardTile) -> list[jax.ShapeDtypeStruct]:
    """Shapes of partial sums of blocks: kernels, then biases that have a product of their own."""
    after = needs.plan.stack.widths[1:]
    forms = [(needs.padded(n), after[n]) for n in range(needs.layers)]
    forms += [(after[n], MARKS) for n in needs.marked]
    return [jax.ShapeDtypeStruct((tile.blocks, *form), jnp.float32) for form in forms]


def _parameter_gradients(needs: BackwardNeeds, sums: Sequence[jax.Array]) -> tuple[tuple, tuple]:
    """Gradients of kernels and biases, summed over the partial sums of the blocks."""
    stack = needs.plan.stack
    totals = [jnp.sum(s, axis=0).astype(stack.dtype) for s in sums]
    by_marks = dict(zip(needs.marked, totals[needs.layers :], strict=True))

    def dbias(layer: int) -> jax.Array | None:
        if layer in by_marks:
            return by_marks[layer][:, 0]
        return totals[layer][stack.widths[layer]] if stack.biased[layer] else None

    layers = range(needs.layers)
    return tuple(totals[n][: stack.widths[n]] for n in layers), tuple(map(dbias, layers))


def _scratch(needs: BackwardNeeds, tile: BackwardTile) -> dict:
    """Shared memory and barriers of a block."""
    plan, walkers, layers = needs.plan, tile.walkers, range(needs.layers)
    widths = plan.stack.widths
    pairs = walkers * needs.layers
    return parameters(plan) | {
        "ones": plan.tiles(1, MARKS, ROWS) if needs.marked else None,
        "ones_loaded": tc.Barrier() if needs.marked else None,
        "receivers": plan.tiles(walkers, ROWS, widths[0]),
        "dy": plan.tiles(walkers, ROWS, widths[-1]),
        "senders": plan.tiles(walkers, 1, ROWS, widths[0]),
        "features": plan.tiles(walkers, 1, ROWS, widths[0]) if plan.has_features else None,
        "factors": plan.factors(walkers, 2),
        "inputs": [plan.tiles(walkers, ROWS, needs.padded(n)) for n in layers],
        "slopes": [
            plan.tiles(walkers, ROWS, widths[n]) if needs.keeps_slope(n) else None for n in layers
        ],
        "dz": [plan.tiles(walkers, ROWS, widths[n + 1]) for n in layers],
        "dsenders": None if needs.shares_dz else plan.tiles(walkers, ROWS, widths[0]),
        "dweights": None if plan.own_weights is None else tc.SMEM((walkers, 2, ROWS), jnp.float32),
        "made": tc.Barrier(num_barriers=pairs) if pairs else None,
        "summed": tc.Barrier(num_barriers=pairs) if pairs else None,
    }


def _backward(needs: BackwardNeeds, tile: BackwardTile, rows: int, scratch, *references) -> None:
    """Runs one warpgroup of the kernel, as a walker or as a summer."""
    layers, ones, dy, tables, ends, *results = references
    load_parameters(scratch, layers)
    warpgroup, registers = lax.axis_index(WARPGROUP), tile.registers(needs)

    def walk():
        if registers is not None:
            tc.set_max_registers(registers[0], action="decrease")
        tiles = Tiles(needs.plan, scratch, layers, tables, warpgroup)
        _Walker(needs, tile, tiles, dy, ends, results[:rows]).run()

    def add_up(number):
        if registers is not None:
            tc.set_max_registers(registers[1], action="increase")
        share = needs.shares(tile.summers)[number]
        if number == 0 and ones:
            tc.copy_gmem_to_smem(ones[0], scratch["ones"].at[0], scratch["ones_loaded"])
        if any(layer in needs.marked for layer in share):
            tc.barrier_wait(scratch["ones_loaded"])
        _add_up(needs, tile, scratch, share, results[rows:], most_tiles(needs, tile, tables))

    pl.when(warpgroup < tile.walkers)(walk)
    for number in range(tile.summers):
        pl.when(warpgroup == tile.walkers + number)(functools.partial(add_up, number))


def own_units(needs: BackwardNeeds, tile: BackwardTile, walker) -> tuple[Any, Any]:
    """First unit of a walker of this block, and the number of its units.

    A unit is a part of the steps of a group. The units of a walker are ``blocks * walkers`` apart,
    so that neighbouring units run on different multiprocessors.
    """
    first = walker * tile.blocks + lax.axis_index(BLOCK)
    units = needs.plan.places.groups * tile.parts
    return first, tc.count_strided(units, first, tile.blocks * tile.walkers)


def own_tiles(needs: BackwardNeeds, tile: BackwardTile, tables: Tables, walker) -> Any:
    """Number of tiles that a walker of this block processes."""
    (first, count), places = own_units(needs, tile, walker), needs.plan.places
    if places.degree is not None:
        return count * (places.degree // tile.parts)

    def add(i, total):
        return total + places.steps(first + i * tile.blocks * tile.walkers, tables)

    return lax.fori_loop(0, count, add, jnp.int32(0))


def most_tiles(needs: BackwardNeeds, tile: BackwardTile, tables: Tables) -> Any:
    """Largest number of tiles of a walker of this block: summers expect as many of every walker."""
    return functools.reduce(
        jnp.maximum, (own_tiles(needs, tile, tables, walker) for walker in range(tile.walkers))
    )


def _add_up(
    needs: BackwardNeeds, tile: BackwardTile, scratch, share, results: Sequence, count
) -> None:
    """Accumulates the gradients of the kernels and biases of a summer's layers.

    Every product gives ``UNIT`` rows of a gradient, a unit. ``units`` lists the index of the
    result, the layer and the number of each unit.
    """
    units = [(layer, layer, unit) for layer in share for unit in range(_units(needs.padded(layer)))]
    units += [
        (needs.layers + number, layer, unit)
        for number, layer in enumerate(needs.marked)
        if layer in share
        for unit in range(_units(needs.plan.stack.widths[layer + 1]))
    ]

    def accumulate(*sums):
        @pl.loop(0, count)
        def _(i):
            zero = tc.opaque_zero(i)
            for walker in range(tile.walkers):
                for layer in share:
                    add(walker, layer, zero, sums)

        for (result, _layer, unit), made in zip(units, sums, strict=True):
            rows = pl.ds(unit * UNIT, UNIT)
            results[result].at[lax.axis_index(BLOCK), rows][...] = made[...]

    def add(walker: int, layer: int, zero, sums):
        """Adds the products of a tile of a walker to the sums."""
        pair = walker * needs.layers + layer
        tc.barrier_wait(scratch["made"].at[pair])
        inputs, dz = (scratch[name][layer].at[walker] for name in ("inputs", "dz"))
        for (result, of_layer, unit), total in zip(units, sums, strict=True):
            columns = slice(unit * UNIT, (unit + 1) * UNIT)
            if of_layer == layer and result < needs.layers:
                tc.wgmma(total, inputs.at[:, columns].T, dz)
            elif of_layer == layer:
                tc.wgmma(total, dz.at[:, columns].T, scratch["ones"].at[zero].T)
        tc.wgmma_wait(0)
        tc.barrier_arrive(scratch["summed"].at[pair])

    widths = [
        needs.plan.stack.widths[layer + 1] if result < needs.layers else MARKS
        for result, layer, _ in units
    ]
    pl.run_scoped(accumulate, *(tc.ACC((UNIT, width), jnp.float32) for width in widths))


def _units(width: int) -> int:
    return width // UNIT


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that runs the layers forward and backward, tile after tile of its groups of rows.

    Attributes:
      needs: layers, and what their backward pass keeps.
      tile: how the block shares the work.
      tiles: the tiles of this warpgroup in shared memory.
      dy: gradient of the result, in global memory.
      ends: float32 gradients, added to atomically: receivers, senders, and features that elements
        of the batch share.
      results: gradients of edge weights and of features that elements do not share, if any.
    """

    needs: BackwardNeeds
    tile: BackwardTile
    tiles: Tiles
    dy: Any
    ends: Sequence
    results: Sequence

    def run(self) -> None:
        """Processes all units, then as many tiles of zeros as the summers still expect."""
        needs, tiles, tile = self.needs, self.tiles, self.tile
        first, count = own_units(needs, tile, tiles.number)
        self._initialize_inputs()
        wait_for_parameters(tiles.scratch)

        @pl.loop(0, count, init_carry=jnp.int32(0))
        def made(i, before):
            unit = first + i * (tile.blocks * tile.walkers)
            group, part = lax.div(unit, tile.parts), lax.rem(unit, tile.parts)
            steps = needs.plan.places.steps(group, tiles.tables) // tile.parts
            start, stop = part * steps, (part + 1) * steps
            tiles.gather_rows(group, tiles.layers.receivers, "receivers")
            tiles.gather_rows(group, self.dy, "dy")
            tiles.gather(group, start, stop, 0, lax.rem(start, 2))
            walk = functools.partial(self._process_tile, group, stop, before - start)
            sums = lax.fori_loop(start, stop, walk, tiles.zeros(needs.plan.stack.widths[0]))
            simt.inline(WaitForCopies(0), [], [])
            tc.commit_smem()  # all warps have read the tiles that are overwritten next
            self._add_to_receivers(group, sums)
            return before + steps

        if needs.layers:
            self._pad_with_zeros(made, most_tiles(needs, tile, tiles.tables))

    def _add_to_receivers(self, group, sums) -> None:
        """Adds the sums of a group to the gradients of its receivers."""
        tiles = self.tiles
        high, low = tiles.at("receivers"), tiles.at("senders", 0)
        tiles.split(sums, high, low)
        tc.commit_smem()
        kernel = AddToRows(tiles.plan.places, tiles.layout(sums.shape[1]))
        tiles.inline(kernel, [group], [(self.ends[0], False), (high, True), (low, True)])
        tc.commit_smem()

    def _initialize_inputs(self) -> None:
        """Writes columns of ones for the biases, and zeros for summers that get no tile."""
        for layer, width in enumerate(self.needs.plan.stack.widths[:-1]):
            inputs, ones = self._input(layer), self.needs.ones
            inputs.at[:, :width][...] = self._full(width, 0.0)
            if self.needs.has_column(layer):
                inputs.at[:, width : width + ones][...] = self._full(ones, 1.0)

    def _full(self, width: int, number: float) -> jax.Array:
        """A tile of the given width that is filled with a number."""
        made = jnp.full((ROWS, width), number, jnp.float32)
        return tc.layout_cast(made, tc.Layout.WGMMA).astype(self.needs.plan.stack.dtype)

    def _pad_with_zeros(self, made, most) -> None:
        """Passes tiles of zeros to the summers, from tile ``made`` up to tile ``most``."""
        layers = range(self.needs.layers)

        # Every phase of a barrier is waited for, also the last; ``_add_to_senders`` has already
        # waited for the layer whose dz shares its memory.
        @pl.when(made > 0)
        def _():
            for layer in layers:
                if not self._waits_in_same_tile(layer):
                    self._wait(layer)

        @pl.when(made < most)
        def _():
            for layer in layers:
                self._dz(layer)[...] = self._full(self.needs.plan.stack.widths[layer + 1], 0.0)
            tc.commit_smem()

            @pl.loop(0, most - made)
            def _(_i):
                for layer in layers:
                    self._arrive(layer)
                for layer in layers:
                    self._wait(layer)

    # -- tiles in shared memory, and the barriers that guard them ---------------------------------

    def _input(self, layer: int) -> Any:
        return self.tiles.scratch["inputs"][layer].at[self.tiles.number]

    def _dz(self, layer: int) -> Any:
        return self.tiles.scratch["dz"][layer].at[self.tiles.number]

    def _slope(self, layer: int) -> Any:
        return self.tiles.scratch["slopes"][layer].at[self.tiles.number]

    def _waits_in_same_tile(self, layer: int) -> bool:
        """Whether a tile itself waits for the sums of this layer, and not the next tile."""
        return self.needs.shares_dz and layer == self.needs.layers - 1

    def _barrier(self, name: str, layer: int) -> Any:
        """The barrier of this walker for a layer."""
        return self.tiles.scratch[name].at[self.tiles.number * self.needs.layers + layer]

    def _arrive(self, layer: int) -> None:
        """Signals to a summer that the input and the dz of a layer are in shared memory."""
        tc.barrier_arrive(self._barrier("made", layer))

    def _wait(self, layer: int) -> None:
        """Waits until a summer has multiplied the input and the dz of a layer."""
        tc.barrier_wait(self._barrier("summed", layer))

    def _wait_for_reuse(self, layer: int, number) -> None:
        """Waits until a summer has multiplied the input and the dz of the previous tile."""
        if not self._waits_in_same_tile(layer):
            pl.when(number > 0)(lambda: self._wait(layer))

    # -- a tile ------------------------------------------------------------------------------------

    def _process_tile(self, group, steps, before, step, sums):
        """Runs the layers forward and backward; returns ``sums`` plus the gradient of receivers."""
        needs, tiles, layers = self.needs, self.tiles, self.needs.layers
        zero, number = tc.opaque_zero(step), before + step
        simt.inline(WaitForCopies(0), [], [])
        # All warps have their copies, and have read the gradients of the previous tile.
        tc.commit_smem()
        z = tiles.preactivation(0)
        for layer in range(layers):
            self._wait_for_reuse(layer, number)
            self._keep(layer, z)
            tc.commit_smem()
            if layer == 0:
                # The senders of the next tile overwrite those of this one, which have been read.
                self._gather_next(group, step, steps)
            z = self._product(layer, zero)
        dz = self._through_last(z, group, step)
        if layers == 0:
            tc.commit_smem()  # all warps have read the tile of senders
            self._gather_next(group, step, steps)
        for layer in reversed(range(layers)):
            self._dz(layer)[...] = dz.astype(needs.plan.stack.dtype)
            tc.commit_smem()
            self._arrive(layer)
            dz = self._layer_backward(layer, zero)
        self._add_to_senders(group, step, dz)
        return sums + dz

    def _gather_next(self, group, step, steps) -> None:
        """Begins to copy the next tile of senders, of features and of factors."""
        # Factors are read later than the senders, so they are double-buffered.
        self.tiles.gather(group, step + 1, steps, 0, lax.rem(step + 1, 2))

    def _keep(self, layer: int, z) -> None:
        """Writes the input of a layer, and the slope of its activation if that is needed."""
        activation, dtype = self.needs.activation(layer), self.needs.plan.stack.dtype
        width = self.needs.plan.stack.widths[layer]
        if self.needs.keeps_slope(layer):
            assert activation is not None
            z, slope = activation.value_and_slope(z)
            self._slope(layer)[...] = slope.astype(dtype)
        elif activation is not None:
            z = activation.value(z)
        self._input(layer).at[:, :width][...] = z.astype(dtype)

    def _product(self, layer: int, zero) -> jax.Array:
        """The output of a layer before its activation."""
        stack, scratch = self.needs.plan.stack, self.tiles.scratch
        a = self._input(layer).at[:, : stack.widths[layer]]
        z = tc.product((a, scratch["kernels"][layer].at[zero]))
        bias = stack.bias_of(scratch["biases"], layer)
        return add_bias(z, bias, slice(0, stack.widths[layer + 1]))

    def _through_last(self, z, group, step) -> jax.Array:
        """The gradient of the last preactivation; stores the gradients of edge weights."""
        activation = self.needs.activation(self.needs.layers)
        dy = tc.load_float32(self.tiles.at("dy"))
        if activation is None:
            values = known = z
        elif activation.of_output:
            values = known = activation.value(z)
        else:
            values, known = activation.value_and_slope(z)
        if self.needs.plan.own_weights is not None:
            self._store_dweights(group, step, jnp.sum(dy * values, axis=1))
        dvalues = self.tiles.scaled(dy, lax.rem(step, 2))
        return dvalues if activation is None else activation.pull_back(known, dvalues)

    def _store_dweights(self, group, step, numbers) -> None:
        """Stores the gradients of edge weights, through a double buffer in shared memory."""
        place = self.tiles.at("dweights", lax.rem(step, 2))
        place[...] = numbers
        tc.commit_smem()
        kernel = StoreByEdge(self.tiles.plan.places)
        self.tiles.inline(kernel, [group, step], [(self.results[0], False), (place, False)])

    def _layer_backward(self, layer: int, zero) -> jax.Array:
        """The gradient of a layer's input before activation, from the layer's dz."""
        kernel = self.tiles.scratch["kernels"][layer].at[zero]
        da = tc.product((self._dz(layer), kernel.T))
        activation = self.needs.activation(layer)
        if activation is None:
            return da
        width = self.needs.plan.stack.widths[layer]
        known = self._slope(layer) if self.needs.keeps_slope(layer) else self._input(layer)
        return activation.pull_back(tc.load_float32(known.at[:, :width]), da)

    def _add_to_senders(self, group, step, dz) -> None:
        """Adds a tile of gradients to those of its senders and of edge features."""
        tiles, layers = self.tiles, self.needs.layers
        if self.needs.shares_dz:
            self._wait(layers - 1)
            place = self._dz(layers - 1)
        else:
            place = tiles.at("dsenders")
        place[...] = dz.astype(self.needs.plan.stack.dtype)
        tc.commit_smem()
        kernel = AddToSenders(tiles.plan.places, tiles.layout(dz.shape[1]))
        tiles.inline(kernel, [group, step], [(self.ends[1], False), (place, True)])
        own = tiles.plan.own_features
        if own is not None:
            give = ScatterFeatures(tiles.plan.places, kernel.layout, own)
            result = self.results[-1] if own else self.ends[2]
            tiles.inline(give, [group, step], [(result, False), (place, True)])


def supported(plan: Plan) -> bool:
    """Whether this kernel fits a multiprocessor for these layers."""
    suits = common_swizzle(plan.stack.widths) is not None
    return suits and BackwardTile.choose(Chip.current(), BackwardNeeds(plan)) is not None
