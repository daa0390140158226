"""Calls of the Mosaic GPU kernels of attention over neighbours.

The docstring of ``jaxgnn/ops/_attention/kernels.py`` describes what the kernels compute. Two
gradients are completed here: those of arrays of edges that have an axis for heads and columns
elsewhere. They are products of matrices, cut into pieces of the edges, so that no array has both
axes at full length.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph import pieces as edge_pieces
from jaxgnn.ops._graph.edge_products import add_heads
from jaxgnn.ops._graph.pallas import pieces
from jaxgnn.ops.core.pallas_call import compiled, vary_like
from pallas_kernels.arguments.attention import Cotangents, Form, Operands

if TYPE_CHECKING:
    from pallas_kernels.attention.passes import Passes

_call = partial(compiled, static_argnums=0, static_argnames="form")


def limits(op: str, graph: CSRGraph, operands: Operands, *rest: Any, form: Form) -> str | None:
    """The reason why the kernels of an op can not run these operands, or None."""
    del graph, rest, form
    return _passes(op).unsupported(operands)


@_call
def forward(
    op: str, graph: CSRGraph, operands: Operands, *, form: Form
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"]]:
    """The weighted sums and the logarithms of the sums of exponentials, in float32."""
    made = _passes(op).forward(pieces(graph), operands, form)
    return jax.tree.map(partial(vary_like, operands.summed), made)


@_call
def weights(
    op: str, graph: CSRGraph, operands: Operands, lse: Float[Array, "rows heads"], *, form: Form
) -> Float[Array, "edges heads"]:
    """The factor of the values of each edge slot, in float32."""
    return vary_like(operands.summed, _passes(op).weights(pieces(graph), operands, lse, form))


@_call
def backward(
    op: str, graph: CSRGraph, operands: Operands, cotangents: Cotangents, *, form: Form
) -> Operands:
    """The gradients, each of the dtype of its operand."""
    kernels, edges = _passes(op), pieces(graph)
    transposed, slots = pieces(graph.transpose()), graph.made_plan().permutation
    made = kernels.backward(edges, transposed, slots, operands, cotangents, form)
    if operands.edge_features is not None and graph.num_rows * graph.num_edges:
        made = add_edge_features(form, graph, operands, made)
    values = operands.edge_values
    if values is not None and made.edge_values is None:
        factors, dy = kernels.weights(edges, operands, cotangents.lse, form), cotangents.dy
        shared = to_shared_values(graph, factors, dy.astype(jnp.float32), values.shape[1])
        made = made.replace(edge_values=shared.astype(values.dtype))
    return jax.tree.map(partial(vary_like, operands.summed), made)


def _passes(op: str) -> Passes:
    from pallas_kernels.attention.passes import PASSES

    return PASSES[op]


def to_shared_values(
    graph: CSRGraph,
    weights: Float[Array, "edges heads"],
    dy: Float[Array, "rows heads dim"],
    groups: int,
) -> Float[Array, "edges groups dim"]:
    """The gradient to values of edges that some heads share: ``Σ_h p_h dy_h`` of each group.

    A warp has some heads only, so the kernels would write an array for all heads. Here the weights
    are computed again, and the heads are added one after the other.
    """
    by_group = (a.reshape(a.shape[0], groups, -1, *a.shape[2:]) for a in (weights, dy))
    return jax.vmap(partial(add_heads, graph), in_axes=(1, 1), out_axes=1)(*by_group)


class _Piece(NamedTuple):
    """Some edge slots: their ends, features, and the gradients to their scores before the sum."""

    receivers: Int[Array, " edges"]
    senders: Int[Array, " edges"]
    features: Float[Array, "edges features"]
    dtotals: Float[Array, "edges heads"]


def add_edge_features(
    form: Form, graph: CSRGraph, operands: Operands, gradients: Operands
) -> Operands:
    """Returns the gradients, completed by the parts of the features of edges.

    With ``t = x_i + z_j + W e`` and ``G = ds leaky_relu'(t)``, which has an entry for each edge,
    head and column, the gradient to ``e`` is ``W^T (a G)``, that to ``W`` is ``a Σ G e``, and the
    part of ``W e`` in that to ``a`` is ``Σ G W e``, since ``leaky_relu(t) = leaky_relu'(t) t``.

    Members of a batch are processed one after the other.

    Args:
      form: constants of the call.
      graph: the graph, with edges.
      operands: the arrays of the call.
      gradients: those of the kernels. ``edge_logits`` is the gradient ``ds`` to what edges add to
        the scores, in float32, which is zero in padding slots; ``attention`` is in float32 too.
    """
    arrays = operands.replace(seed=None)
    return sequential_vmap(partial(_add_edge_features, form))(graph, arrays, gradients)


def _add_edge_features(form, graph, operands, gradients):
    dtotals, logits = gradients.edge_logits, operands.edge_logits
    assert dtotals is not None
    kernel = operands.edge_kernel.astype(jnp.float32)
    attention = operands.attention.astype(jnp.float32)
    heads, width = attention.shape
    size = edge_pieces.edges_of_piece(graph.num_edges, heads * width)
    ends = graph.receivers(), graph.indices, operands.edge_features, dtotals
    cut = _Piece(*(edge_pieces.cut(array, size) for array in ends))

    def add(sums, piece):
        features = piece.features.astype(jnp.float32)
        # Values in padding slots are ignored.
        features = jnp.where((piece.receivers < graph.num_rows)[:, None], features, 0)
        term = jnp.einsum("ef,fhd->ehd", features, kernel, precision="highest")
        ends = (operands.rows, piece.receivers), (operands.columns, piece.senders)
        total = term + sum(x.at[i].get(mode="clip").astype(jnp.float32) for x, i in ends)
        slopes = jnp.where(total >= 0, 1.0, form.slope) * piece.dtotals[:, :, None]
        sums = sums + jnp.einsum("ef,ehd->fhd", features, slopes, precision="highest")
        to_features = jnp.einsum("ehd,fhd->ef", slopes * attention, kernel, precision="highest")
        return sums, to_features

    zeros = jnp.zeros_like(kernel) + 0.0 * jnp.sum(cut.dtotals[0, :0])
    sums, to_features = lax.scan(add, zeros, cut)
    to_features = to_features.reshape(-1, kernel.shape[0])[: graph.num_edges]
    of_term = jnp.sum(kernel * sums, axis=0)
    return gradients.replace(
        edge_features=to_features.astype(operands.edge_features.dtype),
        edge_kernel=(attention * sums).astype(operands.edge_kernel.dtype),
        attention=(gradients.attention + of_term).astype(operands.attention.dtype),
        edge_logits=None if logits is None else dtotals.astype(logits.dtype),
    )
