"""The passes of attention over neighbours, which the ops call for their own scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels.attention import backward
from pallas_kernels.attention import forward as forward_kernels
from pallas_kernels.attention.arguments import (
    ColumnGradients,
    Cotangents,
    Form,
    Operands,
    RowGradients,
)
from pallas_kernels.attention.neighbours import Edges, Plan
from pallas_kernels.attention.scores import Rule
from pallas_kernels.attention.tile import AttentionTile, Work
from pallas_kernels.attention.weights import weights
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Pieces

MOST_COLUMNS = 1024
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Passes:
    """The kernels of one op.

    Attributes:
      name: name of the op.
      rule: makes the op's rule from the constants of a call.
    """

    name: str
    rule: Callable[[Form], Rule]

    def unsupported(self, operands: Operands) -> str | None:
        """Returns what these kernels lack for the operands, or None if they take them."""
        for name in ("edge_values", "edge_features"):
            if getattr(operands, name) is not None:
                return f"{name} is None"
        ends = (operands.rows, operands.columns, operands.summed)
        for array in ends:
            if array.dtype.name not in _DTYPES:
                return f"arrays of {', '.join(_DTYPES)}, got {array.dtype}"
        width = max(array.shape[2] for array in ends if array.ndim == 3)
        if operands.heads * width > MOST_COLUMNS:
            got = f"{operands.heads} heads of {width}"
            return f"at most {MOST_COLUMNS} columns of all heads together, got {got}"
        return None

    def forward(
        self, graph: Pieces, operands: Operands, form: Form, tile: AttentionTile | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the weighted sums and the logarithms of the sums of exponentials.

        Args:
          graph: rows are receivers, columns are senders; its weights and scales are not used.
          operands: the arrays of the call.
          form: its constants.
          tile: how the work is divided; chosen by the shapes if None.

        Returns:
          [rows, heads, width] and [rows, heads], both float32: zero and -inf for rows that attend
          to nothing.
        """
        rows, heads, width = graph.num_rows, operands.heads, _width(operands)
        if rows == 0 or graph.num_edges == 0:
            empty = jnp.full((rows, heads), -jnp.inf, jnp.float32)
            return jnp.zeros((rows, heads, width), jnp.float32), empty
        gathered = 1 if operands.values is None else 1 + (operands.columns.ndim == 3)
        plan = self._plan(graph, operands, form, tile, operands.summed.shape[0], gathered)
        edges = _edges(graph, operands)
        y, lse = forward_kernels.forward(plan, edges, _flat(operands), self.name)
        return y.reshape(rows, heads, width), lse

    def weights(
        self,
        graph: Pieces,
        operands: Operands,
        lse: jax.Array,
        form: Form,
        tile: AttentionTile | None = None,
    ) -> jax.Array:
        """Computes what the values are multiplied with, dropout included.

        Args:
          graph: rows are receivers, columns are senders; its weights and scales are not used.
          operands: the arrays of the call.
          lse: logarithms of the sums of exponentials, [rows, heads], from ``forward``.
          form: the constants of the call.
          tile: how the work is divided; chosen by the shapes if None.

        Returns:
          [edges, heads] float32, zero in padding slots.
        """
        if graph.num_rows == 0 or graph.num_edges == 0:
            return jnp.zeros((graph.num_edges, operands.heads), jnp.float32)
        plan = self._plan(graph, operands, form, tile, operands.summed.shape[0], 1)
        arrays = _flat(operands).replace(values=None), _stats(lse, jnp.zeros_like(lse))
        return weights(plan, _edges(graph, operands), *arrays, f"{self.name}_weights")

    def backward_rows(
        self,
        graph: Pieces,
        operands: Operands,
        cotangents: Cotangents,
        form: Form,
        tile: AttentionTile | None = None,
    ) -> RowGradients:
        """Computes the gradients of what receivers, edges, and all edges together give.

        Args:
          graph: rows are receivers, columns are senders; its weights and scales are not used.
          operands: the arrays of the call.
          cotangents: what the backward pass takes beside them.
          form: the constants of the call.
          tile: how the work is divided; chosen by the shapes if None.

        Returns:
          The gradients, each of the dtype of its operand; that of logits is zero in padding slots.
        """
        given = {"rows": operands.rows, "edge_logits": operands.edge_logits}
        given = {
            k: v for k, v in (given | {"attention": operands.attention}).items() if v is not None
        }
        if graph.num_rows == 0 or graph.num_edges == 0:
            return RowGradients(**{k: jnp.zeros_like(v) for k, v in given.items()})
        gathered = 1 if operands.values is None else 1 + (operands.columns.ndim == 3)
        plan = self._plan(graph, operands, form, tile, operands.summed.shape[0], gathered)
        edges = _edges(graph, operands, cotangents)
        arrays = (
            _flat(operands),
            _flat_array(cotangents.dy),
            _stats(cotangents.lse, cotangents.delta),
        )
        made = backward.along_rows(plan, edges, *arrays, f"{self.name}_backward_rows")
        return RowGradients(
            **{k: made[k].reshape(v.shape).astype(v.dtype) for k, v in given.items()}
        )

    def backward_columns(
        self,
        transposed: Pieces,
        slots: jax.Array,
        operands: Operands,
        cotangents: Cotangents,
        form: Form,
        tile: AttentionTile | None = None,
    ) -> ColumnGradients:
        """Computes the gradients of what senders give.

        Args:
          transposed: the transposed graph: rows are senders, columns are receivers.
          slots: the edge slot of the graph that each edge of the transposed graph is, [edges].
          operands: the arrays of the call.
          cotangents: what the backward pass takes beside them.
          form: the constants of the call.
          tile: how the work is divided; chosen by the shapes if None.

        Returns:
          The gradients, each of the dtype of its operand.
        """
        given = {"columns": operands.columns, "values": operands.values}
        given = {k: v for k, v in given.items() if v is not None}
        if operands.rows.shape[0] == 0 or transposed.num_edges == 0:
            return ColumnGradients(**{k: jnp.zeros_like(v) for k, v in given.items()})
        gathered = 1 + (operands.columns.ndim == 3)
        plan = self._plan(transposed, operands, form, tile, operands.rows.shape[0], gathered)
        edges = _edges(transposed, operands, cotangents, slots)
        arrays = (
            _flat(operands),
            _flat_array(cotangents.dy),
            _stats(cotangents.lse, cotangents.delta),
        )
        made = backward.along_columns(plan, edges, *arrays, f"{self.name}_backward_columns")
        return ColumnGradients(**{k: _of_groups(made[k], v) for k, v in given.items()})

    def _plan(self, graph, operands, form, tile, nodes, gathered) -> Plan:
        if tile is None:
            summed = operands.summed
            work = Work(operands.heads, summed.shape[2], gathered, summed.dtype.itemsize)
            shape = graph.num_rows, nodes, graph.num_edges
            tile = AttentionTile.choose(Chip.current(), *shape, work)
        return Plan.of(self.rule(form), form, tile, operands)


def _width(operands: Operands) -> int:
    return operands.summed.shape[2]


def _edges(
    graph: Pieces,
    operands: Operands,
    cotangents: Cotangents | None = None,
    slots: jax.Array | None = None,
) -> Edges:
    """Returns the arrays of the edges that the call has, without what the kernels do not read."""
    dweights = None if cotangents is None else cotangents.dweights
    indexed = (operands.edge_logits, dweights, operands.seed)
    if all(array is None for array in indexed):
        slots = None
    bare = dataclasses.replace(graph, weights=None, row_scale=None, col_scale=None)
    return Edges(bare, slots, *indexed)


def _flat(operands: Operands) -> Operands:
    """Returns the arrays of the ends with heads and columns in one axis, and no others."""
    attention = operands.attention
    return Operands(
        _flat_array(operands.rows),
        _flat_array(operands.columns),
        None if operands.values is None else _flat_array(operands.values),
        attention=None if attention is None else attention.reshape(1, -1),
    )


def _flat_array(array: jax.Array) -> jax.Array:
    return array.reshape(array.shape[0], -1)


def _stats(lse: jax.Array, delta: jax.Array) -> jax.Array:
    """Returns ``lse``, zero where it is -inf, and ``delta`` as neighbours, [rows, 2 * heads]."""
    pairs = jnp.stack([jnp.where(lse == -jnp.inf, 0.0, lse), delta], axis=-1)
    return _flat_array(pairs.astype(jnp.float32))


def _of_groups(gradient: jax.Array, operand: jax.Array) -> jax.Array:
    """Sums the gradient over the heads that share a head of the operand."""
    if gradient.size == operand.size:
        return gradient.reshape(operand.shape)
    nodes, groups, width = operand.shape
    return gradient.reshape(nodes, groups, -1, width).sum(axis=2).astype(operand.dtype)
