"""The backward pass: along the rows of the graph, and along those of the transposed graph.

Both recompute the scores. A warp takes a piece of a row and has the row's own end in registers,
and reads the other end of each edge. Nothing is added atomically: pieces of long rows write partial
sums, which ``add_pieces`` adds up in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.attention import Operands
from pallas_kernels.attention.lanes import NUMBER, Lanes, Rows
from pallas_kernels.attention.neighbours import Edges, Neighbours, Plan, Stats
from pallas_kernels.attention.scores import Values
from pallas_kernels.graph.rows import Piece, add_pieces
from pallas_kernels.simt.values import Array
from pallas_kernels.simt.warp import Warp


def along_rows(
    plan: Plan,
    edges: Edges,
    operands: Operands,
    dy: jax.Array,
    stats: jax.Array,
    name: str,
    dtype: Any,
) -> dict[str, jax.Array]:
    """Computes the gradients to the arrays of receivers and edges, and to the shared vector.

    Args:
      plan: the static description.
      edges: arrays of the edges of the graph.
      operands: rows, columns, values and attention with heads and columns in one axis.
      dy: gradient of the sums, [rows, heads * width].
      stats: for each receiver and head the logarithm of the sum of exponentials and ``delta``, as
        ``Stats`` has them, [rows, 2 * heads] float32.
      name: name of the kernel.
      dtype: that of the gradient to the rows.

    Returns:
      By name of the operand: ``rows``; ``edge_logits`` [edges, heads] if there are any, with
      features of edges in any case, in float32, as the gradient to the totals; ``edge_values`` if
      there are any for each head, not where some heads share them; and the receivers' part of
      ``attention`` [1, heads * width] float32 if there is one.
    """
    outputs = {"rows": jax.ShapeDtypeStruct(operands.rows.shape, dtype)}
    if edges.logits is not None or edges.features is not None:
        dtype = edges.logits.dtype if edges.features is None else jnp.float32
        shape = edges.graph.num_edges, plan.heads
        outputs["edge_logits"] = jax.ShapeDtypeStruct(shape, dtype)
    if _has_values_of_heads(edges, plan):
        assert edges.values is not None
        outputs["edge_values"] = jax.ShapeDtypeStruct(edges.values.shape, edges.values.dtype)
    return _launch(_AlongRows(plan), (edges, operands, dy, stats), outputs, {"rows"}, name)


def along_columns(
    plan: Plan, edges: Edges, operands: Operands, dy: jax.Array, stats: jax.Array, name: str
) -> dict[str, jax.Array]:
    """Computes the gradients to the arrays of senders.

    Args:
      plan: the static description.
      edges: arrays of the edges of the transposed graph.
      operands: rows, columns, values and attention with heads and columns in one axis.
      dy: gradient of the sums, [rows, heads * width].
      stats: for each receiver and head the logarithm of the sum of exponentials and ``delta``, as
        ``Stats`` has them, [rows, 2 * heads] float32.
      name: name of the kernel.

    Returns:
      By name of the operand: ``columns`` and, if there are any, ``values``, for all heads; in
      float32 if the operands have fewer heads; and the senders' part of ``attention``
      [1, heads * width] float32 if there is one.
    """
    outputs = {"columns": _for_all_heads(operands.columns, plan, plan.ends.width)}
    if operands.values is not None:
        outputs["values"] = _for_all_heads(operands.values, plan)
    inputs = (edges, operands, dy, stats)
    return _launch(_AlongColumns(plan), inputs, outputs, {*outputs}, name)


def _has_values_of_heads(edges: Edges, plan: Plan) -> bool:
    """Whether edges add to the values of each head, so that no other head adds to the gradient."""
    entries = plan.heads * plan.values.width
    return edges.values is not None and edges.values.shape[1] == entries


def _for_all_heads(array: jax.Array, plan: Plan, width: int | None = None) -> jax.ShapeDtypeStruct:
    """Returns the shape of the gradient to an array of nodes, with all heads.

    Args:
      array: the operand, [count, heads * width]; it may have fewer heads.
      plan: the static description.
      width: columns of a head; those of the values if None.
    """
    entries = plan.heads * (plan.values.width if width is None else width)
    dtype = array.dtype if array.shape[1] == entries else jnp.float32
    return jax.ShapeDtypeStruct((array.shape[0], entries), dtype)


def _launch(
    kernel: _AlongRows | _AlongColumns,
    inputs: Any,
    outputs: dict[str, jax.ShapeDtypeStruct],
    by_piece: set[str],
    name: str,
) -> dict[str, jax.Array]:
    """Launches a kernel, and adds up the pieces of long rows of the outputs ``by_piece``.

    Where operands have ``attention``, the first output of the kernel is what each warp adds to it.
    """
    (edges, operands, *_), plan = inputs, kernel.plan
    graph, tile = edges.graph, plan.tile
    grid = simt.Grid(graph.blocks(tile.warps), tile.warps, tile.slices(plan.heads))
    if operands.attention is not None:
        shape = (grid.blocks * grid.warps, operands.attention.size)
        outputs = {"attention": jax.ShapeDtypeStruct(shape, jnp.float32)} | outputs
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
    if "attention" in made:
        made["attention"] = jnp.sum(made["attention"], axis=0, keepdims=True)
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


def _walk_pieces(
    lanes: Lanes,
    neighbours: Neighbours,
    to_vector: Array | None,
    take: Callable[[Piece], tuple[Values, Values]],
) -> None:
    """Calls ``take`` for the pieces of a warp, and stores what they add to GATv2's vector.

    Args:
      lanes: places of the lanes.
      neighbours: what reads the edges.
      to_vector: where each warp has a row for its sums, or None without a vector.
      take: takes a piece; returns the own end, and its gradient without the factor of the vector.
    """
    warp, graph = lanes.warp, neighbours.edges.graph

    def add(number, sums):
        own, gradient = take(graph.get(warp, number))
        if to_vector is None:
            return sums
        return [warp.fma(x, g, s) for x, g, s in zip(own, gradient, sums, strict=True)]

    sums = [warp.f32(0.0) for _ in neighbours.vector]
    sums = warp.loop(warp.number, graph.counts.load(1), warp.count, sums, add)
    if to_vector is not None:
        rows = Rows(lanes, neighbours.plan.ends, to_vector)
        warp.when(lanes.group == 0, lambda: rows.store(warp.number, sums))


def _weighted(gradient: Values, vector: Values) -> Values:
    """Returns the gradient to an end, which for GATv2 has the vector as a factor."""
    return [g * a for g, a in zip(gradient, vector, strict=True)] if vector else gradient


@dataclass(frozen=True)
class _AlongRows:
    """Each warp has a receiver, and reads the senders of its edges."""

    plan: Plan

    def __call__(self, warp: Warp, inputs, *outputs: Array) -> None:
        edges, operands, dy, stats = inputs
        plan, rule = self.plan, self.plan.rule
        rest = [*outputs]
        lanes = Lanes(warp, plan.tile, plan.heads)
        to_vector = None if operands.attention is None else rest.pop(0)
        to_rows = rest.pop(0)
        has_totals = edges.logits is not None or edges.features is not None
        of_totals = Rows(lanes, NUMBER, rest.pop(0)) if has_totals else None
        has_values = _has_values_of_heads(edges, plan)
        of_values = Rows(lanes, plan.values, rest.pop(0)) if has_values else None
        neighbours = Neighbours.senders(lanes, plan, edges, operands)
        receivers, to_sums = Rows(lanes, plan.ends, operands.rows), Rows(lanes, plan.values, dy)

        def take(piece):
            own, given = rule.own(warp, receivers.load(piece.row)), to_sums.load(piece.row)
            known = Stats.load(lanes, stats, piece.row)

            def add(numbers, sums, end):
                for neighbour in neighbours.read(numbers, end):
                    weight, dtotal = neighbours.gradients(own, given, known, neighbour)
                    sums = rule.add(warp, sums, dtotal, own, neighbour.other)
                    if of_totals is not None:
                        of_totals.store_edge(neighbour.slot, neighbour.real, dtotal)
                    if of_values is not None:
                        slopes = [weight * x for x in given]
                        of_values.store_edge(neighbour.slot, neighbour.real, *slopes)
                return sums

            sums = lanes.walk(piece, rule.start(warp, plan.ends.count), add)
            gradient = rule.finish(warp, lanes.sum_groups(sums))
            results = [(plan.ends, _weighted(gradient, neighbours.vector))]
            _store(piece, results, [to_rows], rest, lanes)
            return own, gradient

        _walk_pieces(lanes, neighbours, to_vector, take)
        for of_edges in (of_totals, of_values):
            if of_edges is not None:
                of_edges.zero_padding(edges.graph)


@dataclass(frozen=True)
class _AlongColumns:
    """Each warp has a sender, and reads the receivers of its edges."""

    plan: Plan

    def __call__(self, warp: Warp, inputs, *outputs: Array) -> None:
        edges, operands, dy, stats = inputs
        plan, rule = self.plan, self.plan.rule
        rest = [*outputs]
        lanes = Lanes(warp, plan.tile, plan.heads)
        to_vector = None if operands.attention is None else rest.pop(0)
        neighbours = Neighbours.receivers(lanes, plan, edges, operands, dy, stats)
        senders = Rows(lanes, plan.ends, operands.columns)
        of_ends_too = operands.values is None
        values = None if of_ends_too else Rows(lanes, plan.values, operands.values)
        count = 1 if of_ends_too else 2

        def take(piece):
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
            gradient = rule.finish(warp, lanes.sum_groups(of_end))
            of_end, of_values = _weighted(gradient, neighbours.vector), lanes.sum_groups(of_values)
            if of_ends_too:
                sums = [a + b for a, b in zip(of_end, of_values, strict=True)]
                results = [(plan.ends, sums)]
            else:
                results = [(plan.ends, of_end), (plan.values, of_values)]
            _store(piece, results, rest[:count], rest[count:], lanes)
            return own, gradient

        _walk_pieces(lanes, neighbours, to_vector, take)
