"""The passes of attention over neighbours, which the ops call for their own scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.arguments.attention import Cotangents, Form, Operands
from pallas_kernels.attention import backward
from pallas_kernels.attention import forward as forward_kernels
from pallas_kernels.attention.neighbours import Edges, Plan
from pallas_kernels.attention.scores import Dot, Gat, GatV2, Rule
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
        """Returns the requirement that the operands do not meet, or None if they are supported."""
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
        plan = self._plan(graph, operands, form, tile, _work_forward(operands))
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
        """Computes the weights of the values, dropout included.

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
        # The weights do not depend on the values.
        operands = operands.replace(edge_values=None)
        plan = self._plan(graph, operands, form, tile, _work_forward(operands))
        arrays = _flat(operands).replace(values=None), _stats(lse, jnp.zeros_like(lse))
        return weights(plan, _edges(graph, operands), *arrays, f"{self.name}_weights")

    def backward(
        self,
        graph: Pieces,
        transposed: Pieces,
        slots: jax.Array,
        operands: Operands,
        cotangents: Cotangents,
        form: Form,
        tile: AttentionTile | None = None,
    ) -> Operands:
        """Computes the gradients, except those of the features of edges and of their linear map.

        Args:
          graph: rows are receivers, columns are senders; its weights and scales are not used.
          transposed: the transposed graph: rows are senders, columns are receivers.
          slots: the edge slot of the graph that each edge of the transposed graph is, [edges].
          operands: the arrays of the call.
          cotangents: the other arguments of the backward pass.
          form: the constants of the call.
          tile: how the work is divided; chosen by the shapes if None.

        Returns:
          The gradients, each of the dtype of its operand; those of arrays of edges are zero in
          padding slots. If edges have features, two are in float32: ``edge_logits``, which is there
          in any case as the gradient to what edges add to the scores, and ``attention``, which
          lacks the part of the features.
        """
        if graph.num_rows == 0 or graph.num_edges == 0:
            return jax.tree.map(jnp.zeros_like, operands.replace(seed=None))
        dy, stats = _flat_array(cotangents.dy), _stats(cotangents.lse, cotangents.delta)
        arrays = _flat(operands), dy, stats
        plan = self._plan(graph, operands, form, tile, _work_along_rows(operands))
        edges = _edges(graph, operands, cotangents)
        dtype = operands.rows.dtype
        of_rows = backward.along_rows(plan, edges, *arrays, f"{self.name}_backward_rows", dtype)
        plan = self._plan(transposed, operands, form, tile, _work_along_columns(operands))
        edges = _edges(transposed, operands, cotangents, slots)
        of_columns = backward.along_columns(plan, edges, *arrays, f"{self.name}_backward_columns")
        made = of_rows | of_columns
        vector = operands.attention
        if vector is not None:
            made["attention"] = (of_rows["attention"] + of_columns["attention"]).reshape(
                vector.shape
            )
        # Gradients that lack a part are not rounded yet.
        exact = () if operands.edge_features is None else ("edge_logits", "attention")
        whole = {
            name: gradient if name in exact else _of_groups(gradient, getattr(operands, name))
            for name, gradient in made.items()
        }
        return Operands(**whole)

    def _plan(
        self,
        graph: Pieces,
        operands: Operands,
        form: Form,
        tile: AttentionTile | None,
        work: Work,
    ) -> Plan:
        if tile is None:
            rows, nodes = graph.num_rows, operands.rows.shape[0] + operands.columns.shape[0]
            shape = rows, nodes - rows, graph.num_edges
            tile = AttentionTile.choose(Chip.current(), *shape, work)
        return Plan.of(self.rule(form), form, tile, operands)


PASSES = {
    passes.name: passes
    for passes in (
        Passes("dot_attention", lambda form: Dot(form.scale)),
        Passes("gat_attention", lambda form: Gat(form.slope)),
        Passes("gatv2_attention", lambda form: GatV2(form.slope)),
    )
}
"""The kernels of each op, by its name."""


def _work_forward(operands: Operands) -> Work:
    """Work of the forward pass: reads senders, and keeps the receiver's numbers and the sums."""
    wide, vector = operands.rows.ndim == 3, operands.attention is not None
    arrays = (1 if operands.values is None else 1 + wide) + (operands.edge_values is not None)
    return _work(operands, arrays, own=1 + wide + vector, loads=1)


def _work_along_rows(operands: Operands) -> Work:
    """Work of the backward pass along the rows, which reads senders.

    It keeps the receiver's numbers, the gradient to its sums, and the gradient to its numbers.
    """
    wide, vector = operands.rows.ndim == 3, operands.attention is not None
    arrays = (1 if operands.values is None else 1 + wide) + (operands.edge_values is not None)
    return _work(operands, arrays, own=1 + 2 * wide + vector, loads=2)


def _work_along_columns(operands: Operands) -> Work:
    """Work of the backward pass along the columns: reads receivers and their gradients.

    It keeps the sender's numbers and values, and the gradients to both.
    """
    wide, vector = operands.rows.ndim == 3, operands.attention is not None
    arrays = 1 + wide + (operands.edge_values is not None)
    own = 2 * wide + 1 + (operands.values is not None) + vector
    return _work(operands, arrays, own, loads=2)


def _work(operands: Operands, arrays: int, own: int, loads: int) -> Work:
    """Returns the work; the widest array determines the lanes, and its entries the registers."""
    wide = [a for a in (operands.columns, operands.summed) if a.ndim == 3]
    widest = max(wide, key=lambda array: array.shape[2])
    return Work(operands.heads, widest.shape[2], widest.dtype.itemsize, arrays, own, loads)


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
    values, features = operands.edge_values, operands.edge_features
    indexed = (
        operands.edge_logits,
        None if values is None else _flat_array(values),
        features,
        dweights,
        operands.seed,
    )
    if all(array is None for array in indexed):
        slots = None
    bare = dataclasses.replace(graph, weights=None, row_scale=None, col_scale=None)
    return Edges(bare, slots, *indexed)


def _flat(operands: Operands) -> Operands:
    """Returns the arrays of the ends and of all edges, with heads and columns in one axis."""
    attention, kernel = operands.attention, operands.edge_kernel
    return Operands(
        _flat_array(operands.rows).astype(_dtype_of_rows(operands)),
        _flat_array(operands.columns),
        None if operands.values is None else _flat_array(operands.values),
        attention=None if attention is None else attention.reshape(1, -1),
        edge_kernel=None if kernel is None else _flat_array(kernel),
    )


def _dtype_of_rows(operands: Operands) -> Any:
    """Returns the dtype in which kernels read what receivers give to the scores."""
    return operands.columns.dtype if operands.rows.ndim == 3 else operands.rows.dtype


def _flat_array(array: jax.Array) -> jax.Array:
    return array.reshape(array.shape[0], -1)


def _stats(lse: jax.Array, delta: jax.Array) -> jax.Array:
    """Returns ``lse``, zero where it is -inf, and ``delta`` as neighbours, [rows, 2 * heads]."""
    pairs = jnp.stack([jnp.where(lse == -jnp.inf, 0.0, lse), delta], axis=-1)
    return _flat_array(pairs.astype(jnp.float32))


def _of_groups(gradient: jax.Array, operand: jax.Array) -> jax.Array:
    """Sums the gradient over the heads that share a head of the operand, in its shape and dtype."""
    if gradient.size == operand.size:
        return gradient.reshape(operand.shape).astype(operand.dtype)
    nodes, groups, width = operand.shape
    return gradient.reshape(nodes, groups, -1, width).sum(axis=2).astype(operand.dtype)
