"""Gradients to the features of edges of GATv2, and to their linear map, some edges at a time.

They are products of matrices, which have an axis for the edges and one for heads and columns. The
first is cut into pieces, so that no array has both axes at full length.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph import pieces
from pallas_kernels.attention.arguments import Form, Operands


class _Piece(NamedTuple):
    """Some edge slots: their ends, features, and the gradients to their scores before the sum."""

    receivers: Int[Array, " edges"]
    senders: Int[Array, " edges"]
    features: Float[Array, "edges features"]
    dtotals: Float[Array, "edges heads"]


def completed(form: Form, graph: CSRGraph, operands: Operands, gradients: Operands) -> Operands:
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
    return sequential_vmap(partial(_completed, form))(graph, arrays, gradients)


def _completed(form, graph, operands, gradients):
    dtotals, logits = gradients.edge_logits, operands.edge_logits
    assert dtotals is not None
    kernel = operands.edge_kernel.astype(jnp.float32)
    attention = operands.attention.astype(jnp.float32)
    heads, width = attention.shape
    size = pieces.edges_of_piece(graph.num_edges, heads * width)
    ends = graph.receivers(), graph.indices, operands.edge_features, dtotals
    cut = _Piece(*(pieces.cut(array, size) for array in ends))

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
