"""Weights of edges that the last layer of a radial network makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import jax
from jaxtyping import Array, Float

Products = Literal["highest", "tf32"]
"""Products of float32 numbers, as exact as in float32, or in TF32."""

# JAX's names of them.
PRECISIONS: dict[Products, jax.lax.Precision] = {
    "highest": jax.lax.Precision.HIGHEST,
    "tf32": jax.lax.Precision.HIGH,
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RadialLayer:
    """The linear layer that makes the weights of edges: ``weights_ij = basis_ij · kernel``.

    Takes the place of an array of weights, so that this array is never materialised.

    Attributes:
      basis: features of each edge slot.
      kernel: the map from features to weights.
      precision: how float32 numbers are multiplied.
    """

    basis: Float[Array, "edges features"]
    kernel: Float[Array, "features weights"]
    precision: Products = field(default="highest", metadata={"static": True})
