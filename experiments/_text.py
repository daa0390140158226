"""What is known of a text without a network, to stand beside language models in tables."""

from __future__ import annotations

import numpy as np

from jaxgnn.datasets import TextDataset

_BYTES = 256
# The weight of the shorter context, in counts; chosen by no measurement.
_STRENGTH = 5.0


def ngram_loss(dataset: TextDataset, order: int) -> float:
    """Mean cross entropy, in nats a byte, of counts of the bytes that follow each context.

    A context that was seen n times predicts with weight n / (n + 5), and its shorter one, without
    the first byte, with the rest; the shortest predicts all bytes alike.

    Args:
      dataset: the text; the counts are those of its training part, the loss that of its validation
        part.
      order: number of bytes of the longest context, 0 to 3.
    """
    total = np.full(dataset.validation.size, 1 / _BYTES)
    for length in range(order + 1):
        seen, here = (_contexts(part, length) for part in (dataset.train, dataset.validation))
        # Those at the beginning of the text, which are too short, take part in no count.
        keys = seen[length:] * _BYTES + dataset.train[length:]
        pairs, pair_counts = np.unique(keys, return_counts=True)
        contexts, counts = np.unique(seen[length:], return_counts=True)
        count = _looked_up(here, contexts, counts)
        hits = _looked_up(here * _BYTES + dataset.validation, pairs, pair_counts)
        longer = (hits + _STRENGTH * total) / (count + _STRENGTH)
        total = np.where(np.arange(total.size) >= length, longer, total)
    return float(-np.log(total).mean())


def _contexts(text: np.ndarray, length: int) -> np.ndarray:
    """The ``length`` bytes before each byte as one number, fewer where the text begins."""
    keys = np.zeros(text.size, np.int64)
    for back in range(length, 0, -1):
        keys[back:] = keys[back:] * _BYTES + text[:-back]
    return keys


def _looked_up(keys: np.ndarray, known: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The count of each key, zero for one that is not known."""
    places = np.minimum(np.searchsorted(known, keys), known.size - 1)
    return np.where(known[places] == keys, counts[places], 0)
