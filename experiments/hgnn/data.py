"""Data sets of hypergraphs, and scores of methods without a network on their nodes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from experiments._baselines import BaselineScore, baselines
from experiments._node_data import load as load_graph
from experiments._node_options import PLANETOID, NodeDataOptions
from experiments._options import option
from experiments._seeds import streams
from experiments.hgnn.config import NodesConfig
from jaxgnn import datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import HypergraphDataset, NodeDataset

# Largest number of pairs of nodes with a common hyperedge for which the graph is built.
_MOST_PAIRS = 5_000_000

# Options that apply only to one data set, or only to those with files.
_OPTIONS_OF = {
    "neighbors": ("digits",),
    "split": ("hypergcn",),
    "first_id": ("text",),
    "feature_noise": ("text",),
    "data": ("hypergcn", "text", *PLANETOID),
}


def load(config: NodesConfig) -> HypergraphDataset:
    """Reads or generates the data set.

    Raises:
      ValueError: if the data set needs a folder and none was given, an option does not apply to
        it, or a file is invalid.
    """
    _check_options(config)
    seed = streams(config.seed).split
    if config.dataset in PLANETOID:
        options = NodeDataOptions(dataset=config.dataset, data=config.data, seed=config.seed)
        return neighbourhoods(load_graph(options, "nodes"))
    if config.dataset == "digits":
        return datasets.digits_hypergraph(config.neighbors, seed=seed)
    if config.data is None:
        raise bad_input("nodes", "--data", f"the folder with the files of {config.dataset}", None)
    if config.dataset == "hypergcn":
        return datasets.read_hypergcn(config.data, split=config.split, seed=seed)
    return datasets.read_hyperedge_text(
        config.data,
        first_id=config.first_id,
        feature_noise=config.feature_noise,
        seed=seed,
    )


def _check_options(config: NodesConfig) -> None:
    """Raises ValueError for an option that does not apply to the data set."""
    defaults = {field.name: field.default for field in fields(config)}
    for name, users in _OPTIONS_OF.items():
        value = getattr(config, name)
        if config.dataset not in users and value != defaults[name]:
            expected = f"left out for {config.dataset}, which has no use for it"
            raise bad_input("nodes", option(name), expected, value)


def neighbourhoods(graph: NodeDataset) -> HypergraphDataset:
    """The hypergraph with a hyperedge for each node of a graph: the node and its neighbours.

    HGNN (https://arxiv.org/abs/1809.09401) builds hyperedges of citations in this way.
    """
    own = np.arange(graph.num_nodes, dtype=np.int32)
    others = graph.senders != graph.receivers
    names = ("name", "features", "labels", "train", "validation", "test", "num_classes")
    return HypergraphDataset(
        node_ids=np.concatenate([own, graph.senders[others]]),
        hyperedge_ids=np.concatenate([own, graph.receivers[others]]),
        num_hyperedges=graph.num_nodes,
        **{name: getattr(graph, name) for name in names},
    )


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
