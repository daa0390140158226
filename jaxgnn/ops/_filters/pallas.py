"""Calls of the Mosaic GPU kernels of sums of filtered neighbours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
from jaxtyping import Array, Float, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph.pallas import pieces
from jaxgnn.ops.core.pallas_call import compiled, vary_like

if TYPE_CHECKING:
    from pallas_kernels.graph.rows import Pieces


@compiled
def sum_at_rows(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ w_ij``."""
    from pallas_kernels.filters import filtered_sum as kernels

    return vary_like(x, kernels.filtered_sum(pieces(graph), order, x, filters))


@compiled
def sum_at_columns(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ w_ij``, along the transposed graph."""
    from pallas_kernels.filters import filtered_sum as kernels

    return vary_like(dy, kernels.filtered_sum(*_transposed(graph, order), dy, filters))


def _transposed(graph: CSRGraph, order: Array | None) -> tuple[Pieces, Array]:
    """The transposed graph, and the entry of arrays of edges that each of its edges has."""
    slots = graph.made_plan("schedule", "transpose", "permutation").permutation
    return pieces(graph.transpose()), slots if order is None else order[slots]


@partial(jax.jit, inline=True, static_argnames=("width", "dtype"))
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
    from pallas_kernels.filters import filtered_sum as kernels

    return vary_like(x, kernels.filter_products(pieces(graph), order, x, dy, width, dtype))


@compiled
def made_at_rows(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ (basis_ij · kernel)``."""
    from pallas_kernels.filters import made

    return vary_like(x, made.made_sum(pieces(graph), order, x, basis, kernel))


@compiled
def made_at_columns(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ (basis_ij · kernel)``, along the transposed graph."""
    from pallas_kernels.filters import made

    return vary_like(dy, made.made_sum(*_transposed(graph, order), dy, basis, kernel))


@compiled
def basis_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "edges features"]:
    """``(x_j ⊙ dy_i) · kernelᵀ`` in float32; zero in padding slots."""
    from pallas_kernels.filters import made

    return vary_like(x, made.basis_products(pieces(graph), order, x, dy, kernel))


@compiled
def kernel_products(
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
) -> Float[Array, "features columns"]:
    """``Σ_ij basis_ij ⊗ (x_j ⊙ dy_i)`` in float32."""
    from pallas_kernels.filters import made

    return vary_like(x, made.kernel_products(pieces(graph), order, x, dy, basis))
