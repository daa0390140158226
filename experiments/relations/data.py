"""The graph of a run, on the device and for the loader."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from experiments._node_data import Batch, split_mask
from experiments._seeds import streams
from experiments.relations.config import TrainConfig
from jaxgnn import CSRGraph, datasets
from jaxgnn.datasets import NodeDataset, RelationsDataset
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import HeteroNeighborLoader


def load(config: TrainConfig) -> RelationsDataset:
    """The generated graph of the options, with the split of their seed."""
    return datasets.synthetic_relations(
        config.papers, config.authors, config.venues, seed=streams(config.seed).split
    )


def papers_of(dataset: RelationsDataset) -> NodeDataset:
    """The nodes to classify alone, joined by the one relation among them: the citations."""
    target = dataset.target
    [within] = (ends for (a, _, b), ends in dataset.edges.items() if a == b == target)
    return NodeDataset(
        name=dataset.name,
        senders=within[0],
        receivers=within[1],
        features=dataset.features[target],
        labels=dataset.labels,
        train=dataset.train,
        validation=dataset.validation,
        test=dataset.test,
        num_classes=dataset.num_classes,
    )


def graph_of(dataset: RelationsDataset) -> HeteroGraph:
    """All relations, and for those between two types the reverse, so that every type receives."""
    count = dataset.num_nodes
    graphs = {
        (sender, name, receiver): CSRGraph.from_edges(
            ends[0], ends[1], count[receiver], num_senders=count[sender]
        )
        for (sender, name, receiver), ends in dataset.edges.items()
    }
    return HeteroGraph(graphs, num_nodes=count).with_reverse()


def batch_of(dataset: RelationsDataset, papers: NodeDataset) -> Batch:
    """The whole graph on the device; features are by type of nodes."""
    features: Any = {kind: jnp.asarray(rows) for kind, rows in dataset.features.items()}
    return Batch(
        graph=graph_of(dataset),
        features=features,
        labels=jnp.asarray(dataset.labels),
        train=jnp.asarray(split_mask(papers, dataset.train)),
    )


def loader_of(config: TrainConfig, dataset: RelationsDataset, batch: Batch) -> HeteroNeighborLoader:
    """The loader of the training nodes; it reads the features on the device."""
    features: dict[str, jax.Array] = batch.features  # pyrefly: ignore
    return HeteroNeighborLoader(
        batch.graph,
        (dataset.target, dataset.train),
        config.sample,
        config.batch_size,
        features,
        dataset.labels,
        seed=streams(config.seed).training,
        edge_ids=False,
        processes=(0, 1),
    )
