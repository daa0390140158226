"""The loader of training on batches of nodes with sampled neighbours."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from experiments._node_data import Batch, rows_to_one
from experiments._seeds import streams
from experiments.maxk.config import TrainConfig
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.sampling import NeighborLoader


def loader_of(config: TrainConfig, dataset: NodeDataset, batch: Batch) -> NeighborLoader:
    """The loader of the training nodes, of the graph and the features of the whole batch.

    Features that are on the device are read there. Sparse ones are read as rows on the host.
    """
    features: Any = batch.features
    if isinstance(features, CSRGraph):
        features = dataset.features
        if config.recipe().normalize_features:
            features = rows_to_one(features)
        features = np.asarray(features).astype(jax.numpy.dtype(config.dtype))
    return NeighborLoader(
        batch.graph,
        dataset.train,
        config.sample,
        config.batch_size,
        features,
        dataset.labels,
        seed=streams(config.seed).training,
        edge_ids=False,
        processes=(0, 1),
    )
