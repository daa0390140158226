"""Scores of classifiers, in NumPy, on the host. Arguments may be JAX or NumPy arrays."""

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Num
from scipy.stats import rankdata

Values = jax.Array | np.ndarray


def accuracy(
    logits: Float[Values, "n classes"],
    labels: Int[Values, " n"],
    mask: Bool[Values, " n"] | None = None,
) -> float:
    """Fraction of rows whose largest logit is at the label; ties go to the lowest class.

    Args:
        logits: Scores of the classes.
        labels: The right classes.
        mask: Rows to count; all of them if None.

    Returns:
        A number in [0, 1].

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
    return float(np.mean(logits.argmax(axis=1) == labels))


def micro_f1(
    logits: Float[Values, "n tasks"],
    labels: Num[Values, "n tasks"] | Bool[Values, "n tasks"],
    mask: Bool[Values, " n"] | None = None,
) -> float:
    """F1 of a multi-label classifier over all (row, task) pairs: 2 TP / (2 TP + FP + FN).

    Args:
        logits: A task is predicted where its logit is above 0.
        labels: 1 where the task is right, else 0.
        mask: Rows to count; all of them if None.

    Returns:
        A number in [0, 1]; 0 where nothing is predicted and nothing is right.

    Raises:
        ValueError: The shapes do not match, or no row is left to count.
    """
    logits, labels = _same_shape("micro_f1", logits, labels)
    logits, labels = _masked("micro_f1", logits, labels, mask)
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
        labels: 1 positive, 0 negative, NaN unlabelled: that row does not count in that task.
        mask: Rows to count; all of them if None.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: The shapes do not match, a score is NaN, or no task has both classes.
    """
    scores, labels = _same_shape("roc_auc", scores, labels)
    scores, labels = _masked("roc_auc", scores, labels, mask)
    if np.isnan(scores).any():
        raise ValueError("roc_auc: scores contain NaN")
    areas = [_task_auc(scores[:, task], labels[:, task]) for task in range(scores.shape[1])]
    defined = [area for area in areas if area is not None]
    if not defined:
        raise ValueError("roc_auc: no task has both positive and negative rows")
    return float(np.mean(defined))


def _task_auc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    # Labels without NaN may be integers or bools; the comparison with itself serves all types.
    labelled = labels == labels
    scores, positive = scores[labelled].astype(np.float64), labels[labelled] > 0
    positives = np.count_nonzero(positive)
    negatives = positive.size - positives
    if positives == 0 or negatives == 0:
        return None
    # Mann and Whitney: the positives' ranks, less the ranks they hold among themselves, count
    # the (positive, negative) pairs in the right order.
    rank_sum = rankdata(scores)[positive].sum()
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


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
