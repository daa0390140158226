"""Softmax over the edges of each row, in plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.masked_graph import log_presence
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype


def segment_softmax(
    graph: CSRGraph, logits: Float[Array, "edges heads"]
) -> Float[Array, "edges heads"]:
    """``exp(l_e) / Σ exp(l_e')`` over the edges of a row; zero in padding slots."""
    rows, num_rows = graph.receivers(), graph.num_rows
    real = (rows < num_rows)[:, None]
    values = logits.astype(accumulation_dtype(logits.dtype))
    # The shift does not change the result, so it need not be differentiated.
    peaks = jax.ops.segment_max(lax.stop_gradient(values), rows, num_rows, indices_are_sorted=True)
    # A row of only -inf would give inf - inf: shifted by zero it is 0 / 0, as in jax.nn.softmax.
    peaks = jnp.where(peaks == -jnp.inf, 0, peaks)
    shifted = values - _spread(peaks, rows, 0)
    exponentials = jnp.where(real, jnp.exp(jnp.where(real, shifted, 0)), 0)
    sums = sum_rows(exponentials, graph.indptr)
    return (exponentials / _spread(sums, rows, 1)).astype(logits.dtype)


def masked_softmax(
    graph: CSRGraph, logits: Float[Array, "edges heads"], presence: Float[Array, " edges"]
) -> Float[Array, "edges heads"]:
    """``r m_e exp(l_e) / Σ m_e' exp(l_e')`` for edges of presence m, with r from ``row_presence``.

    It is zero in rows where all m are zero.
    """
    rows, num_rows = graph.receivers(), graph.num_rows
    wide = accumulation_dtype(logits.dtype)
    presence = presence.astype(wide)
    values = logits.astype(wide) + log_presence(presence)[:, None]
    peaks = jax.ops.segment_max(lax.stop_gradient(values), rows, num_rows, indices_are_sorted=True)
    shifted = values - _spread(jnp.where(peaks == -jnp.inf, 0, peaks), rows, 0)
    is_there = (presence > 0)[:, None]
    exponentials = jnp.where(is_there, jnp.exp(jnp.where(is_there, shifted, 0)), 0)
    sums = sum_rows(exponentials, graph.indptr)
    shares = exponentials / _spread(jnp.where(sums > 0, sums, 1), rows, 1)
    squares = sum_rows(shares * presence[:, None], graph.indptr)
    return (shares * _spread(squares, rows, 0)).astype(logits.dtype)


def grad_logits(
    graph: CSRGraph, probabilities: Float[Array, "edges heads"], dy: Float[Array, "edges heads"]
) -> Float[Array, "edges heads"]:
    """``p_e (dy_e - Σ p_e' dy_e')`` over the edges of a row."""
    rows, accumulator = graph.receivers(), accumulation_dtype(dy.dtype)
    weighted = probabilities.astype(accumulator) * dy.astype(accumulator)
    sums = sum_rows(weighted, graph.indptr)
    return (weighted - probabilities.astype(accumulator) * _spread(sums, rows, 0)).astype(dy.dtype)


def _spread(per_row: Float[Array, "rows heads"], rows: Int[Array, " edges"], padding: float):
    """The value of each edge's row. Rows ascend, so that the gradient is a sorted sum."""
    return rows_at(per_row, rows, padding, are_sorted=True)
