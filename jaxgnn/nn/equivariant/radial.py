"""Functions of distances: bases for radial networks, and a smooth cutoff."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn.nn.conv.schnet import gaussian_smearing
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.options import checked_options, int_at_least, positive, require
from jaxgnn.ops.core.dtypes import accumulation_dtype

_SERIES_BELOW = 0.5
"""Angles below which ``sin(x) / x`` is computed by its series."""
_SERIES_TERMS = 8
"""Terms of the series, which reach the precision of float64 at these angles."""


def polynomial_envelope(
    distance: Float[Array, "*edges"], cutoff: float, p: int = 6
) -> Float[Array, "*edges"]:
    """Smooth cutoff: 1 at distance 0, and 0 at ``cutoff`` and beyond it.

    With x the distance over the cutoff it is
    ``1 - (p + 1)(p + 2)/2 x^p + p (p + 2) x^(p + 1) - p (p + 1)/2 x^(p + 2)``. The first and second
    derivatives are zero at the cutoff, so energies of atoms have continuous forces and stiffness.
    See https://arxiv.org/abs/2003.03123. Multiply a basis or a message by it.

    Args:
      distance: lengths of edges, in the unit of ``cutoff``.
      cutoff: distance from which the result is zero.
      p: power of x in the first term; the larger, the later the decay.

    Returns:
      The envelope, in the dtype of the distances, or JAX's default float dtype for integers. NaN
      where a distance is NaN; zero where it is infinite.

    Raises:
      ValueError: if ``cutoff`` is not positive, or ``p`` is not an int of at least two.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import nn
      >>> print(nn.polynomial_envelope(jnp.array([0.0, 1.0, 2.0, 3.0]), 2.0).round(3))
      [1.    0.855 0.    0.   ]
    """
    require("nn.polynomial_envelope", "cutoff", cutoff, positive)
    require("nn.polynomial_envelope", "p", p, int_at_least(2))
    wide, dtype = _wide(distance)
    x = jnp.where(wide >= cutoff, 1, wide / cutoff)
    # (1 - x)^3 times the first p terms of 1 / (1 - x)^3: the same polynomial without cancellation.
    series = jnp.full_like(x, (p * (p + 1)) // 2)
    for power in range(p - 2, -1, -1):
        series = series * x + ((power + 1) * (power + 2)) // 2
    return ((1 - x) ** 3 * series).astype(dtype)


class BesselBasis(DocumentedModule):
    """Spherical Bessel functions of distances: ``√(2 / c) sin(n π d / c) / d`` for n from 1.

    They are zero at the cutoff c and beyond it; multiply them by ``polynomial_envelope`` for
    derivatives that vanish there, too. At distance 0 they have their limit ``√(2 / c) n π / c`` and
    a gradient of zero. See https://arxiv.org/abs/2003.03123. No parameters.

    Args:
      num: number of functions.
      cutoff: distance from which they are zero.

    Example:
      >>> basis = nn.BesselBasis(8, 5.0)
      >>> distances = jnp.array([0.0, 1.0, 6.0])
      >>> basis(distances).shape
      (3, 8)
      >>> features = basis(distances) * nn.polynomial_envelope(distances, 5.0)[:, None]
    """

    @checked_options(num=int_at_least(1), cutoff=positive)
    def __init__(self, num: int, cutoff: float):
        self.num, self.cutoff = num, cutoff

    def __call__(self, distances: Float[Array, "*edges"]) -> Float[Array, "*edges num"]:
        """Returns the functions in a new last axis, in the dtype of the distances.

        Args:
          distances: lengths of edges, in the unit of the cutoff.
        """
        wide, dtype = _wide(distances)
        is_beyond = (wide >= self.cutoff)[..., None]
        frequencies = jnp.asarray(np.arange(1, self.num + 1) * (math.pi / self.cutoff), wide.dtype)
        angles = jnp.where(is_beyond, 0, wide[..., None] * frequencies)
        waves = math.sqrt(2 / self.cutoff) * frequencies * _sine_over_angle(angles)
        return jnp.where(is_beyond, 0, waves).astype(dtype)


class GaussianBasis(DocumentedModule):
    """Gaussian functions of distances: ``exp(-½ ((d - c_k) / s)²)`` at equally spaced centres.

    The centres go from 0 to ``cutoff``, both included, and s is the distance between two of them:
    see ``nn.gaussian_smearing``. Multiply by ``polynomial_envelope`` or ``cosine_cutoff`` for
    features that vanish at the cutoff. See https://arxiv.org/abs/1706.08566. No parameters.

    Args:
      num: number of functions, at least two.
      cutoff: the last centre.

    Example:
      >>> basis = nn.GaussianBasis(50, 5.0)
      >>> basis(jnp.array([0.0, 1.0, 6.0])).shape
      (3, 50)
    """

    @checked_options(num=int_at_least(2), cutoff=positive)
    def __init__(self, num: int, cutoff: float):
        self.num, self.cutoff = num, cutoff

    def __call__(self, distances: Float[Array, "*edges"]) -> Float[Array, "*edges num"]:
        """Returns the functions in a new last axis, in the dtype of the distances.

        Args:
          distances: lengths of edges, in the unit of the cutoff.
        """
        return gaussian_smearing(distances, self.cutoff, self.num)


def _wide(distances: Any) -> tuple[Array, Any]:
    """Distances in float32 or float64, and the dtype of the result."""
    distances = jnp.asarray(distances)
    if not jnp.issubdtype(distances.dtype, jnp.floating):
        distances = distances.astype(jnp.result_type(float))
    return distances.astype(accumulation_dtype(distances.dtype)), distances.dtype


def _sine_over_angle(angles: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``sin(x) / x``, with accurate derivatives at and near zero, where it is a polynomial."""
    is_small = jnp.abs(angles) < _SERIES_BELOW
    square = jnp.where(is_small, angles, 0) ** 2
    series = jnp.ones_like(angles)
    for term in range(_SERIES_TERMS - 1, 0, -1):
        series = 1 - series * square / (2 * term * (2 * term + 1))
    large = jnp.where(is_small, 1, angles)
    return jnp.where(is_small, series, jnp.sin(large) / large)
