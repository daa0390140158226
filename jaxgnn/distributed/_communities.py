"""Parts of similar size that cut few edges, by communities and clusters of neighbours.

Nodes are ordered so that neighbours are close, the order is cut into equal pieces, and nodes then
move to the piece that has most of their neighbours. Each step takes time linear in the edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from jaxgnn.graph.plan.communities import find_communities

# A scipy.sparse.csr_array; the types of scipy know neither its slices nor its shape.
_Matrix = Any

# A group whose largest community has more than this share of its nodes has no communities.
_LARGEST_SHARE = 0.9
# Rounds in which nodes move; in each about half of those that gain by it.
_ROUNDS = 10
# Sizes of parts, by the mean size.
_MOST, _LEAST = 1.05, 0.5
# Random part of the order among equal neighbours.
_NOISE = 1e-3


def parts_by_community(neighbours: _Matrix, parts: int) -> np.ndarray:
    """Returns a part for each node, from half the mean size of a part up to 1.05 times it.

    Args:
      neighbours: pattern of a symmetric adjacency, [nodes, nodes], without repeated entries and
        loops.
      parts: number of parts, at most that of nodes.

    Returns:
      int32 [nodes], equal for equal arguments.
    """
    weighted = neighbours.astype(np.float64)
    num_nodes = weighted.shape[0]
    size = -(-num_nodes // parts)
    if size == 1 or parts == 1:
        return np.arange(num_nodes, dtype=np.int32) * (parts > 1)
    orders = _order_by_communities(weighted, size), _order_by_affinity(weighted)
    each = [_cut(order, parts) for order in orders]
    return _refined(
        weighted, max(each, key=lambda part_of: _entries_within_parts(weighted, part_of)), parts
    )


def _cut(order: np.ndarray, parts: int) -> np.ndarray:
    """The part of each node, if an order is cut into pieces that differ by at most one node."""
    part_of = np.empty(len(order), np.int32)
    part_of[order] = np.arange(len(order), dtype=np.int64) * parts // len(order)
    return part_of


def _entries_within_parts(neighbours: _Matrix, part_of: np.ndarray) -> int:
    """Returns the number of entries within the parts."""
    return int(np.count_nonzero(part_of[_rows(neighbours)] == part_of[neighbours.indices]))


def _order_by_communities(neighbours: _Matrix, size: int) -> np.ndarray:
    """Orders nodes by communities, these by communities within them down to ``size`` nodes."""
    num_nodes = neighbours.shape[0]
    if num_nodes <= size or not neighbours.nnz:
        return _order_by_affinity(neighbours)
    senders, indptr = _rows(neighbours), neighbours.indptr
    # A symmetric adjacency is its own transpose.
    communities = find_communities(indptr, indptr, neighbours.indices, senders)
    counts = np.bincount(communities)
    if counts.max() > _LARGEST_SHARE * num_nodes:
        return _order_by_affinity(neighbours)
    members = np.split(np.argsort(communities, kind="stable"), np.cumsum(counts)[:-1])
    inner = ((each, neighbours[each][:, each]) for each in members if len(each))
    return np.concatenate([each[_order_by_communities(within, size)] for each, within in inner])


def _order_by_affinity(neighbours: _Matrix) -> np.ndarray:
    """Orders nodes by the tree of affinity clustering.

    In each round every cluster joins the neighbour to which it has most edges, by the root of the
    product of their numbers of edges (Bateni et al., NeurIPS 2017, "Affinity clustering").
    """
    joined: _Matrix = neighbours
    num_nodes = joined.shape[0]
    cluster_of, degrees = np.arange(num_nodes), np.diff(neighbours.indptr).astype(np.float64)
    path, draws = [cluster_of], np.random.default_rng(0)
    while joined.nnz:
        count = len(degrees)
        rows, columns = _rows(joined), joined.indices
        # The same factor for both directions, so that chains of equal neighbours are short.
        draw = draws.random(count)
        noise = 1 + _NOISE * ((draw[rows] + draw[columns]) % 1)
        chosen = _largest(joined, joined.data / np.sqrt(degrees[rows] * degrees[columns]) * noise)
        pointers = np.ones(len(chosen)), (rows[chosen], columns[chosen])
        links = scipy.sparse.coo_array(pointers, shape=(count, count))
        count, labels = connected_components(links, directed=False)
        cluster_of, degrees = labels[cluster_of], np.bincount(labels, degrees, count)
        path.append(cluster_of)
        members = _columns(labels, count)
        joined = scipy.sparse.csr_array(members.T @ joined @ members)
        joined.setdiag(0)
        joined.eliminate_zeros()
    return np.lexsort(path)


def _refined(neighbours: _Matrix, part_of: np.ndarray, parts: int) -> np.ndarray:
    """Moves nodes to parts that have more of their neighbours, while sizes allow it."""
    mean, draws = len(part_of) / parts, np.random.default_rng(0)
    most, least = int(np.ceil(_MOST * mean)), int(np.ceil(_LEAST * mean))
    part_of = part_of.copy()
    for _ in range(_ROUNDS):
        counts = scipy.sparse.csr_array(neighbours @ _columns(part_of, parts))
        nodes, targets = _rows(counts), counts.indices
        inside = np.zeros(len(part_of))
        here = targets == part_of[nodes]
        inside[nodes[here]] = counts.data[here]
        best = _largest(counts, counts.data + _NOISE * draws.random(counts.nnz))
        gains = counts.data[best] - inside[nodes[best]]
        # If all nodes moved at once, neighbours would exchange their parts.
        moves = (gains > 0) & (draws.random(len(best)) < 0.5)
        order = np.argsort(-gains[moves], kind="stable")
        nodes, targets = nodes[best][moves][order], targets[best][moves][order]
        if not len(nodes):
            break
        sizes = np.bincount(part_of, minlength=parts)
        fits = (_ranks(targets) < (most - sizes)[targets]) & (
            _ranks(part_of[nodes]) < (sizes - least)[part_of[nodes]]
        )
        part_of[nodes[fits]] = targets[fits]
    return part_of


def _largest(matrix: _Matrix, values: np.ndarray) -> np.ndarray:
    """Returns the position of the first largest value of each row that has entries."""
    filled = np.flatnonzero(np.diff(matrix.indptr))
    best = np.zeros(matrix.shape[0])
    best[filled] = np.maximum.reduceat(values, matrix.indptr[filled])
    rows = _rows(matrix)
    hits = np.flatnonzero(values == best[rows])
    return hits[np.unique(rows[hits], return_index=True)[1]]


def _ranks(labels: np.ndarray) -> np.ndarray:
    """Returns the number of earlier entries with the same label, for each entry."""
    order = np.argsort(labels, kind="stable")
    ranks = np.empty(len(labels), np.int64)
    ranks[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return ranks


def _rows(matrix: _Matrix) -> np.ndarray:
    """Returns the row of each entry."""
    return np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))


def _columns(labels: np.ndarray, count: int) -> _Matrix:
    """Returns the matrix with a one in the column of each node's label."""
    ones, nodes = np.ones(len(labels)), np.arange(len(labels))
    return scipy.sparse.csr_array((ones, (nodes, labels)), shape=(len(labels), count))
