"""Parts of a run: its data on the device, its network, and its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments._node_data import Batch, make_batch, make_graph, say_weights_are_unused
from experiments._node_training import Caption, Parts
from experiments._seeds import streams
from experiments._spread import spread_batch, spread_graph
from experiments.attention.config import AttentionConfig
from experiments.attention.networks import AttentionGNN
from jaxgnn import CSRGraph
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset
from jaxgnn.graph import laplacian_positions, random_walk_positions
from jaxgnn.models import GraphTransformer, MaxKGNN

_POSITIONS = {"laplacian": laplacian_positions, "walks": random_walk_positions}


def batch_of(config: AttentionConfig, dataset: NodeDataset) -> Batch:
    """The data for the options, with positions of the nodes, on one device or several.

    Raises:
      ValueError: naming the option, if the graph has fewer eigenvectors than requested.
    """
    settings, is_maxk = config.recipe(), config.model == "sage"
    if settings.laplacian >= dataset.num_nodes:
        expected = f"less than the {dataset.num_nodes} nodes of the graph"
        raise bad_input("train", "--laplacian", expected, settings.laplacian)
    if not is_maxk:
        say_weights_are_unused(dataset, "attention")
    weights = dataset.edge_weights if is_maxk else None
    graph = CSRGraph.from_edges(dataset.senders, dataset.receivers, dataset.num_nodes, weights)
    counts = {name: getattr(settings, name) for name in _POSITIONS}
    given = {
        name: np.asarray(_POSITIONS[name](graph, count)).astype(jnp.dtype(config.dtype))
        for name, count in counts.items()
        if count
    }
    normalization = "mean" if is_maxk else None
    # Attention needs the same parts of a graph as sddmm.
    op = "maxk_spmm" if is_maxk else "sddmm"
    of_features: dict[str, Any] = {
        "dtype": config.dtype,
        "normalize_features": settings.normalize_features,
    }
    if config.devices > 1:
        whole = make_graph(dataset, graph, normalization, settings.self_loops, None)
        return spread_batch(
            spread_graph(whole, config, ("spmm", op)), dataset, given=given, **of_features
        )
    batch = make_batch(
        dataset,
        graph,
        normalization=normalization,
        self_loops=settings.self_loops,
        op=op,
        **of_features,
    )
    return replace(batch, given={name: jnp.asarray(rows) for name, rows in given.items()})


def make_model(config: AttentionConfig, dataset: NodeDataset) -> nnx.Module:
    """The network of the options, with the initial parameters of their seed."""
    settings = config.recipe()
    widths = dataset.features.shape[1], settings.hidden_features, dataset.num_classes
    options: dict[str, Any] = {
        "num_layers": settings.num_layers,
        "dropout": settings.dropout,
        "implementation": config.implementation,
        "dtype": jnp.dtype(config.dtype),
        "rngs": nnx.Rngs(streams(config.seed).parameters),
    }
    if config.model == "sage":
        return MaxKGNN(*widths, kind="sage", k=settings.k, **options)
    options |= {"heads": settings.heads, "attention_dropout": settings.attention_dropout}
    if config.model != "transformer":
        return AttentionGNN(*widths, kind=config.model, **options)
    return GraphTransformer(
        *widths,
        k=settings.k or None,
        laplacian_features=settings.laplacian,
        walk_features=settings.walks,
        virtual_nodes=settings.virtual_nodes,
        hyper_connections=config.hyper_connections,
        **options,
    )


def caption_of(config: AttentionConfig) -> Caption:
    """Names of the run in reports."""
    label = config.label()
    return Caption(config.data_name(), label, label, config.seed, config.recipe().metric)


PARTS = Parts(batch_of, make_model, AttentionConfig.label)
