"""The network that reads all relations, and one that reads the features of the papers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from experiments._seeds import streams
from experiments.relations.config import Layer, TrainConfig
from jaxgnn import nn
from jaxgnn.datasets import NodeDataset, RelationsDataset
from jaxgnn.graph import EdgeType, HeteroGraph
from jaxgnn.nn.shared.dropout import Dropout

# The layer of a relation, from the width of its input and output.
_LAYERS: dict[Layer, Callable[[int, nnx.Rngs], nnx.Module]] = {
    "sage": lambda width, rngs: nn.SAGEConv((width, width), width, rngs=rngs),
    "gat": lambda width, rngs: nn.GATConv(
        (width, width), width, add_self_loops=False, residual=True, rngs=rngs
    ),
}


class RelationalNetwork(nnx.Module):
    """A linear map for each type of nodes, layers for each relation, and a linear map to classes.

    Args:
      widths: width of the features of each type of nodes.
      edge_types: the relations.
      target: type of the nodes to classify.
      num_classes: number of classes.
      config: options of the layers.
      rngs: random streams of the parameters.
    """

    def __init__(
        self,
        widths: dict[str, int],
        edge_types: Sequence[EdgeType],
        target: str,
        num_classes: int,
        config: TrainConfig,
        rngs: nnx.Rngs,
    ):
        width = config.hidden_features
        self.target = target
        self.node_types = tuple(widths)
        self.inputs = nnx.List([nnx.Linear(w, width, rngs=rngs) for w in widths.values()])
        make = _LAYERS[config.layer]
        self.layers = nnx.List(
            nn.HeteroConv({e: make(width, rngs) for e in edge_types}, reduce="mean")
            for _ in range(config.layers())
        )
        self.dropout = Dropout(config.dropout, "RelationalNetwork")
        self.output = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(
        self,
        graph: HeteroGraph | Sequence[HeteroGraph],
        x: dict[str, jax.Array],
        *,
        rngs: nnx.Rngs | None = None,
    ) -> jax.Array:
        """Returns logits of the nodes of the target type, [nodes, classes].

        Args:
          graph: the whole graph, or a sampled block for each layer.
          x: features of each type of nodes.
          rngs: random streams of dropout in training, else None.
        """
        blocks = [graph] * len(self.layers) if isinstance(graph, HeteroGraph) else graph
        x = {t: linear(x[t]) for t, linear in zip(self.node_types, self.inputs, strict=True)}
        for layer, block in zip(self.layers, blocks, strict=True):
            # The nodes that a block has are the first ones of the block before.
            read = {t: x[t][:count] for t, count in block.num_nodes.items()}
            x = layer(block, {t: self.dropout(jax.nn.relu(h), rngs) for t, h in read.items()})
        return self.output(jax.nn.relu(x[self.target]))


class Perceptron(nnx.Module):
    """A hidden layer on the features of each node; it has the arguments of the network."""

    def __init__(self, in_features: int, num_classes: int, config: TrainConfig, rngs: nnx.Rngs):
        width = config.hidden_features
        self.input = nnx.Linear(in_features, width, rngs=rngs)
        self.dropout = Dropout(config.dropout, "Perceptron")
        self.output = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, graph: Any, x: jax.Array, *, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Returns logits, [nodes, classes]; the graph is ignored."""
        return self.output(self.dropout(jax.nn.relu(self.input(x)), rngs))


def make_network(
    config: TrainConfig, dataset: RelationsDataset, graph: HeteroGraph
) -> RelationalNetwork:
    """The network of the options, with the initial parameters of their seed."""
    return RelationalNetwork(
        {kind: rows.shape[1] for kind, rows in dataset.features.items()},
        graph.edge_types,
        dataset.target,
        dataset.num_classes,
        config,
        nnx.Rngs(streams(config.seed).parameters),
    )


def make_perceptron(config: TrainConfig, papers: NodeDataset) -> Perceptron:
    """The perceptron of the options, with the initial parameters of their seed."""
    rngs = nnx.Rngs(streams(config.seed).parameters)
    return Perceptron(papers.features.shape[1], papers.num_classes, config, rngs)
