"""Attention in pieces of the edges, in plain JAX, for inputs that no kernel supports.

Kernels do not run for float64 on a GPU, for graphs whose sizes are known only when an exported
program is called, and where nothing is compiled. Here the scores of the reference are computed for
some edges at a time. Besides the arrays of a piece there are the arrays of the caller, numbers of
edges and heads [E, H], and sums. So no array has edges times heads times columns, forward or
backward. JAX does not differentiate this code: ``backward`` is its gradient.

The edges of a piece are a graph of their own, in which each edge has its own row and column. The
numbers of its ends are gathered first, and the gradients to them are added to the sums of all
pieces. So the cost of a piece depends on its edges, not on the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import match_varying, rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._attention.reference import softmax_sum
from jaxgnn.ops._graph import pieces
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.attention import Cotangents, Form, Operands

# Edges of a piece if the number of heads or columns is known only when the program is called.
_OF_UNKNOWN_WIDTH = 4096

_OF_SENDERS = ("columns", "values")
_OF_EDGES = ("edge_logits", "edge_values", "edge_features")
_SHARED = ("edge_kernel", "edge_value_kernel", "attention")


def forward(
    scores: softmax_sum.Scores, graph: CSRGraph, operands: Operands, *, form: Form
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"]]:
    """The sums and the logarithms of the sums of exponentials, in the accumulation dtype."""
    graph, operands = match_varying(graph, operands)
    probabilities, lse = softmax_sum.softmax(graph, _all_scores(scores, graph, operands, form))
    slots = jnp.arange(graph.num_edges)
    weights = probabilities * softmax_sum.dropout_factors(slots, operands, form, lse.dtype)

    def add(sums, piece):
        values = softmax_sum.edge_values(piece, piece.gathered(operands))
        return piece.add_to_rows(sums, piece.of_edges(weights)[:, :, None] * values)

    summed = operands.summed
    zeros = jnp.zeros((graph.num_rows, operands.heads, summed.shape[-1]), lse.dtype)
    return _in_turn(graph, operands, add, match_varying(zeros, operands)[0]), lse


def weights(
    scores: softmax_sum.Scores,
    graph: CSRGraph,
    operands: Operands,
    lse: Float[Array, "rows heads"],
    *,
    form: Form,
) -> Float[Array, "edges heads"]:
    """The factors of the values of the senders; zero in padding slots."""
    graph, operands, lse = match_varying(graph, operands, lse)
    made = _all_scores(scores, graph, operands, form)
    probabilities = softmax_sum.probabilities(graph, made, lse)
    slots = jnp.arange(graph.num_edges)
    return probabilities * softmax_sum.dropout_factors(slots, operands, form, made.dtype)


def backward(
    scores: softmax_sum.Scores,
    graph: CSRGraph,
    operands: Operands,
    cotangents: Cotangents,
    *,
    form: Form,
) -> Operands:
    """The gradients of all operands, each added up in the accumulation dtype."""
    graph, operands, cotangents = match_varying(graph, operands, cotangents)
    wide = accumulation_dtype(operands.summed.dtype)
    lse, delta, dy = (array.astype(wide) for array in cotangents[:3])

    def add(sums, piece):
        def scores_and_values(changed):
            return scores(piece, changed, form), softmax_sum.edge_values(piece, changed)

        smooth = piece.gathered(operands).replace(seed=None)
        (made, values), pull_back = jax.vjp(scores_and_values, smooth)
        shifts, deltas, slopes = (piece.at_receivers(array) for array in (lse, delta, dy))
        probabilities = softmax_sum.probabilities(piece, made, shifts)
        factors = softmax_sum.dropout_factors(piece.slots, operands, form, wide)
        dweights = jnp.sum(slopes * values, axis=-1)
        if cotangents.dweights is not None:
            dweights = dweights + piece.of_edges(cotangents.dweights).astype(wide)
        dscores = probabilities * (factors * dweights - deltas)
        dscores = jnp.where(piece.real[:, None], dscores, 0)
        (of_piece,) = pull_back((dscores, (probabilities * factors)[:, :, None] * slopes))
        return piece.add_gradients(sums, of_piece)

    smooth = operands.replace(seed=None)
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, accumulation_dtype(a.dtype)), smooth)
    zeros = zeros.replace(
        **{name: _padded(getattr(zeros, name), graph, operands) for name in _OF_EDGES}
    )
    sums = _in_turn(graph, operands, add, match_varying(zeros, operands, cotangents)[0])
    cut = {name: getattr(sums, name) for name in _OF_EDGES if getattr(sums, name) is not None}
    cut = {name: array[: graph.num_edges] for name, array in cut.items()}
    return jax.tree.map(lambda g, a: g.astype(a.dtype), sums.replace(**cut), smooth)


@dataclass(frozen=True)
class _Piece:
    """Some edges of a graph, which are used like a graph to compute scores.

    Attributes:
      ids: the receiver of each edge, ``num_rows`` of the whole graph in padding slots.
      senders: the sender of each edge; the number of columns of the whole graph in padding slots.
      real: mask of the edges that are not padding.
      slots: edge slot of each edge in the whole graph.
      start: the first edge slot.
    """

    ids: Int[Array, " size"]
    senders: Int[Array, " size"]
    real: Bool[Array, " size"]
    slots: Int[Array, " size"]
    start: Int[Array, ""]

    @property
    def num_edges(self) -> int:
        """Number of edges of the piece, padding included."""
        return self.ids.shape[0]

    @property
    def num_rows(self) -> int:
        """Number of rows, one for each edge."""
        return self.num_edges

    @property
    def indices(self) -> Int[Array, " size"]:
        """The column of each edge, which is its own."""
        return jnp.arange(self.num_edges)

    def receivers(self) -> Int[Array, " size"]:
        """The row of each edge, which is its own; the number of rows in padding slots."""
        return jnp.where(self.real, self.indices, self.num_edges)

    def at_receivers(self, array: Array) -> Array:
        """The entry of the receiver of each edge; zero in padding slots."""
        return rows_at(array, self.ids, are_sorted=True)

    def of_edges(self, array: Array) -> Array:
        """The entry of each edge, from an array with an axis of edges."""
        size = self.num_edges
        filled = jnp.concatenate([array, jnp.zeros((size, *array.shape[1:]), array.dtype)])
        return lax.dynamic_slice_in_dim(filled, self.start, size)

    def gathered(self, operands: Operands) -> Operands:
        """The operands of these edges, in the accumulation dtype."""
        found = {"rows": self.at_receivers(operands.rows)}
        for name in (*_OF_SENDERS, *_OF_EDGES):
            array = getattr(operands, name)
            if array is not None and name in _OF_EDGES:
                found[name] = self.of_edges(array)
            elif array is not None:
                found[name] = rows_at(array, self.senders)
        wide = operands.replace(**found, seed=None)
        return jax.tree.map(lambda a: a.astype(accumulation_dtype(a.dtype)), wide)

    def add_gradients(self, sums: Operands, made: Operands) -> Operands:
        """Adds the gradients to the results of ``gathered`` to those of the whole arrays."""
        added = {"rows": self.add_to_rows(sums.rows, made.rows)}
        for name in (*_OF_SENDERS, *_OF_EDGES, *_SHARED):
            whole, part = getattr(sums, name), getattr(made, name)
            if whole is None:
                continue
            if name in _OF_SENDERS:
                added[name] = whole.at[self.senders].add(part, mode="drop")
            elif name in _OF_EDGES:
                added[name] = lax.dynamic_update_slice_in_dim(whole, part, self.start, 0)
            else:
                added[name] = whole + part
        return sums.replace(**added)

    def add_to_rows(self, sums: Array, values: Array) -> Array:
        """Adds numbers of edges to the sums of their receivers, after a sum over each row."""
        is_first = jnp.concatenate([jnp.ones(1, bool), self.ids[1:] != self.ids[:-1]])
        of_row = jnp.cumsum(is_first, dtype=jnp.int32) - 1
        counts = jnp.zeros(self.num_edges, jnp.int32).at[of_row].add(1, indices_are_sorted=True)
        offsets = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])
        rows = self.ids.at[offsets[:-1]].get(mode="fill", fill_value=sums.shape[0])
        return sums.at[rows].add(sum_rows(values, offsets), mode="drop")


def _all_scores(scores, graph, operands, form) -> Float[Array, "edges heads"]:
    """The scores of all edge slots; -inf in padding slots."""

    def write(made, piece):
        some = jnp.where(
            piece.real[:, None], scores(piece, piece.gathered(operands), form), -jnp.inf
        )
        return lax.dynamic_update_slice_in_dim(made, some.astype(made.dtype), piece.start, 0)

    wide = accumulation_dtype(*(a.dtype for a in jax.tree.leaves(operands.replace(seed=None))))
    zeros = _padded(jnp.zeros((graph.num_edges, operands.heads), wide), graph, operands)
    zeros, _ = match_varying(zeros, operands)
    return _in_turn(graph, operands, write, zeros)[: graph.num_edges]


def _in_turn(
    graph: CSRGraph, operands: Operands, step: Callable[[Any, _Piece], Any], start: Any
) -> Any:
    """Passes one piece after the other to ``step``, which returns the next sums."""
    size, edges = _edges_of_piece(graph, operands), graph.num_edges
    ids = jnp.concatenate([graph.receivers(), jnp.full(size, graph.num_rows, graph.indices.dtype)])
    senders = jnp.concatenate([graph.indices, jnp.zeros(size, graph.indices.dtype)])

    def one(i, sums):
        first = i * size
        rows = lax.dynamic_slice_in_dim(ids, first, size)
        real = rows < graph.num_rows
        columns = lax.dynamic_slice_in_dim(senders, first, size)
        columns = jnp.where(real, columns, graph.num_cols)
        return step(sums, _Piece(rows, columns, real, first + jnp.arange(size), first))

    return lax.fori_loop(0, -(-edges // size), one, start)


def _edges_of_piece(graph: CSRGraph, operands: Operands) -> int:
    """The number of edges of a piece, symbolic for an unknown number of edges."""
    widths = [operands.summed.shape[-1], *operands.rows.shape[2:]]
    entries = [operands.heads * width for width in widths]
    most = _OF_UNKNOWN_WIDTH
    if all(isinstance(size, int) for size in entries):
        most = max(1, pieces.ENTRIES // max(1, *entries))
    return jax.core.max_dim(1, jax.core.min_dim(graph.num_edges, most))


def _padded(array: Array | None, graph: CSRGraph, operands: Operands) -> Array | None:
    """An array of edges padded to the end of the last piece, or None."""
    if array is None:
        return None
    room = _edges_of_piece(graph, operands), *array.shape[1:]
    return jnp.concatenate([array, jnp.zeros(room, array.dtype)])
