"""Counter-based random numbers: known vectors, ranges and distributions."""

import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxgnn.sampling import random

# Of the authors' test file kat_vectors: counter, key, result.
PUBLISHED = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_threefry_gives_the_published_vectors(counter, key, expected):
    words = random.threefry(np.array(key, np.uint32), np.array(counter, np.uint32))
    assert tuple(int(word) for word in words) == expected


def test_threefry_equals_that_of_jax():
    rng = np.random.default_rng(0)
    key, counter = (rng.integers(0, 2**32, (2, n), dtype=np.uint32) for n in (1, 50))
    expected = jax.extend.random.threefry_2x32(jnp.asarray(key[:, 0]), jnp.asarray(counter.ravel()))
    words = random.threefry(tuple(key), tuple(counter))
    np.testing.assert_array_equal(np.concatenate(words), np.asarray(expected))


def test_words_differ_in_seed_epoch_step_hop_stream_node_and_slot():
    base = (3, 1, 2, 0, 0, 5, 7)
    changed = [base, *((*base[:i], base[i] + 1, *base[i + 1 :]) for i in range(len(base)))]
    changed += [(3 + 2**32, *base[1:]), (*base[:5], 5 + 2**32, 7)]
    words = set()
    for seed, epoch, step, hop, stream, node, slot in changed:
        key = random.hop_key(random.batch_key(seed, epoch, step), hop, stream)
        words.add(int(random.draw(key, np.array(node), np.array(slot))))
    assert len(words) == len(changed)


def test_below_is_the_upper_half_of_the_product():
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**64, 200, dtype=np.uint64)
    words[:2] = 0, 2**64 - 1
    bounds = rng.integers(1, 2**32, 200)
    expected = [int(word) * int(bound) >> 64 for word, bound in zip(words, bounds, strict=True)]
    np.testing.assert_array_equal(random.below(words, bounds), expected)


def test_log_is_within_two_units_in_the_last_place():
    values = np.concatenate(
        [
            np.random.default_rng(2).random(2000) + 2.0**-60,
            [1.0, 0.5, 2.0**-53, 1 - 2.0**-53, 3e-22],
        ]
    )
    exact = np.log(values.astype(np.longdouble))
    error = np.abs(random.log(values) - exact) / np.spacing(np.abs(exact).astype(np.float64))
    assert error.max() <= 2


def test_deviates_have_their_distributions_and_increase_with_the_word():
    key = random.hop_key(random.batch_key(0, 0, 0), 0, random.NEIGHBOURS)
    words = np.sort(random.draw(key, np.arange(4000), 0))
    assert scipy.stats.kstest(random.uniform(words), "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(random.exponential(words), "expon").pvalue > 1e-3
    assert (np.diff(random.exponential(words)) >= 0).all()


@pytest.mark.parametrize("part", [0, 1, 5, 7])
def test_mixed_words_are_exponential_in_every_step_and_increase(part):
    factors = random.turn(part, 10)
    keys = (random.batch_key(0, 0, step) for step in (0, 1))
    sums = np.sort(random.mixed(*(random.draw(k, np.arange(4000), 0) for k in keys), factors))
    deviates = random.exponential_of_mixed(sums, factors)
    assert scipy.stats.kstest(deviates, "expon").pvalue > 1e-3
    assert (np.diff(deviates) >= 0).all()


def test_the_least_and_the_largest_word_give_finite_deviates():
    words = np.array([0, 2**64 - 1], np.uint64)
    assert np.isfinite(random.exponential(words)).all()
    assert random.exponential(words)[0] == 0
    assert not np.signbit(random.exponential(words)).any()
    for part in range(4):
        factors = random.turn(part, 4)
        deviates = random.exponential_of_mixed(random.mixed(words, words, factors), factors)
        assert np.isfinite(deviates).all() and deviates[0] == 0
