"""Training on batches of edges, with sampled neighbours of their ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments._seeds import streams
from experiments.links.config import TrainConfig
from experiments.links.data import Links
from experiments.links.setup import LinkPredictor
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.sampling import LinkBatch, LinkNeighborLoader, masked_mean


@dataclass(frozen=True)
class SampledLoss:
    """``setup.Loss`` of a sampled batch: the mean over its edges and that over its negatives.

    Attributes:
      input_dropout: probability of dropout of the features.
    """

    input_dropout: float

    def __call__(self, model: LinkPredictor, batch: LinkBatch, rngs: nnx.Rngs):
        x = dropout(batch.x, self.input_dropout, rngs)
        h = model.encoder(batch.blocks, x, rngs=rngs)
        logits = model.decoder(h, batch.pairs).astype(jnp.float32)
        is_edge = batch.pair_labels > 0
        missed = masked_mean(jax.nn.softplus(-logits), batch.pair_mask & is_edge)
        invented = masked_mean(jax.nn.softplus(logits), batch.pair_mask & ~is_edge)
        return missed + invented, {}


def loader_of(config: TrainConfig, dataset: NodeDataset, links: Links) -> LinkNeighborLoader:
    """The loader of the predicted training edges.

    Features that are on the device are read there. Sparse ones are read as rows on the host.
    """
    nodes = links.training.nodes
    features: Any = nodes.features
    if isinstance(features, CSRGraph):
        features = np.asarray(dataset.features).astype(jnp.dtype(config.dtype))
    graph: Any = nodes.graph
    return LinkNeighborLoader(
        graph,
        links.split.train.supervision,
        config.sample,
        config.batch_size,
        features,
        negatives=config.negatives_per_edge,
        keep_senders=config.negatives == "source",
        negative_sampler=links.training.sampler,
        seed=streams(config.seed).training,
        edge_ids=False,
        processes=(0, 1),
    )
