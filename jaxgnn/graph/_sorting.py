"""Sorting edges by receiver: the one step between an edge list and CSR."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Bool, Int

from jaxgnn._errors import bad_input
from jaxgnn.graph._arrays import is_concrete, offset_dtype, require_x64


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
    outside = (receivers < 0) | (receivers >= num_rows)
    if mask is not None:
        outside &= mask
    if outside.any():  # scipy would write past its arrays
        at = int(np.flatnonzero(outside)[0])
        expected = f"in [0, {num_rows})"
        raise bad_input("sort_edges", f"receivers[{at}]", expected, int(receivers[at]))
    keys = receivers.astype(np.int32)
    if mask is not None:
        keys = np.where(mask, keys, np.int32(num_rows))
    num_edges = len(keys)
    dtype = offset_dtype(num_edges)
    # One entry per sparse row and one sparse row per edge: converting that matrix to CSC is
    # scipy's linear, stable counting sort, and the row index it returns is the permutation.
    one_hot = scipy.sparse.csr_array(
        (np.ones(num_edges, np.int8), keys.astype(dtype), np.arange(num_edges + 1, dtype=dtype)),
        shape=(num_edges, num_rows + 1),
    )
    by_receiver = one_hot.tocsc()
    return by_receiver.indptr[:-1].astype(dtype), by_receiver.indices.astype(dtype)


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
    if jax.export.is_symbolic_dim(receivers.shape[0]):  # for which there is no search
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
    """Row of each CSR edge slot; slots behind ``indptr[-1]`` get ``num_rows``, an invalid row."""
    num_rows = indptr.shape[0] - 1
    # XLA would fold the sum for a constant graph, at compile time and very slowly.
    indptr = jax.lax.optimization_barrier(indptr)
    # Counting row starts at each slot and summing them up is linear, unlike a binary search.
    starts = jnp.zeros(num_edges + 1, jnp.int32).at[indptr[1:]].add(1, mode="drop")
    return jnp.minimum(jax.lax.cumsum(starts)[:num_edges], num_rows)


def row_ids_on_host(indptr: Int[Array, " rows+1"] | np.ndarray, num_edges: int) -> np.ndarray:
    """Row of each CSR edge slot, for concrete offsets, in numpy."""
    offsets = np.asarray(indptr)
    num_rows = len(offsets) - 1
    rows = np.full(num_edges, num_rows, np.int32)
    rows[: offsets[-1]] = np.repeat(np.arange(num_rows, dtype=np.int32), np.diff(offsets))
    return rows
