"""The neighbours along the edges of a piece, as the lanes of a warp read them, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pallas_kernels.arguments.attention import Form, Operands
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
      values: what edges add to the values, [edges, heads * width], or None.
      features: features of edges, which a linear map adds to the ends, [edges, features], or None.
      dweights: gradient to the weights, [edges, heads], or None.
      seed: two words that choose which edges dropout drops, or None.
    """

    graph: Pieces
    slots: Any
    logits: Any
    values: Any
    features: Any
    dweights: Any
    seed: Any


@dataclass(frozen=True)
class Plan:
    """The static description of a kernel.

    Attributes:
      rule: how scores are computed.
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

        ends, values = columns(operands.columns), columns(operands.summed)
        return cls(rule, form, tile, operands.heads, ends, values)


@dataclass(frozen=True)
class Stats:
    """Results of the forward pass and of the gradient for a receiver and the lane's head.

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


@dataclass(frozen=True)
class Neighbour:
    """An edge and its other end, as a lane has read them.

    Attributes:
      slot: number of the edge in the arrays of edges; of the last one of the piece if not ``real``.
      real: whether the edge is before the end of the piece, or None if all are.
      other: numbers of the other end, and what the edge's features add to them.
      values: what the other end gives to the sums, or the gradient to its sums.
      added: what the edge adds to the values of its sender, or None.
      logit: what the edge adds to the total of the lane's head, or None.
      dweight: gradient to the weight of the lane's head, or None.
      stats: ``Stats`` of the other end, if it is the receiver and they were requested.
    """

    slot: Value
    real: Value | None
    other: list[Value]
    values: list[Value]
    added: list[Value] | None
    logit: Value | None
    dweight: Value | None
    stats: Stats | None

    @property
    def summed(self) -> list[Value]:
        """The summed numbers if the other end is the sender: its values and what the edge adds."""
        return self.values if self.added is None else _sum(self.values, self.added)

    def if_real(self, value: Value, otherwise: float) -> Value:
        """Returns ``value`` if the edge is real, or ``otherwise`` past the end of the piece."""
        if self.real is None:
            return value
        return value.warp.select(self.real, value, otherwise)


@dataclass(frozen=True)
class Neighbours:
    """Reads the edges of pieces, and computes with them.

    Attributes:
      lanes: places of the lanes.
      plan: the static description.
      edges: arrays of the edges.
      ends: rows of the other ends.
      values: rows of what the other ends give to the sums, or of the gradients to their sums; None
        if that is ``ends``.
      added: rows of what edges add to the values, or None.
      kernel: rows of the linear map of the features of edges, or None.
      vector: the lane's weights of GATv2's columns, or no numbers.
      dropout: decides which edges are dropped, or None.
      stats: ``Stats`` of the other ends where they are the receivers, or None.
    """

    lanes: Lanes
    plan: Plan
    edges: Edges
    ends: Rows
    values: Rows | None
    added: Rows | None
    kernel: Rows | None
    vector: Sequence[Value]
    dropout: Dropout | None
    stats: Array | None = None

    @classmethod
    def senders(cls, lanes: Lanes, plan: Plan, edges: Edges, operands: Operands) -> Neighbours:
        """Returns the reader of the senders along the rows of the graph."""
        ends = Rows(lanes, plan.ends, operands.columns)
        values = None if operands.values is None else Rows(lanes, plan.values, operands.values)
        return cls(lanes, plan, edges, ends, values, *_of_edges(lanes, plan, edges, operands))

    @classmethod
    def receivers(
        cls, lanes: Lanes, plan: Plan, edges: Edges, operands: Operands, dy: Array, stats: Array
    ) -> Neighbours:
        """Returns the reader of the receivers, and their gradients, along the transposed graph."""
        ends, slopes = Rows(lanes, plan.ends, operands.rows), Rows(lanes, plan.values, dy)
        of_edges = _of_edges(lanes, plan, edges, operands)
        return cls(lanes, plan, edges, ends, slopes, *of_edges, stats)

    @property
    def warp(self) -> Warp:
        """The warp of the lanes."""
        return self.lanes.warp

    def read(self, edges: list[Value], end: Value | None) -> list[Neighbour]:
        """Reads edges and their other ends; those at or past ``end`` have zeros."""
        lanes, arrays = self.lanes, self.edges
        real = [None if end is None else edge < end for edge in edges]
        edges = [edge if end is None else edge.at_most(end - 1) for edge in edges]
        nodes = [arrays.graph.indices.load(edge) for edge in edges]
        slots = edges if arrays.slots is None else [arrays.slots.load(edge) for edge in edges]
        # All reads come first, so that they run at the same time.
        ends = [self.ends.read(node) for node in nodes]
        values = ends if self.values is None else [self.values.read(node) for node in nodes]
        added = None if self.added is None else [self.added.read(slot) for slot in slots]
        logits, dweights = (
            [None if array is None else array.row(slot).load(lanes.head) for slot in slots]
            for array in (arrays.logits, arrays.dweights)
        )
        stats = [
            None if self.stats is None else Stats.load(lanes, self.stats, node) for node in nodes
        ]
        terms = self._of_features(slots)

        def neighbour(i):
            end = self.ends.values(ends[i], real[i])
            other = end if terms is None else _sum(end, terms[i])
            of_values = end if self.values is None else self.values.values(values[i], real[i])
            extra = None
            if self.added is not None and added is not None:
                extra = self.added.values(added[i], real[i])
            rest = logits[i], dweights[i], stats[i]
            return Neighbour(slots[i], real[i], other, of_values, extra, *rest)

        return [neighbour(i) for i in range(len(edges))]

    def _of_features(self, slots: list[Value]) -> list[list[Value]] | None:
        """Returns what the features of edges add to their ends, or None without features.

        A row of the linear map is read once for all of these edges.
        """
        features, kernel = self.edges.features, self.kernel
        if features is None or kernel is None:
            return None
        warp = self.warp

        def add(number, terms):
            row = kernel.load(number)
            of_edges = [features.row(slot).load(number) for slot in slots]
            return [
                [warp.fma(feature, w, t) for w, t in zip(row, term, strict=True)]
                for feature, term in zip(of_edges, terms, strict=True)
            ]

        zeros = [[warp.f32(0.0) for _ in range(kernel.columns.count)] for _ in slots]
        return warp.loop(warp.i32(0), features.shape[-1], 1, zeros, add)

    def total(self, own: Sequence[Value], neighbour: Neighbour) -> Value:
        """Returns the total of an edge, from which its score follows."""
        part = self.plan.rule.part(self.warp, own, neighbour.other, self.vector)
        total = self.warp.sum_lanes(part, self.plan.ends.lanes)
        return total if neighbour.logit is None else total + neighbour.logit

    def score(self, total: Value, neighbour: Neighbour) -> Value:
        """Returns the score of an edge; -inf past the end of the piece."""
        return neighbour.if_real(self.plan.rule.score(self.warp, total), float("-inf"))

    def probability(self, total: Value, lse: Value, neighbour: Neighbour) -> Value:
        """Returns the softmax of an edge; zero past the end of the piece."""
        return power(self.warp, self.score(total, neighbour), lse)

    def kept(self, value: Value, neighbour: Neighbour) -> Value:
        """Returns a number, or zero where dropout drops the edge; it is not scaled up."""
        return value if self.dropout is None else self.dropout.kept(neighbour.slot, value)

    def gradients(
        self, own: Sequence[Value], given: Sequence[Value], stats: Stats, neighbour: Neighbour
    ) -> tuple[Value, Value]:
        """Returns the weight of an edge and the gradient to its total.

        The values that the edge adds are added to those of the sender, whichever of the two ends
        the sender is.

        Args:
          own: numbers of the own end.
          given: what the own end gives to the sums, or the gradient to its sums.
          stats: ``Stats`` of the receiver.
          neighbour: the edge and its other end.
        """
        warp, plan = self.warp, self.plan
        total = self.total(own, neighbour)
        probability = self.probability(total, stats.lse, neighbour)
        if self.stats is None:  # the neighbour is the sender
            product = inner_product(warp, given, neighbour.summed)
        else:
            summed = given if neighbour.added is None else _sum(given, neighbour.added)
            product = inner_product(warp, summed, neighbour.values)
        slope = warp.sum_lanes(product, plan.values.lanes)
        if neighbour.dweight is not None:
            slope = slope + neighbour.dweight
        if self.dropout is None:
            weight, dscore = probability, probability * (slope - stats.delta)
        else:
            weight = self.kept(probability, neighbour) * plan.form.kept_scale
            dscore = weight * slope - probability * stats.delta
        return weight, plan.rule.slope(warp, total, dscore)


def _of_edges(lanes: Lanes, plan: Plan, edges: Edges, operands: Operands):
    """Returns the readers of the numbers of edges, and the arrays that all edges share.

    These are the rows of ``added`` and ``kernel``, the lane's weights of GATv2's columns or no
    numbers, and ``Dropout`` or None.
    """
    added = None if edges.values is None else Rows(lanes, plan.values, edges.values)
    kernel, vector = None, []
    if operands.edge_kernel is not None:
        kernel = Rows(lanes, plan.ends, operands.edge_kernel)
    if operands.attention is not None:
        vector = Rows(lanes, plan.ends, operands.attention).load(lanes.warp.i32(0))
    return added, kernel, vector, Dropout.load(lanes, edges.seed, plan.form)


def _sum(a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    return [x + y for x, y in zip(a, b, strict=True)]
