"""Baselines of link prediction without a network, shown in every table.

Each method scores a pair of nodes by the message edges alone, or by features alone:

- ``"common neighbours"``: the number of common neighbours.
- ``"Adamic-Adar"``: the same, each neighbour divided by the logarithm of its degree (Friends and
  neighbors on the Web, Social Networks 2003).
- ``"preferential attachment"``: the product of the degrees.
- ``"cosine of features"``: the cosine similarity of the features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from experiments.links.data import Examination
from experiments.links.setup import scores_of
from jaxgnn.datasets import LinkPart, NodeDataset

# Rows of pairs processed at a time, to limit the memory of their neighbours.
_AT_ONCE = 8192


def trivial_scores(
    dataset: NodeDataset, part: LinkPart, asked: Examination, hits_k: int
) -> dict[str, dict[str, float]]:
    """Scores of each method on a part of a split, by the name of the method and of the score.

    Args:
      dataset: the data set, for its features.
      part: the part of the split, for its messages.
      asked: the pairs and candidates of the part.
      hits_k: the K of hits@K.
    """
    ones = np.ones(part.messages.shape[1])
    shape = (dataset.num_nodes, dataset.num_nodes)
    adjacency = scipy.sparse.csr_array((ones, tuple(part.messages)), shape)
    features = scipy.sparse.csr_array(dataset.features.astype(np.float64))
    sets = [np.asarray(s) for s in (asked.positives, asked.negatives, asked.candidates)]
    there = sets[-1][1] >= 0
    found = {}
    for name, method in _METHODS.items():
        score = method(adjacency, features)
        edges, others, ranked = (
            jnp.asarray(_in_pieces(score, ends.reshape(2, -1)).reshape(ends.shape[1:]))
            for ends in sets
        )
        values = scores_of(edges, others, ranked, jnp.asarray(there), hits_k)
        found[name] = {key: float(value) for key, value in values.items()}
    return found


type Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Function from the first and the second node of each pair to its score."""


def _in_pieces(score: Score, pairs: np.ndarray) -> np.ndarray:
    """The float32 score of pairs [2, pairs]."""
    starts = range(0, pairs.shape[1], _AT_ONCE)
    pieces = [score(*pairs[:, start : start + _AT_ONCE]) for start in starts]
    return np.concatenate(pieces).astype(np.float32)


def _products(rows: Any, weights: np.ndarray | None = None) -> Score:
    """``Σ_c rows[u, c] weights[c] rows[v, c]`` of each pair; default weights are ones."""
    weighted = rows if weights is None else rows @ scipy.sparse.diags_array(weights)
    return lambda u, v: (rows[u] * weighted[v]).sum(axis=1)


def _common_neighbours(adjacency: scipy.sparse.csr_array, _) -> Score:
    return _products(adjacency)


def _adamic_adar(adjacency: scipy.sparse.csr_array, _) -> Score:
    degrees = adjacency.sum(axis=1)
    return _products(adjacency, 1 / np.log(np.maximum(degrees, 2)))


def _preferential_attachment(adjacency: scipy.sparse.csr_array, _) -> Score:
    degrees = adjacency.sum(axis=1)
    return lambda u, v: degrees[u] * degrees[v]


def _cosine(_, features: scipy.sparse.csr_array) -> Score:
    lengths = np.sqrt((features * features).sum(axis=1))
    unit = scipy.sparse.diags_array(1 / np.where(lengths > 0, lengths, 1)) @ features
    return _products(unit.tocsr())


_METHODS: dict[str, Callable[..., Score]] = {
    "common neighbours": _common_neighbours,
    "Adamic-Adar": _adamic_adar,
    "preferential attachment": _preferential_attachment,
    "cosine of features": _cosine,
}
