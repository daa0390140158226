"""Normalisation of the equivariant features of each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irreps
from jaxgnn.equivariant.irreps import as_irreps
from jaxgnn.nn.equivariant.channels import check_features, distinct_irreps, num_channels
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.options import checked_options, positive
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.eager import run_compiled


class EquivariantRMSNorm(DocumentedModule):
    """Divides the features of a node by their root mean square: ``y[c] = w[c] x[c] / √(m + ε)``.

    ``m = Σ_l s_l mean(x_l²)``, with means over all channels and components of irrep l. By default
    the shares s_l are one over the number of irreps, so each irrep counts the same whatever its
    number of channels. Each channel c has a weight, initially one. Nothing is subtracted and there
    is no bias. This is the norm of eSEN (https://arxiv.org/abs/2502.12147) without centring.

    If features are rotated or reflected, so is the result.

    Args:
      irreps_in: irreps of the features, such as ``"8x0e+4x1o"``.
      shares: positive numbers s_l, one for each different irrep in the order of ``irreps_in``; None
        for equal ones whose sum is one.
      epsilon: small number ε that is added to the mean square.

    Example:
      >>> norm = nn.EquivariantRMSNorm("8x0e+4x1o")
      >>> x = jnp.full((3, 20), 7.0)
      >>> print(norm(x)[0, :3].round(3))
      [1. 1. 1.]
    """

    @checked_options()
    def __init__(
        self,
        irreps_in: Irreps | str,
        *,
        shares: Sequence[float] | None = None,
        epsilon: float = 1e-12,
        param_dtype: DTypeLike = jnp.float32,
    ):
        name = type(self).__name__
        self.irreps_in = as_irreps(name, "irreps_in", irreps_in)
        irreps = distinct_irreps(self.irreps_in)
        shares = (1 / len(irreps),) * len(irreps) if shares is None else shares
        is_sequence = isinstance(shares, Sequence) and len(shares) == len(irreps)
        if not is_sequence or any(positive(share) is not None for share in shares):
            expected = f"{len(irreps)} positive numbers, one for each irrep of {self.irreps_in}"
            raise bad_input(name, "shares", expected, repr(shares))
        self.shares = tuple(float(share) for share in shares)
        self.epsilon = epsilon
        channels = sum(entry.multiplicity for entry in self.irreps_in)
        self.scale = nnx.Param(jnp.ones(channels, param_dtype))

    def __call__(self, x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
        """Normalises the last axis.

        Args:
          x: features of ``irreps_in``.

        Returns:
          The normalised features in the dtype of ``x``.
        """
        x = check_features(type(self).__name__, x, self.irreps_in)
        kind = _Kind(self.irreps_in, self.shares, self.epsilon)
        return run_compiled(_apply, kind, (x, self.scale[...]))


class _Kind(NamedTuple):
    """Static description of a norm."""

    irreps: Irreps
    shares: tuple[float, ...]
    epsilon: float


def _apply(kind: _Kind, arguments: tuple[Array, Array]) -> Array:
    """Multiplies the features by their weights and divides them by their root mean square."""
    x, scale = arguments
    wide = x.astype(accumulation_dtype(x.dtype))
    shares = jnp.asarray(_component_shares(kind), wide.dtype)
    mean_square = jnp.sum(wide**2 * shares, axis=-1, keepdims=True)
    sizes = [entry.irrep.dim for entry in kind.irreps for _ in range(entry.multiplicity)]
    channels = np.repeat(np.arange(len(sizes)), sizes)
    scales = scale.astype(wide.dtype)[channels]
    return (wide * scales * jax.lax.rsqrt(mean_square + kind.epsilon)).astype(x.dtype)


def _component_shares(kind: _Kind) -> np.ndarray:
    """Computes the weight of each component in the mean square, from the shares of the irreps."""
    shares = dict(zip(distinct_irreps(kind.irreps), kind.shares, strict=True))
    return np.concatenate(
        [
            np.full(e.dim, shares[e.irrep] / (num_channels(kind.irreps, e.irrep) * e.irrep.dim))
            for e in kind.irreps
        ]
    )
