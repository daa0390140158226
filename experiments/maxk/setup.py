"""What a run consists of: its data on the device, network, loss, optimiser and scores."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._nodes import node_loss
from experiments._seeds import streams
from experiments.maxk.config import TrainConfig
from experiments.maxk.data import Batch, make_batch, split_mask
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.models import GCNII, MaxKGNN
from jaxgnn.nn._dropout import dropout
from jaxgnn.training import LoopConfig, accuracy, micro_f1, roc_auc

SCORES = {"accuracy": accuracy, "micro F1": micro_f1, "ROC-AUC": roc_auc}
NORMALIZATIONS = {"sage": "mean", "gcn": "sym", "gin": None, "gcnii": "sym"}


def batch_of(config: TrainConfig, dataset: NodeDataset, graph: CSRGraph | None = None) -> Batch:
    """The data as the options ask for, on the device."""
    settings = config.recipe()
    return make_batch(
        dataset,
        graph,
        normalization=NORMALIZATIONS[config.kind()],
        self_loops=settings.self_loops,
        dtype=config.dtype,
        normalize_features=settings.normalize_features,
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


@dataclass(frozen=True)
class Loss:
    """Cross entropy over the training nodes, binary where labels are tasks.

    Attributes:
      input_dropout: probability of dropout of the features.
    """

    input_dropout: float

    def __call__(self, model: Any, batch: Batch, rngs: nnx.Rngs, k: int | None = None):
        x = dropout(batch.features, self.input_dropout, rngs)
        logits = model(batch.graph, x, rngs=rngs, **scheduled(k)).astype(jnp.float32)
        return node_loss(logits, batch.labels, batch.train), {}


def optimizer_of(config: TrainConfig) -> optax.GradientTransformation:
    """Adam, with an L2 penalty if the options have one."""
    settings = config.recipe()
    adam = optax.adam(settings.learning_rate)
    if not settings.weight_decay:
        return adam
    return optax.chain(optax.add_decayed_weights(settings.weight_decay), adam)


def predict(model: Any, batch: Batch, *, k: int | None = None) -> jax.Array:
    """Scores of all nodes, [nodes, classes] float32."""
    return model(batch.graph, batch.features, **scheduled(k)).astype(jnp.float32)


def scheduled(k: int | None) -> dict[str, int]:
    """The argument of a model with a scheduled k, which other networks do not have."""
    return {} if k is None else {"k": k}


@dataclass(frozen=True)
class Scores:
    """The metric of a dataset on its validation and its test nodes."""

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


def loop_of(config: TrainConfig) -> LoopConfig:
    """Length of the training, and when it is evaluated and saved."""
    settings = config.recipe()
    return LoopConfig(
        steps=settings.epochs,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        seed=streams(config.seed).training,
        select=f"validation {settings.metric}",
    )


def label_of(config: TrainConfig) -> str:
    """Name of a run in tables and pictures: its activation and k."""
    ks = config.layer_ks()
    return "ReLU" if ks is None else "MaxK k = " + ", ".join(map(str, sorted(set(ks))))


def num_parameters(model: nnx.Module) -> int:
    """How many parameters are trained."""
    return sum(p.size for p in jax.tree.leaves(nnx.state(model, nnx.Param)))
