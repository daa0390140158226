"""Networks from a batch of graphs to a row of predictions for each graph."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments._seeds import streams
from experiments.graphs.config import GraphsConfig
from jaxgnn import nn
from jaxgnn.datasets import GraphsDataset
from jaxgnn.graph import GraphBatch
from jaxgnn.models import GraphTransformer
from jaxgnn.nn.shared.dropout import Dropout


class Features(nnx.Module):
    """The features of nodes or of edges as one matrix; categories become one-hot columns.

    Args:
      width: columns of the features; zero for no features, which are replaced by a column of ones.
      categories: number of categories of each column, or None for quantities.
      dtype: dtype of the result.
    """

    def __init__(self, width: int, categories: tuple[int, ...] | None, dtype: Any):
        self.width = max(width, 1) if categories is None else sum(categories)
        self.categories = categories
        self.dtype = dtype

    def __call__(self, values: jax.Array | None, count: int) -> jax.Array:
        """The matrix of ``count`` rows, [count, width]."""
        if values is None:
            return jnp.ones((count, 1), self.dtype)
        values = jnp.asarray(values)
        if self.categories is None:
            return values.astype(self.dtype)
        kinds = values.astype(jnp.int32)
        columns = [
            jax.nn.one_hot(kinds[:, at], size, dtype=self.dtype)
            for at, size in enumerate(self.categories)
        ]
        return jnp.concatenate(columns, axis=1)


class Layer(nnx.Module):
    """A convolution, a norm, ReLU and dropout, after an optional virtual node."""

    def __init__(self, config: GraphsConfig, rngs: nnx.Rngs):
        width = config.hidden_features
        options: dict[str, Any] = {"dtype": jnp.dtype(config.dtype), "rngs": rngs}
        convolution = options | {"implementation": config.implementation}
        self.virtual = nn.VirtualNode(width, **options) if config.virtual_node else None
        if config.model == "gin":
            mlp = nn.FusedMLP([width, width, width], activation="relu", **options)
            self.conv = nn.GINConv(width, width, linear=False, mlp=mlp, **convolution)
        else:
            self.conv = nn.GCNConv(width, width, **convolution)
        norms = {
            "batch": lambda: nn.BatchNorm(width, **options),
            "graph": lambda: nn.GraphNorm(width),
            "none": lambda: None,
        }
        self.norm = norms[config.norm]()
        self.dropout = Dropout(config.dropout, "experiments.graphs")

    def __call__(
        self, batch: GraphBatch, h: jax.Array, state: jax.Array | None, rngs: nnx.Rngs | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Maps the features of the nodes and of the virtual nodes to their new features."""
        if self.virtual is not None:
            h, state = self.virtual(h, batch, state)
        out: Any = self.conv(batch.graph, h)
        out = out if self.norm is None else self.norm(out, batch)
        return self.dropout(jax.nn.relu(out), rngs), state


class Convolutions(nnx.Module):
    """A linear map of the features, and layers of one kind; all their outputs are concatenated."""

    def __init__(self, config: GraphsConfig, in_features: int, rngs: nnx.Rngs):
        width, dtype = config.hidden_features, jnp.dtype(config.dtype)
        self.lin_in = nn.FusedLinear(in_features, width, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(Layer(config, rngs) for _ in range(config.num_layers))
        self.out_features = width * config.num_layers

    def __call__(
        self, batch: GraphBatch, x: jax.Array, edges: jax.Array, rngs: nnx.Rngs | None
    ) -> jax.Array:
        """Embeddings of the nodes, [nodes, out_features]; edge features are ignored."""
        h: Any = self.lin_in(x)
        state, outputs = None, []
        for layer in self.layers:
            h, state = layer(batch, h, state, rngs)
            outputs.append(h)
        return jnp.concatenate(outputs, axis=1)


class Transformer(nnx.Module):
    """The library's transformer over neighbours, which also reads edge features."""

    def __init__(self, config: GraphsConfig, in_features: int, edge_features: int, rngs: nnx.Rngs):
        width = config.hidden_features
        self.body = GraphTransformer(
            in_features,
            width,
            width,
            num_layers=config.num_layers,
            heads=config.heads,
            edge_features=edge_features,
            dropout=config.dropout,
            implementation=config.implementation,
            dtype=jnp.dtype(config.dtype),
            rngs=rngs,
        )
        self.out_features = width

    def __call__(
        self, batch: GraphBatch, x: jax.Array, edges: jax.Array, rngs: nnx.Rngs | None
    ) -> jax.Array:
        """Embeddings of the nodes, [nodes, out_features]."""
        return self.body(batch, x, edge_features=edges, rngs=rngs)


class GraphNetwork(nnx.Module):
    """An encoder of the nodes, a readout, and a perceptron on its result."""

    def __init__(self, config: GraphsConfig, dataset: GraphsDataset, outputs: int):
        rngs, dtype = nnx.Rngs(streams(config.seed).parameters), jnp.dtype(config.dtype)
        self.nodes = Features(_width(dataset.node_features), dataset.node_categories, dtype)
        self.edges = Features(_width(dataset.edge_features), dataset.edge_categories, dtype)
        if config.model == "transformer":
            self.encoder = Transformer(config, self.nodes.width, self.edges.width, rngs)
        else:
            self.encoder = Convolutions(config, self.nodes.width, rngs)
        self.readout = config.readout
        self.dropout = Dropout(config.dropout, "experiments.graphs")
        joined = self.encoder.out_features * len(config.readout)
        widths = [joined, config.hidden_features, outputs]
        self.head = nn.FusedMLP(widths, activation="relu", dtype=dtype, rngs=rngs)

    def __call__(self, batch: GraphBatch, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Logits or standardised numbers, [graphs, outputs] float32; padding rows are undefined."""
        x = self.nodes(batch.nodes, batch.graph.num_rows)
        edges = self.edges(batch.edges, batch.graph.num_edges)
        h = nn.pool(self.encoder(batch, x, edges, rngs), batch, self.readout)
        return self.head(self.dropout(h, rngs)).astype(jnp.float32)


def _width(features: Any) -> int:
    return 0 if features is None else features.shape[1]
