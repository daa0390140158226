"""Baselines without training, to compare accuracies on images with."""

from __future__ import annotations

import numpy as np

from jaxgnn.datasets import NodeDataset


def majority_accuracy(data: NodeDataset) -> float:
    """Share of the test labels, [test], that equal the most frequent training label."""
    most = np.bincount(data.labels[data.train]).argmax()
    return float((data.labels[data.test] == most).mean())


def neighbour_accuracy(data: NodeDataset) -> float:
    """Share of the test images whose nearest training image has the same label.

    The distance is Euclidean, between the rows of ``features`` [nodes, pixels]; of equal distances
    the first is used.
    """
    train = data.features[data.train].astype(np.float64)
    test = data.features[data.test].astype(np.float64)
    # The squared distance without the square of the test image, which is common to all.
    distances = (train**2).sum(1) - 2 * test @ train.T
    nearest = data.labels[data.train][distances.argmin(1)]
    return float((data.labels[data.test] == nearest).mean())
