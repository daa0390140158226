"""Random numbers of samplers: pure functions of (seed, epoch, step, hop, node, slot).

The generator is Threefry-2x32 with 20 rounds (Salmon et al., SC 2011,
https://doi.org/10.1145/2063384.2063405), which JAX uses too. It keeps no state, so a batch does not
depend on threads, processes or restarts. This module is the definition: the C++ code of
``ffi/include/jaxgnn_ffi/counter_random.h`` computes the same bits. For that reason ``log`` is
built here from correctly rounded operations.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Key = tuple[np.ndarray, np.ndarray]
"""Two words of uint32, or two arrays of them."""


# Streams of random numbers of one hop.
NEIGHBOURS, WEIGHTED, LABOR, SHUFFLE, NEGATIVES, SUBGRAPHS = range(6)


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


_PARITY = np.uint32(0x1BD11BDA)


_LOW = 0xFFFFFFFF


def threefry(key: Key, counter: Key) -> Key:
    """Encrypts a counter of two uint32 words by a key of two words; arrays broadcast."""
    keys = [np.asarray(word, np.uint32) for word in key]
    keys.append(keys[0] ^ keys[1] ^ _PARITY)
    first, second = (np.asarray(word, np.uint32) for word in counter)
    with np.errstate(over="ignore"):  # sums are modulo 2^32
        first, second = first + keys[0], second + keys[1]
        for group in range(5):
            for rotation in _ROTATIONS[group % 2]:
                first = first + second
                second = second << np.uint32(rotation) | second >> np.uint32(32 - rotation)
                second = second ^ first
            first = first + keys[(group + 1) % 3]
            second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def batch_key(seed: int, epoch: int, step: int) -> Key:
    """The key of a batch; ``seed`` has 64 bits, ``epoch`` and ``step`` have 32."""
    return threefry(_words(seed & _LOW, seed >> 32), _words(epoch, step))


def hop_key(key: Key, hop: int, stream: int) -> Key:
    """The key of one stream of random numbers of one hop, from the key of the batch."""
    return threefry(key, _words(hop, stream))


def draw(key: Key, nodes: npt.ArrayLike, slots: npt.ArrayLike) -> np.ndarray:
    """Random words of 64 bits for pairs of a node and a slot; arrays of integers broadcast."""
    nodes, slots = np.asarray(nodes).astype(np.uint64), np.asarray(slots).astype(np.uint64)
    low = np.uint64(_LOW)
    second = (slots | nodes >> np.uint64(32) << np.uint64(20)) & low
    counter = (nodes & low).astype(np.uint32), second.astype(np.uint32)
    high, low_word = threefry(key, counter)
    return high.astype(np.uint64) << np.uint64(32) | low_word


def below(words: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Integers in [0, bound), int64: the upper half of word times bound; bounds are below 2^32."""
    bounds = np.asarray(bounds).astype(np.uint64)
    half = np.uint64(32)
    upper = (words >> half) * bounds + ((words & np.uint64(_LOW)) * bounds >> half)
    return (upper >> half).astype(np.int64)


def uniform(words: np.ndarray) -> np.ndarray:
    """Multiples of 2^-53 in [0, 1), float64."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def exponential(words: np.ndarray) -> np.ndarray:
    """Deviates of the standard exponential distribution, float64, increasing with the word."""
    return 0.0 - log(1.0 - uniform(words))  # the inner difference is exact


def mixed(words: np.ndarray, next_words: np.ndarray, factors: tuple[int, int]) -> np.ndarray:
    """Sums of the upper halves of two words times factors, uint64.

    The factors are those of ``turn``. The correlation of sums with the same words is the cosine of
    the angle between their factors.
    """
    first, second = (np.uint64(factor) for factor in factors)
    half = np.uint64(32)
    return (words >> half) * first + (next_words >> half) * second


def turn(part: int, steps: int) -> tuple[int, int]:
    """Cosine and sine of a right angle's ``part`` out of ``steps``, as integers times 2^31."""
    angle = part / steps * (math.pi / 2)
    return round(math.cos(angle) * 2.0**31), round(math.sin(angle) * 2.0**31)


def exponential_of_mixed(sums: np.ndarray, factors: tuple[int, int]) -> np.ndarray:
    """Turns sums of ``mixed`` into standard exponential deviates, increasing with them.

    A sum of two uniform variables has a trapezium as its density, so its distribution function has
    three pieces. The deviate is minus the logarithm of the probability of a larger sum.
    """
    least, most = (factor * 2.0**-31 for factor in sorted(factors))
    largest = np.uint64(sum(factors) << 32)
    sums, rest = (x.astype(np.float64) * 2.0**-63 for x in (sums, largest - sums))
    corners = 2.0 * least * most
    with np.errstate(divide="ignore", invalid="ignore"):  # pieces of no width
        larger = np.where(rest < least, rest * rest / corners, (rest - 0.5 * least) / most)
        larger = np.where(sums < least, 1.0 - sums * sums / corners, larger)
    return 0.0 - log(larger)


def log(values: np.ndarray) -> np.ndarray:
    """Natural logarithm of positive float64 values, within 2 units in the last place.

    log(m 2^e) = e log 2 + 2 artanh(s) with s = (m - 1) / (m + 1) and m between sqrt(1/2) and
    sqrt(2). Every operation is rounded correctly, so the bits are the same everywhere.
    """
    mantissas, exponents = np.frexp(values)
    small = mantissas < math.sqrt(0.5)
    mantissas = np.where(small, 2.0 * mantissas, mantissas)
    exponents = (exponents - small).astype(np.float64)
    s = (mantissas - 1.0) / (mantissas + 1.0)
    square = s * s
    series = np.full_like(s, 1.0 / 21.0)
    for odd in range(19, 1, -2):
        series = series * square + 1.0 / odd
    artanh = s + s * (square * series)
    return exponents * _LOG_2_HIGH + (2.0 * artanh + exponents * _LOG_2_LOW)


# log 2 in two parts. The first has so few bits that its products with exponents are exact.
_LOG_2_HIGH = float.fromhex("0x1.62e42fefa3800p-1")


_LOG_2_LOW = float.fromhex("0x1.ef35793c76730p-45")


def _words(first: int, second: int) -> Key:
    return np.array(first, np.uint32), np.array(second, np.uint32)
