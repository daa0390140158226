"""Positions of nodes in a graph, as features: eigenvectors of the Laplacian, random walks.

Both are computed on the host in numpy and scipy, from concrete graphs, and no gradient flows
through them. Each connected component is computed separately, so that the nodes of a batch get the
same features as in their own graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from jaxgnn._arrays.arrays import require_count
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.transforms import edges_of

# Components of at most this many nodes are decomposed as dense matrices.
_DENSE = 600
# Larger components are factorized if the factor has at most this many entries.
_FACTOR = 10_000_000
# Eigenvalues lie between -1 and 1; closer ones than this count as equal.
_EQUAL = 1e-12
# A sparse matrix; the types of scipy lack many of its operations.
Matrix = Any
# Columns of the powers of a matrix that are in memory at a time.
_COLUMNS = 256


def laplacian_positions(graph: CSRGraph, num_features: int) -> np.ndarray:
    """Eigenvectors of the normalised Laplacian I - D^-½ A D^-½, those of the lowest frequencies.

    Positional encodings of https://arxiv.org/abs/2003.00982. Edges count in both directions, with
    half of their weight each. The constant mode, of eigenvalue zero, is omitted. The squares of the
    entries of a vector have mean one. A connected component of n nodes has n - 1 vectors; further
    columns are zero, and so are isolated nodes and padding.

    The sign of an eigenvector is arbitrary. Here its largest entry is positive; networks should be
    trained with random signs, as ``models.GraphTransformer`` does. For a repeated eigenvalue, the
    eigenvectors are any basis of the same space.

    Args:
      graph: a square, concrete graph that is not normalised. Weights, if any, must not be negative.
      num_features: number of eigenvectors.

    Returns:
      A column for each eigenvector by ascending eigenvalue, float32 [nodes, num_features].

    Raises:
      ValueError: if the graph is traced, not square or normalised, a weight is negative or not
        finite, or ``num_features`` is no int of at least 1.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> path = CSRGraph.from_edges([0, 1], [1, 2], 3)
      >>> abs(laplacian_positions(path, 1)).ravel().astype(float).round(3).tolist()
      [1.225, 0.0, 1.225]
    """
    where = "laplacian_positions"
    matrix = _adjacency(where, graph)
    require_count(where, "num_features", num_features, "an int of at least 1")
    matrix = (matrix + matrix.T) / 2
    positions = np.zeros((graph.num_rows, num_features), np.float32)
    for nodes, part in _components(matrix):
        vectors = _slowest_modes(part, min(num_features, len(nodes) - 1))
        positions[nodes, : vectors.shape[1]] = vectors
    return positions


def random_walk_positions(graph: CSRGraph, num_steps: int) -> np.ndarray:
    """Probabilities that a random walk returns to its first node after 1, 2, … steps.

    Positional encodings of https://arxiv.org/abs/2110.07875: the diagonals of the powers of D⁻¹ A.
    A walk steps from a node to one of its senders, with a probability proportional to the weight of
    the edge. Nodes without edges, and padding, are zero. Time grows with nodes times edges times
    steps of each connected component.

    Args:
      graph: a square, concrete graph that is not normalised. Weights, if any, must not be negative.
      num_steps: number of steps of the longest walk.

    Returns:
      A column for each number of steps, float32 [nodes, num_steps].

    Raises:
      ValueError: if the graph is traced, not square or normalised, a weight is negative or not
        finite, or ``num_steps`` is no int of at least 1.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> ring = CSRGraph.from_edges([0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2], 3)
      >>> random_walk_positions(ring, 3)[0].tolist()
      [0.0, 0.5, 0.25]
    """
    where = "random_walk_positions"
    matrix = _adjacency(where, graph)
    require_count(where, "num_steps", num_steps, "an int of at least 1")
    positions = np.zeros((graph.num_rows, num_steps), np.float32)
    for nodes, part in _components(matrix):
        sums = part.sum(axis=1)
        step = scipy.sparse.diags_array(1 / np.where(sums > 0, sums, 1)) @ part
        for begin in range(0, len(nodes), _COLUMNS):
            starts = np.arange(begin, min(begin + _COLUMNS, len(nodes)))
            reached = np.zeros((len(nodes), len(starts)))
            reached[starts, np.arange(len(starts))] = 1
            for number in range(num_steps):
                reached = step @ reached
                positions[nodes[starts], number] = reached[starts, np.arange(len(starts))]
    return positions


def _adjacency(where: str, graph: CSRGraph) -> Matrix:
    """The weights of the edges, or ones, [receivers, senders], without edges of weight zero."""
    edges = edges_of(where, graph)
    weights = np.ones(len(edges.senders)) if edges.weights is None else edges.weights
    bad = np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))
    if bad.size:
        at = int(bad[0])
        raise bad_input(where, f"graph.weights[{at}]", "finite and not negative", weights[at])
    shape = graph.shape
    entries = (weights.astype(np.float64), (edges.receivers, edges.senders))
    matrix: Matrix = scipy.sparse.coo_array(
        entries, shape=shape
    ).tocsr()  # This adds up repeated edges.
    matrix.eliminate_zeros()
    return matrix


def _components(matrix: Matrix) -> Iterator[tuple[np.ndarray, Matrix]]:
    """The nodes and the matrix of each connected component that has an edge."""
    _, labels = connected_components(matrix, connection="weak")
    order = np.argsort(labels, kind="stable")
    ordered = matrix[order][:, order]
    bounds = np.flatnonzero(np.diff(labels[order], prepend=-1, append=labels.size))
    for begin, end in itertools.pairwise(bounds):
        part = ordered[begin:end, begin:end]
        if part.nnz:
            yield order[begin:end], part


def _slowest_modes(part: Matrix, count: int) -> np.ndarray:
    """Returns eigenvectors of a component, [nodes, count], without the constant mode."""
    if not count:
        return np.zeros((part.shape[0], 0))
    roots = part.sum(axis=1) ** 0.5
    scale = scipy.sparse.diags_array(1 / roots)
    # The largest eigenvalues of this matrix are the smallest ones of the Laplacian.
    similar: Matrix = scale @ part @ scale
    size = part.shape[0]
    if size <= _DENSE or count > size // 4:
        chosen = (size - count - 1, size - 1)
        pairs: Any = scipy.linalg.eigh(similar.toarray(), subset_by_index=chosen)
        vectors = pairs[1][:, count - 1 :: -1]
    else:
        vectors = _leading_vectors(similar, roots / np.linalg.norm(roots), count)
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(count)])
    return vectors * signs * size**0.5


def _leading_vectors(similar: Matrix, constant: np.ndarray, count: int) -> np.ndarray:
    """Eigenvectors [nodes, count] of the largest eigenvalues below that of the constant mode.

    One Krylov space may miss copies of a repeated eigenvalue. So the space orthogonal to the
    vectors that were found is searched again, until it has no larger eigenvalue than theirs.
    """
    apply = _inverse(similar) if _factor_entries(similar) <= _FACTOR else similar.__matmul__
    random = np.random.default_rng(0)  # Results are reproducible.
    kept = np.zeros((len(constant), 0))
    while True:
        earlier = np.column_stack([constant, kept])
        # After the first search, one more vector shows whether any was missed.
        new = _orthogonal_vectors(apply, earlier, 1 if kept.size else count, random)
        last = kept[:, -1] @ (similar @ kept[:, -1]) if kept.size else -np.inf
        if kept.size and new[:, 0] @ (similar @ new[:, 0]) <= last + _EQUAL:
            return kept
        basis, _ = np.linalg.qr(np.column_stack([kept, new]))
        _, turned = np.linalg.eigh(basis.T @ (similar @ basis))
        kept = (basis @ turned)[:, : -count - 1 : -1]


def _orthogonal_vectors(
    apply: Callable[[np.ndarray], np.ndarray],
    basis: np.ndarray,
    count: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Leading eigenvectors [nodes, count] among the vectors orthogonal to the known ones."""
    size = basis.shape[0]

    def deflated(vector: np.ndarray) -> np.ndarray:
        shares = basis.T @ vector
        result = apply(vector - basis @ shares)
        # The known vectors get an eigenvalue below all others of either matrix.
        return result - basis @ (basis.T @ result + 2 * shares)

    make: Any = scipy.sparse.linalg.LinearOperator
    operator = make((size, size), matvec=deflated, dtype=np.float64)
    start = random.normal(size=size)
    start -= basis @ (basis.T @ start)
    return scipy.sparse.linalg.eigsh(operator, count, which="LA", v0=start)[1]


def _inverse(similar: Matrix) -> Callable[[np.ndarray], np.ndarray]:
    """Applies (σI - S)⁻¹, whose leading eigenvectors are those of S, and far apart.

    On a path of n nodes, the eigenvalues of S next to 1 are only about 1 / n² apart, and so is σ.
    """
    size = similar.shape[0]
    shifted = (1 + 1 / size**2) * scipy.sparse.eye_array(size) - similar
    # The matrix is positive definite: no row has to be exchanged.
    factor: Any = scipy.sparse.linalg.splu(
        shifted.tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return factor.solve


def _factor_entries(similar: Matrix) -> int:
    """Upper bound of the entries of a Cholesky factor, from two orders of elimination."""
    order = reverse_cuthill_mckee(similar, symmetric_mode=True)
    lower = scipy.sparse.tril(similar[order][:, order], format="coo")
    nodes = np.arange(similar.shape[0])
    first = nodes.copy()
    np.minimum.at(first, lower.row, lower.col)
    band = int((nodes - first).sum()) + len(nodes)
    # Nodes of one or two edges add no entries. A tree with c more edges has 2c other nodes.
    edges = int((lower.row != lower.col).sum())
    cycles = edges - len(nodes) + 1
    return min(band, edges + len(nodes) + 2 * cycles**2)
