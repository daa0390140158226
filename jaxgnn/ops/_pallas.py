"""Calls of the Mosaic GPU kernels: graphs and compressed rows taken apart into arrays."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jaxtyping import Array, Float, UInt

from jaxgnn._ffi import _call
from jaxgnn.graph import CBSR, CSRGraph, column_dtype, edges_per_piece
from jaxgnn.ops._pallas_call import batches_as_rows, compiled, vary_like

if TYPE_CHECKING:
    from pallas_kernels.graph.rows import Pieces
    from pallas_kernels.maxk_spmm.edge_blocks import EdgeBlocks


@compiled
def spmm(graph: CSRGraph, x: Float[Array, "cols dim"]) -> Float[Array, "rows dim"]:
    """The product of a sparse matrix and dense rows; arguments as ``jaxgnn.ops.spmm`` has them."""
    from pallas_kernels.graph import spmm as kernels

    return vary_like(x, kernels.spmm(pieces(graph), x))


@compiled
def sddmm(
    graph: CSRGraph, a: Float[Array, "rows dim"], b: Float[Array, "cols dim"]
) -> Float[Array, " edges"]:
    """See ``jaxgnn.ops.sddmm``; the result is float32."""
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


@partial(compiled, static_argnames=("k", "by", "early_stop"))
def maxk(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: None) -> CBSR:
    """See ``jaxgnn.ops.maxk``; exact only."""
    from pallas_kernels.maxk import maxk as kernels

    dim = x.shape[-1]
    run = batches_as_rows(lambda rows: kernels.maxk(rows, k, by, column_dtype(dim)))
    made = run(x.reshape(-1, dim))
    values, indices = (vary_like(x, part.reshape(*x.shape[:-1], k)) for part in made)
    return CBSR(values, indices, dim)


def has_eight_rows(dim: int) -> bool:
    """Whether a warp of ``maxk`` takes eight rows of so many columns at a time."""
    from pallas_kernels.chip import Chip
    from pallas_kernels.maxk import maxk as kernels

    return kernels.MaxkTile.choose(Chip.current(), dim, column_dtype(dim)).rows > 1


@compiled
def todense(cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """Spreads the kept values out over rows of zeros."""
    from pallas_kernels.maxk import maxk as kernels

    values, indices = (part.reshape(-1, cbsr.k) for part in (cbsr.values, cbsr.indices))
    dense = batches_as_rows(lambda v, i: kernels.todense(v, i, cbsr.dim))(values, indices)
    return vary_like(cbsr.values, dense.reshape(cbsr.shape))


@compiled
def gather_columns(
    dense: Float[Array, "*batch rows dim"], indices: UInt[Array, "*batch rows k"]
) -> Float[Array, "*batch rows k"]:
    """Picks the entries of each row that ``indices`` names."""
    from pallas_kernels.maxk import maxk as kernels

    flat = (part.reshape(-1, part.shape[-1]) for part in (dense, indices))
    return vary_like(dense, batches_as_rows(kernels.gather_columns)(*flat).reshape(indices.shape))


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


def pieces(graph: CSRGraph) -> Pieces:
    from pallas_kernels.graph.rows import Pieces

    size = edges_per_piece(graph.num_edges)
    return Pieces(*_call.pieces(graph), *_call.coefficients(graph), edges_per_piece=size)


def _edge_blocks(graph: CSRGraph, cbsr: CBSR, dy: Array) -> EdgeBlocks | None:
    from pallas_kernels.maxk_spmm.edge_blocks import EdgeBlocks

    blocks = _call.edge_blocks(graph, cbsr.dim, dy.dtype)
    if blocks is None:
        return None
    tasks = blocks.tasks_for(cbsr.k, dy.dtype.itemsize)
    return EdgeBlocks(
        blocks.row_order,
        blocks.entries,
        None if graph.weights is None else blocks.edges,
        tasks.blocks,
        tasks.begins,
        tasks.ends,
        *_call.coefficients(graph),
        rows=blocks.shape.rows,
        span=blocks.shape.senders,
        senders=tasks.senders,
    )
