"""The degree-aware row schedule: equal pieces of work for kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn.graph._arrays import is_concrete

MAX_EDGES_PER_UNIT = 256


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RowSchedule:
    """Rows cut into work units of at most ``MAX_EDGES_PER_UNIT`` edges each, in row order.

    Unit ``u`` is edges ``offsets[u]`` up to ``offsets[u + 1]`` of row ``rows[u]``. A row without
    edges has one empty unit, so a kernel that visits every unit writes every row; a hub row has
    several neighbouring units. The number of units depends on the shape of the graph alone
    (rows + edges // MAX_EDGES_PER_UNIT), so graphs of equal shape share compiled code; unused
    units at the end have ``rows[u] == num_rows`` and no edges.

    Attributes:
      rows: row of each unit, int32.
      offsets: first edge of each unit, and the end of the last.
    """

    rows: Int[Array, " units"]
    offsets: Int[Array, " units+1"]


def units(num_rows: int, num_edges: int) -> int:
    """Number of units that suffices for any graph of this shape."""
    return num_rows + num_edges // MAX_EDGES_PER_UNIT


def make_schedule(indptr: Int[Array, " rows+1"] | np.ndarray, num_edges: int) -> RowSchedule:
    """Cuts the rows of a CSR structure into work units.

    Args:
      indptr: row offsets; numpy on the host, or traced.
      num_edges: edge slots of the graph, padding included.
    """
    num_rows = indptr.shape[0] - 1
    num_units = units(num_rows, num_edges)
    xp: Any = np if is_concrete(indptr) else jnp
    indptr = xp.asarray(indptr)
    degrees = xp.diff(indptr)
    units_per_row = xp.maximum(1, -(-degrees // MAX_EDGES_PER_UNIT))
    first_unit = xp.concatenate([xp.zeros(1, units_per_row.dtype), xp.cumsum(units_per_row)])
    rows: Any = _repeat_rows(xp, num_rows, units_per_row, num_units)
    # Padding units look up row num_rows, whose offset is the end of the last edge.
    within_row = xp.arange(num_units, dtype=indptr.dtype) - first_unit[rows].astype(indptr.dtype)
    starts = indptr[rows] + xp.where(rows < num_rows, within_row * MAX_EDGES_PER_UNIT, 0)
    offsets = xp.concatenate([starts, indptr[-1:]]).astype(indptr.dtype)
    return RowSchedule(rows.astype(np.int32), offsets)


def _repeat_rows(xp, num_rows, repeats, total):
    """Each row number ``repeats`` times, then ``num_rows`` up to ``total`` entries."""
    row_numbers = xp.arange(num_rows + 1, dtype=np.int32)
    repeats = xp.concatenate([repeats, total - xp.sum(repeats, dtype=repeats.dtype, keepdims=True)])
    if xp is np:
        return np.repeat(row_numbers, repeats)
    return jnp.repeat(row_numbers, repeats, total_repeat_length=total)
