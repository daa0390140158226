"""The weights of attention: a factor of the values for each edge and head, if requested."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.attention import Operands
from pallas_kernels.attention.lanes import NUMBER, Lanes, Rows
from pallas_kernels.attention.neighbours import Edges, Neighbours, Plan, Stats
from pallas_kernels.simt.values import Array
from pallas_kernels.simt.warp import Warp


def weights(plan: Plan, edges: Edges, operands: Operands, stats: jax.Array, name: str) -> jax.Array:
    """Computes the weights, dropout included.

    Args:
      plan: the static description.
      edges: arrays of the edges of the graph.
      operands: rows, columns and attention with heads and columns in one axis; no values.
      stats: ``Stats`` of the receivers, [rows, 2 * heads] float32.
      name: name of the kernel.

    Returns:
      [edges, heads] float32, zero in padding slots.
    """
    graph, tile = edges.graph, plan.tile
    return simt.launch(
        _Weights(plan),
        (edges, operands, stats),
        [jax.ShapeDtypeStruct((graph.num_edges, plan.heads), jnp.float32)],
        name=name,
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps, tile.slices(plan.heads)),
    )[0]


@dataclass(frozen=True)
class _Weights:
    """Each warp has a receiver, and reads the senders of its edges."""

    plan: Plan

    def __call__(self, warp: Warp, inputs, to_edges: Array) -> None:
        edges, operands, stats = inputs
        plan, rule = self.plan, self.plan.rule
        lanes = Lanes(warp, plan.tile, plan.heads)
        neighbours = Neighbours.senders(lanes, plan, edges, operands)
        receivers, results = Rows(lanes, plan.ends, operands.rows), Rows(lanes, NUMBER, to_edges)

        def take(piece):
            own = rule.own(warp, receivers.load(piece.row))
            known = Stats.load(lanes, stats, piece.row)

            def add(numbers, carry, end):
                for neighbour in neighbours.read(numbers, end):
                    total = neighbours.total(own, neighbour)
                    probability = neighbours.probability(total, known.lse, neighbour)
                    weight = neighbours.kept(probability, neighbour) * plan.form.kept_scale
                    results.store_edge(neighbour.slot, neighbour.real, weight)
                return carry

            lanes.walk(piece, (), add)

        edges.graph.for_each(warp, take)
        results.zero_padding(edges.graph)
