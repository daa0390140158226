"""Scores of simple methods on a data set, shown beside a network in every table.

Each method has a few settings. The best one is chosen on the validation nodes, as for a network;
the test nodes are not used for the choice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax
from threadpoolctl import threadpool_limits

from jaxgnn.datasets import NodeDataset
from jaxgnn.metrics import accuracy, micro_f1

Score = Callable[[Any, Any, Any], float]
# A setting in words and its predictions: [nodes, classes], or [nodes, tasks], where a value above
# zero predicts the task.
Candidates = Iterator[tuple[str, np.ndarray]]

_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
_STRENGTHS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4)
_POWERS = (1, 2, 3, 4)
_NEIGHBOURS = (1, 3, 5, 9)
_ITERATIONS = 100
# Limits that keep a method within seconds: multiplications a step, numbers in an array.
_MOST_WORK = 200_000_000
_MOST_NUMBERS = 50_000_000
# Distances carry little information in spaces of more dimensions, such as those of words.
_MOST_DIMENSIONS = 256


@dataclass(frozen=True)
class BaselineScore:
    """Scores of a method with the setting that is best on the validation nodes.

    Attributes:
      test: score of the test nodes.
      validation: score of the validation nodes.
      setting: the setting in words; empty for a method without any.
    """

    test: float
    validation: float
    setting: str


def baselines(dataset: NodeDataset, score: Score | None = None) -> dict[str, BaselineScore]:
    """Scores methods that need no network, each with its best setting on the validation nodes.

    - ``"majority class"``: how frequent each class is among the training nodes.
    - ``"label propagation"``: nodes repeatedly take the mean of their neighbours' labels; training
      nodes keep their own. It does not use features.
    - ``"logistic regression"``: on the features; it does not use edges.
    - ``"logistic regression, smoothed"``: on features averaged over neighbours K times, the SGC
      of https://arxiv.org/abs/1902.07153.
    - ``"nearest neighbours"``: a vote of the training nodes with the most similar features; only
      with at most 256 features.

    A method that would take too long on the data set is skipped, and a printed line says so.

    Args:
      dataset: data set whose nodes in the three parts have labels.
      score: function of predictions, labels and a mask of the nodes that count, such as
        ``jaxgnn.metrics.mean_roc_auc``; None for the accuracy, or micro F1 where labels are tasks.

    Returns:
      The score of each method, by its name, in the order above.
    """
    if score is None:
        score = micro_f1 if dataset.multilabel else accuracy
    nodes = np.arange(dataset.num_nodes)
    masks = [np.isin(nodes, part) for part in (dataset.test, dataset.validation)]
    found: dict[str, BaselineScore] = {}
    for name, (candidates, too_large) in _METHODS.items():
        reason = too_large(dataset)
        if reason is not None:
            _say_once(f"{name} is left out on {dataset.name}: {reason}")
            continue
        scored = []
        # The products are too small for several threads. Where other processes use the same cores,
        # several threads take ten times as long.
        with threadpool_limits(limits=1, user_api="blas"):
            for setting, predicted in candidates(dataset):
                test, validation = (score(predicted, dataset.labels, mask) for mask in masks)
                scored.append(BaselineScore(test, validation, setting))
        found[name] = max(scored, key=lambda one: one.validation)
    return found


@functools.cache
def _say_once(text: str) -> None:
    """Prints a line once, not again for each seed of a data set."""
    print(text)


def _majority(dataset: NodeDataset) -> Candidates:
    frequency = _targets(dataset)[dataset.train].mean(axis=0)
    yield "", np.tile(_centred(dataset, frequency), (dataset.num_nodes, 1))


def _label_propagation(dataset: NodeDataset) -> Candidates:
    average = _adjacency(dataset)
    incoming = np.maximum(average.sum(axis=1), 1)
    average = scipy.sparse.diags_array(1 / incoming) @ average
    known = _targets(dataset)[dataset.train]
    # Nodes that no label has reached yet have the mean label of the training nodes.
    beliefs = np.tile(known.mean(axis=0), (dataset.num_nodes, 1))
    beliefs[dataset.train] = known
    for step in range(1, _STEPS[-1] + 1):
        beliefs = average @ beliefs
        beliefs[dataset.train] = known
        if step in _STEPS:
            yield f"{step} steps", _centred(dataset, beliefs)


def _logistic_regression(dataset: NodeDataset) -> Candidates:
    yield from _regressions(dataset, _compact(dataset.features.astype(np.float64)))


def _smoothed_logistic_regression(dataset: NodeDataset) -> Candidates:
    adjacency = _adjacency(dataset) + scipy.sparse.eye_array(dataset.num_nodes, format="csr")
    scale = scipy.sparse.diags_array(adjacency.sum(axis=1) ** -0.5)
    average = scale @ adjacency @ scale
    features = dataset.features.astype(np.float64)
    for power in range(1, _POWERS[-1] + 1):
        features = average @ features
        if power in _POWERS:
            for setting, predicted in _regressions(dataset, _compact(features)):
                yield f"K = {power}, {setting}", predicted


def _nearest_neighbours(dataset: NodeDataset) -> Candidates:
    features = dataset.features.astype(np.float64)
    known, targets = features[dataset.train], _targets(dataset)[dataset.train]
    distances = (known**2).sum(axis=1) - 2 * features @ known.T  # up to a constant in each row
    # A training node is not its own neighbour, so that its row carries information too.
    distances[dataset.train, np.arange(dataset.train.size)] = np.inf
    nearest = np.argsort(distances, axis=1, kind="stable")
    for count in _NEIGHBOURS:
        if count < dataset.train.size:
            votes = targets[nearest[:, :count]].mean(axis=1)
            yield f"k = {count}", _centred(dataset, votes)


def _regressions(dataset: NodeDataset, features: Any) -> Candidates:
    """Logistic regressions from the strongest penalty to the weakest, each started at the last."""
    features = _in_training_span(features, dataset.train)
    shown, targets = features[dataset.train], _targets(dataset)[dataset.train]
    weights = np.zeros((features.shape[1] + 1, targets.shape[1]))
    for strength in _STRENGTHS:
        weights = _fit(shown, targets, strength, weights, tasks=dataset.multilabel)
        yield f"penalty {strength:g}", features @ weights[:-1] + weights[-1]


def _in_training_span(features: Any, train: np.ndarray) -> Any:
    """Features in coordinates of the span of the training nodes' features.

    A penalised regression gives no weight to directions orthogonal to all training nodes, so the
    regression on these few coordinates is the same.
    """
    if train.size >= features.shape[1]:
        return features
    shown = features[train]
    shown = shown.toarray() if scipy.sparse.issparse(shown) else shown
    basis, _ = np.linalg.qr(shown.T.astype(np.float64))
    return features @ basis


def _fit(
    x: Any, targets: np.ndarray, strength: float, start: np.ndarray, *, tasks: bool
) -> np.ndarray:
    """Minimises the mean cross entropy plus ``strength / 2`` times the squared weights.

    Args:
      x: [nodes, features], dense or sparse.
      targets: [nodes, classes] zeros and ones.
      strength: strength of the penalty; the biases have none.
      start: [features + 1, classes] weights to start from, the last row the biases.
      tasks: whether each column is a separate task, rather than one class of several.

    Returns:
      [features + 1, classes].
    """

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(start.shape)
        logits = x @ weights[:-1] + weights[-1]
        if tasks:
            losses, predicted = np.logaddexp(0, logits) - targets * logits, expit(logits)
        else:
            losses, predicted = -targets * log_softmax(logits, axis=1), softmax(logits, axis=1)
        errors = (predicted - targets) / len(targets)
        slope = np.concatenate([x.T @ errors + strength * weights[:-1], errors.sum(axis=0)[None]])
        penalty = strength / 2 * (weights[:-1] ** 2).sum()
        return losses.sum() / len(targets) + penalty, slope.ravel()

    options = {"maxiter": _ITERATIONS}
    found = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(start.shape)


def _targets(dataset: NodeDataset) -> np.ndarray:
    """Labels as zeros and ones, [nodes, classes] or [nodes, tasks]; zeros where there is none."""
    if dataset.multilabel:
        return dataset.labels.astype(np.float64)
    return (dataset.labels[:, None] == np.arange(dataset.num_classes)).astype(np.float64)


def _centred(dataset: NodeDataset, shares: np.ndarray) -> np.ndarray:
    """Class shares unchanged; task shares minus one half, above which a task is predicted."""
    return shares - 0.5 if dataset.multilabel else shares


def _adjacency(dataset: NodeDataset) -> scipy.sparse.csr_array:
    """Number of edges from each sender to each receiver: [receivers, senders]."""
    ends = (dataset.receivers, dataset.senders)
    shape = (dataset.num_nodes, dataset.num_nodes)
    return scipy.sparse.csr_array((np.ones(dataset.num_edges), ends), shape)


def _compact(features: np.ndarray) -> Any:
    """The features as a sparse matrix if most of them are zero."""
    is_sparse = np.count_nonzero(features) < 0.1 * features.size
    return scipy.sparse.csr_array(features) if is_sparse else features


def _never(dataset: NodeDataset) -> str | None:
    return None


def _many_edges(dataset: NodeDataset) -> str | None:
    return _beyond(dataset.num_edges * dataset.num_classes, _MOST_WORK, "edges times classes")


def _many_training_features(dataset: NodeDataset) -> str | None:
    work = dataset.train.size * dataset.features.shape[1] * dataset.num_classes
    return _beyond(work, _MOST_WORK, "training nodes times features times classes")


def _many_features(dataset: NodeDataset) -> str | None:
    reason = _beyond(dataset.features.size, _MOST_NUMBERS, "nodes times features")
    work = dataset.num_edges * dataset.features.shape[1]
    return (
        reason
        or _beyond(work, _MOST_WORK, "edges times features")
        or _many_training_features(dataset)
    )


def _many_distances(dataset: NodeDataset) -> str | None:
    width = dataset.features.shape[1]
    if width > _MOST_DIMENSIONS:
        return f"{width} features, more than {_MOST_DIMENSIONS}"
    pairs = dataset.num_nodes * dataset.train.size
    return _beyond(pairs, _MOST_NUMBERS, "nodes times training nodes")


def _beyond(number: int, most: int, what: str) -> str | None:
    return f"{number:,} {what}, more than {most:,}" if number > most else None


# By name in tables: the predictions of each setting, and the reason to skip a large data set.
_METHODS: dict[
    str, tuple[Callable[[NodeDataset], Candidates], Callable[[NodeDataset], str | None]]
] = {
    "majority class": (_majority, _never),
    "label propagation": (_label_propagation, _many_edges),
    "logistic regression": (_logistic_regression, _many_training_features),
    "logistic regression, smoothed": (_smoothed_logistic_regression, _many_features),
    "nearest neighbours": (_nearest_neighbours, _many_distances),
}
