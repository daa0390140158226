"""Accuracy, micro-F1 and ROC-AUC against scikit-learn."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from jaxgnn.training import accuracy, micro_f1, roc_auc


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
def test_roc_auc_agrees_with_sklearn(rng, ties):
    shape = (300, 5)
    scores = tied_scores(rng, shape) if ties else rng.normal(size=shape)
    labels = rng.integers(0, 2, shape)
    mask = rng.random(300) < 0.5
    assert roc_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    expected = roc_auc_score(labels[mask], scores[mask])
    assert roc_auc(jnp.array(scores), jnp.array(labels), mask) == pytest.approx(expected)


def test_roc_auc_leaves_out_tasks_with_one_class(rng):
    scores, labels = tied_scores(rng, (60, 4)), rng.integers(0, 2, (60, 4))
    labels[:, 1], labels[:, 3] = 0, 1
    areas = [roc_auc_score(labels[:, task], scores[:, task]) for task in (0, 2)]
    assert roc_auc(scores, labels) == pytest.approx(sum(areas) / 2)


def test_roc_auc_leaves_out_unlabelled_rows_of_each_task(rng):
    scores, labels = tied_scores(rng, (80, 3)), rng.integers(0, 2, (80, 3)).astype(float)
    known = rng.random((80, 3)) < 0.6
    labels[~known] = np.nan
    areas = [roc_auc_score(labels[k, t], scores[k, t]) for t, k in enumerate(known.T)]
    assert roc_auc(scores, labels) == pytest.approx(sum(areas) / 3)


def test_roc_auc_takes_bfloat16_scores(rng):
    scores = jnp.array(rng.normal(size=(50, 2)), jnp.bfloat16)
    labels = rng.integers(0, 2, (50, 2))
    expected = roc_auc_score(labels, np.asarray(scores).astype(np.float64))
    assert roc_auc(scores, labels) == pytest.approx(expected)


def test_bad_input_is_refused():
    square, labels = np.zeros((3, 3)), np.zeros(3, int)
    with pytest.raises(ValueError, match=r"accuracy: expected logits .* got \(3, 3\) and \(4,\)"):
        accuracy(square, np.zeros(4, int))
    for score in (micro_f1, roc_auc):
        with pytest.raises(ValueError, match=rf"{score.__name__}: .* got \(3, 3\) and \(3,\)"):
            score(square, labels)
    with pytest.raises(ValueError, match="no rows to count"):
        accuracy(square, labels, np.zeros(3, bool))
    with pytest.raises(ValueError, match=r"expected a bool mask \(3,\), got int64 \(3,\)"):
        accuracy(square, labels, np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="no task has both"):
        roc_auc(square, square)
    with pytest.raises(ValueError, match="scores contain NaN"):
        roc_auc(np.full((2, 1), np.nan), np.array([[0], [1]]))
