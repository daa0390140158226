"""MLPs with a norm over the features of their result, as graph networks update rows with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.nn.shared.linear import FusedMLP, apply_mlp
from jaxgnn.nn.shared.options import one_of
from jaxgnn.ops.core.dtypes import accumulation_dtype

RowNormKind = Literal["layer", "rms"]
"""Norms over the features of a row: LayerNorm and RMSNorm."""

norm_or_none = one_of("layer", "rms", None)
"""Check of the option ``norm`` of layers whose updates are normalised."""

EPSILON = 1e-5


class RowNorm(nnx.Module):
    """LayerNorm or RMSNorm over the features of each row; None returns rows unchanged.

    LayerNorm (https://arxiv.org/abs/1607.06450) has a scale and an offset, RMSNorm
    (https://arxiv.org/abs/1910.07467) has a scale.
    """

    def __init__(self, kind: RowNormKind | None, features: int, param_dtype: DTypeLike):
        self.kind: RowNormKind | None = kind
        has_scale, has_offset = kind is not None, kind == "layer"
        self.scale = nnx.Param(jnp.ones(features, param_dtype)) if has_scale else None
        self.offset = nnx.Param(jnp.zeros(features, param_dtype)) if has_offset else None

    def parameters(self, dtype: DTypeLike) -> tuple[Array | None, Array | None]:
        """The scale and the offset in a dtype, None where there is none."""
        scale, offset = self.scale, self.offset
        return (
            None if scale is None else scale[...].astype(dtype),
            None if offset is None else offset[...].astype(dtype),
        )

    def __call__(self, y: Float[Array, "*rows features"]) -> Float[Array, "*rows features"]:
        """The normalised rows, in the dtype of ``y``."""
        if self.scale is None:
            return y
        wide = y.astype(accumulation_dtype(y.dtype))
        if self.kind == "layer":
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        squares = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normed = wide * lax.rsqrt(squares + EPSILON) * self.scale[...].astype(wide.dtype)
        if self.offset is not None:
            normed = normed + self.offset[...].astype(wide.dtype)
        return normed.astype(y.dtype)


class NormedMLP(nnx.Module):
    """``norm(mlp(x))`` with options of ``FusedMLP``.

    Args:
      widths: widths of the input, of the hidden layers, and of the output.
      norm: ``"layer"``, ``"rms"`` or None.
      activation: activation between the layers.
      implementation: name of the kernels of sparse ops; any but ``"xla"`` runs the fastest MLP.
      options: ``dtype``, ``param_dtype`` and ``rngs``.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        norm: RowNormKind | None,
        activation: ops.Activation | None,
        implementation: ops.Name | None,
        **options: Any,
    ):
        self.mlp = FusedMLP(widths, activation=activation, **options)
        self.norm = RowNorm(norm, widths[-1], options["param_dtype"])
        self.implementation = implementation

    def __call__(self, *parts: Float[Array, "*rows _"]) -> Float[Array, "*rows out"]:
        """Applies the MLP to the parts of a row side by side, then the norm."""
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
        return self.norm(apply_mlp(self.mlp, x, self.implementation))
