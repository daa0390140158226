"""Random splits that have the same share, or the same number, of every class."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._fractions import exact_fraction
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset
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


def split_graphs(
    dataset: GraphsDataset,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    *,
    seed: int = 0,
) -> GraphsDataset:
    """Splits the graphs of a data set at random into training, validation and test.

    Where labels are classes, each part has its fraction of every class, rounded to whole graphs.
    Labels that are numbers or tasks do not affect the split.

    Args:
      dataset: the graphs; its existing parts are replaced.
      fractions: fractions for training, validation and test; they add up to one.
      seed: seed of the random choice.

    Returns:
      The data set with ``train``, ``validation`` and ``test``: sorted int32 numbers of graphs.

    Raises:
      ValueError: the fractions are not three that add up to one, or leave a part empty.

    Example:
      >>> from jaxgnn import datasets
      >>> data = datasets.split_graphs(datasets.mutag(), (0.6, 0.2, 0.2), seed=3)
      >>> data.train.size, data.validation.size, data.test.size
      (113, 37, 38)
    """
    where = "datasets.split_graphs"
    are_three = isinstance(fractions, Sequence) and len(fractions) == len(SPLITS)
    if not are_three or not all(_is_share(fraction) for fraction in fractions):
        raise bad_input(where, "fractions", "three numbers in [0, 1]", fractions)
    if abs(sum(fractions) - 1) > 1e-6:
        raise bad_input(where, "fractions", "numbers that add up to one", fractions)
    labels = dataset.labels
    classes = labels if labels.ndim == 1 else np.zeros(dataset.num_graphs, np.int32)
    parts = stratified_split(classes, fractions, seed)
    for name, graphs in parts.items():
        if not graphs.size:
            expected = f"enough for a graph in each part of {dataset.num_graphs} graphs"
            raise bad_input(where, "fractions", expected, f"{fractions}, with none for {name}")
    return replace(dataset, **parts)


def _is_share(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= 1
