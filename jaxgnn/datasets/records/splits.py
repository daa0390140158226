"""Random splits that have the same share, or the same number, of every class."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._fractions import exact_fraction
from jaxgnn.datasets.records.node_dataset import SPLITS


def generator_of(where: str, seed: Any) -> np.random.Generator:
    """The generator of a seed; raises a ValueError with the function's name if it is invalid."""
    try:
        if seed is not None:
            return np.random.default_rng(seed)
    except (TypeError, ValueError):
        pass
    raise bad_input(where, "seed", "an integer from 0 on", repr(seed))


def stratified_split(labels: np.ndarray, fractions: Sequence[float], seed: int) -> dict[str, Any]:
    """Training, validation and test nodes: fractions of each class, rounded to whole nodes.

    Args:
      labels: [nodes] class ids.
      fractions: fractions of training, validation and test nodes, which add up to one.
      seed: seed of the random choice.

    Returns:
      Sorted int32 node ids by the name of the part.
    """
    *bounds, _ = accumulate(map(exact_fraction, fractions))
    return _split_classes(labels, lambda size: [round(bound * size) for bound in bounds], seed)


def class_split(labels: np.ndarray, train: int, validation: int, seed: int) -> dict[str, Any]:
    """Training, validation and test nodes: the same number of each class, and all others.

    Args:
      labels: [nodes] class ids, each class with more than ``train + validation`` nodes.
      train: number of training nodes of each class.
      validation: number of validation nodes of each class.
      seed: seed of the random choice.

    Returns:
      Sorted int32 node ids by the name of the part.
    """
    return _split_classes(labels, lambda _: [train, train + validation], seed)


def _split_classes(
    labels: np.ndarray, cuts: Callable[[int], list[int]], seed: int
) -> dict[str, Any]:
    """Shuffles each class, and cuts it into three parts at the positions ``cuts`` of its size."""
    rng = generator_of("datasets", seed)
    parts: list[list[np.ndarray]] = [[] for _ in SPLITS]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        for part, ids in zip(parts, np.split(members, cuts(members.size)), strict=True):
            part.append(ids)
    return {
        split: np.sort(np.concatenate(part)).astype(np.int32)
        for split, part in zip(SPLITS, parts, strict=True)
    }
