"""Typed calls of the k-sparse kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn._ffi._call import MOST_COLUMNS_IN_SHARED, call, call_many, partial_sums, piece_size
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.graph.csr.operands import coefficients, edge_blocks, pieces, scales, structure
from pallas_kernels.chip import Chip

TARGETS = {
    "jaxgnn_maxk_spmm": ("cpu", "cuda"),
    "jaxgnn_maxk_spmm_grad_values": ("cpu", "cuda"),
    "jaxgnn_maxk_spmm_grad_values_blocks": ("cuda",),
    "jaxgnn_maxk_spmm_grad_weights": ("cpu", "cuda"),
}


def maxk_spmm(graph: CSRGraph, cbsr: CBSR) -> Float[Array, "rows dim"]:
    """The product of a sparse matrix and compressed rows of k entries each, on a CPU."""
    return call(
        "jaxgnn_maxk_spmm",
        ((graph.num_rows, cbsr.dim), cbsr.dtype),
        *structure(graph),
        *coefficients(graph),
        cbsr.values,
        cbsr.indices,
    )


def grad_values(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, "cols k"]:
    """Gradient to the kept values."""
    return call(
        "jaxgnn_maxk_spmm_grad_values",
        (cbsr.values.shape, cbsr.dtype),
        *structure(graph),
        *coefficients(graph),
        cbsr.indices,
        dy,
    )


def grad_weights(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, " edges"]:
    """Gradient to the edge weights, float32."""
    return call(
        "jaxgnn_maxk_spmm_grad_weights",
        ((graph.num_edges,), jnp.float32),
        *structure(graph),
        *scales(graph),
        cbsr.values,
        cbsr.indices,
        dy,
    )


@dataclass(frozen=True)
class RecordShape:
    """The layout of a compressed row in CUDA kernels (ffi/include/jaxgnn_ffi/records.h).

    Attributes:
      lanes: number of lanes that share a neighbour: 4, or all 32 of a warp where the sums are too
        wide for 8 rows a warp.
      chunks: number of loads of values that a lane makes at once.
      entries: number of values in one load.
      size: number of entries in a record, padding included.
      id_dtype: dtype of the columns; each lane has one padding column after the real columns.
    """

    lanes: int
    chunks: int
    entries: int
    size: int
    id_dtype: Any

    @classmethod
    def choose(cls, k: int, dim: int, dtype: Any) -> RecordShape:
        """Chooses the shape with few padded entries, few passes over the edges and wide loads."""
        if dim > _MOST_COLUMNS_OF_GROUPS:
            lanes, chunks, entries = 32, 1, 1
        else:
            wide = 16 // jnp.dtype(dtype).itemsize
            lanes, entries = 4, 4 if k <= 16 else wide
            options = (1,) if entries < wide else (1, 2, 16 // wide)
            chunks = min(options, key=lambda c: (_cost(k, lanes * entries * c), -c))
        block = lanes * chunks * entries
        size = -(-k // block) * block
        fits_byte = (dim if size == k else dim + lanes) <= 256
        return cls(lanes, chunks, entries, size, jnp.uint8 if fits_byte else jnp.uint16)


# Up to this width eight rows of sums a warp take at most 32 KiB of shared memory.
_MOST_COLUMNS_OF_GROUPS = 1024
# Each pass over the edges reads dy again.
_MOST_TILES = 3


def _cost(k: int, block: int) -> int:
    """Entries read for a neighbour, plus eight for each pass over the edges."""
    entries_a_pass_costs = 8
    passes = -(-k // block)
    return passes * (block + entries_a_pass_costs)


def cuda_limits(graph: CSRGraph, cbsr: CBSR, dy: Any = None) -> str | None:
    """The reason why the CUDA kernels do not support these arguments, or None."""
    if cbsr.dim > MOST_COLUMNS_IN_SHARED:
        return f"needs at most {MOST_COLUMNS_IN_SHARED} columns, got {cbsr.dim}"
    return None


def maxk_spmm_cuda(graph: CSRGraph, cbsr: CBSR) -> Float[Array, "rows dim"]:
    """The product of a sparse matrix and compressed rows of k entries each, on a GPU."""
    shape = RecordShape.choose(cbsr.k, cbsr.dim, cbsr.dtype)
    record = (graph.num_cols, shape.size)
    return call_many(
        "jaxgnn_maxk_spmm",
        [
            ((graph.num_rows, cbsr.dim), cbsr.dtype),
            (record, cbsr.dtype),
            (record, shape.id_dtype),
            partial_sums(graph, cbsr.dim),
        ],
        *pieces(graph),
        *coefficients(graph),
        cbsr.values,
        cbsr.indices,
        **piece_size(graph),
        lanes=np.int64(shape.lanes),
        chunks=np.int64(shape.chunks),
        entries=np.int64(shape.entries),
    )[0]


def grad_values_cuda(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, "cols k"]:
    """Gradient to the kept values; atomic, so its last bits change from run to run."""
    shape = cbsr.values.shape
    results = [(shape, cbsr.dtype), ((0,) if cbsr.dtype == jnp.float32 else shape, jnp.float32)]
    blocks = edge_blocks(graph, Chip.current(), cbsr.dim * dy.dtype.itemsize)
    if blocks is not None:
        tasks = blocks.tasks_for(Chip.current(), cbsr.k, dy.dtype.itemsize)
        return call_many(
            "jaxgnn_maxk_spmm_grad_values_blocks",
            results,
            blocks.row_order,
            blocks.entries,
            None if graph.weights is None else blocks.edges,
            tasks.blocks,
            tasks.begins,
            tasks.ends,
            *coefficients(graph),
            cbsr.indices,
            dy,
            rows_per_block=np.int64(blocks.shape.rows),
            senders_per_span=np.int64(blocks.shape.senders),
            senders_per_tile=np.int64(tasks.senders),
        )[0]
    return call_many(
        "jaxgnn_maxk_spmm_grad_values",
        results,
        *pieces(graph),
        *coefficients(graph),
        cbsr.indices,
        dy,
        **piece_size(graph),
        tiles=np.int64(_tiles(Chip.current(), graph.num_cols * cbsr.k * 4)),
    )[0]


def _tiles(chip: Chip, nbytes: int) -> int:
    """The number of passes over the edges, each of which adds up the sums of some of the senders.

    The sums of one pass fit in 18/25 of the second-level cache.
    """
    return max(1, min(_MOST_TILES, -(-nbytes // (chip.cache_bytes * 18 // 25))))


def grad_weights_cuda(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, " edges"]:
    """Gradient to the edge weights, float32."""
    return call(
        "jaxgnn_maxk_spmm_grad_weights",
        ((graph.num_edges,), jnp.float32),
        *pieces(graph),
        None,
        *scales(graph),
        cbsr.values,
        cbsr.indices,
        dy,
        **piece_size(graph),
    )
