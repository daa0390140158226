"""Scores on the device agree with scikit-learn and with written-out definitions, ties included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from jaxgnn import metrics

RNG = np.random.default_rng(0)
# Of float32: a mean of numbers in [0, 1], each of few roundings.
CLOSE = {"rtol": 0, "atol": 2e-6}
OF_SKLEARN = {"roc_auc": roc_auc_score, "average_precision": average_precision_score}


def _scores(*shape, decimals=1):
    """Scores of which many are equal."""
    return np.round(RNG.normal(size=shape), decimals).astype(np.float32)


def _labels(*shape):
    labels = (RNG.random(shape) < 0.3).astype(np.int32)
    labels[..., 0], labels[..., 1] = 0, 1
    return labels


def _hits(positives, negatives, k):
    """As the evaluator of the Open Graph Benchmark defines it for shared negatives."""
    if len(negatives) < k:
        return 1.0
    return float(np.mean(positives > np.sort(negatives)[-k]))


def _ranks(positives, negatives):
    """As that evaluator ranks each positive among its own negatives."""
    higher = (negatives > positives[:, None]).sum(axis=1)
    at_least = (negatives >= positives[:, None]).sum(axis=1)
    return 0.5 * (higher + at_least) + 1


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", OF_SKLEARN)
@pytest.mark.parametrize("size, decimals", [(997, 1), (200_000, 2), (2, 1)])
def test_binary_scores_are_those_of_scikit_learn(name, size, decimals):
    scores, labels = _scores(size, decimals=decimals), _labels(size)
    found = getattr(metrics, name)(scores, labels)
    assert found.shape == () and found.dtype == jnp.float32
    np.testing.assert_allclose(found, OF_SKLEARN[name](labels, scores), **CLOSE)


@pytest.mark.parametrize("name", OF_SKLEARN)
def test_a_batch_with_masks_and_unlabelled_examples_is_scored_list_by_list(name):
    scores, labels, mask = _scores(3, 2, 60), _labels(3, 2, 60), RNG.random((3, 2, 60)) < 0.8
    mask[..., :2] = True
    labels = labels.astype(np.float32)
    labels[..., 5], labels[..., 6] = np.nan, -1
    scores[~mask] = np.nan  # padding may hold anything
    score = jax.jit(getattr(metrics, name))
    found = score(scores, labels, mask)
    for at in np.ndindex(3, 2):
        kept = mask[at] & (labels[at] >= 0)
        expected = OF_SKLEARN[name](labels[at][kept], scores[at][kept])
        np.testing.assert_allclose(found[at], expected, **CLOSE)
    np.testing.assert_array_equal(jax.vmap(score)(scores, labels, mask), found)


@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.uint8])
def test_scores_may_be_integers_or_of_half_precision(dtype):
    scores = np.asarray(jnp.asarray(RNG.integers(0, 50, 200)).astype(dtype))
    labels = _labels(200).astype(bool)
    for name, expected in OF_SKLEARN.items():
        found = getattr(metrics, name)(scores, labels)
        np.testing.assert_allclose(found, expected(labels, scores.astype(float)), **CLOSE)


def test_what_can_not_be_scored_is_nan_in_its_own_list_alone():
    scores, labels = _scores(4, 20), _labels(4, 20)
    scores[1, 3], labels[2, 4], labels[3] = np.inf, 2, 0
    for name in OF_SKLEARN:
        found = getattr(metrics, name)(scores, labels)
        np.testing.assert_array_equal(np.isnan(found), [False, True, True, True])
    labels[3] = 1
    assert np.isnan(metrics.roc_auc(scores, labels)[3])
    assert metrics.average_precision(scores, labels)[3] == 1


@pytest.mark.parametrize("candidates", [1, 300])
def test_mean_reciprocal_rank_is_that_of_ogb(candidates):
    positives, negatives = _scores(50), _scores(50, candidates)
    expected = np.mean(1 / _ranks(positives, negatives))
    np.testing.assert_allclose(metrics.mrr(positives, negatives), expected, **CLOSE)
    for k in (1, 3, 10):
        hits = metrics.hits_at_k(positives, negatives, k, ties="mean")
        np.testing.assert_allclose(hits, np.mean(_ranks(positives, negatives) <= k), **CLOSE)


@pytest.mark.costly(2)
@pytest.mark.parametrize("k", [1, 20, 101])
def test_hits_with_shared_negatives_are_those_of_ogb(k):
    positives, negatives = _scores(80), _scores(100)
    expected = _hits(positives, negatives, k)
    np.testing.assert_allclose(metrics.hits_at_k(positives, negatives, k), expected, **CLOSE)


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    "ties, dtype", [("optimistic", np.int32), ("mean", np.float32), ("pessimistic", np.float32)]
)
def test_shared_negatives_are_the_same_as_each_querys_own(ties, dtype):
    positives = (5 * _scores(2, 30)).astype(dtype)
    shared = (5 * _scores(2, 40)).astype(dtype)
    mask, negative_mask = RNG.random((2, 30)) < 0.7, RNG.random((2, 40)) < 0.7
    if dtype == np.int32:
        shared[0, 0] = positives[0, 0] = np.iinfo(dtype).max  # where masked candidates are put
        mask[0, 0] = negative_mask[0, 0] = True
    own, own_mask = (np.repeat(x[:, None], 30, axis=1) for x in (shared, negative_mask))
    beaten = ((own > positives[..., None]) & own_mask).sum(axis=-1)
    halves = {"optimistic": 0, "mean": 0.5, "pessimistic": 1}[ties]
    ranks = 1 + beaten + halves * ((own == positives[..., None]) & own_mask).sum(axis=-1)
    for score, of_rank in (
        (metrics.mrr, lambda ranks: 1 / ranks),
        (functools.partial(metrics.hits_at_k, k=3), lambda ranks: ranks <= 3),
    ):
        expected = [of_rank(ranks[at][mask[at]]).mean() for at in range(2)]
        masked = jax.jit(functools.partial(score, ties=ties))
        for negatives, kept in ((own, own_mask), (shared, negative_mask)):
            found = masked(positives, negatives, mask=mask, negative_mask=kept)
            np.testing.assert_allclose(found, expected, **CLOSE)


def test_queries_without_candidates_are_left_out():
    positives, negatives = np.float32([0.5, 0.1, np.nan]), _scores(3, 4)
    mask = np.array([[True], [True], [False]]) & np.ones(4, bool)
    expected = metrics.mrr(positives[:2], negatives[:2])
    np.testing.assert_allclose(metrics.mrr(positives, negatives, None, mask), expected)
    assert np.isnan(metrics.mrr(positives, negatives, np.zeros(3, bool)))
    assert np.isnan(metrics.mrr(positives, negatives))


def test_scores_of_float64_keep_their_order():
    close = 1 + np.arange(4) * 1e-12
    with jax.enable_x64(True):
        assert metrics.roc_auc(close, [0, 0, 1, 1]) == 1
        assert metrics.roc_auc(close, [0, 0, 1, 1]).dtype == jnp.float64


WIDE = {
    "int64": np.array([2**31 + 5, 2**31 + 6, -(2**40), 2**40]),
    "int64, all bits": [2**62, 2**62 + 1, 2**62 - 1, -(2**62)],
    "uint64": np.array([2**64 - 3, 2**64 - 2, 2**64 - 1, 2**64 - 1], np.uint64),
    "float64": 1 + np.array([0, 1, 2, 2]) * 2.0**-50,
    "float64 beyond float32": np.array([1e300, -1e300, 1e-300, 2e-300]),
    "less than normal": np.float32([1e-40, 2e-40, 0, -1e-40]),
    "big-endian": np.array([3, 1, 2, 2], ">i4"),
    "flags": np.array([True, False, True, True]),
}


@pytest.mark.parametrize("name", WIDE)
def test_scores_of_the_host_are_compared_in_all_their_bits(name):
    scores = WIDE[name]
    exact = np.asarray(scores).tolist()
    order = {number: float(rank) for rank, number in enumerate(sorted(set(exact)))}
    ranks = np.float32([order[number] for number in exact])
    labels = np.array([0, 1, 0, 1])
    for metric in (metrics.roc_auc, metrics.average_precision):
        assert metric(scores, labels) == metric(ranks, labels)
    for metric in (metrics.mrr, functools.partial(metrics.hits_at_k, k=2)):
        for at in (slice(1, None), (None, slice(1, None))):  # shared, and each query's own
            negatives = np.asarray(scores)[at]
            assert metric(np.asarray(scores)[:1], negatives) == metric(ranks[:1], ranks[at])


def test_numbers_of_two_dtypes_are_compared_without_rounding():
    # Each first number is the larger one by less than their common dtype of NumPy or JAX holds.
    for larger, smaller in (
        (np.array([2**53 + 1]), np.float64([2**53])),
        (np.array([2**24 + 1], np.int32), jnp.float32([2**24])),
        (np.array([2**64 - 1], np.uint64), np.array([2**63 - 1])),
        (np.array([2**31], np.uint32), jnp.array([-1])),
        (np.array([257], np.int16), jnp.array([256], jnp.bfloat16)),
        (np.float64([0.5 + 2**-40]), np.float32([0.5])),
    ):
        assert metrics.mrr(larger, smaller) == 1
        assert metrics.mrr(smaller, larger) == 0.5
    assert metrics.hits_at_k([1.0, 3.0], [2.0, 4.0], 2**40) == 1
    with jax.enable_x64(True):
        assert metrics.mrr(np.array([2**53 + 1]), np.float64([2**53])) == 1


def test_wide_scores_that_are_not_finite_or_masked_stay_so():
    wide = np.array([np.nan, 0.1, 1 / 3, np.inf])
    assert np.isnan(metrics.roc_auc(wide, [1, 0, 1, 1]))
    mask = np.array([False, True, True, False])
    assert metrics.roc_auc(wide, [1, 0, 1, 1], mask) == 1
    assert metrics.mrr(wide[1:3], wide[[0, 1]], negative_mask=mask[:2]) == pytest.approx(5 / 6)


def test_labels_of_64_bits_do_not_become_classes():
    scores = np.float32([1, 2, 3])
    for label in (2**32 + 1, 2**32, 1 + 1e-12):
        assert np.isnan(metrics.roc_auc(scores, np.array([0, 1, label])))
    for label in (-(2**32), -1e-50, np.nan):  # no label
        assert metrics.roc_auc(scores, np.array([0, 1, label])) == 1


def test_integers_that_would_wrap_beside_traced_ones_are_refused():
    score = jax.jit(lambda positives: metrics.mrr(positives, np.array([2**40])))
    assert score(jnp.array([1.0])) == 1 / 2
    with pytest.raises(ValueError, match=r"metrics.mrr: negatives must be integers that int32 hol"):
        score(jnp.array([1]))


BAD = {
    "a list that no dtype holds": (
        lambda: metrics.roc_auc([2**63 + 1, -1, 2**63], [0, 1, 1]),
        f"metrics.roc_auc: scores must be numbers that one dtype holds, got {2**63 + 1}",
    ),
    "MRR with no candidates": (
        lambda: metrics.mrr(np.ones(3), np.ones((3, 0))),
        r"metrics.mrr: negatives must be of at least one candidate, got shape \(3, 0\)",
    ),
    "no queries": (
        lambda: metrics.hits_at_k(np.ones(0), np.ones(3), 2),
        r"metrics.hits_at_k: positives must be of at least one query, got shape \(0,\)",
    ),
    "negatives of other queries": (
        lambda: metrics.mrr(np.ones(3), np.ones((4, 5))),
        r"negatives must be of shape \(3, candidates\) or \(candidates,?\), got shape \(4, 5\)",
    ),
    "k of zero": (lambda: metrics.hits_at_k(np.ones(3), np.ones(3), 0), "k must be an int of at"),
    "unknown ties": (lambda: metrics.mrr(np.ones(3), np.ones(3), ties="first"), "ties must be one"),
    "other labels": (
        lambda: metrics.roc_auc(np.ones(3), np.ones(4)),
        r"metrics.roc_auc: labels must be of the scores' shape \(3,\), got \(4,\)",
    ),
    "labels in the place of scores": (
        lambda: metrics.roc_auc(np.array([0, 1, 1]), np.array([0.1, 0.4, 0.9])),
        r"metrics.roc_auc: labels must be 0 or 1, .* behind the scores, .*, got 0.1",
    ),
    "no examples": (lambda: metrics.average_precision([], []), "scores must be of at least one"),
    "a number": (lambda: metrics.roc_auc(1.0, 1), "scores must be an array of at least one axis"),
    "complex scores": (lambda: metrics.roc_auc(np.ones(3, complex), np.ones(3)), "real numbers"),
    "a mask of numbers": (
        lambda: metrics.roc_auc(np.ones(3), np.ones(3), np.ones(3)),
        r"mask must be None, or of dtype bool and of a shape that broadcasts to \(3,\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
