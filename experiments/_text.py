"""Batches of a text, and its baselines without a network, for language models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets import TextDataset

_BYTES = 256
# Weight of the shorter context, in counts; not tuned.
_STRENGTH = 5.0


# Pieces [pieces, context + 1] int32, whose last ``context`` bytes are predicted.
Batch = np.ndarray


def random_pieces(text: np.ndarray, context: int, count: int, seed: int) -> Callable[[int], Batch]:
    """Function from a step to its batch: ``count`` pieces at random places of ``text [bytes]``.

    Raises:
      ValueError: if the text is shorter than a piece.
    """
    if text.size <= context:
        raise bad_input("train", "--context", f"less than the text's {text.size} bytes", context)

    def batch(step: int) -> Batch:
        # Seeded by step, so that a resumed run continues with the same batches.
        starts = np.random.default_rng((seed, step)).integers(0, text.size - context, count)
        return text[starts[:, None] + np.arange(context + 1)].astype(np.int32)

    return batch


def all_pieces(text: np.ndarray, context: int, at_once: int) -> np.ndarray:
    """The whole text in order, ``[batches, at_once, context + 1]``; an incomplete batch is dropped.

    Successive pieces share a byte, so that each byte but the first is predicted once.

    Raises:
      ValueError: if the text is shorter than one batch.
    """
    count = (text.size - 1) // context // at_once * at_once
    if count == 0:
        expected = f"at most {text.size - 1} bytes, the validation text, in all"
        raise bad_input("train", "--context times the batch size", expected, context * at_once)
    starts = context * np.arange(count)
    pieces = text[starts[:, None] + np.arange(context + 1)].astype(np.int32)
    return pieces.reshape(-1, at_once, context + 1)


def ngram_loss(dataset: TextDataset, order: int) -> float:
    """Mean cross entropy, in nats a byte, of an n-gram model by counts.

    A context that was seen n times predicts with weight n / (n + 5). The remaining weight goes to
    the context without its first byte; below the empty context all bytes are equally likely.

    Args:
      dataset: the text; the counts are those of its training part, the loss that of its validation
        part.
      order: number of bytes of the longest context, 0 to 3.
    """
    total = np.full(dataset.validation.size, 1 / _BYTES)
    for length in range(order + 1):
        seen, here = (_contexts(part, length) for part in (dataset.train, dataset.validation))
        # Contexts at the start of the text, which are too short, are not counted.
        keys = seen[length:] * _BYTES + dataset.train[length:]
        pairs, pair_counts = np.unique(keys, return_counts=True)
        contexts, counts = np.unique(seen[length:], return_counts=True)
        count = _looked_up(here, contexts, counts)
        hits = _looked_up(here * _BYTES + dataset.validation, pairs, pair_counts)
        longer = (hits + _STRENGTH * total) / (count + _STRENGTH)
        total = np.where(np.arange(total.size) >= length, longer, total)
    return float(-np.log(total).mean())


def _contexts(text: np.ndarray, length: int) -> np.ndarray:
    """The ``length`` bytes before each byte as one number; fewer at the start of the text."""
    keys = np.zeros(text.size, np.int64)
    for back in range(length, 0, -1):
        keys[back:] = keys[back:] * _BYTES + text[:-back]
    return keys


def _looked_up(keys: np.ndarray, known: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The count of each key, zero for one that is not known."""
    places = np.minimum(np.searchsorted(known, keys), known.size - 1)
    return np.where(known[places] == keys, counts[places], 0)
