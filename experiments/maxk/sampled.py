"""Training on batches of nodes with sampled neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments._node_data import Batch, rows_to_one
from experiments._node_training import Epochs
from experiments._nodes import node_loss, scheduled
from experiments._seeds import streams
from experiments.maxk.config import TrainConfig
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.sampling import NeighborLoader, SampledBatch


@dataclass(frozen=True)
class SampledLoss:
    """Cross entropy over the seeds of a sampled batch, binary where labels are tasks.

    Attributes:
      input_dropout: probability of dropout of the features.
    """

    input_dropout: float

    def __call__(self, model: Any, batch: SampledBatch, rngs: nnx.Rngs, k: int | None = None):
        x = dropout(batch.x, self.input_dropout, rngs)
        logits = model(batch.blocks, x, rngs=rngs, **scheduled(k)).astype("float32")
        return node_loss(logits[batch.seed_ids], batch.y, batch.seed_mask), {}


class SampledEpochs(Epochs):
    """Passes over the training nodes, whose batches a loader makes ahead."""

    def __init__(self, batch: Batch, loader: NeighborLoader):
        super().__init__(batch)
        self.loader, self.num_steps = loader, len(loader)

    def steps(self, start: int) -> _Steps:
        """The batches from a step on."""
        made = self.loader.steps(start)
        return _Steps(made, made.close, self._note)


@dataclass(frozen=True)
class _Steps:
    batch_of: Callable[[int], SampledBatch]
    close: Callable[[], None]
    note: Callable[[int], None]

    def __call__(self, step: int) -> SampledBatch:
        self.note(step)
        return self.batch_of(step)


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
