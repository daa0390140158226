"""What the lanes of a warp read of the edges of a piece, and the scores that they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pallas_kernels.attention.arguments import Form, Operands
from pallas_kernels.attention.dropout import Dropout
from pallas_kernels.attention.lanes import NUMBER, Columns, Lanes, Rows
from pallas_kernels.attention.scores import Rule, inner_product
from pallas_kernels.attention.softmax import power
from pallas_kernels.attention.tile import AttentionTile
from pallas_kernels.graph.rows import Pieces
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import Warp


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Edges:
    """The arrays of the edges of a pass. In a kernel each array is an ``Array``.

    Attributes:
      graph: the edges by rows, or those of the transposed graph by its rows.
      slots: number of each edge in the graph, by which the other arrays are read, [edges]; None if
        that is its own number.
      logits: what edges add to the totals, [edges, heads], or None.
      dweights: gradient to the weights, [edges, heads], or None.
      seed: two words that choose which edges dropout leaves out, or None.
    """

    graph: Pieces
    slots: Any
    logits: Any
    dweights: Any
    seed: Any


@dataclass(frozen=True)
class Plan:
    """What is static in a kernel.

    Attributes:
      rule: how scores are made.
      form: constants of the call.
      tile: how the lanes share the work.
      heads: how many heads there are.
      ends: which columns of an end a lane has.
      values: which columns of the values a lane has.
    """

    rule: Rule
    form: Form
    tile: AttentionTile
    heads: int
    ends: Columns
    values: Columns

    @classmethod
    def of(cls, rule: Rule, form: Form, tile: AttentionTile, operands: Operands) -> Plan:
        """Returns the plan for operands of these shapes."""

        def columns(array):
            if array.ndim == 2:
                return NUMBER
            return Columns.shared(array.shape[2], array.dtype.itemsize, tile.lanes)

        ends, values = columns(operands.rows), columns(operands.summed)
        return cls(rule, form, tile, operands.heads, ends, values)


@dataclass(frozen=True)
class Neighbour:
    """What a lane has read of an edge and its other end.

    Attributes:
      edge: number of the edge; that of the last edge of the piece if it is not ``real``.
      slot: its number in the arrays of edges.
      node: number of the other end.
      real: whether it is before the end of the piece, or None if all are.
      other: numbers of the other end.
      values: what the other end gives to the sums, or the gradient to its sums.
    """

    edge: Value
    slot: Value
    node: Value
    real: Value | None
    other: list[Value]
    values: list[Value]

    def if_real(self, value: Value, otherwise: float) -> Value:
        """Returns a number of this edge, another one past the end of the piece."""
        if self.real is None:
            return value
        return value.warp.select(self.real, value, otherwise)


@dataclass(frozen=True)
class Neighbours:
    """Reads the edges of pieces, and computes with them.

    Attributes:
      lanes: places of the lanes.
      plan: what is static.
      edges: arrays of the edges.
      ends: rows of the other ends.
      values: rows of what the other ends give to the sums, or of the gradients to their sums; None
        if that is ``ends``.
      vector: the lane's weights of GATv2's columns, or no numbers.
    """

    lanes: Lanes
    plan: Plan
    edges: Edges
    ends: Rows
    values: Rows | None
    vector: Sequence[Value]

    @property
    def warp(self) -> Warp:
        """The warp of the lanes."""
        return self.lanes.warp

    def read(self, edges: list[Value], end: Value | None) -> list[Neighbour]:
        """Reads edges and their other ends; those at or past ``end`` have zeros."""
        real = [None if end is None else edge < end for edge in edges]
        edges = [edge if end is None else edge.at_most(end - 1) for edge in edges]
        nodes = [self.edges.graph.indices.load(edge) for edge in edges]
        ends = [self.ends.read(node) for node in nodes]
        values = [self.values.read(node) for node in nodes] if self.values else ends
        slots = [
            edge if self.edges.slots is None else self.edges.slots.load(edge) for edge in edges
        ]
        found = []
        for edge, slot, node, known, of_end, of_value in zip(
            edges, slots, nodes, real, ends, values, strict=True
        ):
            other = self.ends.values(of_end, known)
            value = self.values.values(of_value, known) if self.values else other
            found.append(Neighbour(edge, slot, node, known, other, value))
        return found

    def total(self, own: Sequence[Value], neighbour: Neighbour) -> Value:
        """Returns the total of an edge, from which its score follows."""
        part = self.plan.rule.part(self.warp, own, neighbour.other, self.vector)
        total = self.warp.sum_lanes(part, self.plan.ends.lanes)
        return total + self.of_edge(self.edges.logits, neighbour)

    def of_edge(self, array: Array | None, neighbour: Neighbour) -> Value:
        """Returns the number that an array has for an edge and the lane's head; zero for None."""
        if array is None:
            return self.warp.f32(0.0)
        return array.row(neighbour.slot).load(self.lanes.head)

    def kept(self, value: Value, neighbour: Neighbour) -> Value:
        """Returns a number, or zero where dropout leaves the edge out; it is not scaled up."""
        if self.edges.seed is None:
            return value
        dropout = Dropout(self.lanes, self.edges.seed, self.plan.form.dropped)
        return self.warp.select(dropout.keeps(neighbour.slot), value, 0.0)

    def probability(self, total: Value, lse: Value, neighbour: Neighbour) -> Value:
        """Returns the softmax, from the logarithm of the row's sum; zero past the piece's end."""
        score = neighbour.if_real(self.plan.rule.score(self.warp, total), float("-inf"))
        return power(self.warp, score, lse)

    def gradients(
        self, own: Sequence[Value], given: Sequence[Value], stats: Stats, neighbour: Neighbour
    ) -> tuple[Value, Value]:
        """Returns the weight of an edge and the gradient to its total.

        Args:
          own: numbers of the own end.
          given: what the own end gives to the sums, or the gradient to its sums.
          stats: what is known of the receiver.
          neighbour: the edge and its other end.
        """
        warp, plan = self.warp, self.plan
        total = self.total(own, neighbour)
        probability = self.probability(total, stats.lse, neighbour)
        product = inner_product(warp, given, neighbour.values)
        slope = warp.sum_lanes(product, plan.values.lanes)
        slope = slope + self.of_edge(self.edges.dweights, neighbour)
        weight = self.kept(probability, neighbour)
        if self.edges.seed is not None:
            weight = weight * plan.form.kept_scale
        # p (m slope - delta), where the weight is p m.
        dscore = warp.fma(weight, slope, probability * stats.delta * -1.0)
        return weight, plan.rule.slope(warp, total, dscore)


@dataclass(frozen=True)
class Stats:
    """What the forward pass and the gradient tell of a receiver and the lane's head.

    Attributes:
      lse: logarithm of its sum of exponentials, zero if it attends to nothing.
      delta: sum over its edges of weight times gradient of the weight.
    """

    lse: Value
    delta: Value

    @classmethod
    def load(cls, lanes: Lanes, array: Array, node: Value) -> Stats:
        """Loads both from an array [rows, 2 * heads], in which they are neighbours."""
        row = array.row(node)
        words = row.load_words(lanes.head * 2, 2)
        return cls(row.unpack(words, 0), row.unpack(words, 1))
