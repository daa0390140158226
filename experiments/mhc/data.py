"""Batches of a text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxgnn._errors import bad_input

Batch = np.ndarray  # [pieces, context + 1] int32: a piece predicts its last ``context`` bytes


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
