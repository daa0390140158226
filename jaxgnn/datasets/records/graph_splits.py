"""Random splits of data sets of whole graphs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset
from jaxgnn.datasets.records.node_dataset import SPLITS
from jaxgnn.datasets.records.splits import stratified_split


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
