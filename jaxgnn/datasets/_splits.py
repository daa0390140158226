"""Random splits that have the same share of every class."""

from collections.abc import Sequence

import numpy as np

from jaxgnn.datasets._node_dataset import SPLITS


def stratified_split(
    labels: np.ndarray, fractions: Sequence[float], seed: int
) -> dict[str, np.ndarray]:
    """Training, validation and test nodes: fractions of each class, rounded to whole nodes.

    Args:
      labels: [nodes] class ids.
      fractions: fractions of training, validation and test nodes, which add up to one.
      seed: seed of the random choice.

    Returns:
      Sorted int32 node ids by the name of the part.
    """
    rng = np.random.default_rng(seed)
    bounds = np.cumsum(fractions)[:-1]
    parts: list[list[np.ndarray]] = [[] for _ in SPLITS]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.rint(bounds * members.size).astype(int)
        for part, ids in zip(parts, np.split(members, cuts), strict=True):
            part.append(ids)
    return {
        split: np.sort(np.concatenate(part)).astype(np.int32)
        for split, part in zip(SPLITS, parts, strict=True)
    }
