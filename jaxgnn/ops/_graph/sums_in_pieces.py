"""Sums over edges and products along them, some edges at a time, in plain JAX.

They replace ``spmm`` and ``sddmm`` of several heads in derivatives of attention, where no kernel
can run and no array may have edges times heads times columns at full length. Each of the two
functions is the gradient of the other, so derivatives of any order use only these.

An edge reads a row at one end and adds to a row at the other. Two arrays of ids define these rows:
receivers, senders or the numbers of the edges themselves. Ids past the last row are those of
padding: they read zeros, and their terms are dropped.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import match_varying
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.custom_gradient import custom_vjp
from jaxgnn.ops._graph import pieces


def are_needed(kernel: dispatch.Kernel, request: dispatch.Request, *args: Any) -> bool:
    """Whether a call that names no implementation would run the plain formula here.

    Args:
      kernel: the kernel that is called.
      request: the implementation to run.
      *args: arguments of the call.

    Raises:
      NotImplementedError: if results have to be reproducible on a GPU: these sums are scatters.
    """
    if request.name is not None:
        return False
    with dispatch.deterministic(request.deterministic):
        return kernel.choose(dispatch.current_platform(), *args) == "xla"


class Ends(NamedTuple):
    """The rows that edges read and add to, of a graph, with ids past the last one in padding slots.

    Attributes:
      receivers: row of the graph.
      senders: column of the graph.
      slots: number of the edge itself.
    """

    receivers: Int[Array, " edges"]
    senders: Int[Array, " edges"]
    slots: Int[Array, " edges"]

    @classmethod
    def of(cls, graph: CSRGraph) -> Ends:
        """The ends of a graph's edge slots."""
        receivers = graph.receivers()
        real = receivers < graph.num_rows
        slots = jnp.arange(graph.num_edges, dtype=receivers.dtype)
        senders = jnp.where(real, graph.indices, graph.num_cols)
        return cls(receivers, senders, jnp.where(real, slots, graph.num_edges))


class Result(NamedTuple):
    """The number of rows of sums, and of their heads: one for all, or as many as weights have."""

    rows: int
    heads: int


@partial(custom_vjp, nondiff_argnums=(0,))
def sums(
    result: Result,
    sources: Int[Array, " edges"],
    targets: Int[Array, " edges"],
    weights: Float[Array, "edges heads"],
    values: Float[Array, "sources groups dim"],
) -> Float[Array, "targets groups dim"]:
    """``y_ih = Σ_e w_eh v_jh`` over the edges e from j to i, or the sum of that over the heads.

    Args:
      result: rows and heads of the sums.
      sources: row of the values that each edge reads.
      targets: row of the sums that each edge adds to.
      weights: w, zero or not in padding slots.
      values: v, one for all heads or one for each head.
    """
    size = _edges_of_piece(weights.shape, values.shape)
    weights, values = match_varying(weights, values)
    cut = pieces.Cut(size, weights.shape[0])
    ids = cut.padded(sources, values.shape[0]), cut.padded(targets, result.rows)
    weights = cut.padded(weights)

    def add(i, total):
        some = partial(cut.part, i)
        made = some(weights)[:, :, None] * _at(values, some(ids[0]))
        if result.heads == 1:
            made = jnp.sum(made, axis=1, keepdims=True)
        return total.at[some(ids[1])].add(made, mode="drop")

    zeros = jnp.zeros((*result, values.shape[2]), values.dtype)
    zeros, *_ = match_varying(zeros, weights, ids)
    return lax.fori_loop(0, cut.number, add, zeros)


@custom_vjp
def products(
    left: Int[Array, " edges"],
    right: Int[Array, " edges"],
    a: Float[Array, "left groups dim"],
    b: Float[Array, "right groups dim"],
) -> Float[Array, "edges heads"]:
    """``⟨a_ih, b_jh⟩`` for each edge between i and j and each head; zero in padding slots.

    Args:
      left: row of ``a`` that each edge reads.
      right: row of ``b`` that each edge reads.
      a: one row for all heads or one for each head.
      b: one row for all heads or one for each head.
    """
    heads = jax.core.max_dim(a.shape[1], b.shape[1])
    size = _edges_of_piece((left.shape[0], heads), a.shape)
    a, b = match_varying(a, b)
    cut = pieces.Cut(size, left.shape[0])
    left, right = cut.padded(left, a.shape[0]), cut.padded(right, b.shape[0])

    def write(i, whole):
        some = partial(cut.part, i)
        made = jnp.sum(_at(a, some(left)) * _at(b, some(right)), axis=-1)
        return lax.dynamic_update_slice_in_dim(whole, made, i * size, 0)

    zeros = jnp.zeros((cut.edges + cut.room, heads), a.dtype)
    zeros, *_ = match_varying(zeros, a, left, right)
    return lax.fori_loop(0, cut.number, write, zeros)[: cut.edges]


def _at(array: Array, ids: Array) -> Array:
    """The rows that edges read, zeros for ids past the last one."""
    return array.at[ids].get(mode="fill", fill_value=0)


def _edges_of_piece(weights: tuple[Any, ...], values: tuple[Any, ...]) -> int:
    """The number of edges of a piece, from the shapes of numbers of edges and of rows."""
    (edges, heads), (_, groups, dim) = weights, values
    return pieces.edges_of_piece(edges, jax.core.max_dim(heads, groups) * dim)


# The gradients. Ids have none.


def _sums_forward(result, sources, targets, weights, values):
    made = sums(result, sources, targets, weights, values)
    return made, (sources, targets, weights, values)


def _sums_backward(result, residuals, dy):
    del result
    sources, targets, weights, values = residuals
    to_weights = products(targets, sources, dy, values)
    to_values = sums(Result(*values.shape[:2]), targets, sources, weights, dy)
    return None, None, jnp.broadcast_to(to_weights, weights.shape), to_values


def _products_forward(left, right, a, b):
    return products(left, right, a, b), (left, right, a, b)


def _products_backward(residuals, de):
    left, right, a, b = residuals
    to_a = sums(Result(*a.shape[:2]), right, left, de, b)
    return None, None, to_a, sums(Result(*b.shape[:2]), left, right, de, a)


sums.defvjp(_sums_forward, _sums_backward)
products.defvjp(_products_forward, _products_backward)
