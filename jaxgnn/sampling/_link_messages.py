"""Messages of a sampled batch, without those along the edges that the batch predicts."""

from __future__ import annotations

import numpy as np

from jaxgnn.sampling._memory import filled
from jaxgnn.sampling._source import RawSample


def without_edges(raw: RawSample, num_seeds: int, cols: np.ndarray, rows: np.ndarray) -> RawSample:
    """Removes all edges between some pairs of seeds from a sample, in the shapes that it has.

    Every hop may have drawn them, and drawn repeats of them. No node loses its place: both ends of
    a removed edge are seeds.

    Args:
      raw: a sample in NumPy.
      num_seeds: number of distinct seeds, which are the first nodes of the sample.
      cols: column of each pair, below ``num_seeds``.
      rows: row of each pair, below ``num_seeds``.
    """
    pairs = np.unique(rows.astype(np.int64) * num_seeds + cols)
    hops = [
        _kept(*arrays, pairs, num_seeds)
        for arrays in zip(raw.indptr, raw.indices, raw.e_id, strict=True)
    ]
    indptr, indices, e_id = zip(*hops, strict=True)
    num_edges = np.asarray([offsets[-1] for offsets in indptr], np.int32)
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
