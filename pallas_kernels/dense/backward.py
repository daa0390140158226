"""The backward pass of one or two dense layers, in one kernel that reads every row once.

The warpgroups of a block have one of two roles. Walkers go through tiles of 64 rows: they recompute
the hidden rows or slopes that they need, and compute ``dz`` of each layer and ``dx``. Summers
accumulate the gradients of kernels and biases over all tiles, in their registers::

    dkernel_i = h_iᵀ dz_i,  dbias_i = dz_iᵀ 1

Where registers do not hold the sums for all columns of ``x``, several blocks (parts) share the
columns: each computes its part of ``dx`` and of ``dkernel``. If ``dz`` needs all columns of ``x``,
it is then computed by a kernel before this one. Each block writes its sums once, and they are added
in a fixed order. Where shared memory does not hold two float32 layers and tiles that are loaded
ahead, ``dense.tight`` divides the same work differently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.dense import forward as dense_forward
from pallas_kernels.dense import terms as dense_terms
from pallas_kernels.dense import three_tiles as dense_tight
from pallas_kernels.dense.activations import ACTIVATIONS
from pallas_kernels.dense.plan import MARKS, BackwardPlan, BackwardTile, TightTile
from pallas_kernels.dense.stack import Stack
from pallas_kernels.dense.sums import Summer, Tiles, TilesOfTeams
from pallas_kernels.dense.walker import Walker
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, PART, ROWS, WARPGROUP, Ring, TiledInput


def backward(
    x, kernels, biases, y, dy, activations, tile: BackwardTile | TightTile | None = None, below=None
) -> tuple[jax.Array, Sequence[jax.Array], Sequence[jax.Array | None]]:
    """Computes the gradients to ``x``, the kernels and the biases.

    Args:
      x: [rows, width], bfloat16, float16 or float32. float32 numbers are multiplied as sums of two
        bfloat16 parts, with three of the four products.
      kernels: one or two, [width of the layer before, width] each; the second layer has no
        activation.
      biases: [width] or None, each.
      y: the output of the forward pass, where the derivative of the last activation is computed
        from it; else not used.
      dy: [rows, last width].
      activations: name or None, for each layer.
      tile: how the work is divided; chosen by the shapes if None.
      below: name of the activation that computed ``x``, whose derivative has to be computed from
        its output: then the first result is the gradient to that activation's input.

    Returns:
      The gradients, of the shapes and dtypes of the arguments.
    """
    stack = Stack.of(x, kernels, biases, activations)
    if x.shape[0] == 0:
        return jax.tree.map(jnp.zeros_like, (x, tuple(kernels), tuple(biases)))
    tile = tile or choose(Chip.current(), stack)
    if tile is None and stack.layers == 1 and stack.last_activation is not None:
        (kernel,), (bias,), (activation,) = kernels, biases, activations
        if stack.last_activation.of_output:
            wide = (array.astype(jnp.float32) for array in (y, dy))
            dz = stack.last_activation.pull_back(*wide).astype(dy.dtype)  # computed by XLA
        else:
            dz = dense_forward.pull_back(x, kernel, bias, activation, dy)
        return backward(x, kernels, biases, None, dz, (None,), below=below)
    if tile is None:
        raise ValueError(f"the sums of layers of widths {stack.widths} do not fit registers")
    tile = tile.limited_to(x.shape[0])
    tight = isinstance(tile, TightTile)
    plan, inputs = (
        BackwardPlan(stack, tile.parts, summer_per_layer=tight),
        {"x": x, "dy": dy, "y": y},
    )
    call = tc.launch(
        functools.partial(_backward, plan, tile, None if below is None else ACTIVATIONS[below]),
        "dense_backward",
        (jax.ShapeDtypeStruct(x.shape, x.dtype), *_sums(plan, tile)),
        (tile.blocks, tile.parts),
        tile.walkers + plan.summers,
        _parameters(plan) | (dense_tight.scratch(plan) if tight else _scratch(plan, tile)),
    )
    given = [inputs[name] for name in (*plan.summed_inputs, *plan.read_once_inputs)]
    prepared = [plan.terms.prepare(kernel) for kernel in kernels]
    parameters = [*prepared, *_marks(plan)], list(biases[: plan.needs_bias])
    dx, sums, bias_sums = call(given, *parameters)
    first, *second = (jnp.sum(s, axis=0).astype(x.dtype) for s in sums)
    dkernels = (first, *(transposed.T for transposed in second))
    return dx, dkernels, _dbiases(plan, bias_sums)


def choose(chip: Chip, stack: Stack) -> BackwardTile | TightTile | None:
    """Returns how the work of one kernel is divided, or None if one kernel can not do it."""
    return BackwardTile.choose(chip, stack) or TightTile.choose(chip, stack)


def fits(layer: Stack) -> bool:
    """Returns whether a float32 layer has a kernel, maybe after XLA's activation gradient."""
    gated = layer.last_activation is not None and layer.last_activation.of_output
    return (
        BackwardTile.choose(Chip.current(), layer.without_last_activation() if gated else layer)
        is not None
    )


def _sums(plan: BackwardPlan, tile: BackwardTile | TightTile) -> tuple[list, list]:
    """Returns the shapes of the sums that the blocks write: for the kernels, and for the biases."""
    first, *second = plan.stack.shapes
    shapes = [first, *((columns, rows) for rows, columns in second)]
    sums, _ = plan.marks
    bias = [(tile.parts, plan.summers, sums, COLUMNS, MARKS)] * bool(sums)
    kernels, biases = (
        [jax.ShapeDtypeStruct((tile.blocks, *shape), jnp.float32) for shape in some]
        for some in (shapes, bias)
    )
    return kernels, biases


def _marks(plan: BackwardPlan) -> list[jax.Array]:
    """Returns constant matrices, transposed, with one column of ones each and zeros elsewhere.

    A product with such a matrix adds up the rows of ``dz`` into the marked column.
    """
    _, count = plan.marks
    matrices = [[[float(row == mark)] * ROWS for row in range(MARKS)] for mark in range(count)]
    return [jnp.array(matrices, _factors(plan))] if matrices else []


def _factors(plan: BackwardPlan):
    """Returns the dtype of what tensor cores multiply."""
    return plan.terms.dtype(plan.stack.dtype)


def _dbiases(plan: BackwardPlan, sums: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
    """Returns the gradients of the biases, gathered from the marked sums of the blocks."""
    stack = plan.stack
    total = [jnp.sum(s, axis=0).astype(stack.dtype) for s in sums]
    return tuple(
        jnp.concatenate([total[0][(*sums, slice(None), column)] for *sums, column in places])
        if (places := plan.bias_locations(layer))
        else None
        for layer in range(stack.layers)
    )


def _parameters(plan: BackwardPlan) -> dict:
    """Returns scratch memory for kernels, biases and marks, which are loaded once."""
    stack, terms, marks = plan.stack, plan.terms, plan.marks[1]
    (_, width), *others = stack.shapes
    return {
        "kernels": [
            terms.tiles(stack.dtype, 1, *s) for s in ((plan.columns_per_part, width), *others)
        ],
        "biases": [tc.SMEM((width,), stack.dtype) for width in plan.loaded_biases],
        "marks": tc.tiles(_factors(plan), marks, MARKS, ROWS) if marks else None,
        "loaded": tc.Barrier(num_arrivals=stack.layers + bool(marks) + len(plan.loaded_biases)),
    }


def _scratch(plan: BackwardPlan, tile: BackwardTile) -> dict:
    """Returns scratch memory for tiles, and the barriers between walkers and summers."""
    stack, teams = plan.stack, tile.teams
    summed, read_once = (
        list(inputs.values()) for inputs in (plan.summed_inputs, plan.read_once_inputs)
    )
    terms, places = plan.terms, (teams, tile.slots)
    kept = {k: terms.tiles(stack.dtype, teams, ROWS, w) for k, w in plan.walker_outputs.items()}
    if tile.overlay:
        kept["dz"] = dense_terms.reused_tiles(
            stack.dtype, plan.walker_outputs["dz"], plan.columns_per_part, teams
        )
    split = {}
    if terms.split:
        split["tiles"] = [dense_terms.split_tiles(stack.dtype, w, *places) for w in summed]
    return {
        "summed_inputs": Ring.scratch(stack.dtype, summed, places) | split,
        "read_once_inputs": Ring.scratch(stack.dtype, read_once, (teams, tile.read_once_slots))
        if read_once
        else None,
        "kept": kept,
        "dx": None if tile.overlay else tc.chunked(stack.dtype, plan.columns_per_part, teams),
        "split": tc.Barrier(num_arrivals=tile.members, num_barriers=teams),
        "made": tc.Barrier(num_arrivals=tile.members, num_barriers=teams),
        "summed": tc.Barrier(num_arrivals=plan.summers + tile.members, num_barriers=teams),
    }


def _backward(
    plan: BackwardPlan, tile: BackwardTile | TightTile, below, scratch, *references
) -> None:
    """Runs the walker or the summer that this warpgroup is."""
    arrays, matrices, biases, dx, kernel_sums, bias_sums = references
    first = lax.axis_index(PART) * plan.columns_per_part if tile.parts > 1 else 0
    kernel, *others = matrices
    sources = [plan.terms.rows_of(kernel, pl.ds(first, plan.columns_per_part)), *others]
    sources += biases[: len(plan.loaded_biases)]
    targets = [kernel.at[0] for kernel in scratch["kernels"]]
    targets += [*([scratch["marks"]] if plan.marks[1] else []), *scratch["biases"]]
    tc.start_loads(sources, targets, scratch["loaded"])
    scratch = scratch | {"biases": scratch["biases"] or biases}
    if isinstance(tile, BackwardTile) and tile.overlay:
        dz, dx_tiles = dense_terms.reused_views(scratch["kept"]["dz"])
        scratch = scratch | {"kept": scratch["kept"] | {"dz": dz}, "dx": dx_tiles}
    warpgroup = lax.axis_index(WARPGROUP)
    count = tc.count_strided_tiles(dx.shape[0], lax.axis_index(BLOCK), tile.blocks)
    if isinstance(tile, TightTile):
        members, walk, tiles = _tight_parts(plan, tile, below, scratch, arrays, dx)
    else:
        members = tile.members
        walk, tiles = _parts(plan, tile, below, scratch, arrays, dx, first)
    registers = tile.registers(plan)

    def begin_walk(member):
        if registers is not None:
            tc.set_max_registers(registers[0], action="decrease")
        walk(member, count)

    def add_up(number):
        if registers is not None:
            tc.set_max_registers(registers[1], action="increase")
        tc.barrier_wait(scratch["loaded"])
        Summer(plan, scratch, tiles(number), number).run(count, kernel_sums, *bias_sums)

    for member in range(members):
        mine = lax.rem(warpgroup, members) == member
        pl.when((warpgroup < tile.walkers) & mine)(functools.partial(begin_walk, member))
    for number in range(plan.summers):
        pl.when(warpgroup == tile.walkers + number)(functools.partial(add_up, number))


_RunWalker = Callable[[int, Any], None]  # runs a member of a team over a number of tiles
_TilesOfSummer = Callable[[int], Tiles]  # returns the tiles of a summer


def _parts(
    plan: BackwardPlan, tile: BackwardTile, below, scratch, arrays, dx, first
) -> tuple[_RunWalker, _TilesOfSummer]:
    """Returns the function that runs a walker, and the one that gives the tiles of a summer."""
    widths = plan.summed_inputs | plan.read_once_inputs
    inputs = {
        name: TiledInput(array, width, first if name == "x" else 0)
        for (name, width), array in zip(widths.items(), arrays, strict=True)
    }
    summed, terms = scratch["summed_inputs"], [None] * len(plan.summed_inputs)
    if plan.terms.split:
        tiles, terms = zip(*map(dense_terms.split_views, summed["tiles"]), strict=True)
        summed = summed | {"tiles": tiles}
    ring = Ring(summed, [inputs[name] for name in plan.summed_inputs])
    read_once = None
    if plan.read_once_inputs:
        read_once = Ring(
            scratch["read_once_inputs"], [inputs[name] for name in plan.read_once_inputs]
        )

    def walk(member, count):
        team = 0 if tile.teams == 1 else lax.axis_index(WARPGROUP) // tile.members
        common = (plan, scratch, dx, below, member, tile.members)
        Walker(*common, tile, ring, terms, read_once, team).run(count)

    return walk, lambda number: TilesOfTeams(plan, tile, scratch, ring, terms)


def _tight_parts(
    plan: BackwardPlan, tile: TightTile, below, scratch, arrays, dx
) -> tuple[int, _RunWalker, _TilesOfSummer]:
    """Returns the walkers of a tile, the function that runs one, and that which gives the tiles."""

    def walk(member, count):
        common = (plan, scratch, dx, below, member, tile.walkers)
        dense_tight.ThreeTileWalker(*common, tile, *arrays).run(count)

    return tile.walkers, walk, lambda layer: dense_tight.TilesOfLayer(plan, scratch, layer)
