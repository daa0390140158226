"""Typed calls of the CPU kernels of sums of filtered neighbours."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._ffi._call import call
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.operands import structure

TARGETS = {
    "jaxgnn_filtered_sum": ("cpu",),
    "jaxgnn_filter_products": ("cpu",),
    "jaxgnn_made_filtered_sum": ("cpu",),
    "jaxgnn_basis_products": ("cpu",),
    "jaxgnn_kernel_products": ("cpu",),
}


def sum_at_rows(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ w_ij``."""
    return _sum(graph, order, x, filters)


def sum_at_columns(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ w_ij``, along the transposed graph."""
    return _sum(*_transposed(graph, order), dy, filters)


def _transposed(graph: CSRGraph, order: Array | None) -> tuple[CSRGraph, Array]:
    """The transposed graph, and the entry of arrays of edges that each of its edges has."""
    slots = graph.made_plan("schedule", "transpose", "permutation").permutation
    return graph.transpose(), slots if order is None else order[slots]


def _sum(graph, slots, x, filters):
    slots, dtype = _places(slots), x.dtype
    x, filters = _of_one_dtype(x, filters)
    result = (graph.num_rows, x.shape[1]), x.dtype
    y = call("jaxgnn_filtered_sum", result, *structure(graph), slots, x, filters)
    return y.astype(dtype)


def _places(slots: Int[Array, " edges"] | None) -> Int[Array, " edges"] | None:
    """The places of edges as the kernels read them."""
    return None if slots is None else slots.astype(jnp.int32)


def _of_one_dtype(a: Array, b: Array, *others: jnp.dtype) -> tuple[Array, Array]:
    """Both arrays in the widest dtype: kernels for pairs of dtypes would take longer to compile."""
    widest = max((a.dtype, b.dtype, *others), key=lambda dtype: dtype.itemsize)
    return a.astype(widest), b.astype(widest)


def filter_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    *,
    width: int,
    dtype: str,
) -> Float[Array, "edges width"]:
    """``dw_ij = x_j ⊙ dy_i``; zero in padding slots."""
    x, dy = _of_one_dtype(x, dy, jnp.dtype(dtype))
    result = (graph.num_edges, width), x.dtype
    operands = *structure(graph), _places(order), x, dy
    return call("jaxgnn_filter_products", result, *operands).astype(dtype)


def made_at_rows(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ (basis_ij · kernel)``."""
    return _made_sum(graph, order, x, basis, kernel)


def made_at_columns(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ (basis_ij · kernel)``, along the transposed graph."""
    return _made_sum(*_transposed(graph, order), dy, basis, kernel)


def _made_sum(graph, slots, x, basis, kernel):
    result = (graph.num_rows, x.shape[1]), x.dtype
    operands = _places(slots), x, *_as_float32(basis, kernel)
    return call("jaxgnn_made_filtered_sum", result, *structure(graph), *operands)


def _as_float32(*arrays: Array) -> tuple[Array, ...]:
    return tuple(array.astype(jnp.float32) for array in arrays)


def basis_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "edges features"]:
    """``(x_j ⊙ dy_i) · kernelᵀ`` in float32; zero in padding slots."""
    x, dy = _of_one_dtype(x, dy)
    result = (graph.num_edges, kernel.shape[0]), jnp.float32
    operands = *structure(graph), _places(order), x, dy
    return call("jaxgnn_basis_products", result, *operands, *_as_float32(kernel))


def kernel_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
) -> Float[Array, "features columns"]:
    """``Σ_ij basis_ij ⊗ (x_j ⊙ dy_i)`` in float32."""
    x, dy = _of_one_dtype(x, dy)
    result = (basis.shape[1], x.shape[1]), jnp.float32
    operands = *structure(graph), _places(order), x, dy
    return call("jaxgnn_kernel_products", result, *operands, *_as_float32(basis))
