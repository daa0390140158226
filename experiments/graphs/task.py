"""Prediction tasks of a graph: a class, binary tasks, or numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.graphs.config import Metric
from jaxgnn import metrics
from jaxgnn._errors import bad_input
from jaxgnn.datasets import GraphsDataset

Kind = Literal["classes", "tasks", "numbers"]

# The first score of each kind is its default.
_METRICS: dict[Kind, tuple[Metric, ...]] = {
    "classes": ("accuracy",),
    "tasks": ("ROC-AUC", "AP"),
    "numbers": ("MAE", "RMSE"),
}
# Scores that OGB uses for its sets, where not the default.
_OF_OGB: dict[str, Metric] = {
    "ogbg-molpcba": "AP",
    "ogbg-molmuv": "AP",
    "ogbg-molesol": "RMSE",
    "ogbg-molfreesolv": "RMSE",
    "ogbg-mollipo": "RMSE",
}


@dataclass(frozen=True)
class Task:
    """A prediction task and its score.

    Attributes:
      kind: classes, binary tasks, or numbers.
      outputs: width of the prediction.
      metric: name of the score.
      mean: mean of each number over the training graphs, [outputs]; zeros for the other kinds.
      scale: its standard deviation there, [outputs]; ones for the other kinds.
    """

    kind: Kind
    outputs: int
    metric: Metric
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def is_error(self) -> bool:
        """Whether smaller scores are better."""
        return self.kind == "numbers"

    @property
    def percent(self) -> int:
        """Factor of scores in tables: 100 for those in [0, 1]."""
        return 1 if self.is_error else 100

    @property
    def unit(self) -> str:
        """Unit that follows the name of the score in tables."""
        return self.metric if self.is_error else f"{self.metric}, %"

    @property
    def digits(self) -> int:
        """Decimals of scores in tables."""
        return 4 if self.is_error else 2


def task_of(dataset: GraphsDataset, metric: Metric | None = None) -> Task:
    """The task of a data set with a split, by its labels.

    Integer labels are classes. Float labels are tasks if all values except NaN are zeros and ones,
    otherwise numbers to predict.

    Raises:
      ValueError: if the score does not apply to the task.
    """
    labels = dataset.labels
    outputs = dataset.num_classes
    mean, scale = np.zeros(outputs), np.ones(outputs)
    kind: Kind = "classes"
    if labels.ndim == 2 and labels.dtype.kind != "f":
        expected = "one with a class, tasks or numbers of each graph"
        raise bad_input("train", "--dataset", expected, f"{dataset.name}, whose labels are words")
    if labels.ndim == 2:
        known = labels[~np.isnan(labels)]
        kind = "tasks" if np.isin(known, (0, 1)).all() else "numbers"
    if kind == "numbers":
        mean = np.nanmean(labels[dataset.train], axis=0, dtype=np.float64)
        scale = np.nanstd(labels[dataset.train], axis=0, dtype=np.float64)
        scale = np.where(scale > 0, scale, 1)
    known_metrics = _METRICS[kind]
    chosen = metric or _OF_OGB.get(dataset.name, known_metrics[0])
    if chosen not in known_metrics:
        expected = f"one of {', '.join(known_metrics)} for {dataset.name}, whose labels are {kind}"
        raise bad_input("train", "--metric", expected, chosen)
    return Task(kind, outputs, chosen, tuple(mean.tolist()), tuple(scale.tolist()))


def loss_of(
    task: Task,
    predicted: jax.Array,
    labels: jax.Array,
    there: jax.Array,
    known_labels: jax.Array | None = None,
) -> jax.Array:
    """The mean loss of the labels that are known.

    Args:
      task: the prediction task.
      predicted: [graphs, outputs] float32: logits, or standardised numbers.
      labels: [graphs] classes, or [graphs, outputs] with NaN where a label is not known.
      there: [graphs] bool, False for padding.
      known_labels: divisor of the sum of the losses, float32 []; None for the number of labels.
    """
    if task.kind == "classes":
        losses = optax.softmax_cross_entropy_with_integer_labels(predicted, labels)
        return _mean(losses, there, known_labels)
    known = there[:, None] & ~jnp.isnan(labels)
    labels = jnp.where(known, labels, 0)
    if task.kind == "tasks":
        return _mean(optax.sigmoid_binary_cross_entropy(predicted, labels), known, known_labels)
    errors = predicted - (labels - jnp.array(task.mean)) / jnp.array(task.scale)
    losses = jnp.abs(errors) if task.metric == "MAE" else jnp.square(errors)
    return _mean(losses, known, known_labels)


def score_of(task: Task, predicted: Any, labels: Any) -> float:
    """The score of predictions in the format of ``loss_of``, of graphs without padding."""
    if task.kind == "classes":
        return float(np.mean(np.asarray(predicted).argmax(axis=1) == np.asarray(labels)))
    if task.kind == "numbers":
        numbers = np.asarray(predicted, np.float64) * task.scale + task.mean
        return _ERRORS[task.metric](numbers - np.asarray(labels, np.float64))
    scores, truths = jnp.asarray(predicted).T, jnp.asarray(labels).T
    # OGB ignores tasks without positives or without negatives, whose area is undefined.
    areas = metrics.roc_auc(scores, truths)
    values = areas if task.metric == "ROC-AUC" else metrics.average_precision(scores, truths)
    return float(jnp.nanmean(jnp.where(jnp.isnan(areas), jnp.nan, values)))


_ERRORS: dict[str, Callable[[np.ndarray], float]] = {
    "MAE": lambda errors: float(np.nanmean(np.abs(errors))),
    "RMSE": lambda errors: float(np.sqrt(np.nanmean(np.square(errors)))),
}


def _mean(values: jax.Array, counted: jax.Array, count: jax.Array | None = None) -> jax.Array:
    """The mean of the values that count, or their sum over ``count``; zero if none counts."""
    if count is None:
        count = jnp.maximum(jnp.sum(counted), 1).astype(values.dtype)
    return jnp.sum(jnp.where(counted, values, 0)) / count
