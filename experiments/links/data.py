"""Message edges and predicted pairs of a data set."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
import numpy as np

from experiments._node_data import on_device, say_weights_are_unused
from experiments._seeds import streams
from experiments._spread import everywhere, spread_features, spread_graph
from experiments.links.config import TrainConfig
from jaxgnn import CSRGraph
from jaxgnn.datasets import EdgeSplit, LinkPart, NodeDataset, split_edges
from jaxgnn.distributed import ShardedGraph, ShardedMatrix
from jaxgnn.graph import Normalization, to_undirected
from jaxgnn.sampling import NegativeSampler, PairWeights

_NORMALIZATIONS: dict[str, Normalization | None] = {"sage": "mean", "gcn": "gcn", "gin": None}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Nodes:
    """Input of the embeddings, on the device, or spread over several.

    Attributes:
      graph: the edges that carry messages, normalised for the network.
      features: [nodes, features]; a sparse matrix if less than a tenth is nonzero.
      places: the row of each node in arrays of spread rows, int32 [nodes]; None on one device,
        where nodes are in their order.
    """

    graph: CSRGraph | ShardedGraph
    features: jax.Array | CSRGraph | ShardedMatrix
    places: jax.Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Training:
    """Input of a training step, on the device.

    Attributes:
      nodes: the nodes, and the edges that carry messages.
      positives: the pairs that an edge joins, int32 [2, pairs].
      sampler: draws pairs that no training edge joins.
    """

    nodes: Nodes
    positives: jax.Array
    sampler: NegativeSampler


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Examination:
    """Data on which a network is validated or tested, on the device.

    Attributes:
      nodes: the nodes, and the edges that carry messages.
      positives: the pairs that an edge joins, int32 [2, pairs].
      negatives: as many pairs that no edge of the whole graph joins, int32 [2, pairs].
      candidates: for each positive its first node, and nodes that no edge joins to it; int32
        [2, pairs, candidates], -1 where there are none.
    """

    nodes: Nodes
    positives: jax.Array
    negatives: jax.Array
    candidates: jax.Array


@dataclass(frozen=True)
class Links:
    """A data set split for link prediction.

    Attributes:
      split: the split of its edges, without directions.
      training: data of a training step.
      examinations: data of validation and test, by name.
    """

    split: EdgeSplit
    training: Training
    examinations: dict[str, Examination]


def links_of(config: TrainConfig, dataset: NodeDataset) -> Links:
    """Splits the undirected edges of a data set, and draws the pairs of validation and test.

    Raises:
      ValueError: if the data set has too few edges for the fractions of the options.
    """
    seeds = streams(config.seed)
    say_weights_are_unused(dataset, "link prediction")
    whole = to_undirected(_graph(np.stack([dataset.senders, dataset.receivers]), dataset.num_nodes))
    split = split_edges(
        np.asarray(whole.senders),
        np.asarray(whole.receivers()),
        dataset.num_nodes,
        validation=config.validation,
        test=config.test,
        supervision=config.supervision or None,
        seed=seeds.split,
    )
    if not config.read_validation:
        known, ids = split.validation.messages, split.validation.message_ids
        split = replace(split, test=replace(split.test, messages=known, message_ids=ids))
    seen = _nodes(config, dataset, split)
    weights: PairWeights = "degree" if config.negatives == "degree" else "uniform"
    # In training only training edges are known; they are the messages of the validation.
    known = _graph(split.validation.messages, split.num_nodes)
    training = Training(
        nodes=seen["train"],
        positives=jnp.array(split.train.supervision),
        sampler=NegativeSampler.of(known, weights=weights),
    )
    sampler = NegativeSampler.of(whole)
    keys = jax.random.split(jax.random.key(seeds.split), (2, 2))
    parts = {"validation": split.validation, "test": split.test}
    examinations = {
        name: Examination(
            nodes=seen[name],
            positives=jnp.array(part.supervision),
            negatives=sampler.sample(of_negatives, part.supervision.shape[1]),
            candidates=sampler.sample(of_candidates, config.candidates, part.supervision[0]),
        )
        for (name, part), (of_negatives, of_candidates) in zip(parts.items(), keys, strict=True)
    }
    return Links(split, _placed(training), {n: _placed(e) for n, e in examinations.items()})


def _nodes(config: TrainConfig, dataset: NodeDataset, split: EdgeSplit) -> dict[str, Nodes]:
    """Input of the embeddings in each part; all parts share the arrays of features."""
    parts = {"train": split.train, "validation": split.validation, "test": split.test}
    graphs = {name: _for_network(config, part, split.num_nodes) for name, part in parts.items()}
    if config.devices == 1:
        features = on_device(dataset.features, config.dtype)
        return {n: Nodes(g.prepared("maxk_spmm"), features, None) for n, g in graphs.items()}
    ops = ("spmm", "maxk_spmm")
    first = spread_graph(graphs["train"], config, ops)
    features = spread_features(first, dataset, config.dtype)
    places = everywhere(jnp.array(first.layout.place_of, jnp.int32), first)
    spread = {
        n: spread_graph(g, config, ops, like=first) for n, g in graphs.items() if n != "train"
    }
    return {n: Nodes(g, features, places) for n, g in ({"train": first} | spread).items()}


def _placed[Part: (Training, Examination)](part: Part) -> Part:
    """Replicates arrays that are not spread on all devices of the graph."""
    own = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "nodes"}
    return replace(part, **everywhere(own, part.nodes.graph))


def _for_network(config: TrainConfig, part: LinkPart, num_nodes: int) -> CSRGraph:
    """The message edges of a part, in the form that the convolutions need."""
    graph = _graph(part.messages, num_nodes)
    if config.model == "gcn":
        graph = graph.with_self_loops()
    return graph.normalized(_NORMALIZATIONS[config.model])


def _graph(edges: np.ndarray, num_nodes: int) -> CSRGraph:
    return CSRGraph.from_edges(edges[0], edges[1], num_nodes)
