"""The common part of all attention, in plain JAX: softmax of scores over a row, weighted sum.

``scores(graph, operands, form)`` returns one score for each edge slot and head, [E, H]; each op has
its own. The rest is here: the softmax, dropout, the weighted sum, and their gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import match_varying
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._attention.reference import dropout
from jaxgnn.ops._attention.reference.ends import (
    Edges,
    at_columns,
    at_rows,
    of_real_edges,
    repeat_groups,
)
from pallas_kernels.arguments.attention import Cotangents, Form, Operands

Scores = Callable[[Edges, Operands, Form], Float[Array, "edges heads"]]


def forward(
    scores: Scores, graph: CSRGraph, operands: Operands, *, form: Form
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"]]:
    """``y_i = Σ_j p_ij m_ij (v_j + u_ij)`` and ``lse_i = log Σ_j exp(s_ij)``.

    ``p`` is the softmax of the scores over the edges of a row and ``m`` the factor of dropout.
    Rows without edges, and rows whose scores are all -inf, give ``y_i = 0`` and
    ``lse_i = -inf``. Results are in the accumulation dtype.
    """
    probabilities, lse = softmax(graph, scores(graph, operands, form))
    slots = jnp.arange(graph.num_edges)
    factors = probabilities * dropout_factors(slots, operands, form, probabilities.dtype)
    messages = factors[:, :, None] * edge_values(graph, operands)
    return sum_rows(messages, graph.indptr), lse


def softmax(
    graph: CSRGraph, scores: Float[Array, "edges heads"]
) -> tuple[Float[Array, "edges heads"], Float[Array, "rows heads"]]:
    """The softmax over the edges of each row, and the logarithms of the sums of exponentials."""
    rows, num_rows = graph.receivers(), graph.num_rows
    real = (rows < num_rows)[:, None]
    values = jnp.where(real, scores, -jnp.inf)
    # The shift does not change the result, so it need not be differentiated.
    peaks = jax.ops.segment_max(lax.stop_gradient(values), rows, num_rows, indices_are_sorted=True)
    peaks = jnp.where(peaks == -jnp.inf, 0, peaks)
    exponentials = jnp.exp(values - at_rows(graph, peaks))
    sums = sum_rows(exponentials, graph.indptr)
    empty = sums == 0
    divisors = jnp.where(empty, 1, sums)
    lse = jnp.where(empty, -jnp.inf, peaks + jnp.log(divisors))
    return exponentials / at_rows(graph, divisors, padding=1), lse


def weights(
    scores: Scores,
    graph: CSRGraph,
    operands: Operands,
    lse: Float[Array, "rows heads"],
    *,
    form: Form,
) -> Float[Array, "edges heads"]:
    """``p_ij m_ij``, the factor of the values of the senders; zero in padding slots."""
    made = probabilities(graph, scores(graph, operands, form), lse)
    return made * dropout_factors(jnp.arange(graph.num_edges), operands, form, made.dtype)


def backward(
    scores: Scores, graph: CSRGraph, operands: Operands, cotangents: Cotangents, *, form: Form
) -> Operands:
    """The gradients of all operands.

    ``ds`` is pulled back through the scores, and ``dy`` through the sums, whose weights are known.
    With ``p`` the softmax and ``m`` dropout's factor,
    ``ds = p (m (⟨dy_i, v_j + u_ij⟩ + dw) - δ_i)``.
    """
    shares = probabilities(graph, scores(graph, operands, form), cotangents.lse)
    dtype = shares.dtype
    factors = dropout_factors(jnp.arange(graph.num_edges), operands, form, dtype)
    dy = cotangents.dy.astype(dtype)
    dweights = jnp.sum(at_rows(graph, dy) * edge_values(graph, operands), axis=-1)
    if cotangents.dweights is not None:
        dweights = dweights + of_real_edges(graph, cotangents.dweights).astype(dtype)
    dscores = shares * (factors * dweights - at_rows(graph, cotangents.delta.astype(dtype)))
    dscores, dy = match_varying(of_real_edges(graph, dscores), dy)

    def scores_and_sums(changed):
        messages = (shares * factors)[:, :, None] * edge_values(graph, changed)
        made = scores(graph, changed, form), sum_rows(messages, graph.indptr)
        # Inside shard_map the sums over no edges would not vary over the mesh, as their gradients.
        return match_varying(*made, dy)[:2]

    _, pull_back = jax.vjp(scores_and_sums, operands.replace(seed=None))
    (gradients,) = pull_back((dscores, dy))
    return gradients


def edge_values(graph: Edges, operands: Operands) -> Float[Array, "edges heads dim"]:
    """The summed values: those of the sender, and those that the edge adds, [E, H, Dv]."""
    values = at_columns(graph, operands.summed, operands.heads)
    if operands.edge_values is None:
        return values
    added = of_real_edges(graph, operands.edge_values)
    return values + repeat_groups(added, operands.heads).astype(values.dtype)


def probabilities(
    graph: Edges, values: Float[Array, "edges heads"], lse: Float[Array, "rows heads"]
) -> Float[Array, "edges heads"]:
    """The softmax of scores whose sums of exponentials are known; zero in padding slots."""
    real = (graph.receivers() < graph.num_rows)[:, None]
    # A row of only -inf has the logarithm -inf: shifted by zero it is exp(-inf) = 0.
    shifts = at_rows(graph, jnp.where(lse == -jnp.inf, 0, lse).astype(values.dtype))
    return jnp.exp(jnp.where(real, values, -jnp.inf) - shifts)


def dropout_factors(
    slots: Int[Array, " edges"], operands: Operands, form: Form, dtype
) -> Float[Array, "..."]:
    """Zero where dropout drops an edge for a head, else the scale of the others."""
    if operands.seed is None:
        return jnp.ones((), dtype)
    kept = dropout.kept(operands.seed, slots, operands.heads, form.dropped)
    return jnp.where(kept, jnp.asarray(form.kept_scale, dtype), 0)
