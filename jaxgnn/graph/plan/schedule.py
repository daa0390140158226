"""The degree-aware row schedule: equal pieces of work for kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._arrays.arrays import KeepsArrays, is_concrete, own

MAX_EDGES_PER_UNIT = 256
"""The most edges of a work unit; longer rows are cut into several units."""

MAX_UNITS_PER_PIECE = 16


def units_per_piece(num_edges: int) -> int:
    """Returns the maximum number of units of a piece, which one warp processes alone."""
    if jax.export.is_symbolic_dim(num_edges):  # No kernel supports those.
        return 1
    return min(max(num_edges >> 20, 1), MAX_UNITS_PER_PIECE)


def edges_per_piece(num_edges: int) -> int:
    """Returns the maximum number of edges of a piece, for a number of edge slots."""
    return units_per_piece(num_edges) * MAX_EDGES_PER_UNIT


def long_piece(num_edges: int) -> int:
    """Returns the least number of edges for which a piece gets a GPU warp of its own.

    It is a small part of the total work of a warp, about ``num_edges >> 14`` on a large GPU.
    """
    if jax.export.is_symbolic_dim(num_edges):  # No kernel supports those.
        return 64
    return min(max(num_edges >> 17, 64), 1024)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RowSchedule(KeepsArrays):
    """Rows cut into work units of at most ``MAX_EDGES_PER_UNIT`` edges each, in row order.

    Unit ``u`` is edges ``offsets[u]`` up to ``offsets[u + 1]`` of row ``rows[u]``. A row without
    edges has one empty unit; a hub row has several neighbouring units. The number of units depends
    on the shape of the graph alone, so graphs of equal shape share compiled code; unused units at
    the end have ``rows[u] == num_rows`` and no edges.

    A GPU processes pieces of at most ``edges_per_piece(edges)`` edges of one row, longest first, so
    that neighbouring warps have equal work.

    Attributes:
      rows: row of each unit, int32.
      offsets: first edge of each unit, and the end of the last.
      pieces: first unit of each piece, int32; the entries after the last piece are unused.
      piece_counts: number of pieces with at least ``long_piece(edges)`` edges, and number of all
        pieces, int32 [2].
    """

    rows: Int[Array, " units"]
    offsets: Int[Array, " units+1"]
    pieces: Int[Array, " units"]
    piece_counts: Int[Array, "2"]


def units(num_rows: int, num_edges: int, most: int = MAX_EDGES_PER_UNIT) -> int:
    """Number of units of at most ``most`` edges that is enough for any graph of this shape."""
    return num_rows + num_edges // most


def cut_rows(
    indptr: Int[Array, " rows+1"] | np.ndarray, num_edges: int, most: int
) -> tuple[Any, Any]:
    """Cuts the rows of a CSR structure into units of at most ``most`` edges.

    Returns:
      ``(rows, offsets)``: row of each unit, and first edge of each unit with the end of the last.
    """
    num_rows = indptr.shape[0] - 1
    num_units = units(num_rows, num_edges, most)
    xp: Any = np if is_concrete(indptr) else jnp
    indptr = xp.asarray(indptr)
    units_per_row = xp.maximum(1, -(-xp.diff(indptr) // most))
    first_unit = xp.concatenate([xp.zeros(1, units_per_row.dtype), xp.cumsum(units_per_row)])
    rows: Any = _repeat_rows(xp, num_rows, units_per_row, num_units)
    # Padding units look up row num_rows, whose offset is the end of the last edge.
    within_row = xp.arange(num_units, dtype=indptr.dtype) - first_unit[rows].astype(indptr.dtype)
    starts = indptr[rows] + xp.where(rows < num_rows, within_row * most, 0)
    offsets = xp.concatenate([starts, indptr[-1:]]).astype(indptr.dtype)
    return rows.astype(np.int32), offsets


def make_schedule(indptr: Int[Array, " rows+1"] | np.ndarray, num_edges: int) -> RowSchedule:
    """Builds the schedule of a CSR structure of ``num_edges`` slots, in numpy or traced."""
    num_rows = indptr.shape[0] - 1
    xp: Any = np if is_concrete(indptr) else jnp
    indptr = xp.asarray(indptr)
    rows, offsets = cut_rows(indptr, num_edges, MAX_EDGES_PER_UNIT)
    row_begins, to_row_end = indptr[rows], indptr[xp.minimum(rows + 1, num_rows)] - offsets[:-1]
    begins = (rows < num_rows) & ((offsets[:-1] - row_begins) % edges_per_piece(num_edges) == 0)
    lengths = xp.minimum(to_row_end, edges_per_piece(num_edges))
    lengths = xp.where(begins, lengths, -1).astype(np.int16)
    pieces = xp.argsort(-lengths, stable=True).astype(np.int32)
    counts = [xp.sum(lengths >= long_piece(num_edges)), xp.sum(begins)]
    counts = xp.stack(counts).astype(np.int32)
    return RowSchedule(*map(own, (rows, offsets, pieces, counts)))


def _repeat_rows(xp, num_rows, repeats, total):
    """Returns each row number ``repeats`` times, then ``num_rows`` up to ``total`` entries."""
    row_numbers = xp.arange(num_rows + 1, dtype=np.int32)
    repeats = xp.concatenate([repeats, total - xp.sum(repeats, dtype=repeats.dtype, keepdims=True)])
    if xp is np:
        return np.repeat(row_numbers, repeats)
    return jnp.repeat(row_numbers, repeats, total_repeat_length=total)
