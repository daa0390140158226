"""Parallel linear layers, each on its own part of the features or all on the same."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Float

_kernel_init = nnx.initializers.lecun_normal(in_axis=-2, out_axis=-1, batch_axis=0)


class Towers(nnx.Module):
    """A linear layer for each tower, parameters ``kernel`` [towers, in, out] and ``bias``."""

    def __init__(self, towers: int, widths: tuple[int, int], param_dtype: Any, rngs: nnx.Rngs):
        shape = towers, *widths
        self.kernel = nnx.Param(_kernel_init(rngs.params(), shape, param_dtype))
        self.bias = nnx.Param(jnp.zeros((towers, widths[1]), param_dtype))

    def parameters(self) -> tuple[Array, Array]:
        """The kernel [towers, in, out] and the bias [towers, out], as arrays."""
        return self.kernel[...], self.bias[...]

    def __call__(
        self, x: Float[Array, "*batch nodes towers in"], dtype: DTypeLike | None
    ) -> Float[Array, "*batch nodes towers out"]:
        """Applies each tower's layer to its own features, in this dtype."""
        x, kernel, bias = promote_dtype((x, *self.parameters()), dtype=dtype)
        return times_each(x, kernel) + bias


def by_tower(
    x: Float[Array, "*batch nodes width"], towers: int
) -> Float[Array, "*batch nodes towers each"]:
    """Splits features into the parts of the towers."""
    return x.reshape(*x.shape[:-1], towers, x.shape[-1] // towers)


def joined(x: Float[Array, "*batch nodes towers each"]) -> Float[Array, "*batch nodes width"]:
    """Concatenates the parts of all towers."""
    *nodes, towers, each = x.shape
    return x.reshape(*nodes, towers * each)


def times_all(
    x: Float[Array, "*batch nodes in"], kernel: Float[Array, "towers in out"]
) -> Float[Array, "*batch nodes towers out"]:
    """The product of the same features with the kernel of each tower."""
    towers, width, out = kernel.shape
    return by_tower(x @ jnp.swapaxes(kernel, 0, 1).reshape(width, towers * out), towers)


def times_each(
    x: Float[Array, "*batch nodes towers in"], kernel: Float[Array, "towers in out"]
) -> Float[Array, "*batch nodes towers out"]:
    """The product of each tower's part with its kernel."""
    return jnp.swapaxes(jnp.matmul(jnp.swapaxes(x, -2, -3), kernel), -2, -3)
