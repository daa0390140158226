"""Calls of the Mosaic GPU kernels of dense layers: leading axes become one of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CBSR
from jaxgnn.ops.core.pallas_call import compiled, flat_tokens, forget_variation, vary_like
from jaxgnn.ops.core.precision import Precision, precision_on_gpu


def products(dtype: Any, precision: Precision | None) -> Precision | None:
    """How the kernels multiply float32 numbers; None if they do not support that precision.

    If the precision is None, JAX's setting decides, as for XLA on a GPU. The result is also None
    for 16-bit numbers, whose products are exact.
    """
    if jnp.dtype(dtype) != jnp.float32:
        return None
    of_kernels = precision_on_gpu(precision)
    return None if of_kernels == "highest" else of_kernels


@partial(compiled, static_argnames=("activation", "precision"))
def fused_linear(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    *,
    activation: str | None,
    precision: Precision | None,
) -> Float[Array, "*batch out"]:
    """``activation(x kernel + bias)`` of all rows, by one kernel."""
    from pallas_kernels.dense import fused_linear as kernels

    made = products(x.dtype, precision)
    flat = flat_tokens(x.ndim - 1, x)
    y = kernels.fused_linear(flat, kernel, bias, activation, precision=made)
    return vary_like(x, y.reshape(*x.shape[:-1], y.shape[-1]))


@partial(compiled, static_argnames=("activation", "precision"))
def fused_linear_backward(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    y: Float[Array, "*batch out"] | None,
    dy: Float[Array, "*batch out"],
    *,
    activation: str | None,
    precision: Precision | None,
) -> tuple[Array, Array, Array | None]:
    """Gradients to ``x``, ``kernel`` and ``bias``."""
    del precision  # gradients always use three products of bfloat16 parts
    from pallas_kernels.dense import fused_linear as kernels

    flat, y, dy = flat_tokens(x.ndim - 1, (x, y, dy))
    made = kernels.fused_linear_backward(flat, kernel, bias, y, dy, activation)
    dx, dkernel, dbias = jax.tree.map(partial(vary_like, x), made)
    return dx.reshape(x.shape), dkernel, dbias


@partial(compiled, static_argnames=("k", "by", "precision"))
def fused_linear_maxk(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    *,
    k: int,
    by: str,
    precision: Precision | None,
) -> CBSR:
    """The k largest entries of each row of ``x kernel + bias``, by one kernel."""
    del precision
    from pallas_kernels.maxk import linear_maxk as kernels

    rows = forget_variation(flat_tokens(x.ndim - 1, x))
    made = kernels.linear_maxk(rows, kernel, bias, k, by)
    values, indices = (vary_like(x, part.reshape(*x.shape[:-1], k)) for part in made)
    return CBSR(values, indices, kernel.shape[1])


@partial(compiled, static_argnames=("activation", "precision"))
def fused_mlp(
    x: Float[Array, "*batch in"],
    layers: Sequence[Float[Array, "in out"]],
    biases: Sequence[Float[Array, " out"] | None],
    *,
    activation: str | None,
    precision: Precision | None,
) -> Float[Array, "*batch out"]:
    """Runs dense layers with an activation between them; each kernel runs as many as fit."""
    from pallas_kernels.dense import fused_mlp as kernels

    made = products(x.dtype, precision)
    y = kernels.fused_mlp(flat_tokens(x.ndim - 1, x), layers, biases, activation, made)
    return vary_like(x, y.reshape(*x.shape[:-1], y.shape[-1]))


@partial(compiled, static_argnames=("activation", "precision"))
def fused_mlp_backward(
    x: Float[Array, "*batch in"],
    layers: Sequence[Float[Array, "in out"]],
    biases: Sequence[Float[Array, " out"] | None],
    dy: Float[Array, "*batch out"],
    *,
    activation: str | None,
    precision: Precision | None,
) -> tuple[Array, Sequence[Array], Sequence[Array | None]]:
    """Gradients to ``x``, the kernels and the biases."""
    from pallas_kernels.dense import fused_mlp as kernels

    precision = products(x.dtype, precision)
    flat, dy = flat_tokens(x.ndim - 1, (x, dy))
    made = kernels.fused_mlp_backward(flat, layers, biases, dy, activation, precision)
    dx, dkernels, dbiases = jax.tree.map(partial(vary_like, x), made)
    return dx.reshape(x.shape), tuple(dkernels), tuple(dbiases)
