"""Parts of a run: its data on the device or its loader, its network, and its name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments._node_data import Batch, make_batch, make_graph, rows_to_one
from experiments._node_training import Caption, Parts
from experiments._seeds import streams
from experiments._spread import spread_batch, spread_graph
from experiments.maxk.config import TrainConfig
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.models import GCNII, MaxKGNN
from jaxgnn.sampling import NeighborLoader

NORMALIZATIONS = {"sage": "mean", "gcn": "sym", "gin": None, "gcnii": "sym"}


def batch_of(config: TrainConfig, dataset: NodeDataset, graph: CSRGraph | None = None) -> Batch:
    """The data for the options, on the device, or spread over several."""
    settings, normalization = config.recipe(), NORMALIZATIONS[config.kind()]
    of_features: dict[str, Any] = {
        "dtype": config.dtype,
        "normalize_features": settings.normalize_features,
    }
    if config.devices > 1:
        whole = make_graph(dataset, graph, normalization, settings.self_loops, None)
        parts = spread_graph(whole, config, ("spmm", "maxk_spmm"))
        return spread_batch(parts, dataset, **of_features)
    return make_batch(
        dataset,
        graph,
        normalization=normalization,
        self_loops=settings.self_loops,
        **of_features,
    )


def make_model(config: TrainConfig, dataset: NodeDataset) -> MaxKGNN | GCNII:
    """The network of the options, with the initial parameters of their seed."""
    settings, ks, kind = config.recipe(), config.layer_ks(), config.kind()
    widths = dataset.features.shape[1], settings.hidden_features, dataset.num_classes
    options: dict[str, Any] = {
        "num_layers": settings.num_layers,
        "activation": config.activation,
        "dropout": settings.dropout,
        "kernel_mode": config.kernel_mode,
        "implementation": config.implementation,
        "dtype": jnp.dtype(config.dtype),
        "rngs": nnx.Rngs(streams(config.seed).parameters),
    }
    if kind == "gcnii":
        return GCNII(*widths, k=None if ks is None else ks[0], **options)
    return MaxKGNN(
        *widths,
        kind=kind,
        k=ks,
        norm=config.norm,
        hyper_connections=config.hyper_connections,
        scan_layers=config.scan_layers,
        **options,
    )


def label_of(config: TrainConfig) -> str:
    """Name of a run in tables and pictures: its activation and k."""
    ks = config.layer_ks()
    return "ReLU" if ks is None else "MaxK k = " + ", ".join(map(str, sorted(set(ks))))


def caption_of(config: TrainConfig) -> Caption:
    """Names of the run in reports."""
    label = label_of(config)
    network = f"{config.kind().upper()} {label}"
    if config.sample:
        network += f", sampled {' '.join(map(str, config.sample))}"
    return Caption(config.data_name(), network, label, config.seed, config.recipe().metric)


PARTS = Parts(batch_of, make_model, label_of)


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
