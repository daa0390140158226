"""The embedded digits in the size of MNIST's images."""

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
