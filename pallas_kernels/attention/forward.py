"""The forward pass: weighted sums of the neighbours, by a softmax that is computed online.

A warp takes a piece of a row. Each group of its lanes keeps a peak, a sum of exponentials and
weighted sums of its own, rescaled once for each batch of neighbours, and the groups are combined at
the end. Rows of several pieces write these numbers to a workspace, and a second kernel combines the
pieces of such a row in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.attention import Operands
from pallas_kernels.attention.lanes import NUMBER, Lanes, Rows
from pallas_kernels.attention.neighbours import Edges, Neighbours, Plan
from pallas_kernels.attention.softmax import (
    divisor,
    highest,
    highest_of_groups,
    log_sum,
    power,
    rescaling,
    shift_of,
)
from pallas_kernels.graph.rows import Piece, Pieces
from pallas_kernels.simt.values import Array, fold_in_pairs
from pallas_kernels.simt.warp import LANES, Warp

# Pieces of a long row that are combined in one step.
_PIECES_AT_ONCE = 8


def forward(plan: Plan, edges: Edges, operands: Operands, name: str) -> tuple[jax.Array, jax.Array]:
    """Runs the forward pass.

    Args:
      plan: the static description.
      edges: arrays of the edges.
      operands: rows, columns, values and attention with heads and columns in one axis.
      name: name of the op.

    Returns:
      The sums [rows, heads * width] and the logarithms of the sums of exponentials [rows, heads],
      both float32.
    """
    graph, tile = edges.graph, plan.tile
    shapes = (plan.heads * plan.values.width, plan.heads)
    outputs = [jax.ShapeDtypeStruct((graph.num_rows, n), jnp.float32) for n in shapes]
    partial = [spec for n in (*shapes, plan.heads) for spec in graph.partial_sums(n)]
    y, lse, *workspace = simt.launch(
        _Forward(plan),
        (edges, operands),
        [*outputs, *partial],
        name=name,
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps, tile.slices(plan.heads)),
    )
    if not workspace:
        return y, lse
    y, lse = simt.launch(
        _CombinePieces(plan),
        (graph, workspace),
        [],
        name=f"{name}_of_long_rows",
        grid=simt.Grid(graph.full_blocks(tile.warps), tile.warps, -(-shapes[0] // LANES)),
        updated=[y, lse],
    )
    return y, lse


@dataclass(frozen=True)
class _Forward:
    """Computes the results of rows of one piece, and the partial numbers of other rows."""

    plan: Plan

    def __call__(self, warp: Warp, inputs, y: Array, lse: Array, *partial: Array) -> None:
        edges, operands = inputs
        plan, rule = self.plan, self.plan.rule
        lanes = Lanes(warp, plan.tile, plan.heads)
        receivers = Rows(lanes, plan.ends, operands.rows)
        neighbours = Neighbours.senders(lanes, plan, edges, operands)

        def write(array, columns, number, values):
            Rows(lanes, columns, array).store(number, values)

        def take(piece: Piece) -> None:
            own = rule.own(warp, receivers.load(piece.row))

            def add(numbers, carry, end):
                peak, total, sums = carry
                found = neighbours.read(numbers, end)
                scores = [neighbours.score(neighbours.total(own, n), n) for n in found]
                peak, old = highest([peak, *scores]), peak
                shift = shift_of(warp, peak)
                factor = rescaling(warp, old, shift)
                total, sums = total * factor, [s * factor for s in sums]
                for neighbour, score in zip(found, scores, strict=True):
                    exponential = power(warp, score, shift)
                    total = total + exponential
                    weight, values = neighbours.kept(exponential, neighbour), neighbour.summed
                    sums = [warp.fma(weight, v, s) for v, s in zip(values, sums, strict=True)]
                return peak, total, sums

            zeros = [warp.f32(0.0) for _ in range(plan.values.count)]
            nothing = (warp.f32(float("-inf")), warp.f32(0.0), zeros)
            store(piece, *_combine_groups(lanes, *lanes.walk(piece, nothing, add)))

        def store(piece, peak, total, sums):
            def finish():
                factor = divisor(warp, total) * plan.form.kept_scale
                write(y, plan.values, piece.row, [s * factor for s in sums])
                write(lse, NUMBER, piece.row, [log_sum(warp, peak, total)])

            def leave():
                to_sums, to_peaks, to_totals = partial
                write(to_sums, plan.values, piece.slot, sums)
                write(to_peaks, NUMBER, piece.slot, [peak])
                write(to_totals, NUMBER, piece.slot, [total])

            first_group = lanes.group == 0
            if not partial:
                return warp.when(first_group, finish)
            warp.when(first_group & (piece.slot < 0), finish)
            warp.when(first_group & (piece.slot >= 0), leave)

        edges.graph.for_each(warp, take)


def _combine_groups(lanes: Lanes, peak, total, sums):
    """Combines the numbers of all groups; all lanes get the result."""
    warp = lanes.warp
    common = highest_of_groups(peak, lanes.tile.lanes * lanes.tile.heads)
    factor = rescaling(warp, peak, shift_of(warp, common))
    total, *sums = lanes.sum_groups([total * factor, *(s * factor for s in sums)])
    return common, total, sums


@dataclass(frozen=True)
class _CombinePieces:
    """Combines the pieces of long rows in order; each slice has 32 columns, a lane has one.

    A warp strides over the full pieces, and takes a row where it meets the row's first piece.
    """

    plan: Plan

    def __call__(self, warp: Warp, inputs, y: Array, lse: Array) -> None:
        graph, (sums, peaks, totals) = inputs
        width = self.plan.values.width
        own = warp.slice * LANES + warp.lane
        has_column = own < y.shape[-1]
        column = warp.select(has_column, own, 0)
        head = column // width

        def combine(row):
            begin, end = graph.indptr.load(row), graph.indptr.load(row + 1)
            size = graph.edges_per_piece

            def read(first):
                # Past the end the row's first piece is read, as one without edges.
                real = first < end
                begins = warp.select(real, first, begin)
                slot = graph.slot(warp, begins, end.at_most(begins + size))
                arrays = ((peaks, head), (totals, head), (sums, column))
                found = [array.row(slot).load(at) for array, at in arrays]
                nothing = (float("-inf"), 0.0, 0.0)
                return [warp.select(real, *pair) for pair in zip(found, nothing, strict=True)]

            def add(first, carry):
                found = [carry, *(read(first + i * size) for i in range(_PIECES_AT_ONCE))]
                common = highest([peak for peak, _, _ in found])
                shift = shift_of(warp, common)
                factors = [rescaling(warp, peak, shift) for peak, _, _ in found]
                total, value = (
                    fold_in_pairs(
                        [part[i] * f for part, f in zip(found, factors, strict=True)],
                        lambda a, b: a + b,
                    )
                    for i in (1, 2)
                )
                return common, total, value

            nothing = (warp.f32(float("-inf")), warp.f32(0.0), warp.f32(0.0))
            peak, total, value = warp.loop(begin, end, _PIECES_AT_ONCE * size, nothing, add)
            factor = divisor(warp, total) * self.plan.form.kept_scale
            warp.when(has_column, lambda: y.row(row).store(column, value * factor))
            is_first = has_column & (column % width == 0)
            logarithm = log_sum(warp, peak, total)
            warp.when(is_first, lambda: lse.row(row).store(head, logarithm))

        for_each_long_row(warp, graph, combine)


def for_each_long_row(warp: Warp, graph: Pieces, body) -> None:
    """Calls ``body(row)`` for the rows of several pieces, of which each warp takes its share."""
    num_pieces = graph.counts.load(1)

    def is_full(number):
        # The longest pieces come first, so the loop ends at the first one that is not full.
        piece = graph.get(warp, number.at_most(num_pieces - 1))
        return (number < num_pieces) & (piece.end - piece.begin == graph.edges_per_piece)

    def take(number):
        piece = graph.get(warp, number)
        begins_row = (piece.slot >= 0) & (piece.begin == graph.indptr.load(piece.row))
        warp.when(begins_row, lambda: body(piece.row))
        return number + warp.count

    warp.while_loop(is_full, take, warp.number)
