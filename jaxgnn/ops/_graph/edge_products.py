"""Sums over edges and products along them of several heads, with derivatives of any order.

``weighted_sums`` and ``inner_products`` are ``spmm`` and ``sddmm``. ``sums_of_edges`` and
``products_with_edges`` have numbers of edges and heads, rows of receivers by heads, and features of
edges. All of them run a kernel. If a call that names no implementation finds no kernel, they work
in pieces of the edges, so that no array has edges times heads times columns.

The last two and ``sums_of_heads`` are parts of one sum,
``T(w, a, e) = Σ_ij Σ_h w_ijh ⟨a_ih, e_ij⟩``, with ``w`` [E, H], ``a`` [N, H, F] and ``e`` [E, F],
which all heads share: each function is the gradient of ``T`` to one of the arrays.

Edge slots are used as senders: the graph whose column ``s`` is edge slot ``s`` has the rows, and
the schedule of the rows, of the graph itself, and ``spmm`` and ``sddmm`` run on it, for all heads
at once. All arrays are in the accumulation dtype.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.plan import GraphPlan
from jaxgnn.ops._graph import pieces
from jaxgnn.ops._graph.spmm import (
    SDDMM,
    SPMM,
    sddmm_of_request,
    spmm_of_request,
)
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.multilinear import Multilinear

# Most heads whose terms are unrolled, which XLA adds up in one pass.
_WRITTEN_OUT = 8


def weighted_sums(
    request: dispatch.Request,
    graph: CSRGraph,
    weights: Float[Array, "edges heads"],
    values: Float[Array, "cols heads dim"],
) -> Float[Array, "rows heads dim"]:
    """``Σ_j w_ijh v_jh`` for each receiver and head."""
    if not pieces.are_needed(SPMM, request, graph.with_weights(weights), values):
        return spmm_of_request(request, graph, weights, values)
    ends = pieces.Ends.of(graph)
    result = pieces.Result(graph.num_rows, values.shape[1])
    return pieces.sums(result, ends.senders, ends.receivers, weights, values)


def inner_products(
    request: dispatch.Request,
    graph: CSRGraph,
    of_rows: Float[Array, "rows heads dim"],
    of_columns: Float[Array, "cols heads dim"],
) -> Float[Array, "edges heads"]:
    """``⟨a_ih, b_jh⟩`` for each edge slot and head; zero in padding slots."""
    if not pieces.are_needed(SDDMM, request, graph, of_rows, of_columns):
        return sddmm_of_request(request, graph, of_rows, of_columns)
    ends = pieces.Ends.of(graph)
    return pieces.products(ends.receivers, ends.senders, of_rows, of_columns)


def products_with_edges(
    request: dispatch.Request,
    graph: CSRGraph,
    of_rows: Float[Array, "rows heads features"],
    of_edges: Float[Array, "edges features"],
) -> Float[Array, "edges heads"]:
    """``⟨a_ih, e_ij⟩`` for each edge slot and head; zero in padding slots."""
    if not pieces.are_needed(SDDMM, request, _slots_as_columns(graph), of_rows[:, 0], of_edges):
        return _PRODUCTS_WITH_EDGES(request, (graph,), of_rows, of_edges)
    ends = pieces.Ends.of(graph)
    return pieces.products(ends.receivers, ends.slots, of_rows, of_edges[:, None])


def _run_products(request, graph, of_rows, of_edges):
    if 0 in of_edges.shape:
        return jnp.zeros((graph.num_edges, of_rows.shape[1]), of_rows.dtype)
    products = partial(SDDMM, request, _slots_as_columns(graph))
    return jax.vmap(lambda a: products(a, of_edges), in_axes=1, out_axes=1)(of_rows)


def sums_of_edges(
    request: dispatch.Request,
    graph: CSRGraph,
    weights: Float[Array, "edges heads"],
    of_edges: Float[Array, "edges features"],
) -> Float[Array, "rows heads features"]:
    """``Σ_j w_ijh e_ij`` for each receiver and head."""
    of_head = _slots_as_columns(graph).with_weights(weights[:, 0])
    if not pieces.are_needed(SPMM, request, of_head, of_edges):
        return _SUMS_OF_EDGES(request, (graph,), weights, of_edges)
    ends = pieces.Ends.of(graph)
    result = pieces.Result(graph.num_rows, weights.shape[1])
    return pieces.sums(result, ends.slots, ends.receivers, weights, of_edges[:, None])


def _run_sums_of_edges(request, graph, weights, of_edges):
    if 0 in of_edges.shape:
        shape = graph.num_rows, weights.shape[1], of_edges.shape[1]
        return jnp.zeros(shape, of_edges.dtype)
    slots = _slots_as_columns(graph)

    def of_head(weights):
        return SPMM(request, slots.with_weights(weights), of_edges)

    return jax.vmap(of_head, in_axes=1, out_axes=1)(weights)


def sums_of_heads(
    request: dispatch.Request,
    graph: CSRGraph,
    weights: Float[Array, "edges heads"],
    of_rows: Float[Array, "rows heads features"],
) -> Float[Array, "edges features"]:
    """``Σ_h w_ijh a_ih`` for each edge slot; zero in padding slots."""
    return _SUMS_OF_HEADS(request, (graph,), weights, of_rows)


def _run_sums_of_heads(request, graph, weights, of_rows):
    del request
    return add_heads(graph, weights, of_rows)


def add_heads(
    graph: CSRGraph,
    weights: Float[Array, "edges heads"],
    of_rows: Float[Array, "rows heads features"],
) -> Float[Array, "edges features"]:
    """``sums_of_heads`` in plain JAX, one head after the other."""
    rows = graph.receivers()
    # The weights of padding slots are undefined.
    weights = jnp.where((rows < graph.num_rows)[:, None], weights, 0)

    def add(sums, head):
        weights, of_rows = head
        found = rows_at(of_rows, rows, are_sorted=True)
        return sums + weights[:, None] * found, None

    heads = weights.T, of_rows.swapaxes(0, 1)
    zeros = jnp.zeros((graph.num_edges, of_rows.shape[2]), of_rows.dtype)
    zeros, heads = dispatch.match_varying(zeros, heads)
    return lax.scan(add, zeros, heads, unroll=min(_WRITTEN_OUT, len(heads[0])))[0]


def _slots_as_columns(graph: CSRGraph) -> CSRGraph:
    """The graph whose columns are the edge slots, with the schedule of the rows."""
    slots = jnp.arange(graph.num_edges, dtype=graph.indices.dtype)
    plan = GraphPlan(schedule=graph.made_plan("schedule").schedule)
    return CSRGraph(graph.indptr, slots, num_cols=graph.num_edges, plan=plan, in_range=True)


_PRODUCT = Multilinear(
    operands=("weights", "of_rows", "of_edges"),
    gradients={
        "weights": _run_products,
        "of_rows": _run_sums_of_edges,
        "of_edges": _run_sums_of_heads,
    },
)
_PRODUCTS_WITH_EDGES, _SUMS_OF_EDGES, _SUMS_OF_HEADS = (
    dataclasses.replace(_PRODUCT, result=name) for name in ("weights", "of_rows", "of_edges")
)
