"""Typed calls of the k-sparse kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._ffi._call import call
from jaxgnn._ffi._launch import WARP, Launch, run
from jaxgnn._ffi._pieces import Pieces, too_wide
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.graph.csr.operands import coefficients, edge_blocks, scales, structure
from jaxgnn.graph.plan.edge_blocks import EdgeBlocks
from pallas_kernels.chip import Chip

_NAMES = "", "_grad_values", "_grad_weights"
TARGETS = {f"jaxgnn_maxk_spmm{name}": ("cpu",) for name in _NAMES}


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
    """The layout of a compressed row in CUDA kernels (jaxgnn/_ffi/cuda/records.h).

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
_MOST_WARPS = 4  # Warps of a block of the forward kernel.
# Each pass over the edges reads dy again.
_MOST_TILES = 3
_EDGE_LIST_BYTES = 2 * 4 * WARP * 4  # The list of a warp in jaxgnn/_ffi/cuda/grad_values_warp.h.
# Above so many bytes of a tile's sums additions would mostly find theirs in no cache, which makes
# them more than twice as slow: in blocks of few rows they are fetched before.
_CACHED_BYTES = 96 << 20
# Blocks of so few rows leave room for others on a multiprocessor.
_FEW_ROWS = 64


def _cost(k: int, block: int) -> int:
    """Entries read for a neighbour, plus eight for each pass over the edges."""
    entries_a_pass_costs = 8
    passes = -(-k // block)
    return passes * (block + entries_a_pass_costs)


def cuda_limits(graph: CSRGraph, cbsr: CBSR, dy: Any = None) -> str | None:
    """The reason why the CUDA kernels do not support these arguments, or None."""
    return too_wide(cbsr.dim)


def maxk_spmm_cuda(graph: CSRGraph, cbsr: CBSR) -> Float[Array, "rows dim"]:
    """The product of a sparse matrix and compressed rows of k entries each, on a GPU."""
    shape, pieces, dim = (
        RecordShape.choose(cbsr.k, cbsr.dim, cbsr.dtype),
        Pieces.of(graph),
        cbsr.dim,
    )
    # Narrower values would be rounded twice.
    scaled = cbsr.dtype == jnp.float32 and graph.col_scale is not None
    factors = graph.weights is not None or (graph.col_scale is not None and not scaled)
    record = (graph.num_cols, shape.size)
    block = shape.lanes * shape.chunks * shape.entries
    return run(
        "maxk_spmm",
        {
            "y": ((graph.num_rows, dim), cbsr.dtype),
            "record_values": (record, cbsr.dtype),
            "record_ids": (record, shape.id_dtype),
            "partial": pieces.partial_sums(dim),
        },
        pieces.operands | {"values": cbsr.values, "columns": cbsr.indices},
        [
            Launch.striding("make_records", graph.num_cols),
            _forward_launch(pieces, shape, dim),
            *pieces.add_pieces(dim),
        ],
        pieces.numbers
        | {"num_cols": graph.num_cols, "dim": dim, "k": cbsr.k, "blocks": shape.size // block},
        types=pieces.types | {"T": cbsr.dtype, "Column": cbsr.indices.dtype, "Id": shape.id_dtype},
        constants={
            "kLanes": shape.lanes,
            "kChunks": shape.chunks,
            "kEntries": shape.entries,
            "kFactors": factors,
            "kScaledRecords": scaled,
        },
    )[0]


def _forward_launch(pieces: Pieces, shape: RecordShape, dim: int) -> Launch:
    bytes_of_warp = (dim + shape.lanes) * (WARP // shape.lanes) * 4
    warps = max(1, min(_MOST_WARPS, Chip.current().block_bytes // bytes_of_warp))
    return Launch.striding(
        "maxk_spmm",
        pieces.count,
        warps,
        threads_y=warps,
        shared_bytes=warps * bytes_of_warp,
        # The rest stays first-level cache: records of hubs are read from there.
        carveout=50,
    )


def grad_values_cuda(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, "cols k"]:
    """Gradient to the kept values; atomic, so its last bits change from run to run."""
    blocks = edge_blocks(graph, Chip.current(), cbsr.dim * dy.dtype.itemsize)
    if blocks is not None:
        return _grad_values_by_block(graph, cbsr, dy, blocks)
    pieces, k = Pieces.of(graph), cbsr.k
    passes = _tiles(Chip.current(), graph.num_cols * k * 4)
    bytes_of_warp = 4 * cbsr.dim + _EDGE_LIST_BYTES
    return run(
        "grad_values",
        _sums(cbsr),
        pieces.operands | {"columns": cbsr.indices, "dy": dy},
        _summing(graph, cbsr, pieces.holding_rows("grad_values", bytes_of_warp, passes)),
        pieces.numbers | {"num_cols": graph.num_cols, "dim": cbsr.dim, "k": k},
        types=pieces.types | {"T": cbsr.dtype, "Column": cbsr.indices.dtype},
        constants={"kLanes": _lanes_for(k), "kAligned": k % 4 == 0},
    )[0]


def _sums(cbsr: CBSR) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The gradient, and the workspace for its sums in float32 if it has another dtype."""
    shape = cbsr.values.shape
    workspace = (0,) if cbsr.dtype == jnp.float32 else shape
    return {"dvalues": (shape, cbsr.dtype), "workspace": (workspace, jnp.float32)}


def _summing(graph: CSRGraph, cbsr: CBSR, *add: Launch) -> list[Launch]:
    """The launches that clear the sums, add to them, and scale and round them."""
    size = graph.num_cols * cbsr.k
    clear, scale = (
        Launch.striding(name, size, 256, threads_x=256, threads_y=1)
        for name in ("clear_sums", "scale_sums")
    )
    is_done = cbsr.dtype == jnp.float32 and graph.col_scale is None
    return [clear, *add] if is_done else [clear, *add, scale]


def _grad_values_by_block(graph: CSRGraph, cbsr: CBSR, dy: Array, blocks: EdgeBlocks) -> Array:
    """The same by blocks of rows: a thread block for each task."""
    chip, k, dim = Chip.current(), cbsr.k, cbsr.dim
    tasks = blocks.tasks_for(chip, k, dy.dtype.itemsize)
    weights, row_scale, col_scale = coefficients(graph)
    edges = _or_null(None if weights is None else blocks.edges)
    many_rows = blocks.shape.rows > _FEW_ROWS
    fitting = (chip.block_bytes - 16) // _held_bytes(1, dim, dy.dtype)
    held = max(1, min(fitting, blocks.shape.rows))
    count = tasks.blocks.shape[-1]
    add = Launch(
        "grad_values_blocks",
        count,
        1,
        count,
        threads_x=1024 if many_rows else 256,
        threads_y=1,
        shared_bytes=_held_bytes(held, dim, dy.dtype),
    )
    is_empty = 0 in (count, graph.num_rows, blocks.entries.shape[-1])
    return run(
        "grad_values_blocks",
        _sums(cbsr),
        {
            "entries": blocks.entries,
            "row_order": _or_null(blocks.row_order),
            "edges": edges,
            "blocks": tasks.blocks,
            "begins": tasks.begins,
            "ends": tasks.ends,
            "weights": weights,
            "row_scale": row_scale,
            "col_scale": col_scale,
            "columns": cbsr.indices,
            "dy": dy,
        },
        _summing(graph, cbsr, *([] if is_empty else [add])),
        {
            "num_rows": graph.num_rows,
            "num_cols": graph.num_cols,
            "dim": dim,
            "k": k,
            "rows_per_block": blocks.shape.rows,
            "senders_per_span": blocks.shape.senders,
            "senders_per_tile": tasks.senders,
            "most_held": held,
            "prefetches": 4 * k * tasks.senders > _CACHED_BYTES,
        },
        types={
            "T": cbsr.dtype,
            "Column": cbsr.indices.dtype,
            "Offset": tasks.begins.dtype,
            "Edge": edges.dtype,
        },
        constants={
            "kLanes": max(4, _lanes_for(k)) if k % 4 == 0 else 8,
            "kAligned": k % 4 == 0,
            "kWeights": weights is not None,
            "kManyRows": many_rows,
        },
    )[0]


def _or_null(integers: Array | None) -> Array:
    """The array, or for None an empty one of int32, for which kernels get a null pointer."""
    return jnp.zeros(0, jnp.int32) if integers is None else integers


def _held_bytes(rows: int, dim: int, dtype: Any) -> int:
    """Bytes of rows in shared memory; behind those narrower than float32 are their scales."""
    size = -(-rows * dim * jnp.dtype(dtype).itemsize // 16) * 16
    return size if dtype == jnp.float32 else size + 4 * rows


def _lanes_for(k: int) -> int:
    """Lanes that share a neighbour of k entries, four each: a power of two."""
    return next((lanes for lanes in (1, 2, 4, 8, 16) if 4 * lanes >= k), WARP)


def _tiles(chip: Chip, nbytes: int) -> int:
    """The number of passes over the edges, each of which adds up the sums of some of the senders.

    The sums of one pass fit in 18/25 of the second-level cache.
    """
    return max(1, min(_MOST_TILES, -(-nbytes // (chip.cache_bytes * 18 // 25))))


def grad_weights_cuda(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, " edges"]:
    """Gradient to the edge weights, float32."""
    pieces, dim = Pieces.of(graph.with_weights(None)), cbsr.dim
    return run(
        "grad_weights",
        {"of_edges": ((graph.num_edges,), jnp.float32)},
        pieces.operands | {"values": cbsr.values, "columns": cbsr.indices, "dy": dy},
        [pieces.zero_padding(), pieces.holding_rows("grad_weights", 4 * dim)],
        pieces.numbers | {"dim": dim, "k": cbsr.k},
        types=pieces.types | {"T": cbsr.dtype, "Column": cbsr.indices.dtype},
        constants={"kLanes": _lanes_for(cbsr.k)},
    )[0]
