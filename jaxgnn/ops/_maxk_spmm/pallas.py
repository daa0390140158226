"""Calls of the Mosaic GPU kernels of sparse matrices times compressed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Array, Float

from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.graph.csr.operands import coefficients, edge_blocks
from jaxgnn.graph.plan.edge_blocks import use_limits
from jaxgnn.ops._graph.pallas import pieces
from jaxgnn.ops.core.pallas_call import compiled, vary_like
from pallas_kernels.chip import Chip

if TYPE_CHECKING:
    from pallas_kernels.maxk_spmm.edge_blocks import EdgeBlocks

# Graphs group their edges for the GPU that kernels are compiled for.
use_limits(Chip.current)


@compiled
def maxk_spmm(graph: CSRGraph, cbsr: CBSR) -> Float[Array, "rows dim"]:
    """The product of a sparse matrix and compressed rows of k entries each."""
    from pallas_kernels.maxk_spmm import maxk_spmm as kernels

    y = kernels.maxk_spmm(pieces(graph), cbsr.values, cbsr.indices, cbsr.dim)
    return vary_like(cbsr.values, y)


@compiled
def grad_values(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, "cols k"]:
    """Gradient to the kept values; atomic, so its last bits change from run to run."""
    from pallas_kernels.maxk_spmm import maxk_spmm as kernels

    blocks = _edge_blocks(graph, cbsr, dy)
    if blocks is None:
        dvalues = kernels.grad_values(pieces(graph), cbsr.indices, dy)
    else:
        dvalues = kernels.grad_values_blocks(blocks, cbsr.indices, dy)
    return vary_like(dy, dvalues)


@compiled
def grad_weights(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, " edges"]:
    """Gradient to the edge weights, float32."""
    from pallas_kernels.maxk_spmm import maxk_spmm as kernels

    structure = pieces(graph.with_weights(None))
    return vary_like(dy, kernels.grad_weights(structure, cbsr.values, cbsr.indices, dy))


def _edge_blocks(graph: CSRGraph, cbsr: CBSR, dy: Array) -> EdgeBlocks | None:
    from pallas_kernels.maxk_spmm.edge_blocks import EdgeBlocks

    blocks = edge_blocks(graph, Chip.current(), cbsr.dim * dy.dtype.itemsize)
    if blocks is None:
        return None
    tasks = blocks.tasks_for(Chip.current(), cbsr.k, dy.dtype.itemsize)
    return EdgeBlocks(
        blocks.row_order,
        blocks.entries,
        None if graph.weights is None else blocks.edges,
        tasks.blocks,
        tasks.begins,
        tasks.ends,
        *coefficients(graph),
        rows=blocks.shape.rows,
        span=blocks.shape.senders,
        senders=tasks.senders,
    )
