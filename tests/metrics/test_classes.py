"""Accuracy, micro-F1 and ROC-AUC against scikit-learn."""

import importlib
import math

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from jaxgnn import metrics, training
from jaxgnn.metrics import accuracy, mean_roc_auc, micro_f1


@pytest.fixture(params=range(3))
def rng(request):
    return np.random.default_rng(request.param)


def tied_scores(rng, shape):
    """Few distinct values, so that most pairs tie."""
    return rng.integers(-3, 4, size=shape).astype(np.float32)


def test_accuracy_agrees_with_sklearn(rng):
    logits, labels = rng.normal(size=(200, 7)).astype(np.float32), rng.integers(0, 7, 200)
    mask = rng.random(200) < 0.3
    assert accuracy(logits, labels) == accuracy_score(labels, logits.argmax(1))
    expected = accuracy_score(labels[mask], logits[mask].argmax(1))
    assert accuracy(jnp.array(logits), jnp.array(labels), jnp.array(mask)) == expected


def test_accuracy_gives_ties_to_the_lowest_class():
    assert accuracy(np.zeros((4, 3)), np.array([0, 0, 0, 2])) == 0.75


def test_micro_f1_agrees_with_sklearn(rng):
    logits, labels = tied_scores(rng, (150, 9)), rng.integers(0, 2, (150, 9))
    mask = rng.random(150) < 0.5
    assert micro_f1(logits, labels) == pytest.approx(f1_score(labels, logits > 0, average="micro"))
    expected = f1_score(labels[mask], logits[mask] > 0, average="micro")
    assert micro_f1(jnp.array(logits), labels.astype(bool), mask) == pytest.approx(expected)


def test_micro_f1_of_nothing_predicted_and_nothing_right_is_zero():
    assert micro_f1(-np.ones((3, 2)), np.zeros((3, 2))) == 0.0


@pytest.mark.parametrize("ties", [False, True])
def test_mean_roc_auc_agrees_with_sklearn(rng, ties):
    shape = (300, 5)
    scores = tied_scores(rng, shape) if ties else rng.normal(size=shape)
    labels = rng.integers(0, 2, shape)
    mask = rng.random(300) < 0.5
    assert mean_roc_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    expected = roc_auc_score(labels[mask], scores[mask])
    assert mean_roc_auc(jnp.array(scores), jnp.array(labels), mask) == pytest.approx(expected)


def test_mean_roc_auc_leaves_out_tasks_with_one_class(rng):
    scores, labels = tied_scores(rng, (60, 4)), rng.integers(0, 2, (60, 4))
    labels[:, 1], labels[:, 3] = 0, 1
    areas = [roc_auc_score(labels[:, task], scores[:, task]) for task in (0, 2)]
    assert mean_roc_auc(scores, labels) == pytest.approx(sum(areas) / 2)


def test_mean_roc_auc_leaves_out_unlabelled_rows_of_each_task(rng):
    scores, labels = tied_scores(rng, (80, 3)), rng.integers(0, 2, (80, 3)).astype(float)
    known = rng.random((80, 3)) < 0.6
    labels[~known] = np.nan
    areas = [roc_auc_score(labels[k, t], scores[k, t]) for t, k in enumerate(known.T)]
    assert mean_roc_auc(scores, labels) == pytest.approx(sum(areas) / 3)


def test_mean_roc_auc_takes_bfloat16_scores(rng):
    scores = jnp.array(rng.normal(size=(50, 2)), jnp.bfloat16)
    labels = rng.integers(0, 2, (50, 2))
    expected = roc_auc_score(labels, np.asarray(scores).astype(np.float64))
    assert mean_roc_auc(scores, labels) == pytest.approx(expected)


def test_bad_input_is_refused():
    square, labels = np.zeros((3, 3)), np.zeros(3, int)
    with pytest.raises(ValueError, match=r"accuracy: expected logits .* got \(3, 3\) and \(4,\)"):
        accuracy(square, np.zeros(4, int))
    for score in (micro_f1, mean_roc_auc):
        with pytest.raises(ValueError, match=rf"{score.__name__}: .* got \(3, 3\) and \(3,\)"):
            score(square, labels)
    with pytest.raises(ValueError, match="no rows to count"):
        accuracy(square, labels, np.zeros(3, bool))
    with pytest.raises(ValueError, match=r"expected a bool mask \(3,\), got int64 \(3,\)"):
        accuracy(square, labels, np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="no task has both"):
        mean_roc_auc(square, square)
    with pytest.raises(ValueError, match="accuracy: no rows to count: all of them are unlabelled"):
        accuracy(square, np.full(3, -1))
    for score in (micro_f1, mean_roc_auc):
        with pytest.raises(ValueError, match=f"{score.__name__}: .* all of them are unlabelled"):
            score(square, np.full((3, 3), np.nan))


METRICS = {"accuracy": accuracy, "micro_f1": micro_f1, "mean_roc_auc": mean_roc_auc}


def scores_and_labels(rng, metric):
    """Predictions [60, 4] and labels of either kind, as floats, which may be NaN."""
    scores = rng.normal(size=(60, 4)).astype(np.float32)
    classes, shape = (4, (60,)) if metric == "accuracy" else (2, (60, 4))
    return scores, rng.integers(0, classes, shape).astype(float)


@pytest.mark.parametrize("none", [-1, -100, math.nan])
@pytest.mark.parametrize("metric", METRICS)
def test_a_label_below_zero_or_nan_is_left_out_of_the_count(rng, metric, none):
    scores, labels = scores_and_labels(rng, metric)
    unlabelled = rng.random(labels.shape) < 0.4
    labels[unlabelled] = none
    # What is not counted may be anything.
    scores[unlabelled] = math.nan
    if metric == "accuracy":
        expected = accuracy_score(labels[~unlabelled], scores[~unlabelled].argmax(1))
    elif metric == "micro_f1":
        # All pairs as one task.
        expected = f1_score(labels[~unlabelled], scores[~unlabelled] > 0)
    else:
        known = zip(labels.T, scores.T, ~unlabelled.T, strict=True)
        expected = np.mean([roc_auc_score(y[k], x[k]) for y, x, k in known])
    assert METRICS[metric](scores, labels) == pytest.approx(expected)


@pytest.mark.parametrize("bad", [4, 0.5, 127, math.inf])
@pytest.mark.parametrize("metric", METRICS)
def test_a_label_that_is_no_class_makes_the_score_nan(rng, metric, bad):
    scores, labels = scores_and_labels(rng, metric)
    labels.flat[17] = bad
    assert math.isnan(METRICS[metric](scores, labels))
    mask = np.ones(60, bool)
    mask[17 if metric == "accuracy" else 17 // 4] = False
    assert math.isfinite(METRICS[metric](scores, labels, mask))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("metric", METRICS)
def test_a_prediction_that_is_not_finite_makes_the_score_nan(rng, metric, bad, dtype):
    scores, labels = scores_and_labels(rng, metric)
    scores[9, 2] = bad
    predictions = jnp.asarray(scores, dtype)
    assert math.isnan(METRICS[metric](predictions, labels))
    assert math.isnan(METRICS[metric](jnp.full_like(predictions, bad), labels))
    others = np.arange(60) != 9
    assert math.isfinite(METRICS[metric](predictions, labels, others))


def test_minus_infinity_rules_a_class_out():
    logits = np.array([[-np.inf, 1.0, 0.0], [2.0, -np.inf, -np.inf]])
    assert accuracy(logits, np.array([1, 1])) == 0.5
    assert math.isnan(accuracy(np.full((2, 3), -np.inf), np.array([0, 1])))


@pytest.mark.parametrize("module", [training, importlib.import_module("jaxgnn.metrics.host")])
@pytest.mark.parametrize("name", ["accuracy", "micro_f1", "roc_auc"])
def test_a_deprecated_name_warns_once_and_is_the_function(module, name):
    vars(module).pop(name, None)
    new = "mean_roc_auc" if name == "roc_auc" else name
    message = f"{module.__name__}.{name} is deprecated: use jaxgnn.metrics.{new}$"
    with pytest.warns(DeprecationWarning, match=message):
        assert getattr(module, name) is getattr(metrics, new)
    assert getattr(module, name) is getattr(metrics, new)  # Warnings are errors.
    missing = "no_such_score"
    with pytest.raises(AttributeError, match=missing):
        getattr(module, missing)
