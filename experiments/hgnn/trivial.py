"""Scores of methods without a network on the nodes of a hypergraph."""

from __future__ import annotations

import numpy as np

from experiments._baselines import BaselineScore, baselines
from jaxgnn.datasets import HypergraphDataset, NodeDataset

# Largest number of pairs of nodes with a common hyperedge for which the graph is built.
_MOST_PAIRS = 5_000_000


def trivial_scores(dataset: HypergraphDataset) -> dict[str, BaselineScore]:
    """Scores of trivial methods on the graph that joins all nodes with a common hyperedge.

    Empty, with a printed reason, if there are no validation nodes to choose settings by, or too
    many pairs.
    """
    sizes = np.bincount(dataset.hyperedge_ids, minlength=dataset.num_hyperedges)
    pairs = int((sizes.astype(np.int64) * (sizes - 1)).sum())
    if not dataset.validation.size:
        print("trivial methods are left out: no validation nodes to choose their settings by")
        return {}
    if pairs > _MOST_PAIRS:
        print(f"trivial methods are left out: {pairs:,} pairs of nodes with a common hyperedge")
        return {}
    return baselines(clique_expansion(dataset))


def clique_expansion(dataset: HypergraphDataset) -> NodeDataset:
    """The graph that joins nodes with a common hyperedge, once in each direction."""
    order = np.argsort(dataset.hyperedge_ids, kind="stable")
    members = dataset.node_ids[order]
    counts = np.bincount(dataset.hyperedge_ids, minlength=dataset.num_hyperedges)
    groups = np.split(members, np.cumsum(counts)[:-1])
    pairs = [np.stack(np.meshgrid(group, group)).reshape(2, -1) for group in groups]
    joined = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), np.int32)
    senders, receivers = np.unique(joined[:, joined[0] != joined[1]], axis=1).astype(np.int32)
    names = ("features", "labels", "train", "validation", "test", "num_classes")
    return NodeDataset(
        name=dataset.name,
        senders=senders,
        receivers=receivers,
        **{name: getattr(dataset, name) for name in names},
    )
