"""Scores of node classifiers in NumPy, on the host.

They return a Python number in float64. Arguments are JAX or NumPy arrays. Values that can not be
scored are treated in the same way:

- A label below zero, or NaN, is missing: it is ignored.
- A label that is not a class, beyond the last one or a fraction, makes the score NaN.
- A counted prediction that is not finite makes the score NaN. In ``accuracy`` this means the
  largest logit of a row, so that classes may be ruled out by minus infinity.
"""

import math

import jax
import numpy as np
from jaxtyping import Bool, Float, Num

Values = jax.Array | np.ndarray

# A task is true or not.
_TASK_CLASSES = 2


def accuracy(
    logits: Float[Values, "n classes"],
    labels: Num[Values, " n"],
    mask: Bool[Values, " n"] | None = None,
) -> float:
    """Fraction of rows whose largest logit is at the label; ties go to the lowest class.

    Args:
      logits: Scores of the classes; minus infinity rules a class out.
      labels: The right classes; rows with a label below zero or NaN are ignored.
      mask: Rows to count; all of them if None.

    Returns:
      A number in [0, 1]; NaN if a counted label is not a class, or the largest logit of its row
      is NaN or infinite.

    Raises:
      ValueError: The shapes do not match, or no row is left to count.
    """
    logits, labels, labelled = _selected("accuracy", logits, labels, mask, one_label=True)
    logits, labels = logits[labelled], labels[labelled]
    # The maximum of values with a NaN is NaN.
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
      labels: 1 where the task is true, else 0; pairs with a label below zero or NaN are
        ignored.
      mask: Rows to count; all of them if None.

    Returns:
      A number in [0, 1]; 0 if no prediction and no label is positive; NaN if a counted label is
      neither 0 nor 1, or its logit is NaN or infinite.

    Raises:
      ValueError: The shapes do not match, or no pair is left to count.
    """
    logits, labels, labelled = _selected("micro_f1", logits, labels, mask)
    logits, labels = logits[labelled], labels[labelled]
    if not (_are_classes(labels, _TASK_CLASSES) and np.isfinite(logits).all()):
        return math.nan
    predicted, right = logits > 0, labels > 0
    hits = np.count_nonzero(predicted & right)
    total = np.count_nonzero(predicted) + np.count_nonzero(right)
    return 2 * hits / total if total else 0.0


def mean_roc_auc(
    scores: Float[Values, "n tasks"],
    labels: Num[Values, "n tasks"] | Bool[Values, "n tasks"],
    mask: Bool[Values, " n"] | None = None,
) -> float:
    """Area under the ROC curve, averaged over tasks, as the Open Graph Benchmark defines it.

    The area is the probability that a positive scores above a negative, with ties counting one
    half. A task whose rows are all positive or all negative has no area and is ignored in the mean.
    It is computed in NumPy on the host; ``roc_auc`` computes the area of each task on the device.

    Args:
      scores: Larger means more likely positive. Only their order matters.
      labels: 1 positive, 0 negative. A row with a label below zero or NaN is ignored in that
        task.
      mask: Rows to count; all of them if None.

    Returns:
      A number in [0, 1]; NaN if a label has another value, or a counted score is NaN or
      infinite.

    Raises:
      ValueError: The shapes do not match, or no task has both classes.
    """
    scores, labels, labelled = _selected("mean_roc_auc", scores, labels, mask)
    if not _are_classes(labels[labelled], _TASK_CLASSES):
        return math.nan
    areas = [_task_auc(scores[:, task], labels[:, task]) for task in range(scores.shape[1])]
    defined = [area for area in areas if area is not None]
    if not defined:
        raise ValueError("mean_roc_auc: no task has both positive and negative rows")
    return float(np.mean(defined))


def _task_auc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """The area of one task; None if it has only one class, NaN if a score is not finite."""
    labelled = labels >= 0
    scores, positive = scores[labelled].astype(np.float64), labels[labelled] > 0
    positives = np.count_nonzero(positive)
    negatives = positive.size - positives
    if positives == 0 or negatives == 0:
        return None
    if not np.isfinite(scores).all():
        return math.nan
    # Mann and Whitney: the positives' ranks, minus their ranks among themselves, count the
    # (positive, negative) pairs in the right order.
    _, ties, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[ties]  # equal scores share the mean of theirs
    rank_sum = ranks[positive].sum()
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def _selected(
    name: str, scores: Values, labels: Values, mask: Values | None, *, one_label: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The checked scores and labels of the rows of ``mask``, and a mask of the known labels.

    Labels are [n] if each row has one, and of the scores' shape otherwise.
    """
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim != 2 or labels.shape != (scores.shape[:1] if one_label else scores.shape):
        what = "logits [n, classes] and labels [n]" if one_label else "scores and labels [n, tasks]"
        raise ValueError(f"{name}: expected {what}, got {scores.shape} and {labels.shape}")
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != labels.shape[:1]:
            raise ValueError(
                f"{name}: expected a bool mask {labels.shape[:1]}, got {mask.dtype} {mask.shape}"
            )
        scores, labels = scores[mask], labels[mask]
    if len(labels) == 0:
        raise ValueError(f"{name}: no rows to count")
    labelled = labels >= 0  # false for NaN
    if not labelled.any():
        raise ValueError(f"{name}: no rows to count: all of them are unlabelled")
    return scores, labels, labelled


def _are_classes(labels: np.ndarray, classes: int) -> bool:
    """Whether known labels are all among ``classes`` classes."""
    return bool(np.all((labels < classes) & (np.floor(labels) == labels)))
