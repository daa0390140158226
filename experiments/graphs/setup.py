"""Parts of a run: its loss, optimiser, length and scores."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import optax
from flax import nnx

from experiments._seeds import streams
from experiments.graphs.config import GraphsConfig
from experiments.graphs.data import Batches, Parts, part_of
from experiments.graphs.networks import GraphNetwork
from experiments.graphs.task import Task, loss_of, score_of
from jaxgnn.datasets import GraphsDataset
from jaxgnn.graph import GraphBatch
from jaxgnn.training import LoopConfig, jit_apply


@dataclass(frozen=True)
class Loss:
    """The loss of a batch, or of a device's part of it.

    Attributes:
      task: the task of the network.
    """

    task: Task

    def __call__(self, model: GraphNetwork, batch: GraphBatch | Parts, rngs: nnx.Rngs):
        known_labels = None
        if isinstance(batch, Parts):
            batch, known_labels = batch.own, batch.known_labels
        predicted = model(batch, rngs)
        return loss_of(self.task, predicted, batch.globals, batch.graph_mask, known_labels), {}


class Scores:
    """Validation and test scores of a network; the batches stay on the device.

    Args:
      dataset: the graphs, with their labels.
      batches: batches of the data set.
      task: the task that is scored.
    """

    def __init__(self, dataset: GraphsDataset, batches: Batches, task: Task):
        self.task = task
        self._parts = {
            name: (jax.device_put(batches.part(name)), dataset.labels[getattr(dataset, name)])
            for name in ("validation", "test")
        }

    def __call__(self, model: GraphNetwork) -> dict[str, float]:
        return {
            f"{part} {self.task.metric}": score_of(self.task, _predicted(model, batches), labels)
            for part, (batches, labels) in self._parts.items()
        }


def predict(model: GraphNetwork, batch: GraphBatch) -> jax.Array:
    """The prediction of each graph slot of a batch, [graphs, outputs]."""
    return model(batch)


_predict = jit_apply(predict)


def _predicted(model: GraphNetwork, batches: list[GraphBatch]) -> np.ndarray:
    """The predictions of all graphs of some batches, without padding."""
    rows = [np.asarray(_predict(model, batch))[np.asarray(batch.graph_mask)] for batch in batches]
    return np.concatenate(rows)


def optimizer_of(config: GraphsConfig, batches: Batches) -> optax.GradientTransformation:
    """Adam, whose learning rate falls to zero along a cosine; with weight decay if configured."""
    steps = config.epochs * batches.per_epoch
    rate = optax.cosine_decay_schedule(config.learning_rate, steps)
    if config.weight_decay:
        return optax.adamw(rate, weight_decay=config.weight_decay)
    return optax.adam(rate)


def loop_of(config: GraphsConfig, batches: Batches, task: Task) -> LoopConfig:
    """Length of the training, and the intervals of evaluations and saves."""
    return LoopConfig(
        steps=config.epochs * batches.per_epoch,
        eval_every=config.eval_every * batches.per_epoch,
        checkpoint_every=config.checkpoint_every * batches.per_epoch,
        seed=streams(config.seed).training,
        select=f"validation {task.metric}",
        select_mode="min" if task.is_error else "max",
        examples_per_step=-(-part_of(batches.dataset, "train").size // batches.per_epoch),
        examples="graphs",
    )
