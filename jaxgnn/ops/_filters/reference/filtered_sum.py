"""Sums of neighbours that are filtered channel by channel, in plain JAX.

The filters are given, or a product of features of the edges and one kernel. Each group of functions
below belongs to one number, in which all arrays are linear:

    T = Σ_e Σ_c  x[sender(e), c] · dy[receiver(e), c] · filters[e, c]
    T = Σ_e Σ_c Σ_b  x[sender(e), c] · dy[receiver(e), c] · basis[e, b] · kernel[b, c]

Each function is the gradient of the number to one of its arrays: to ``dy`` the sums at the rows, to
``x`` those at the columns, and so on. So the gradients of each are the others, of any order.

``x`` and ``dy`` have ``columns`` columns and filters have ``width``, which divides it: the filters
repeat. Filters and bases of padding slots may contain anything, and their gradients are zero.
Arrays of edges are in the order of the slots; or ``order`` is a permutation, and slot e has their
entry ``order[e]``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype


def sum_at_rows(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ w_ij``."""
    messages = _filtered(_wide(x)[graph.indices], _of_slots(graph, order, filters))
    return sum_rows(messages, graph.indptr).astype(x.dtype)


def sum_at_columns(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ w_ij``."""
    messages = _filtered(_at_receivers(graph, dy), _of_slots(graph, order, filters))
    return jax.ops.segment_sum(messages, graph.indices, graph.num_cols).astype(dy.dtype)


def filter_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    *,
    width: int,
    dtype: str,
) -> Float[Array, "edges width"]:
    """``dw_ij = x_j ⊙ dy_i``, summed over the repetitions of a filter; zero in padding slots."""
    products = _products(graph, x, dy)
    products = products.reshape(graph.num_edges, x.shape[1] // width, width)
    return _in_order(order, jnp.sum(products, axis=1).astype(dtype))


def made_at_rows(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ (basis_ij · kernel)``."""
    return sum_at_rows(graph, None, x, _matmul(_of_slots(graph, order, basis), kernel))


def made_at_columns(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ (basis_ij · kernel)``."""
    return sum_at_columns(graph, None, dy, _matmul(_of_slots(graph, order, basis), kernel))


def basis_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "edges features"]:
    """``dbasis_ij = (x_j ⊙ dy_i) · kernelᵀ`` in the accumulation dtype; zero in padding slots."""
    return _in_order(order, _matmul(_products(graph, x, dy), _wide(kernel).T))


def kernel_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
) -> Float[Array, "features columns"]:
    """``dkernel = Σ_ij basis_ij ⊗ (x_j ⊙ dy_i)`` in the accumulation dtype."""
    return _matmul(_of_slots(graph, order, basis).T, _products(graph, x, dy))


def _wide(array: Array) -> Array:
    return array.astype(accumulation_dtype(array.dtype))


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(_wide(a), _wide(b), precision="highest")


def _of_slots(
    graph: CSRGraph, order: Int[Array, " edges"] | None, of_edges: Float[Array, "edges width"]
) -> Float[Array, "edges width"]:
    """The array in the order of the slots, with zeros in padding slots."""
    return _real(graph, of_edges if order is None else of_edges[order])


def _in_order(order: Int[Array, " edges"] | None, of_slots: Float[Array, "edges width"]) -> Array:
    """An array of the slots in the given order."""
    return of_slots if order is None else jnp.zeros_like(of_slots).at[order].set(of_slots)


def _real(graph: CSRGraph, of_edges: Float[Array, "edges width"]) -> Float[Array, "edges width"]:
    """The array with zeros in padding slots."""
    return jnp.where((graph.receivers() < graph.num_rows)[:, None], of_edges, 0)


def _at_receivers(graph: CSRGraph, dy: Float[Array, "rows columns"]) -> Array:
    """The row of each edge's receiver; zeros in padding slots."""
    return rows_at(_wide(dy), graph.receivers(), are_sorted=True)


def _products(graph: CSRGraph, x: Array, dy: Array) -> Float[Array, "edges columns"]:
    return _real(graph, _wide(x)[graph.indices] * _at_receivers(graph, dy))


def _filtered(
    values: Float[Array, "edges columns"], filters: Float[Array, "edges width"]
) -> Float[Array, "edges columns"]:
    """The product with filters that repeat over the columns."""
    filters = _wide(filters)
    edges, width = filters.shape
    products = values.reshape(edges, values.shape[1] // width, width) * filters[:, None]
    return products.reshape(values.shape)
