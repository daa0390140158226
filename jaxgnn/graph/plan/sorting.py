"""Sorts edges by receiver: the one step between an edge list and CSR."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Bool, Int

from jaxgnn._arrays.arrays import first_outside, is_concrete, offset_dtype, require_x64
from jaxgnn._errors import bad_input


def sort_edges(
    receivers: Int[Array, " edges"] | np.ndarray,
    num_rows: int,
    edge_mask: Bool[Array, " edges"] | np.ndarray | None = None,
) -> tuple[Any, Any]:
    """Orders edges by receiver, keeping the given order among the edges of one receiver.

    Linear time on the host; an XLA sort when traced. Masked edges move to the tail, after
    ``indptr[-1]``, where no kernel reads them.

    Args:
      receivers: row of each edge.
      num_rows: number of rows.
      edge_mask: [edges] bool, False for padding edges; None for no padding.

    Returns:
      ``(indptr, permutation)``: row offsets [rows + 1], and for each sorted edge its position in
      the input [edges]. numpy arrays from concrete input, traced arrays otherwise.

    Raises:
      ValueError: if a concrete receiver that is not masked is out of range.
    """
    if is_concrete(receivers, edge_mask):
        mask = None if edge_mask is None else np.asarray(edge_mask)
        return _sort_on_host(np.asarray(receivers), num_rows, mask)
    return _sort_traced(jnp.asarray(receivers), num_rows, edge_mask)


def _sort_on_host(receivers, num_rows, mask):
    at = first_outside(receivers, num_rows, mask)
    if at is not None:  # SciPy would write past its arrays.
        expected = f"in [0, {num_rows})"
        raise bad_input("sort_edges", f"receivers[{at}]", expected, int(receivers[at]))
    keys = receivers.astype(np.int32, copy=False)
    if mask is not None:
        keys = np.where(mask, keys, np.int32(num_rows))
    order = np.arange(len(keys), dtype=offset_dtype(len(keys)))
    indptr, _, order = compress(keys, np.zeros(len(keys), np.int32), order, (num_rows + 1, 1))
    return indptr[:-1], order


def compress(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorts entries by row, in linear time, keeping the order of the entries of a row.

    This is scipy's counting sort. Rows and columns are int32 in range; ``shape`` has no zero.

    Returns:
      ``(indptr, columns, values)``: row offsets, and the columns and values in the order of rows.
    """
    entries = scipy.sparse.coo_array((values, (rows, columns)), shape=shape)
    entries.has_canonical_format = True
    by_row = entries.tocsr()
    dtype = offset_dtype(len(values))
    return by_row.indptr.astype(dtype, copy=False), by_row.indices, by_row.data


def transpose_on_host(
    indptr: np.ndarray, indices: np.ndarray, num_cols: int, *, with_permutation: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Sorts the edges of a graph by sender, in linear time, keeping the order of a sender's edges.

    Slots after ``indptr[-1]`` are padding, with any senders. Without the permutation scipy moves
    one byte an edge instead of four.

    Returns:
      ``(transposed_indptr, transposed_indices, permutation)``. Padding stays after the edges; its
      receivers are the last row.
    """
    num_rows, num_edges = len(indptr) - 1, len(indices)
    dtype, real = offset_dtype(num_edges), int(indptr[-1])
    order = np.arange(num_edges, dtype=dtype if with_permutation else np.int8)
    offsets = indptr.astype(dtype, copy=False)
    shape = num_rows, max(num_cols, 1)
    if num_rows:
        edges = scipy.sparse.csr_array((order[:real], indices[:real], offsets), shape=shape)
        by_sender = edges.tocsc()
    else:
        by_sender = scipy.sparse.csc_array(shape, dtype=order.dtype)
    transposed = np.full(num_edges, max(num_rows - 1, 0), np.int32)
    transposed[:real] = by_sender.indices
    order[:real] = by_sender.data
    by_column = by_sender.indptr[: num_cols + 1].astype(dtype, copy=False)
    return by_column, transposed, order if with_permutation else None


@partial(jax.jit, static_argnums=1, inline=True)
def _sort_traced(receivers, num_rows, mask):
    # Narrower dtypes could not hold num_rows.
    keys = receivers.astype(jnp.int32)
    # Negative ids are treated like too large ones, and sorted after all rows.
    keys = jnp.where(keys < 0, num_rows, keys)
    if mask is not None:
        keys = jnp.where(mask, keys, num_rows)
    dtype = offset_dtype(receivers.shape[0])
    if dtype == np.int64:
        require_x64()
    permutation = jnp.argsort(keys, stable=True).astype(dtype)
    if jax.export.is_symbolic_dim(receivers.shape[0]):  # has no search
        counts = jnp.zeros(num_rows + 2, dtype).at[keys + 1].add(1, mode="drop")
        return jnp.cumsum(counts, dtype=dtype)[: num_rows + 1], permutation
    rows = jnp.arange(num_rows + 1, dtype=keys.dtype)
    indptr = jnp.searchsorted(keys[permutation], rows, side="left", method="sort")
    return indptr.astype(dtype), permutation


def inverse_permutation(permutation: Int[Array, " n"] | np.ndarray) -> Any:
    """Returns the inverse of a permutation, in numpy if the permutation is."""
    if isinstance(permutation, np.ndarray):
        inverse = np.empty_like(permutation)
        inverse[permutation] = np.arange(len(permutation), dtype=permutation.dtype)
        return inverse
    positions = jnp.arange(permutation.shape[0], dtype=permutation.dtype)
    return jnp.zeros_like(permutation).at[permutation].set(positions, unique_indices=True)


@partial(jax.jit, static_argnums=1, inline=True)
def row_ids(indptr: Int[Array, " rows+1"], num_edges: int) -> Int[Array, " edges"]:
    """Row of each CSR edge slot; slots after ``indptr[-1]`` get ``num_rows``, an invalid row."""
    num_rows = indptr.shape[0] - 1
    # XLA would fold the sum for a constant graph, at compile time and very slowly.
    indptr = jax.lax.optimization_barrier(indptr)
    # Counting row starts at each slot and summing them up is linear, unlike a binary search.
    starts = jnp.zeros(num_edges + 1, jnp.int32).at[indptr[1:]].add(1, mode="drop")
    return jnp.minimum(jax.lax.cumsum(starts)[:num_edges], num_rows)


def row_ids_on_host(indptr: Int[Array, " rows+1"] | np.ndarray, num_edges: int) -> np.ndarray:
    """Returns the row of each CSR edge slot, for concrete offsets, in numpy."""
    offsets = np.asarray(indptr)
    num_rows = len(offsets) - 1
    rows = np.full(num_edges, num_rows, np.int32)
    rows[: offsets[-1]] = np.repeat(np.arange(num_rows, dtype=np.int32), np.diff(offsets))
    return rows
