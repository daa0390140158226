"""Typed calls of the dense-feature sparse kernels."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._ffi._call import call
from jaxgnn._ffi._launch import WARP, Launch, run
from jaxgnn._ffi._pieces import Pieces, too_wide
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.operands import coefficients, scales, structure
from pallas_kernels.chip import Chip

TARGETS = {"jaxgnn_spmm": ("cpu",), "jaxgnn_sddmm": ("cpu",)}

_WORD = 16  # Bytes that a lane loads at once.
# Numbers of lanes, of 16 bytes each, that may read a neighbour; more lanes need fewer passes.
_LANES = (32, 16, 8)
_FEW_EDGES = 64


def spmm(graph: CSRGraph, x: Float[Array, "cols *heads dim"]) -> Float[Array, "rows *heads dim"]:
    """The product of a sparse matrix and dense rows, on a CPU."""
    shape = (graph.num_rows, *x.shape[1:])
    return call("jaxgnn_spmm", (shape, x.dtype), *structure(graph), *coefficients(graph), x)


def sddmm(
    graph: CSRGraph, a: Float[Array, "rows *heads dim"], b: Float[Array, "cols *heads dim"]
) -> Float[Array, "edges *heads"]:
    """The inner product of both ends of each edge in float32, on a CPU."""
    shape = (graph.num_edges, *a.shape[1:-1])
    return call("jaxgnn_sddmm", (shape, jnp.float32), *structure(graph), *scales(graph), a, b)


def spmm_cuda(
    graph: CSRGraph, x: Float[Array, "cols *heads dim"]
) -> Float[Array, "rows *heads dim"]:
    """The product of a sparse matrix and dense rows, on a GPU; one head after the other."""
    if x.ndim == 3:
        of_head = jax.vmap(lambda w, x: spmm_cuda(graph.with_weights(w), x), 1, 1)
        return of_head(graph.weights, x)
    dim, pieces = x.shape[-1], Pieces.of(graph)
    entries = _WORD // x.dtype.itemsize
    lanes = _lanes(graph, dim * x.dtype.itemsize)
    if dim % entries:
        lanes, entries = WARP, 1
    slices = -(-dim // (lanes * entries))
    return run(
        "spmm",
        {"y": ((graph.num_rows, dim), x.dtype), "partial": pieces.partial_sums(dim)},
        pieces.operands | {"x": x},
        [Launch.striding("spmm", pieces.count, blocks_y=slices), *pieces.add_pieces(dim)],
        pieces.numbers | {"dim": dim},
        types=pieces.types | {"T": x.dtype},
        constants={"kLanes": lanes, "kEntries": entries, "kFactors": pieces.has_factors},
    )[0]


def _lanes(graph: CSRGraph, row_bytes: int) -> int:
    """Chooses how many lanes read a neighbour."""
    if row_bytes <= 2 * _LANES[-1] * 16:
        return _LANES[-1]
    if graph.num_edges < _FEW_EDGES * graph.num_rows:
        return _LANES[0]  # a pass over the rows costs as much as their edges
    # The slice of x that these lanes read should stay in four fifths of the second-level cache.
    cached = Chip.current().cache_bytes * 4 // 5
    fitting = (lanes for lanes in _LANES if graph.num_cols * lanes * 16 <= cached)
    return next(fitting, _LANES[0])


def sddmm_limits(graph: CSRGraph, a: Array, b: Array) -> str | None:
    """The reason why GPU kernels, which keep a row of all heads, do not support these; or None."""
    return too_wide(math.prod(a.shape[1:]))


def sddmm_cuda(
    graph: CSRGraph, a: Float[Array, "rows *heads dim"], b: Float[Array, "cols *heads dim"]
) -> Float[Array, "edges *heads"]:
    """The inner product of both ends of each edge in float32, on a GPU; one head at a time."""
    if a.ndim == 3:
        return jax.vmap(partial(sddmm_cuda, graph), 1, 1)(a, b)
    dim, pieces = a.shape[-1], Pieces.of(graph.with_weights(None))
    entries = _WORD // a.dtype.itemsize
    return run(
        "sddmm",
        {"of_edges": ((graph.num_edges,), jnp.float32)},
        pieces.operands | {"a": a, "b": b},
        [pieces.zero_padding(), pieces.holding_rows("sddmm", 4 * dim)],
        pieces.numbers | {"dim": dim},
        types=pieces.types | {"T": a.dtype},
        constants={"kEntries": 1 if dim % entries else entries},
    )[0]
