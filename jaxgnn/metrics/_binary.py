"""Scores of binary classifiers that depend only on the order of the examples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.metrics._arrays import (
    all_finite,
    as_classes,
    as_mask,
    as_numbers,
    mean_where,
    result_dtype,
)
from jaxgnn.metrics._order import comparable


def roc_auc(
    scores: Num[Array, "*batch n"],
    labels: Num[Array, "*batch n"] | Bool[Array, "*batch n"],
    mask: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch"]:
    """Area under the ROC curve: the probability that a positive scores above a negative.

    ``1 / (P N) Σ_p Σ_n ([s_p > s_n] + ½ [s_p = s_n])`` over the P positives and N negatives, as
    computed by ``sklearn.metrics.roc_auc_score``. For several tasks the Open Graph Benchmark takes
    the mean over those that have an area: ``jnp.nanmean(roc_auc(scores.T, labels.T))``.

    Args:
      scores: larger means more likely positive, [*batch, n]; only their order counts. Arrays of
        NumPy, and lists, keep it in all 64 bits of int64, uint64 and float64.
      labels: 1 or True for positive, 0 or False for negative; an example whose label is NaN or
        below zero has none and is left out.
      mask: False for examples to be left out, such as padding; broadcast to the scores. None for
        all.

    Returns:
      A number in [0, 1] for each list of the batch, float32 (float64 for scores of float64). NaN
      if the selected examples have only one class, a score that is not finite, or a label that is
      neither 0 nor 1.

    Raises:
      ValueError: if scores and labels differ in shape or have no example, the mask does not fit, or
        the arguments seem to be in scikit-learn's order: known labels are other floats, and the
        scores integers.

    Example:
      >>> scores, labels = jnp.array([0.1, 0.4, 0.35, 0.8]), jnp.array([0, 0, 1, 1])
      >>> float(roc_auc(scores, labels))
      0.75
    """
    return _score(*_checked("metrics.roc_auc", scores, labels, mask), _shares_beaten)


def average_precision(
    scores: Num[Array, "*batch n"],
    labels: Num[Array, "*batch n"] | Bool[Array, "*batch n"],
    mask: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch"]:
    """Average precision: the mean over the positives of the precision at each positive.

    ``1 / P Σ_p |{q positive: s_q ≥ s_p}| / |{e: s_e ≥ s_p}|``, as computed by
    ``sklearn.metrics.average_precision_score``: the sum of the precisions at all thresholds,
    weighted by the growth of the recall. Examples with equal scores share a threshold.
    For several tasks the Open Graph Benchmark takes the mean over those with both classes.

    Args:
      scores: as for ``roc_auc``, [*batch, n].
      labels: as for ``roc_auc``, [*batch, n].
      mask: as for ``roc_auc``.

    Returns:
      A number in [0, 1] for each list of the batch, of the dtype of ``roc_auc``. NaN if the
      selected examples have no positive (scikit-learn warns and returns 0), a score that is not
      finite, or a label that is neither 0 nor 1.

    Raises:
      ValueError: as for ``roc_auc``.

    Example:
      >>> scores, labels = jnp.array([0.1, 0.4, 0.35, 0.8]), jnp.array([0, 0, 1, 1])
      >>> round(float(average_precision(scores, labels)), 4)
      0.8333
    """
    return _score(*_checked("metrics.average_precision", scores, labels, mask), _precisions)


class _Ranking(NamedTuple):
    """Selected examples in ascending order of scores, with ignored ones at the end.

    ``below`` counts those with a lower score than each, ``through`` those with at most its score.
    """

    positive: Bool[Array, "*batch n"]
    below: Int[Array, "*batch n"]
    positives_below: Int[Array, "*batch n"]
    through: Int[Array, "*batch n"]
    positives_through: Int[Array, "*batch n"]
    num_counted: Int[Array, "*batch 1"]
    num_positives: Int[Array, "*batch 1"]


def _ranking(scores: Array, labels: Array, counted: Array) -> _Ranking:
    left_out, ordered, positive = lax.sort(
        (~counted, scores, counted & (labels > 0)), dimension=-1, num_keys=2
    )
    num_counted = jnp.sum(counted, -1, keepdims=True, dtype=jnp.int32)
    # Start of each example's group of equal scores, and start of the next group.
    changes = (ordered[..., 1:] != ordered[..., :-1]) | (left_out[..., 1:] != left_out[..., :-1])
    edge = jnp.ones((*scores.shape[:-1], 1), bool)
    place = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    starts = jnp.where(jnp.concatenate([edge, changes], -1), place, 0)
    ends = jnp.where(jnp.concatenate([changes, edge], -1), place + 1, scores.shape[-1])
    first = lax.cummax(starts, axis=scores.ndim - 1)
    last = lax.cummin(ends, axis=scores.ndim - 1, reverse=True)
    positives = jnp.pad(
        jnp.cumsum(positive, -1, dtype=jnp.int32), [(0, 0)] * (scores.ndim - 1) + [(1, 0)]
    )
    return _Ranking(
        positive=positive,
        below=first,
        positives_below=jnp.take_along_axis(positives, first, -1),
        through=last,
        positives_through=jnp.take_along_axis(positives, last, -1),
        num_counted=num_counted,
        num_positives=positives[..., -1:],
    )


@functools.partial(jax.jit, static_argnums=3)
def _score(
    scores: Array, labels: Array, mask: Array, of_examples: Callable[[_Ranking, Any], Array]
) -> Array:
    """The mean over the positives of a function of the ranking, which is NaN if it has none."""
    counted = mask & (labels >= 0)  # false for NaN
    ranking = _ranking(scores, labels, counted)
    mean = mean_where(of_examples(ranking, result_dtype(scores)), ranking.positive)
    are_classes = jnp.all((labels == 0) | (labels == 1) | ~counted, -1)
    return jnp.where(all_finite(scores, counted) & are_classes, mean, jnp.nan)


def _shares_beaten(ranking: _Ranking, dtype: Any) -> Array:
    """Share of the negatives below each example, half of the equal ones; NaN without negatives."""
    negatives_below = ranking.below - ranking.positives_below
    negatives_through = ranking.through - ranking.positives_through
    num_negatives = ranking.num_counted - ranking.num_positives
    return (negatives_below + negatives_through).astype(dtype) / (2 * num_negatives).astype(dtype)


def _precisions(ranking: _Ranking, dtype: Any) -> Array:
    """Precision where each example is the last that counts as positive."""
    found = ranking.num_counted - ranking.below
    hits = ranking.num_positives - ranking.positives_below
    return hits.astype(dtype) / found.astype(dtype)


def _checked(where: str, scores: Any, labels: Any, mask: Any) -> tuple[Array, Array, Array]:
    scores = as_numbers(where, "scores", scores)
    labels = as_numbers(where, "labels", labels)
    if scores.shape[-1] == 0:
        raise bad_input(where, "scores", "of at least one example", f"shape {scores.shape}")
    if labels.shape != scores.shape:
        raise bad_input(where, "labels", f"of the scores' shape {scores.shape}", labels.shape)
    are_floats = [jnp.issubdtype(array.dtype, jnp.floating) for array in (scores, labels)]
    if are_floats == [False, True] and is_concrete(labels):
        numbers = np.asarray(labels)
        unlike = numbers[(numbers >= 0) & (numbers != 0) & (numbers != 1)]
        if unlike.size:
            expected = "0 or 1, below zero or NaN, and behind the scores, unlike in scikit-learn"
            raise bad_input(where, "labels", expected, unlike[0])
    (scores,) = comparable(where, scores=scores)
    return scores, as_classes(labels), as_mask(where, "mask", mask, scores.shape)
