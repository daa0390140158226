"""Baselines that ignore which nodes are connected, shown beside networks.

- ``"majority"``: the most frequent class, the frequency of each task, or the median of each number.
- ``"bag of nodes"``: a linear model on the sums of the nodes' features and on their number.
- ``"bag of nodes and edges"``: the same, with sums and number of the edges too.

Linear models are logistic regressions for classes and tasks, and ridge regressions for numbers; the
validation chooses the strength of the penalty.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax
from threadpoolctl import threadpool_limits

from experiments.graphs.data import part_of
from experiments.graphs.task import Task, score_of
from jaxgnn.datasets import GraphsDataset

_STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)
_ITERATIONS = 200
# Limit that keeps a method within seconds: numbers of all bags times outputs.
_MOST_WORK = 50_000_000


def trivial_scores(dataset: GraphsDataset, task: Task) -> dict[str, float]:
    """Test scores by the name of the method; one that would take too long is skipped."""
    test = dataset.labels[dataset.test]
    rows = np.tile(_constant(dataset, task), (test.shape[0], 1))
    found = {"majority": score_of(task, rows, test)}
    bags = bag_of_nodes(dataset)
    both = np.concatenate([bags, bag_of_edges(dataset)], axis=1)
    for name, x in {"bag of nodes": bags, "bag of nodes and edges": both}.items():
        if x.size * task.outputs > _MOST_WORK:
            print(f"{name} is left out on {dataset.name}: {x.shape[1]} numbers of each graph")
            continue
        # Small products take longer with several threads.
        with threadpool_limits(limits=1, user_api="blas"):
            found[name] = _linear(dataset, task, _standardised(x, part_of(dataset, "train")))
    return found


def bag_of_nodes(dataset: GraphsDataset) -> np.ndarray:
    """The number of nodes of each graph and the sums of their features, [graphs, numbers]."""
    counts, features = dataset.num_nodes_of_each, dataset.node_features
    return _bags(counts, features, dataset.node_categories)


def bag_of_edges(dataset: GraphsDataset) -> np.ndarray:
    """The number of edges of each graph and the sums of their features, [graphs, numbers]."""
    counts, features = dataset.num_edges_of_each, dataset.edge_features
    return _bags(counts, features, dataset.edge_categories)


def _bags(
    counts: np.ndarray, features: np.ndarray | None, categories: tuple[int, ...] | None
) -> np.ndarray:
    columns: list[np.ndarray] = [counts.astype(np.float64)[:, None]]
    if features is not None:
        graphs = np.repeat(np.arange(counts.size), counts)
        for at, values in enumerate(features.T):
            if categories is None:
                columns.append(np.bincount(graphs, values, counts.size)[:, None])
            else:
                cells = graphs * categories[at] + values.astype(np.int64)
                shape = (counts.size, categories[at])
                columns.append(np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape))
    return np.concatenate(columns, axis=1)


def _standardised(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    deviation = x[train].std(axis=0)
    return (x - x[train].mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def _constant(dataset: GraphsDataset, task: Task) -> np.ndarray:
    """The best constant prediction for all graphs, [outputs]."""
    labels = dataset.labels[dataset.train]
    if task.kind == "classes":
        return np.bincount(labels, minlength=task.outputs).astype(np.float64)
    if task.kind == "tasks":
        return np.nanmean(labels, axis=0, dtype=np.float64)
    best = np.nanmedian(labels, axis=0) if task.metric == "MAE" else np.array(task.mean)
    return (best - task.mean) / task.scale


def _linear(dataset: GraphsDataset, task: Task, x: np.ndarray) -> float:
    """The test score of the linear model with the best validation score."""
    fit = _ridge if task.kind == "numbers" else _logistic
    x = np.concatenate([x, np.ones((x.shape[0], 1))], axis=1)
    targets, known = _targets(dataset, task)
    train, weights, scored = dataset.train, np.zeros((x.shape[1], task.outputs)), []
    for strength in _STRENGTHS:
        weights = fit(task, x[train], targets[train], known[train], strength, weights)
        test, validation = (
            score_of(task, x[part] @ weights, dataset.labels[part])
            for part in (dataset.test, dataset.validation)
        )
        scored.append((-validation if task.is_error else validation, test))
    return max(scored, key=lambda pair: pair[0])[1]


def _targets(dataset: GraphsDataset, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Targets as numbers, and a mask of the known ones, both [graphs, outputs]."""
    labels = dataset.labels
    if task.kind == "classes":
        hot = (labels[:, None] == np.arange(task.outputs)).astype(np.float64)
        return hot, np.ones(hot.shape)
    known = ~np.isnan(labels)
    values = np.where(known, labels, 0).astype(np.float64)
    if task.kind == "numbers":
        values = (values - task.mean) / task.scale
    return values, known.astype(np.float64)


def _logistic(
    task: Task,
    x: np.ndarray,
    targets: np.ndarray,
    known: np.ndarray,
    strength: float,
    start: np.ndarray,
) -> np.ndarray:
    """Minimises the mean cross entropy plus ``strength / 2`` times the squared weights."""
    count = np.maximum(known.sum(axis=0), 1)
    penalised = strength * np.append(np.ones(x.shape[1] - 1), 0)[:, None]  # but not the bias

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(start.shape)
        logits = x @ weights
        if task.kind == "tasks":
            losses, guess = np.logaddexp(0, logits) - targets * logits, expit(logits)
        else:
            losses, guess = -targets * log_softmax(logits, axis=1), softmax(logits, axis=1)
        slope = x.T @ (known * (guess - targets) / count) + penalised * weights
        total = (known * losses / count).sum() + (penalised * weights**2).sum() / 2
        return total, slope.ravel()

    options = {"maxiter": _ITERATIONS}
    found = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(start.shape)


def _ridge(
    task: Task,
    x: np.ndarray,
    targets: np.ndarray,
    known: np.ndarray,
    strength: float,
    start: np.ndarray,
) -> np.ndarray:
    """Minimises the mean squared error plus ``strength`` times the squared weights."""
    penalty = strength * np.diag(np.append(np.ones(x.shape[1] - 1), 0))
    columns = []
    for values, weight in zip(targets.T, known.T, strict=True):
        shown = x * (weight / max(weight.sum(), 1))[:, None]
        columns.append(np.linalg.lstsq(shown.T @ x + penalty, shown.T @ values, rcond=None)[0])
    return np.stack(columns, axis=1)
