"""Messages of an MLP over both ends of each edge, and their reduction, in plain JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._core.activations import Name
from jaxgnn.ops._core.dtypes import accumulation_dtype
from jaxgnn.ops._dense.reference.fused_mlp import fused_mlp

Reduce = Literal["sum", "mean", "max"]
"""Reduction of the messages of a node."""


def edge_mlp_aggregate(
    graph: CSRGraph,
    receivers: Float[Array, "rows r"],
    senders: Float[Array, "cols s"],
    kernels: Sequence[Array],
    biases: Sequence[Array | None],
    edge_features: Float[Array, "edges e"] | None,
    weights: Float[Array, " edges"] | None,
    *,
    reduce: Reduce,
    activation: Name | None,
) -> Float[Array, "rows out"]:
    """``y_i = reduce_j w_ij mlp([receivers_i ; senders_j ; e_ij])``, zero where there is no j.

    The mean is ``Σ_j w_ij m_ij / Σ_j w_ij``, zero where that sum is not positive. The graph's own
    weights and scales are ignored.
    """
    rows, num_rows = graph.receivers(), graph.num_rows
    real = rows < num_rows
    # Padding slots are undefined: they read zeros.
    columns = jnp.where(real, graph.indices, graph.num_cols)
    inputs = [_rows_of(receivers, rows), _rows_of(senders, columns)]
    if edge_features is not None:
        inputs.append(jnp.where(real[:, None], edge_features, 0))
    x = jnp.concatenate(inputs, axis=-1)
    messages = fused_mlp(x, kernels, biases, activation=activation, precision=None)
    messages = messages.astype(accumulation_dtype(x.dtype))
    if weights is None:
        weights = jnp.ones(graph.num_edges, messages.dtype)
    weights = jnp.where(real, weights, 0).astype(messages.dtype)
    messages = messages * weights[:, None]
    if reduce == "max":
        largest = jax.ops.segment_max(messages, rows, num_rows, indices_are_sorted=True)
        return jnp.where(graph.degrees()[:, None] > 0, largest, 0).astype(x.dtype)
    sums = sum_rows(messages, graph.indptr)
    if reduce == "mean":
        totals = sum_rows(weights, graph.indptr)[:, None]
        positive = totals > 0
        sums = jnp.where(positive, sums / jnp.where(positive, totals, 1), 0)
    return sums.astype(x.dtype)


def _rows_of(x: Float[Array, "n d"], nodes: Array) -> Float[Array, "edges d"]:
    """The row of each edge's node, zeros where the node is out of range."""
    return jnp.asarray(x).at[nodes].get(mode="fill", fill_value=0)
