"""Loss, predictions and scores of networks that classify nodes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._node_data import Batch, split_mask
from experiments._spread import on_each_device
from jaxgnn import CSRGraph, distributed
from jaxgnn.datasets import NodeDataset
from jaxgnn.metrics import accuracy, mean_roc_auc, micro_f1
from jaxgnn.nn.shared.dropout import dropout

SCORES = {"accuracy": accuracy, "micro F1": micro_f1, "ROC-AUC": mean_roc_auc}


def node_loss(
    logits: jax.Array, labels: jax.Array, counted: jax.Array, graph: CSRGraph | None = None
) -> jax.Array:
    """Mean cross entropy of the counted nodes with a label, binary where labels are tasks.

    It is zero without such nodes. Labels have the meaning of the scores in ``jaxgnn.metrics``: a
    label below zero, or NaN, is missing and its node or task is ignored. A label beyond the classes
    makes the loss NaN.

    Args:
      logits: [nodes, classes] or [nodes, tasks].
      labels: [nodes] class ids, or [nodes, tasks] of zeros and ones.
      counted: [nodes] bool.
      graph: the graph of the nodes. If it is spread over devices, the mean is over the nodes of
        all devices.
    """
    labelled = labels >= 0  # false for NaN
    known = jnp.where(labelled, labels, 0)
    if labels.ndim == 2:
        losses = optax.sigmoid_binary_cross_entropy(logits, known)
        is_class = (known == 0) | (known == 1)
        counted = counted[:, None] & labelled
    else:
        is_class = known < logits.shape[-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, known)
        counted = counted & labelled
    losses = jnp.where(is_class, losses, jnp.nan)
    # The sum of the flags is a sum of integers, and exact.
    sums = jnp.sum(jnp.where(counted, losses, 0)), jnp.sum(counted)
    total, count = sums if graph is None else distributed.sum_over_devices(graph, sums)
    # A process of several may have no such nodes in the last step of an epoch.
    return total / jnp.maximum(count, 1).astype(losses.dtype)


@dataclass(frozen=True)
class Loss:
    """Cross entropy over the training nodes, binary where labels are tasks.

    Attributes:
      input_dropout: probability of dropout of the features.
    """

    input_dropout: float

    def __call__(self, model: Any, batch: Batch, rngs: nnx.Rngs, k: int | None = None):
        return on_each_device(self._of_nodes, "all", model, batch, rngs, k=k), {}

    def _of_nodes(self, model: Any, batch: Batch, rngs: nnx.Rngs, k: int | None) -> jax.Array:
        x: Any = batch.features
        of_nodes = None if isinstance(x, CSRGraph) else batch.graph
        x = dropout(x, self.input_dropout, rngs, of_nodes)
        logits = model(batch.graph, x, rngs=rngs, **batch.given, **scheduled(k)).astype(jnp.float32)
        return node_loss(logits, batch.labels, batch.train, batch.graph)


def predict(model: Any, batch: Batch, *, k: int | None = None) -> jax.Array:
    """Scores of all nodes, [nodes, classes] float32; a spread batch's scores stay spread."""
    return on_each_device(_scores, "rows", model, batch, k=k)


def _scores(model: Any, batch: Batch, rngs: None, k: int | None) -> jax.Array:
    return model(batch.graph, batch.features, **batch.given, **scheduled(k)).astype(jnp.float32)


def scheduled(k: int | None) -> dict[str, int]:
    """The argument of a model with a scheduled k; other networks do not take it."""
    return {} if k is None else {"k": k}


@dataclass(frozen=True)
class Scores:
    """Metric of a dataset on its validation and its test nodes."""

    dataset: NodeDataset
    metric: str

    def __call__(self, logits: jax.Array | np.ndarray) -> dict[str, float]:
        return {
            f"{name} {self.metric}": SCORES[self.metric](logits, self.dataset.labels, mask)
            for name, mask in self._masks.items()
        }

    @functools.cached_property
    def _masks(self) -> dict[str, np.ndarray]:
        splits = {"validation": self.dataset.validation, "test": self.dataset.test}
        return {name: split_mask(self.dataset, ids) for name, ids in splits.items()}


def num_parameters(model: nnx.Module) -> int:
    """Number of trained parameters."""
    return sum(p.size for p in jax.tree.leaves(nnx.state(model, nnx.Param)))
