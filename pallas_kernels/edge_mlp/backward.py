"""Layers between both ends of edges and a sum, backward: what belongs to edges is made again.

Of the warpgroups of a block some, the walkers, go through groups of 64 rows as in the forward pass,
forth and back through the layers. What they make of a tile on the way lies in shared memory, where
the others, the summers, add it up to the gradients of the kernels in their registers::

    dkernel_l = Σ a_lᵀ dz_l,  dbias_l = Σ 1ᵀ dz_l

Where there is room in the units of a product, a column of ones beside a_l makes the latter a row of
the former; else it is a product of its own. Gradients of receivers are summed in registers over a
group, or a part of its steps where walkers share it to have equal work; what is left, and gradients
of senders, are added up in memory, in float32 and in no fixed order.
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
from pallas_kernels.edge_mlp.forward import ask_for_parameters, parameters, wait_for_parameters
from pallas_kernels.edge_mlp.gather_scatter import (
    AddToRows,
    AddToSenders,
    GiveToFeatures,
    StoreByEdge,
    WaitForCopies,
)
from pallas_kernels.edge_mlp.places import ROWS, EdgeLayers, Places, Tables, common_swizzle
from pallas_kernels.edge_mlp.tiles import Plan, Tiles
from pallas_kernels.edge_mlp.work import UNIT, BackwardTile, Work
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
    """Gradients of ``forward``.

    Args:
      places: as in ``forward``.
      tables: likewise.
      layers: likewise.
      dy: [batch rows, last].
      activation: as in ``forward``.
      activate_last: likewise.
      tile: by default what suits the shapes.

    Returns:
      Gradients; those of weights of each element of the batch, with anything in slots of padding.
    """
    work = Work(Plan.of(places, layers, activation, activate_last))
    stack = work.plan.stack
    chosen = tile or BackwardTile.choose(Chip.current(), work)
    if chosen is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit a multiprocessor")
    tile = tile or chosen.suited_to(places)
    results = _results_by_edge(work.plan)
    call = tc.launch(
        functools.partial(_backward, work, tile, len(results)),
        "edge_mlp_aggregate_backward",
        [*results, *_sums(work, tile)],
        (tile.blocks, 1),
        tile.walkers + tile.summers,
        _scratch(work, tile),
    )
    given = layers._replace(biases=[b for b in layers.biases if b is not None])
    summed = [layers.receivers.shape, layers.senders.shape]
    if layers.features is not None and not work.plan.own_features:
        summed.append(layers.features.shape)
    ends = [jax.new_ref(jnp.zeros(shape, jnp.float32)) for shape in summed]
    ones = [jnp.ones((MARKS, ROWS), stack.dtype)] if work.marked else []
    made = call(given, ones, dy, tables, ends)
    by_edge, sums = list(made[: len(results)]), made[len(results) :]
    dweights = by_edge.pop(0) if layers.weights is not None else None
    dreceivers, dsenders, *shared = (jax.freeze(end) for end in ends)
    nodes = dreceivers.astype(stack.dtype), dsenders.astype(stack.dtype)
    dfeatures = next(iter([*by_edge, *shared]), None)
    return EdgeLayers(*nodes, dweights, *_of_parameters(work, sums), dfeatures)


def _results_by_edge(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    """The forms of gradients of weights, and of features of each element, if there are any."""
    form = plan.places.batch, plan.places.edges
    results = [] if plan.own_weights is None else [jax.ShapeDtypeStruct(form, jnp.float32)]
    if plan.own_features:
        form = (*form, plan.stack.widths[0])
        results.append(jax.ShapeDtypeStruct(form, plan.stack.dtype))
    return results


def _sums(work: Work, tile: BackwardTile) -> list[jax.ShapeDtypeStruct]:
    """The forms of what the blocks write: of kernels, then of biases that have a product."""
    after = work.plan.stack.widths[1:]
    forms = [(work.padded(n), after[n]) for n in range(work.layers)]
    forms += [(after[n], MARKS) for n in work.marked]
    return [jax.ShapeDtypeStruct((tile.blocks, *form), jnp.float32) for form in forms]


def _of_parameters(work: Work, sums: Sequence[jax.Array]) -> tuple[tuple, tuple]:
    """Gradients of kernels and biases, from what the blocks wrote."""
    stack = work.plan.stack
    totals = [jnp.sum(s, axis=0).astype(stack.dtype) for s in sums]
    by_marks = dict(zip(work.marked, totals[work.layers :], strict=True))

    def dbias(layer: int) -> jax.Array | None:
        if layer in by_marks:
            return by_marks[layer][:, 0]
        return totals[layer][stack.widths[layer]] if stack.biased[layer] else None

    layers = range(work.layers)
    return tuple(totals[n][: stack.widths[n]] for n in layers), tuple(map(dbias, layers))


def _scratch(work: Work, tile: BackwardTile) -> dict:
    plan, walkers, layers = work.plan, tile.walkers, range(work.layers)
    widths = plan.stack.widths
    pairs = walkers * work.layers
    return parameters(plan) | {
        "ones": plan.tiles(1, MARKS, ROWS) if work.marked else None,
        "ones_loaded": tc.Barrier() if work.marked else None,
        "receivers": plan.tiles(walkers, ROWS, widths[0]),
        "dy": plan.tiles(walkers, ROWS, widths[-1]),
        "senders": plan.tiles(walkers, 1, ROWS, widths[0]),
        "features": plan.tiles(walkers, 1, ROWS, widths[0]) if plan.has_features else None,
        "factors": plan.factors(walkers, 2),
        "inputs": [plan.tiles(walkers, ROWS, work.padded(n)) for n in layers],
        "slopes": [
            plan.tiles(walkers, ROWS, widths[n]) if work.keeps_slope(n) else None for n in layers
        ],
        "dz": [plan.tiles(walkers, ROWS, widths[n + 1]) for n in layers],
        "dsenders": None if work.shares_dz else plan.tiles(walkers, ROWS, widths[0]),
        "dweights": None if plan.own_weights is None else tc.SMEM((walkers, 2, ROWS), jnp.float32),
        "made": tc.Barrier(num_barriers=pairs) if pairs else None,
        "summed": tc.Barrier(num_barriers=pairs) if pairs else None,
    }


def _backward(work: Work, tile: BackwardTile, rows: int, scratch, *references) -> None:
    """A warpgroup's part."""
    layers, ones, dy, tables, ends, *results = references
    ask_for_parameters(scratch, layers)
    warpgroup, registers = lax.axis_index(WARPGROUP), tile.registers(work)

    def walk():
        if registers is not None:
            tc.set_max_registers(registers[0], action="decrease")
        tiles = Tiles(work.plan, scratch, layers, tables, warpgroup)
        _Walker(work, tile, tiles, dy, ends, results[:rows]).run()

    def add_up(number):
        if registers is not None:
            tc.set_max_registers(registers[1], action="increase")
        share = work.shares(tile.summers)[number]
        if number == 0 and ones:
            tc.copy_gmem_to_smem(ones[0], scratch["ones"].at[0], scratch["ones_loaded"])
        if any(layer in work.marked for layer in share):
            tc.barrier_wait(scratch["ones_loaded"])
        _add_up(work, tile, scratch, share, results[rows:], most_tiles(work, tile, tables))

    pl.when(warpgroup < tile.walkers)(walk)
    for number in range(tile.summers):
        pl.when(warpgroup == tile.walkers + number)(functools.partial(add_up, number))


def own_units(work: Work, tile: BackwardTile, walker) -> tuple[Any, Any]:
    """The first of a walker of this block, and how many; the others are as many apart as walkers.

    They are parts of groups; neighbouring ones go to different multiprocessors.
    """
    first = walker * tile.blocks + lax.axis_index(BLOCK)
    units = work.plan.places.groups * tile.parts
    return first, tc.count_strided(units, first, tile.blocks * tile.walkers)


def own_tiles(work: Work, tile: BackwardTile, tables: Tables, walker) -> Any:
    """How many a walker of this block has."""
    (first, count), places = own_units(work, tile, walker), work.plan.places
    if places.degree is not None:
        return count * (places.degree // tile.parts)

    def add(i, total):
        return total + places.steps(first + i * tile.blocks * tile.walkers, tables)

    return lax.fori_loop(0, count, add, jnp.int32(0))


def most_tiles(work: Work, tile: BackwardTile, tables: Tables) -> Any:
    """That a walker of this block has: summers expect as many of each."""
    return functools.reduce(
        jnp.maximum, (own_tiles(work, tile, tables, walker) for walker in range(tile.walkers))
    )


def _add_up(work: Work, tile: BackwardTile, scratch, share, results: Sequence, count) -> None:
    """A summer's part: the gradients of the kernels and biases of its layers."""
    # Of each, the result, its rows, and the form of the sums.
    units = [(layer, layer, unit) for layer in share for unit in range(_units(work.padded(layer)))]
    units += [
        (work.layers + number, layer, unit)
        for number, layer in enumerate(work.marked)
        if layer in share
        for unit in range(_units(work.plan.stack.widths[layer + 1]))
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
        """A tile of a walker."""
        pair = walker * work.layers + layer
        tc.barrier_wait(scratch["made"].at[pair])
        inputs, dz = (scratch[name][layer].at[walker] for name in ("inputs", "dz"))
        for (result, of_layer, unit), total in zip(units, sums, strict=True):
            columns = slice(unit * UNIT, (unit + 1) * UNIT)
            if of_layer == layer and result < work.layers:
                tc.wgmma(total, inputs.at[:, columns].T, dz)
            elif of_layer == layer:
                tc.wgmma(total, dz.at[:, columns].T, scratch["ones"].at[zero].T)
        tc.wgmma_wait(0)
        tc.barrier_arrive(scratch["summed"].at[pair])

    widths = [
        work.plan.stack.widths[layer + 1] if result < work.layers else MARKS
        for result, layer, _ in units
    ]
    pl.run_scoped(accumulate, *(tc.ACC((UNIT, width), jnp.float32) for width in widths))


def _units(width: int) -> int:
    return width // UNIT


@dataclass(frozen=True)
class _Walker:
    """A warpgroup that goes through groups of rows.

    Attributes:
      work: what there is to do.
      tile: who does what.
      tiles: of the warpgroup.
      dy: in memory.
      ends: gradients of receivers, of senders and of features that are shared, float32.
      results: gradients of weights, if there are any, and of features of each element.
    """

    work: Work
    tile: BackwardTile
    tiles: Tiles
    dy: Any
    ends: Sequence
    results: Sequence

    def run(self) -> None:
        """All units, then as many tiles of zeros as summers still expect."""
        work, tiles, tile = self.work, self.tiles, self.tile
        first, count = own_units(work, tile, tiles.number)
        self._clear()
        wait_for_parameters(tiles.scratch)

        @pl.loop(0, count, init_carry=jnp.int32(0))
        def made(i, before):
            unit = first + i * (tile.blocks * tile.walkers)
            group, part = lax.div(unit, tile.parts), lax.rem(unit, tile.parts)
            steps = work.plan.places.steps(group, tiles.tables) // tile.parts
            start, stop = part * steps, (part + 1) * steps
            tiles.gather_rows(group, tiles.layers.receivers, "receivers")
            tiles.gather_rows(group, self.dy, "dy")
            tiles.gather(group, start, stop, 0, lax.rem(start, 2))
            walk = functools.partial(self._walk, group, stop, before - start)
            sums = lax.fori_loop(start, stop, walk, tiles.zeros(work.plan.stack.widths[0]))
            simt.inline(WaitForCopies(0), [], [])
            tc.commit_smem()  # all warps have read what was there
            self._receive(group, sums)
            return before + steps

        if work.layers:
            self._fill_up(made, most_tiles(work, tile, tiles.tables))

    def _receive(self, group, sums) -> None:
        """Adds to the gradients of the receivers."""
        tiles = self.tiles
        high, low = tiles.at("receivers"), tiles.at("senders", 0)
        tiles.split(sums, high, low)
        tc.commit_smem()
        kernel = AddToRows(tiles.plan.places, tiles.layout(sums.shape[1]))
        tiles.inline(kernel, [group], [(self.ends[0], False), (high, True), (low, True)])
        tc.commit_smem()

    def _clear(self) -> None:
        """Ones for the biases; and finite numbers, in case there will be no others."""
        for layer, width in enumerate(self.work.plan.stack.widths[:-1]):
            inputs, ones = self._input(layer), self.work.ones
            inputs.at[:, :width][...] = self._full(width, 0.0)
            if self.work.has_column(layer):
                inputs.at[:, width : width + ones][...] = self._full(ones, 1.0)

    def _full(self, width: int, number: float) -> jax.Array:
        made = jnp.full((ROWS, width), number, jnp.float32)
        return tc.layout_cast(made, tc.Layout.WGMMA).astype(self.work.plan.stack.dtype)

    def _fill_up(self, made, most) -> None:
        """Tiles of zeros."""
        layers = range(self.work.layers)

        # Every completion is waited for, also the last; that of a shared place already was.
        @pl.when(made > 0)
        def _():
            for layer in layers:
                if not self._waits_within(layer):
                    self._wait(layer)

        @pl.when(made < most)
        def _():
            for layer in layers:
                self._dz(layer)[...] = self._full(self.work.plan.stack.widths[layer + 1], 0.0)
            tc.commit_smem()

            @pl.loop(0, most - made)
            def _(_i):
                for layer in layers:
                    self._arrive(layer)
                for layer in layers:
                    self._wait(layer)

    # -- places in shared memory, and who may use them -------------------------------------------

    def _input(self, layer: int) -> Any:
        return self.tiles.scratch["inputs"][layer].at[self.tiles.number]

    def _dz(self, layer: int) -> Any:
        return self.tiles.scratch["dz"][layer].at[self.tiles.number]

    def _slope(self, layer: int) -> Any:
        return self.tiles.scratch["slopes"][layer].at[self.tiles.number]

    def _waits_within(self, layer: int) -> bool:
        """Whether a tile waits until its own dz is summed, not only the next one."""
        return self.work.shares_dz and layer == self.work.layers - 1

    def _pair(self, name: str, layer: int) -> Any:
        return self.tiles.scratch[name].at[self.tiles.number * self.work.layers + layer]

    def _arrive(self, layer: int) -> None:
        tc.barrier_arrive(self._pair("made", layer))

    def _wait(self, layer: int) -> None:
        tc.barrier_wait(self._pair("summed", layer))

    def _reuse(self, layer: int, number) -> None:
        """Waits until what a layer had of the tile before is summed."""
        if not self._waits_within(layer):
            pl.when(number > 0)(lambda: self._wait(layer))

    # -- a tile ------------------------------------------------------------------------------------

    def _walk(self, group, steps, before, step, sums):
        """Forth and back; adds to the gradients of the receivers."""
        work, tiles, layers = self.work, self.tiles, self.work.layers
        zero, number = tc.opaque_zero(step), before + step
        simt.inline(WaitForCopies(0), [], [])
        # All warps have their copies, and have read what they send of the tile before.
        tc.commit_smem()
        z = tiles.preactivation(0)
        for layer in range(layers):
            self._reuse(layer, number)
            self._keep(layer, z)
            tc.commit_smem()
            if layer == 0:
                # What belongs to the senders of the next tile takes the place of what was read.
                self._gather_next(group, step, steps)
            z = self._product(layer, zero)
        dz = self._through_last(z, group, step)
        if layers == 0:
            tc.commit_smem()  # all warps have read what belongs to senders
            self._gather_next(group, step, steps)
        for layer in reversed(range(layers)):
            self._dz(layer)[...] = dz.astype(work.plan.stack.dtype)
            tc.commit_smem()
            self._arrive(layer)
            dz = self._back(layer, zero)
        self._send(group, step, dz)
        return sums + dz

    def _gather_next(self, group, step, steps) -> None:
        # Factors are read later than what belongs to senders: they have two places.
        self.tiles.gather(group, step + 1, steps, 0, lax.rem(step + 1, 2))

    def _keep(self, layer: int, z) -> None:
        """What a layer reads, and what it needs on the way back."""
        activation, dtype = self.work.activation(layer), self.work.plan.stack.dtype
        width = self.work.plan.stack.widths[layer]
        if self.work.keeps_slope(layer):
            assert activation is not None
            z, slope = activation.value_and_slope(z)
            self._slope(layer)[...] = slope.astype(dtype)
        elif activation is not None:
            z = activation.value(z)
        self._input(layer).at[:, :width][...] = z.astype(dtype)

    def _product(self, layer: int, zero) -> jax.Array:
        """The preactivation behind a layer."""
        stack, scratch = self.work.plan.stack, self.tiles.scratch
        a = self._input(layer).at[:, : stack.widths[layer]]
        z = tc.product((a, scratch["kernels"][layer].at[zero]))
        bias = stack.bias_of(scratch["biases"], layer)
        return add_bias(z, bias, slice(0, stack.widths[layer + 1]))

    def _through_last(self, z, group, step) -> jax.Array:
        """The gradient to the last preactivation; those to the weights on the way."""
        activation = self.work.activation(self.work.layers)
        dy = tc.load_float32(self.tiles.at("dy"))
        if activation is None:
            values = known = z
        elif activation.of_output:
            values = known = activation.value(z)
        else:
            values, known = activation.value_and_slope(z)
        if self.work.plan.own_weights is not None:
            self._store_dweights(group, step, jnp.sum(dy * values, axis=1))
        dvalues = self.tiles.scaled(dy, lax.rem(step, 2))
        return dvalues if activation is None else activation.pull_back(known, dvalues)

    def _store_dweights(self, group, step, numbers) -> None:
        """Two places: what was written two tiles before, all warps have read."""
        place = self.tiles.at("dweights", lax.rem(step, 2))
        place[...] = numbers
        tc.commit_smem()
        kernel = StoreByEdge(self.tiles.plan.places)
        self.tiles.inline(kernel, [group, step], [(self.results[0], False), (place, False)])

    def _back(self, layer: int, zero) -> jax.Array:
        """The gradient to the preactivation in front of a layer."""
        kernel = self.tiles.scratch["kernels"][layer].at[zero]
        da = tc.product((self._dz(layer), kernel.T))
        activation = self.work.activation(layer)
        if activation is None:
            return da
        width = self.work.plan.stack.widths[layer]
        known = self._slope(layer) if self.work.keeps_slope(layer) else self._input(layer)
        return activation.pull_back(tc.load_float32(known.at[:, :width]), da)

    def _send(self, group, step, dz) -> None:
        """Adds to the gradients of the senders."""
        tiles, layers = self.tiles, self.work.layers
        if self.work.shares_dz:
            self._wait(layers - 1)
            place = self._dz(layers - 1)
        else:
            place = tiles.at("dsenders")
        place[...] = dz.astype(self.work.plan.stack.dtype)
        tc.commit_smem()
        kernel = AddToSenders(tiles.plan.places, tiles.layout(dz.shape[1]))
        tiles.inline(kernel, [group, step], [(self.ends[1], False), (place, True)])
        own = tiles.plan.own_features
        if own is not None:
            give = GiveToFeatures(tiles.plan.places, kernel.layout, own)
            result = self.results[-1] if own else self.ends[2]
            tiles.inline(give, [group, step], [(result, False), (place, True)])


def supported(plan: Plan) -> bool:
    """Whether there is a tile for these layers."""
    suits = common_swizzle(plan.stack.widths) is not None
    return suits and BackwardTile.choose(Chip.current(), Work(plan)) is not None
