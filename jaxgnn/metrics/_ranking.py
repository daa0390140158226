"""Scores of rankings, from the rank of a positive among its candidates."""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from jaxgnn._errors import bad_input
from jaxgnn.metrics._arrays import all_finite, as_mask, as_numbers, mean_where, result_dtype
from jaxgnn.metrics._order import comparable

Ties = Literal["optimistic", "mean", "pessimistic"]
"""Rank of a positive among negatives of equal score: before, in the middle of, or after them."""

# Ranks, in halves, that a positive loses to each negative of equal score.
_HALVES: dict[Ties, int] = {"optimistic": 0, "mean": 1, "pessimistic": 2}

# Ranks are counted in int32, in halves.
_MOST_RANKS = 2**30 - 1


def mrr(
    positives: Num[Array, "*batch queries"],
    negatives: Num[Array, "*batch queries candidates"] | Num[Array, "*batch candidates"],
    mask: Bool[Array, "*batch queries"] | None = None,
    negative_mask: Bool[Array, "..."] | None = None,
    *,
    ties: Ties = "mean",
) -> Float[Array, "*batch"]:
    """Mean reciprocal rank: ``mean_q 1 / rank_q``, where the best rank is 1.

    The rank of a positive is one plus the number of its negative candidates with a higher score;
    one with the same score counts one half, as in the evaluator of the Open Graph Benchmark
    (``ogbl-citation2``, ``ogbl-wikikg2``).

    Args:
      positives: score of the right candidate of each query, [*batch, queries]. Arrays of NumPy,
        and lists, are compared with the negatives in all bits of both; where one of the two is
        traced, they are rounded to one dtype of the device.
      negatives: scores of the other candidates, [*batch, queries, candidates]; or
        [*batch, candidates], with one axis less, if all queries have the same ones.
      mask: False for queries to ignore, such as padding; None selects all.
      negative_mask: False for candidates to ignore, broadcast to the negatives; None selects all.
        A query without any candidate is ignored.
      ties: rank of a positive among negatives of equal score.

    Returns:
      A number in (0, 1] for each list of queries, float32 (float64 for scores of float64). NaN
      if no query is selected, or a selected score is not finite.

    Raises:
      ValueError: if there are no queries or no candidates, shapes do not fit, or ``ties`` has no
        such name; or if one of the two is traced, both are integers, and the other one exceeds the
        dtype that JAX has for both.

    Example:
      >>> positives = jnp.array([0.9, 0.2])
      >>> negatives = jnp.array([[0.5, 0.1, 0.3], [0.1, 0.6, 0.3]])
      >>> round(float(mrr(positives, negatives)), 4)
      0.6667
    """
    arrays = _checked("metrics.mrr", positives, negatives, mask, negative_mask, ties)
    return _mrr(*arrays, ties)


def hits_at_k(
    positives: Num[Array, "*batch queries"],
    negatives: Num[Array, "*batch queries candidates"] | Num[Array, "*batch candidates"],
    k: int,
    mask: Bool[Array, "*batch queries"] | None = None,
    negative_mask: Bool[Array, "..."] | None = None,
    *,
    ties: Ties = "pessimistic",
) -> Float[Array, "*batch"]:
    """Hits@K: the fraction of the queries whose positive is among the first ``k``.

    If all positives share the negatives, this equals the evaluator of the Open Graph Benchmark
    (``ogbl-ppa``, ``ogbl-collab``, ``ogbl-ddi``): a positive has to score above the ``k``-th
    highest negative, and with fewer than ``k`` negatives all positives are hits. With
    ``ties="mean"`` it equals the Hits@1, 3 and 10 reported with its mean reciprocal rank.

    Args:
      positives: as for ``mrr``, [*batch, queries].
      negatives: as for ``mrr``, [*batch, queries, candidates] or [*batch, candidates].
      k: the largest rank that is a hit, at least 1.
      mask: as for ``mrr``.
      negative_mask: as for ``mrr``.
      ties: as for ``mrr``, with another default.

    Returns:
      A number in [0, 1] for each list of queries, and NaN, as for ``mrr``.

    Raises:
      ValueError: as for ``mrr``, or if ``k`` is no positive integer.

    Example:
      >>> positives, negatives = jnp.array([0.9, 0.4, 0.2]), jnp.array([0.1, 0.6, 0.3])
      >>> [round(float(hits_at_k(positives, negatives, k)), 4) for k in (1, 2, 3)]
      [0.3333, 0.6667, 1.0]
    """
    where = "metrics.hits_at_k"
    if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
        raise bad_input(where, "k", "an int of at least 1", repr(k))
    arrays = _checked(where, positives, negatives, mask, negative_mask, ties)
    return _hits(*arrays, ties, min(int(k), _MOST_RANKS))


@functools.partial(jax.jit, static_argnums=4)
def _mrr(positives: Array, negatives: Array, mask: Array, negative_mask: Array, ties: Ties):
    halves, counted, valid = _ranks(positives, negatives, mask, negative_mask, ties)
    reciprocal = 2 / halves.astype(result_dtype(positives, negatives))
    return jnp.where(valid, mean_where(reciprocal, counted), jnp.nan)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _hits(positives: Array, negatives: Array, mask: Array, negative_mask: Array, ties: Ties, k):
    halves, counted, valid = _ranks(positives, negatives, mask, negative_mask, ties)
    hit = (halves <= 2 * k).astype(result_dtype(positives, negatives))
    return jnp.where(valid, mean_where(hit, counted), jnp.nan)


def _ranks(
    positives: Array, negatives: Array, mask: Array, negative_mask: Array, ties: Ties
) -> tuple[Int[Array, "*batch queries"], Bool[Array, "*batch queries"], Bool[Array, "*batch"]]:
    """Twice the rank of each query, a mask of selected queries, and whether scores are finite."""
    shared = negatives.ndim == positives.ndim
    counts = _shared_counts if shared else _own_counts
    higher, equal, candidates = counts(positives, negatives, negative_mask)
    counted = mask & (candidates > 0)
    valid = all_finite(positives, counted)
    if shared:
        valid &= all_finite(negatives, negative_mask)
    else:
        valid &= jnp.all(all_finite(negatives, negative_mask) | ~counted, -1)
    return 2 + 2 * higher + _HALVES[ties] * equal, counted, valid


def _own_counts(positives: Array, negatives: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Counts each query's own candidates: those that score higher, score the same, and all."""
    own = positives[..., None]
    flags = ((negatives > own) & mask, (negatives == own) & mask, mask)
    return tuple(jnp.sum(flag, -1, dtype=jnp.int32) for flag in flags)  # pyrefly: ignore


def _shared_counts(positives: Array, negatives: Array, mask: Array) -> tuple[Array, Array, Array]:
    """The same of candidates that all queries share, which are sorted once."""
    dtype = positives.dtype  # that of the negatives too
    is_float = jnp.issubdtype(dtype, jnp.floating)
    last = jnp.inf if is_float else jnp.iinfo(dtype).max
    ordered = jnp.sort(jnp.where(mask, negatives, last), axis=-1)
    there = jnp.sum(mask, -1, dtype=jnp.int32)[..., None]
    lower, through = (
        jnp.minimum(_places(ordered, positives, side), there) for side in ("left", "right")
    )
    return there - through, through - lower, jnp.broadcast_to(there, positives.shape)


def _places(ordered: Array, values: Array, side: Literal["left", "right"]) -> Array:
    """Insertion position of each value of each list in the sorted list of the same batch."""
    search = functools.partial(jnp.searchsorted, side=side)
    for _ in ordered.shape[:-1]:
        search = jax.vmap(search)
    return search(ordered, values)


def _checked(
    where: str, positives: Any, negatives: Any, mask: Any, negative_mask: Any, ties: Any
) -> tuple[Array, Array, Array, Array]:
    if ties not in get_args(Ties):
        raise bad_input(where, "ties", f"one of {', '.join(get_args(Ties))}", repr(ties))
    positives = as_numbers(where, "positives", positives)
    negatives = as_numbers(where, "negatives", negatives)
    own, shared = positives.shape, positives.shape[:-1]
    if negatives.shape[:-1] not in (own, shared):
        shapes = " or ".join(
            str((*shape, "candidates")).replace("'", "") for shape in (own, shared)
        )
        raise bad_input(where, "negatives", f"of shape {shapes}", f"shape {negatives.shape}")
    pairs = ("positives", positives, "query"), ("negatives", negatives, "candidate")
    for name, array, what in pairs:
        if array.shape[-1] == 0:
            raise bad_input(where, name, f"of at least one {what}", f"shape {array.shape}")
    mask = as_mask(where, "mask", mask, positives.shape)
    negative_mask = as_mask(where, "negative_mask", negative_mask, negatives.shape)
    positives, negatives = comparable(where, positives=positives, negatives=negatives)
    return positives, negatives, mask, negative_mask
