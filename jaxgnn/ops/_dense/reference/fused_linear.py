"""A linear layer with its activation, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.graph import CBSR
from jaxgnn.ops._maxk.reference.maxk import maxk
from jaxgnn.ops.core.activations import ACTIVATIONS, Name
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.precision import PRECISIONS, Precision


def fused_linear(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    *,
    activation: Name | None,
    precision: Precision | None,
    round_products: bool = False,
) -> Float[Array, "*batch out"]:
    """``activation(x @ kernel + bias)``, rounded; ``round_products`` also rounds the product."""
    z = preactivation(x, kernel, bias, precision, round_products)
    return ACTIVATIONS[activation].activate(z).astype(x.dtype)


def fused_linear_backward(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    y: Float[Array, "*batch out"] | None,
    dy: Float[Array, "*batch out"],
    *,
    activation: Name | None,
    precision: Precision | None,
    round_products: bool = False,
) -> tuple[Array, Array, Array | None]:
    """Gradients to ``x``, ``kernel`` and ``bias``.

    The derivative is computed from y if ``saves_output``, else from z, which is recomputed::

        dz = dy activation'(z),  dx = dz kernelᵀ,  dkernel = xᵀ dz,  dbias = Σ_rows dz
    """
    dz = dy
    if activation is not None:
        known = y
        if known is None:
            x, kernel, bias, dy = behind_barrier(x, kernel, bias, dy)
            known = preactivation(x, kernel, bias, precision, round_products)
        dz = ACTIVATIONS[activation].pull_back(known, dy)
    dx, dkernel, dbias = gradients(x, kernel, bias, dz, precision, round_products)
    return dx.astype(x.dtype), dkernel, dbias


def fused_linear_maxk(
    x: Float[Array, "*batch in"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    *,
    k: int,
    by: str,
    precision: Precision | None,
    round_products: bool = False,
) -> CBSR:
    """The k largest entries of each row of ``x @ kernel + bias``, rounded."""
    options = {"precision": precision, "round_products": round_products}
    z = fused_linear(x, kernel, bias, activation=None, **options)
    return maxk(z, k=k, by=by, early_stop=None)


def saves_output(activation: Name | None) -> bool:
    """Whether the backward pass uses y, so that it need not recompute z."""
    return ACTIVATIONS[activation].of_output


def preactivation(
    x, kernel, bias, precision: Precision | None, round_products: bool = False
) -> Array:
    """``x @ kernel + bias`` in the dtype of ``product``."""
    z = product(x, kernel, ((x.ndim - 1,), (0,)), precision, round_products)
    return z if bias is None else z + bias.astype(z.dtype)


def gradients(
    x, kernel, bias, dz, precision: Precision | None, round_products: bool = False
) -> tuple[Array, Array, Array | None]:
    """Gradients of ``preactivation`` from ``dz``; ``dx`` is not yet rounded.

    ``dz`` is rounded as an operand of the two products, which then run at the speed of the dtype of
    ``x``; for ``dbias`` it is summed unrounded, or rounded with ``round_products``, which saves an
    array.
    """
    rows = tuple(range(x.ndim - 1))
    operand = dz.astype(x.dtype)
    summed = operand if round_products else dz
    wide = accumulation_dtype(x.dtype)
    dx = product(operand, kernel, ((dz.ndim - 1,), (1,)), precision, round_products)
    dkernel = product(x, operand, (rows, rows), precision, round_products).astype(kernel.dtype)
    dbias = None if bias is None else jnp.sum(summed, axis=rows, dtype=wide).astype(bias.dtype)
    return dx, dkernel, dbias


def product(a, b, contracted, precision: Precision | None, round_products: bool = False) -> Array:
    """Sums products over the ``contracted`` axes of ``a`` and ``b`` in the accumulation dtype.

    With ``round_products`` the sums have the dtype of ``a``. This halves the bytes where bias and
    activation are a separate pass over a library's product, and lets XLA recognise that the library
    can add the bias.
    """
    dtype = accumulation_dtype(a.dtype)
    # Products of 16-bit numbers are exact in float32, and float64 must not lose precision.
    how = PRECISIONS[precision] if a.dtype == jnp.float32 else None
    stored = a.dtype if round_products else dtype
    dimensions = contracted, ((), ())
    return lax.dot_general(a, b, dimensions, precision=how, preferred_element_type=stored)


def behind_barrier(*trees):
    """Returns its arguments behind an optimization barrier, so that recomputation stays separate.

    Otherwise the compiler would merge it with the forward pass and keep its results in memory. As
    the gradient is among the arguments, recomputation starts only when the gradient is known.
    """
    return lax.optimization_barrier(trees)
