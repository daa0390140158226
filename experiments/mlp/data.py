"""The embedded digits in the size of MNIST's images, and methods without training on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jaxgnn.datasets import NodeDataset, digits

_SMALL, _COPIES, _MARGIN = 8, 3, 2
PIXELS = (_SMALL * _COPIES + 2 * _MARGIN) ** 2  # 784


def large_digits(seed: int = 0) -> NodeDataset:
    """``jaxgnn.datasets.digits`` with features [nodes, 784] instead of [nodes, 64].

    Args:
      seed: seed of the split.
    """
    data = digits(seed=seed)
    return replace(data, features=enlarge(data.features))


def enlarge(images: np.ndarray) -> np.ndarray:
    """Images of 8x8 pixels as 28x28: each pixel becomes three by three, inside a margin of two.

    Args:
      images: [n, 64] pixels.

    Returns:
      [n, 784].
    """
    small = images.reshape(-1, _SMALL, _SMALL)
    large = small.repeat(_COPIES, axis=1).repeat(_COPIES, axis=2)
    margin = (_MARGIN, _MARGIN)
    return np.pad(large, ((0, 0), margin, margin)).reshape(-1, PIXELS)


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
