"""Calls of the Mosaic GPU kernels of products and softmaxes along the edges of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph, edges_per_piece
from jaxgnn.graph.csr import operands
from jaxgnn.ops.core.pallas_call import compiled, vary_like

if TYPE_CHECKING:
    from pallas_kernels.graph.rows import Pieces


@compiled
def spmm(graph: CSRGraph, x: Float[Array, "cols *heads dim"]) -> Float[Array, "rows *heads dim"]:
    """The product of a sparse matrix and dense rows: ``y_i = r_i Σ_j w_ij c_j x_j``."""
    from pallas_kernels.graph import spmm as kernels

    return vary_like(x, kernels.spmm(pieces(graph), x))


@compiled
def sddmm(
    graph: CSRGraph, a: Float[Array, "rows *heads dim"], b: Float[Array, "cols *heads dim"]
) -> Float[Array, "edges *heads"]:
    """Inner products along edges in float32: ``e_ij = r_i c_j ⟨a_i, b_j⟩``."""
    from pallas_kernels.graph import spmm as kernels

    return vary_like(a, kernels.sddmm(pieces(graph.with_weights(None)), a, b))


@compiled
def segment_softmax(
    graph: CSRGraph, logits: Float[Array, "edges heads"]
) -> Float[Array, "edges heads"]:
    """Softmax over the edges of each row, by head."""
    from pallas_kernels.graph import segment_softmax as kernels

    return vary_like(logits, kernels.segment_softmax(pieces(graph), logits))


@compiled
def grad_logits(
    graph: CSRGraph, probabilities: Float[Array, "edges heads"], dy: Float[Array, "edges heads"]
) -> Float[Array, "edges heads"]:
    """Gradient to the logits of ``segment_softmax``."""
    from pallas_kernels.graph import segment_softmax as kernels

    return vary_like(dy, kernels.grad_logits(pieces(graph), probabilities, dy))


def pieces(graph: CSRGraph) -> Pieces:
    from pallas_kernels.graph.rows import Pieces

    size = edges_per_piece(graph.num_edges)
    return Pieces(*operands.pieces(graph), *operands.coefficients(graph), edges_per_piece=size)
