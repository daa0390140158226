"""Sparse times k-sparse, in plain JAX: the dense product of the expanded features."""

from __future__ import annotations

from jaxtyping import Array, Float

from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.ops._graph.reference.spmm import sddmm, spmm
from jaxgnn.ops._maxk.reference.maxk import gather_columns, todense


def maxk_spmm(graph: CSRGraph, cbsr: CBSR) -> Float[Array, "rows dim"]:
    """``y_i = r_i Σ_j w_ij c_j x_j`` where ``x`` is ``cbsr`` expanded."""
    return spmm(graph, todense(cbsr))


def grad_values(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, "cols k"]:
    """Gradient to the kept values: the dense gradient ``Aᵀ dY``, read at the kept columns."""
    return gather_columns(spmm(graph.transpose(), dy), cbsr.indices)


def grad_weights(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, " edges"]:
    """Gradient to the edge weights: ``r_i c_j ⟨dy_i, x_j⟩``, in the accumulation dtype."""
    return sddmm(graph, dy, todense(cbsr))
