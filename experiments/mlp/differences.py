"""Largest difference between the results of two computations."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np


def largest_difference(actual: Any, expected: Any) -> float:
    """Compares all entries of two pytrees with the same number of arrays, in the same order.

    Returns:
      The largest absolute difference; infinite if any value is NaN.
    """
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    # Unlike Python's maximum, NumPy's is NaN if any value is NaN.
    differences = [np.abs(_wide(a) - _wide(e)).max() for a, e in pairs]
    largest = float(np.max(differences))
    return math.inf if math.isnan(largest) else largest


def _wide(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float64)
