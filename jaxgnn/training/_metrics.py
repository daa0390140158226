"""Scores of classifiers, in NumPy, on the host. Arguments may be JAX or NumPy arrays.

All of them have one meaning of what can not be scored:

- A label below zero, or NaN, says that there is none: it is left out of the count.
- A label that is no class, beyond the last one or a fraction, can not be right: the score is NaN.
- A prediction that is counted and is not finite makes the score NaN. In ``accuracy`` that is the
  largest logit of a row, so that classes may be ruled out by minus infinity.
"""

import math

import jax
import numpy as np
from jaxtyping import Bool, Float, Num
from scipy.stats import rankdata

Values = jax.Array | np.ndarray

# Of a task: it is right, or it is not.
_TASK_CLASSES = 2


def accuracy(
    logits: Float[Values, "n classes"],
    labels: Num[Values, " n"],
    mask: Bool[Values, " n"] | None = None,
) -> float:
    """Fraction of rows whose largest logit is at the label; ties go to the lowest class.

    Args:
      logits: Scores of the classes; minus infinity rules a class out.
      labels: The right classes; below zero or NaN where there is none, and the row not counted.
      mask: Rows to count; all of them if None.

    Returns:
      A number in [0, 1]; NaN if a label that counts is no class, or the largest logit of its row
      is NaN or infinite.

    Raises:
      ValueError: The shapes do not match, or no row is left to count.
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"accuracy: expected logits [n, classes] and labels [n], "
            f"got {logits.shape} and {labels.shape}"
        )
    logits, labels = _masked("accuracy", logits, labels, mask)
    labelled = _labelled("accuracy", labels)
    logits, labels = logits[labelled], labels[labelled]
    # The largest of anything with a NaN is NaN.
    if not (_are_classes(labels, logits.shape[1]) and np.isfinite(logits.max(axis=1)).all()):
        return math.nan
    return float(np.mean(logits.argmax(axis=1) == labels))


def micro_f1(
    logits: Float[Values, "n tasks"],
    labels: Num[Values, "n tasks"] | Bool[Values, "n tasks"],
    mask: Bool[Values, " n"] | None = None,
) -> float:
    """F1 of a multi-label classifier over all (row, task) pairs: 2 TP / (2 TP + FP + FN).

    Args:
      logits: A task is predicted where its logit is above 0.
      labels: 1 where the task is right, else 0; below zero or NaN where that is not known, and
        the pair not counted.
      mask: Rows to count; all of them if None.

    Returns:
      A number in [0, 1]; 0 where nothing is predicted and nothing is right; NaN if a label that
      counts is neither 0 nor 1, or its logit is NaN or infinite.

    Raises:
      ValueError: The shapes do not match, or no pair is left to count.
    """
    logits, labels = _same_shape("micro_f1", logits, labels)
    logits, labels = _masked("micro_f1", logits, labels, mask)
    labelled = _labelled("micro_f1", labels)
    logits, labels = logits[labelled], labels[labelled]
    if not (_are_classes(labels, _TASK_CLASSES) and np.isfinite(logits).all()):
        return math.nan
    predicted, right = logits > 0, labels > 0
    hits = np.count_nonzero(predicted & right)
    total = np.count_nonzero(predicted) + np.count_nonzero(right)
    return 2 * hits / total if total else 0.0


def roc_auc(
    scores: Float[Values, "n tasks"],
    labels: Num[Values, "n tasks"] | Bool[Values, "n tasks"],
    mask: Bool[Values, " n"] | None = None,
) -> float:
    """Area under the ROC curve, averaged over tasks, as the Open Graph Benchmark defines it.

    The area is the chance that a positive scores above a negative, a tie counting one half. A
    task whose rows are all positive or all negative has no area and is left out of the mean.

    Args:
      scores: Larger means more likely positive. Only their order counts.
      labels: 1 positive, 0 negative; below zero or NaN unlabelled: that row does not count in
        that task.
      mask: Rows to count; all of them if None.

    Returns:
      A number in [0, 1]; NaN if a label is none of these, or a score that counts is NaN or
      infinite.

    Raises:
      ValueError: The shapes do not match, or no task has both classes.
    """
    scores, labels = _same_shape("roc_auc", scores, labels)
    scores, labels = _masked("roc_auc", scores, labels, mask)
    if not _are_classes(labels[_labelled("roc_auc", labels)], _TASK_CLASSES):
        return math.nan
    areas = [_task_auc(scores[:, task], labels[:, task]) for task in range(scores.shape[1])]
    defined = [area for area in areas if area is not None]
    if not defined:
        raise ValueError("roc_auc: no task has both positive and negative rows")
    return float(np.mean(defined))


def _task_auc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """The area of one task; None if it has one class alone, NaN if a score is not finite."""
    labelled = labels >= 0
    scores, positive = scores[labelled].astype(np.float64), labels[labelled] > 0
    positives = np.count_nonzero(positive)
    negatives = positive.size - positives
    if positives == 0 or negatives == 0:
        return None
    if not np.isfinite(scores).all():
        return math.nan
    # Mann and Whitney: the positives' ranks, less the ranks they hold among themselves, count
    # the (positive, negative) pairs in the right order.
    rank_sum = rankdata(scores)[positive].sum()
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def _labelled(name: str, labels: np.ndarray) -> np.ndarray:
    """Where there is a label, [*labels] bool.

    Raises:
      ValueError: There is none.
    """
    labelled = labels >= 0  # which a NaN is not
    if not labelled.any():
        raise ValueError(f"{name}: no rows to count: all of them are unlabelled")
    return labelled


def _are_classes(labels: np.ndarray, classes: int) -> bool:
    """Whether each of labels that are not below zero is one of so many classes."""
    return bool(np.all((labels < classes) & (np.floor(labels) == labels)))


def _same_shape(name: str, scores: Values, labels: Values) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim != 2 or labels.shape != scores.shape:
        raise ValueError(
            f"{name}: expected scores and labels [n, tasks], got {scores.shape} and {labels.shape}"
        )
    return scores, labels


def _masked(
    name: str, scores: np.ndarray, labels: np.ndarray, mask: Values | None
) -> tuple[np.ndarray, np.ndarray]:
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != labels.shape[:1]:
            raise ValueError(
                f"{name}: expected a bool mask {labels.shape[:1]}, got {mask.dtype} {mask.shape}"
            )
        scores, labels = scores[mask], labels[mask]
    if len(labels) == 0:
        raise ValueError(f"{name}: no rows to count")
    return scores, labels
