"""The backward pass: along the rows of the graph, and along those of the transposed graph.

Both make the scores again. A warp takes a piece of a row and has the row's own end in registers,
and reads the other end of each edge. Nothing is added atomically: pieces of long rows leave partial
sums, which ``add_pieces`` adds up in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.attention.arguments import Operands
from pallas_kernels.attention.lanes import NUMBER, Lanes, Rows
from pallas_kernels.attention.neighbours import Edges, Neighbours, Plan, Stats
from pallas_kernels.attention.scores import GatV2
from pallas_kernels.graph.rows import Piece, add_pieces
from pallas_kernels.simt.values import Array
from pallas_kernels.simt.warp import Warp


def along_rows(
    plan: Plan, edges: Edges, operands: Operands, dy: jax.Array, stats: jax.Array, name: str
) -> dict[str, jax.Array]:
    """Computes the gradients of what receivers, edges and all edges together give.

    Args:
      plan: what is static.
      edges: arrays of the edges of the graph.
      operands: rows, columns, values and attention with heads and columns in one axis.
      dy: gradient of the sums, [rows, heads * width].
      stats: for each receiver and head the logarithm of the sum of exponentials and ``delta``, as
        ``Stats`` has them, [rows, 2 * heads] float32.
      name: name of the kernel.

    Returns:
      By name of the operand: ``rows``; ``edge_logits`` [edges, heads] if there are any; and
      ``attention`` [1, heads * width] float32 if there is one.
    """
    tile, graph = plan.tile, edges.graph
    grid = simt.Grid(graph.blocks(tile.warps), tile.warps, tile.slices(plan.heads))
    outputs = {"rows": jax.ShapeDtypeStruct(operands.rows.shape, operands.rows.dtype)}
    if edges.logits is not None:
        outputs["edge_logits"] = jax.ShapeDtypeStruct(edges.logits.shape, edges.logits.dtype)
    if operands.attention is not None:
        shape = (grid.blocks * grid.warps, operands.attention.size)
        outputs["attention"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    made = _launch(_AlongRows(plan), (edges, operands, dy, stats), outputs, {"rows"}, name, grid)
    if "attention" in made:
        made["attention"] = jnp.sum(made["attention"], axis=0, keepdims=True)
    return made


def along_columns(
    plan: Plan, edges: Edges, operands: Operands, dy: jax.Array, stats: jax.Array, name: str
) -> dict[str, jax.Array]:
    """Computes the gradients of what senders give.

    Args:
      plan: what is static.
      edges: arrays of the edges of the transposed graph.
      operands: rows, columns, values and attention with heads and columns in one axis.
      dy: gradient of the sums, [rows, heads * width].
      stats: for each receiver and head the logarithm of the sum of exponentials and ``delta``, as
        ``Stats`` has them, [rows, 2 * heads] float32.
      name: name of the kernel.

    Returns:
      By name of the operand: ``columns`` and, if there are any, ``values``, for all heads; in
      float32 if the operands have fewer heads.
    """
    tile, graph = plan.tile, edges.graph
    grid = simt.Grid(graph.blocks(tile.warps), tile.warps, tile.slices(plan.heads))
    widths = {"columns": plan.ends.width, "values": plan.values.width}
    outputs = {}
    for operand, width in widths.items():
        array, entries = getattr(operands, operand), plan.heads * width
        if array is not None:
            dtype = array.dtype if array.shape[1] == entries else jnp.float32
            outputs[operand] = jax.ShapeDtypeStruct((graph.num_rows, entries), dtype)
    inputs = (edges, operands, dy, stats)
    return _launch(_AlongColumns(plan), inputs, outputs, {*outputs}, name, grid)


def _launch(
    kernel: Any,
    inputs: Any,
    outputs: dict[str, jax.ShapeDtypeStruct],
    by_piece: set[str],
    name: str,
    grid: simt.Grid,
) -> dict[str, jax.Array]:
    """Launches a kernel, and adds up the pieces of long rows of the outputs ``by_piece``."""
    graph = inputs[0].graph
    partial = {
        key: spec
        for key, output in outputs.items()
        if key in by_piece
        for spec in graph.partial_sums(output.shape[1])
    }
    arrays = simt.launch(
        kernel, inputs, [*outputs.values(), *partial.values()], name=name, grid=grid
    )
    made = dict(zip(outputs, arrays[: len(outputs)], strict=True))
    for key, sums in zip(partial, arrays[len(outputs) :], strict=True):
        made[key] = add_pieces(graph, sums, made[key])
    return made


def _store(piece: Piece, results: list, outputs: list[Array], partial: list[Array], lanes: Lanes):
    """Stores (columns, values) of a row, or of a piece of one, from the first group of lanes."""
    warp = lanes.warp

    def store(arrays, number):
        for (columns, values), array in zip(results, arrays, strict=True):
            Rows(lanes, columns, array).store(number, values)

    first_group = lanes.group == 0
    if not partial:
        return warp.when(first_group, lambda: store(outputs, piece.row))
    warp.when(first_group & (piece.slot < 0), lambda: store(outputs, piece.row))
    warp.when(first_group & (piece.slot >= 0), lambda: store(partial, piece.slot))


@dataclass(frozen=True)
class _AlongRows:
    """Each warp has a receiver, and reads the senders of its edges."""

    plan: Plan

    def __call__(self, warp: Warp, inputs, to_rows: Array, *others: Array) -> None:
        edges, operands, dy, stats = inputs
        plan, rule = self.plan, self.plan.rule
        partial = [*others]
        lanes = Lanes(warp, plan.tile, plan.heads)
        of_logits = None if edges.logits is None else Rows(lanes, NUMBER, partial.pop(0))
        to_attention = None if operands.attention is None else partial.pop(0)
        neighbours = Neighbours.senders(lanes, plan, edges, operands)
        receivers, slopes = Rows(lanes, plan.ends, operands.rows), Rows(lanes, plan.values, dy)

        def take(piece, of_vector):
            own, given = rule.own(warp, receivers.load(piece.row)), slopes.load(piece.row)
            known = Stats.load(lanes, stats, piece.row)

            def add(numbers, carry, end):
                sums, of_vector = carry
                for neighbour in neighbours.read(numbers, end):
                    _, dtotal = neighbours.gradients(own, given, known, neighbour)
                    sums = rule.add(warp, sums, dtotal, own, neighbour.other)
                    if isinstance(rule, GatV2):
                        activated = rule.activated(warp, own, neighbour.other)
                        pairs = zip(of_vector, activated, strict=True)
                        of_vector = [warp.fma(dtotal, x, s) for s, x in pairs]
                    if of_logits is not None:
                        of_logits.store_edge(neighbour.slot, neighbour.real, dtotal)
                return sums, of_vector

            start = (rule.start(warp, plan.ends.count), of_vector)
            sums, of_vector = lanes.walk(piece, start, add)
            result = rule.finish(warp, lanes.sum_groups(sums), neighbours.vector)
            _store(piece, [(plan.ends, result)], [to_rows], partial, lanes)
            return of_vector

        of_vector = [warp.f32(0.0) for _ in neighbours.vector]
        graph = edges.graph
        of_vector = warp.loop(
            warp.number,
            graph.counts.load(1),
            warp.count,
            of_vector,
            lambda number, sums: take(graph.get(warp, number), sums),
        )
        if to_attention is not None:
            sums, rows = lanes.sum_groups(of_vector), Rows(lanes, plan.ends, to_attention)
            warp.when(lanes.group == 0, lambda: rows.store(warp.number, sums))
        if of_logits is not None:
            of_logits.zero_padding(graph)


@dataclass(frozen=True)
class _AlongColumns:
    """Each warp has a sender, and reads the receivers of its edges."""

    plan: Plan

    def __call__(self, warp: Warp, inputs, *outputs: Array) -> None:
        edges, operands, dy, stats = inputs
        plan, rule = self.plan, self.plan.rule
        lanes = Lanes(warp, plan.tile, plan.heads)
        neighbours = Neighbours.receivers(lanes, plan, edges, operands, dy, stats)
        senders = Rows(lanes, plan.ends, operands.columns)
        of_ends_too = operands.values is None
        values = None if of_ends_too else Rows(lanes, plan.values, operands.values)
        count = 1 if of_ends_too else 2

        def take(piece: Piece) -> None:
            read = senders.load(piece.row)
            own, given = rule.own(warp, read), read if values is None else values.load(piece.row)

            def add(numbers, carry, end):
                of_end, of_values = carry
                for neighbour in neighbours.read(numbers, end):
                    known = neighbour.stats
                    assert known is not None
                    weight, dtotal = neighbours.gradients(own, given, known, neighbour)
                    of_end = rule.add(warp, of_end, dtotal, own, neighbour.other)
                    pairs = zip(of_values, neighbour.values, strict=True)
                    of_values = [warp.fma(weight, x, s) for s, x in pairs]
                return of_end, of_values

            zeros = [warp.f32(0.0) for _ in range(plan.values.count)]
            start = (rule.start(warp, plan.ends.count), zeros)
            of_end, of_values = lanes.walk(piece, start, add)
            of_end = rule.finish(warp, lanes.sum_groups(of_end), neighbours.vector)
            of_values = lanes.sum_groups(of_values)
            if of_ends_too:
                sums = [a + b for a, b in zip(of_end, of_values, strict=True)]
                results = [(plan.ends, sums)]
            else:
                results = [(plan.ends, of_end), (plan.values, of_values)]
            _store(piece, results, [*outputs[:count]], [*outputs[count:]], lanes)

        edges.graph.for_each(warp, take)
