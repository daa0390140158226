"""Attention composed of ops along edges, for its derivatives of second and higher order.

The kernels of attention are one pass for scores, softmax and sums, and JAX can not differentiate
them. Here the same function is composed of steps that can be differentiated any number of times:
inner products along the edges, a softmax of [E, H], and weighted sums of rows. The gradients of
these steps are steps of the same kinds. So a derivative of any order uses their kernels, and no
array of edges times heads times columns. (GATv2's scores have no kernels: they are computed in
pieces of the edges.)

All arrays are in the accumulation dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention.reference import gatv2_attention, softmax_sum
from jaxgnn.ops._attention.reference.ends import leaky_relu, of_real_edges
from jaxgnn.ops._graph import pieces
from jaxgnn.ops._graph.edge_products import (
    inner_products,
    products_with_edges,
    sums_of_edges,
    weighted_sums,
)
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.attention import Form, Operands

Scores = Callable[[dispatch.Request, CSRGraph, Operands, Form], Float[Array, "edges heads"]]
"""Returns one score for each edge slot and head; in padding slots any finite number."""


def attention_by_formula(
    scores: Scores, request: dispatch.Request, graph: CSRGraph, operands: Operands, form: Form
) -> tuple[Float[Array, "rows heads dim"], Float[Array, "rows heads"], Float[Array, "edges heads"]]:
    """The sums, the logarithms of the sums of exponentials, and the weights.

    Args:
      scores: scores of the op.
      request: implementation of the steps.
      graph: without weights and scales.
      operands: arrays without batch axes.
      form: constants of the call.
    """
    probabilities, lse = _softmax(request, graph, scores(request, graph, operands, form))
    slots = jnp.arange(graph.num_edges)
    factors = softmax_sum.dropout_factors(slots, operands, form, probabilities.dtype)
    weights = probabilities * factors
    values = _by_head(operands.summed, operands.heads, weights.dtype)
    y = weighted_sums(request, graph, weights, values)
    if operands.edge_values is not None:
        of_edges = partial(sums_of_edges, request, graph)
        y = y + sum_by_group(of_edges, weights, operands.edge_values.astype(weights.dtype))
    # Stops gradients of padding slots, which may be NaN.
    return y, lse, of_real_edges(graph, weights)


def sum_by_group(
    sums: Callable[[Array, Any], Array], weights: Float[Array, "edges heads"], values: Any
) -> Float[Array, "rows heads dim"]:
    """The sums of each head, over the values of its group; axis 1 of ``values`` has the groups.

    Args:
      sums: from the weights of the heads of one group, [E, heads of a group], and its values to
        its sums, [N, heads of a group, Dv].
      weights: weights of all heads.
      values: pytree of arrays whose second axis is that of the groups.
    """
    groups = jax.tree.leaves(values)[0].shape[1]
    edges, heads = weights.shape
    of_groups = weights.reshape(edges, groups, heads // groups)
    y = jax.vmap(sums, in_axes=(1, 1), out_axes=1)(of_groups, values)
    return y.reshape(y.shape[0], heads, y.shape[-1])


def gat_scores(
    request: dispatch.Request, graph: CSRGraph, operands: Operands, form: Form
) -> Float[Array, "edges heads"]:
    """``s_ij = leaky_relu(a_i + c_j + b_ij)``."""
    rows, columns = (_wide(array) for array in (operands.rows, operands.columns))
    left = jnp.stack([rows, jnp.ones_like(rows)], axis=-1)
    right = jnp.stack([jnp.ones_like(columns), columns], axis=-1)
    sums = inner_products(request, graph, left, right)
    return leaky_relu(_with_logits(graph, sums, operands), form.slope)


def dot_scores(
    request: dispatch.Request, graph: CSRGraph, operands: Operands, form: Form
) -> Float[Array, "edges heads"]:
    """``s_ij = scale ⟨q_i, k_j⟩ + b_ij``."""
    queries = form.scale * _wide(operands.rows)
    keys = _by_head(operands.columns, operands.heads, queries.dtype)
    return _with_logits(graph, inner_products(request, graph, queries, keys), operands)


def gatv2_scores(
    request: dispatch.Request, graph: CSRGraph, operands: Operands, form: Form
) -> Float[Array, "edges heads"]:
    """``s_ij = ⟨a, leaky_relu(x_i + z_j + W e_ij)⟩ + b_ij``, in plain JAX.

    Raises:
      NotImplementedError: if results have to be reproducible on a GPU: gradients are scatters.
    """
    scores = _GATV2_SCORES(request._replace(name="xla"), graph, operands, form=form)
    return _with_logits(graph, scores, operands)


def _gatv2_scores(graph, operands, *, form):
    """The scores without logits, one piece of the edges after the other."""
    ends = operands.rows, operands.columns
    _, heads, dim = operands.rows.shape
    size = pieces.edges_of_piece(graph.num_edges, heads * dim, graph.shape)
    cut = pieces.Cut(size, graph.num_edges)
    slots = cut.padded(graph.receivers(), graph.num_rows), cut.padded(graph.indices)
    features = operands.edge_features
    if features is not None:
        features = cut.padded(_wide(of_real_edges(graph, features)))
    shared = jax.tree.map(_wide, (*ends, operands.attention, operands.edge_kernel))
    _, made = pieces.in_turn(partial(_gatv2_piece, form), cut, slots, shared, features)
    return made[: graph.num_edges]


def _gatv2_piece(form, slots, shared, features):
    """The scores of some edges, without logits; there is nothing to add up."""
    (receivers, senders), (rows, columns, attention, kernel) = slots, shared
    sums = rows.at[receivers].get(mode="clip") + columns.at[senders].get(mode="clip")
    # Values at the ends of padding slots are ignored.
    sums = jnp.where((receivers < rows.shape[0])[:, None, None], sums, 0)
    return (), gatv2_attention.of_sums(sums, features, attention, kernel, form.slope)


_GATV2_SCORES = dispatch.Kernel("gatv2_attention", {"xla": dispatch.xla(_gatv2_scores)})


def _softmax(
    request: dispatch.Request, graph: CSRGraph, scores: Float[Array, "edges heads"]
) -> tuple[Float[Array, "edges heads"], Float[Array, "rows heads"]]:
    """The softmax over the edges of each row, zero where it is masked, and the logarithm of sums.

    Sums of rows, and reads of the number of an edge's row, are products of each head with a one for
    each edge. So both have kernels, and are the gradients of each other.
    """
    ones, _ = dispatch.match_varying(jnp.ones((graph.num_edges, 1), scores.dtype), scores)
    masked = scores == -jnp.inf
    rows, num_rows = graph.receivers(), graph.num_rows
    # The shift does not change the result, so it need not be differentiated.
    fixed = lax.stop_gradient(scores)
    peaks = jax.ops.segment_max(fixed, rows, num_rows, indices_are_sorted=True)
    peaks = jnp.where(peaks == -jnp.inf, 0, peaks)
    shifts = products_with_edges(request, graph, peaks[:, :, None], ones)
    exponentials = jnp.where(masked, 0, jnp.exp(jnp.where(masked, 0, scores - shifts)))
    sums = sums_of_edges(request, graph, exponentials, ones)
    empty = sums == 0
    divisors = jnp.where(empty, 1, sums)
    probabilities = exponentials * products_with_edges(request, graph, 1 / divisors, ones)
    lse = jnp.where(empty[:, :, 0], -jnp.inf, peaks + jnp.log(divisors[:, :, 0]))
    return probabilities, lse


def _by_head(array: Float[Array, "cols groups *rest"], heads: int, dtype) -> Array:
    """The values of a group of heads once for each of its heads, [M, H, ...]."""
    return jnp.repeat(array.astype(dtype), heads // array.shape[1], axis=1)


def _with_logits(
    graph: CSRGraph, scores: Float[Array, "edges heads"], operands: Operands
) -> Float[Array, "edges heads"]:
    if operands.edge_logits is None:
        return scores
    return scores + of_real_edges(graph, operands.edge_logits).astype(scores.dtype)


def _wide(array: Array) -> Array:
    return array.astype(accumulation_dtype(array.dtype))
