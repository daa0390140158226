"""Messages of a sampled batch, without those along the edges that the batch predicts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.graph.plan.sorting import row_ids
from jaxgnn.sampling._memory import filled
from jaxgnn.sampling._source import RawSample

MOST_ON_DEVICE = 2**16 - 1
"""Most seeds whose pairs of row and column are numbered by 32 bits."""

# Larger than the number of any pair.
_NO_PAIR = 2**32 - 1


def without_edges(
    raw: RawSample, num_seeds: int, cols: np.ndarray, rows: np.ndarray, num_slots: int
) -> RawSample:
    """Removes all edges between some pairs of seeds from a sample, in the shapes that it has.

    Every hop may have drawn them, and drawn repeats of them. No node loses its place: both ends of
    a removed edge are seeds.

    Args:
      raw: a sample in NumPy, or in JAX of at most ``MOST_ON_DEVICE`` seed slots.
      num_seeds: number of distinct seeds, which are the first nodes of the sample.
      cols: column of each pair, below ``num_seeds``.
      rows: row of each pair, below ``num_seeds``.
      num_slots: most pairs of a batch, for which the device compiles.
    """
    if not isinstance(raw.n_id, np.ndarray):
        slots = raw.indptr[0].shape[0] - 1
        pairs = np.sort(rows.astype(np.uint32) * np.uint32(slots) + cols.astype(np.uint32))
        return _kept_on_device(raw, filled(pairs, num_slots, _NO_PAIR))
    pairs = np.unique(rows.astype(np.int64) * num_seeds + cols)
    hops = [
        _kept(*arrays, pairs, num_seeds)
        for arrays in zip(raw.indptr, raw.indices, raw.e_id, strict=True)
    ]
    return _replaced(raw, hops, np)


def _replaced(raw: RawSample, hops: list[tuple[Any, Any, Any]], xp: Any) -> RawSample:
    indptr, indices, e_id = zip(*hops, strict=True)
    num_edges = xp.stack([offsets[-1] for offsets in indptr])
    return raw._replace(indptr=indptr, indices=indices, e_id=e_id, num_edges=num_edges)


def _kept(
    indptr: np.ndarray, indices: np.ndarray, e_id: np.ndarray, pairs: np.ndarray, num_seeds: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of one hop without the edges of pairs, which are numbered by row and column."""
    degrees = np.diff(indptr[: num_seeds + 1])
    rows = np.repeat(np.arange(num_seeds), degrees)
    between = np.flatnonzero(indices[: len(rows)] < num_seeds)
    removed = between[np.isin(rows[between] * num_seeds + indices[between], pairs)]
    if not len(removed):
        return indptr, indices, e_id
    offsets = indptr - np.searchsorted(removed, indptr).astype(indptr.dtype)
    left, ids = np.delete(indices, removed), np.delete(e_id, removed)
    return offsets, filled(left, len(indices), 0), filled(ids, len(e_id), -1)


@jax.jit
def _kept_on_device(raw: RawSample, pairs: jax.Array) -> RawSample:
    """A sample without the edges of pairs, which are numbered by row and column, ascending."""
    seeds = raw.indptr[0].shape[0] - 1
    hops = []
    for indptr, indices, e_id in zip(raw.indptr, raw.indices, raw.e_id, strict=True):
        size = indices.shape[0]
        rows = row_ids(indptr, size)
        between = (rows < seeds) & (indices < seeds)
        numbers = rows.astype(jnp.uint32) * np.uint32(seeds) + indices.astype(jnp.uint32)
        at = jnp.minimum(jnp.searchsorted(pairs, numbers), pairs.shape[0] - 1)
        removed = between & (pairs[at] == numbers)
        kept = (jnp.arange(size) < indptr[-1]) & ~removed
        kept_before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(kept, dtype=jnp.int32)])
        slots = jnp.where(kept, kept_before[:-1], size)
        left = jnp.zeros_like(indices).at[slots].set(indices, mode="drop")
        ids = jnp.full_like(e_id, -1).at[slots].set(e_id, mode="drop")
        hops.append((kept_before[indptr], left, ids))
    return _replaced(raw, hops, jnp)
