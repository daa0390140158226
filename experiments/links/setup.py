"""Parts of a run: its network, loss, optimiser and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments._seeds import streams
from experiments._spread import with_modules
from experiments.links.config import TrainConfig
from experiments.links.data import Examination, Nodes, Training
from jaxgnn import CSRGraph, metrics
from jaxgnn.distributed import ShardedGraph
from jaxgnn.models import MaxKGNN
from jaxgnn.nn import DotDecoder, MLPDecoder
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.sampling import masked_mean
from jaxgnn.training import LoopConfig, jit_apply


class LinkPredictor(nnx.Module):
    """An encoder, which embeds each node, and a decoder of pairs of embeddings."""

    def __init__(self, encoder: nnx.Module, decoder: nnx.Module):
        self.encoder = encoder
        self.decoder = decoder

    def __call__(
        self,
        nodes: Nodes,
        *pairs: jax.Array,
        input_dropout: float = 0.0,
        rngs: nnx.Rngs | None = None,
    ) -> list[jax.Array]:
        """The logits of several sets of pairs [2, *shape], each [*shape] float32."""
        h = self._embeddings(nodes, input_dropout, rngs)
        if nodes.places is not None:
            places = nodes.places
            pairs = tuple(places[ends] for ends in pairs)
        return [self.decoder(h, ends).astype(jnp.float32) for ends in pairs]

    def _embeddings(self, nodes: Nodes, rate: float, rngs: nnx.Rngs | None) -> jax.Array:
        """The embedding of each node, on the node's device."""

        def encode(graph: Any, x: Any, modules: Any) -> jax.Array:
            encoder, rngs = modules
            of_nodes = None if isinstance(x, CSRGraph) else graph
            return encoder(graph, dropout(x, rate, rngs, of_nodes), rngs=rngs)

        modules = self.encoder, rngs
        if isinstance(nodes.graph, ShardedGraph):
            return with_modules(encode, "rows", nodes.graph, nodes.features, modules)
        return encode(nodes.graph, nodes.features, modules)


def make_model(config: TrainConfig, in_features: int) -> LinkPredictor:
    """The network of the options, with the initial parameters of their seed."""
    rngs = nnx.Rngs(streams(config.seed).parameters)
    encoder = MaxKGNN(
        in_features,
        config.hidden_features,
        config.embedding_features,
        num_layers=config.layers(),
        kind=config.model,
        activation=config.activation,
        k=config.k,
        dropout=config.dropout,
        norm=config.norm,
        implementation=config.implementation,
        dtype=jnp.dtype(config.dtype),
        rngs=rngs,
    )
    if config.decoder == "dot":
        return LinkPredictor(encoder, DotDecoder())
    decoder = MLPDecoder(config.embedding_features, config.hidden_features, rngs=rngs)
    return LinkPredictor(encoder, decoder)


@dataclass(frozen=True)
class Loss:
    """Binary cross entropy of edges, and of pairs without an edge that are redrawn in each step.

    Attributes:
      input_dropout: probability of dropout of the features.
      negatives_per_edge: number of these pairs for each edge.
      of_sources: whether one node of each edge is kept, and only the other one is drawn.
    """

    input_dropout: float
    negatives_per_edge: int
    of_sources: bool

    def __call__(self, model: LinkPredictor, batch: Training, rngs: nnx.Rngs):
        key, count = rngs.negatives(), self.negatives_per_edge
        if self.of_sources:
            negatives = batch.sampler.sample(key, count, batch.positives[0])
        else:
            negatives = batch.sampler.sample(key, count * batch.positives.shape[1])
        sets, rate = (batch.positives, negatives), self.input_dropout
        edges, others = model(batch.nodes, *sets, input_dropout=rate, rngs=rngs)
        # A node that is joined to all others has no negative pair.
        there = negatives[1] >= 0
        return jnp.mean(jax.nn.softplus(-edges)) + masked_mean(jax.nn.softplus(others), there), {}


@dataclass(frozen=True)
class Scores:
    """The validation and test scores of a network.

    Attributes:
      examinations: data of validation and test, by name.
      hits_k: the K of hits@K.
    """

    examinations: dict[str, Examination]
    hits_k: int

    def __call__(self, model: LinkPredictor) -> dict[str, float]:
        return {
            f"{part} {name}": float(value)
            for part, examination in self.examinations.items()
            for name, value in _scored(model, examination, hits_k=self.hits_k).items()
        }


def scores_of(
    edges: jax.Array, others: jax.Array, ranked: jax.Array, there: jax.Array, hits_k: int
) -> dict[str, jax.Array]:
    """Scores by name.

    Args:
      edges: logits of the edges, [edges].
      others: logits of pairs without an edge, [pairs].
      ranked: logits of the candidates of each edge, [edges, candidates].
      there: False for a candidate that does not exist, [edges, candidates].
      hits_k: the K of hits@K, in which each edge is ranked among all ``others``.
    """
    logits = jnp.concatenate([edges, others])
    labels = jnp.arange(logits.shape[0]) < edges.shape[0]
    return {
        "ROC-AUC": metrics.roc_auc(logits, labels),
        "AP": metrics.average_precision(logits, labels),
        "MRR": metrics.mrr(edges, ranked, negative_mask=there),
        f"hits@{hits_k}": metrics.hits_at_k(edges, others, hits_k),
    }


def _score(model: LinkPredictor, part: Examination, *, hits_k: int) -> dict[str, jax.Array]:
    sets = part.positives, part.negatives, part.candidates
    edges, others, ranked = model(part.nodes, *sets)
    return scores_of(edges, others, ranked, part.candidates[1] >= 0, hits_k)


_scored = jit_apply(_score)


def optimizer_of(config: TrainConfig) -> optax.GradientTransformation:
    """Adam, with an L2 penalty if the options have one."""
    adam = optax.adam(config.learning_rate)
    if not config.weight_decay:
        return adam
    return optax.chain(optax.add_decayed_weights(config.weight_decay), adam)


def loop_of(config: TrainConfig, steps_per_epoch: int = 1) -> LoopConfig:
    """Length of the training, and the intervals of evaluations and saves."""
    return LoopConfig(
        steps=config.epochs * steps_per_epoch,
        eval_every=config.eval_every * steps_per_epoch,
        checkpoint_every=config.checkpoint_every * steps_per_epoch,
        seed=streams(config.seed).training,
        select=f"validation {config.metric()}",
    )
