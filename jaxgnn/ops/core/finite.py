"""Sums in which NaN and infinities reach only the results whose terms contain them.

In a product of matrices a zero marks a term that a sum does not contain, but zero times NaN is NaN.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxgnn.ops.core.custom_gradient import custom_vjp


def any_not_finite(*arrays: Float[Array, "*any"]) -> Bool[Array, ""]:
    """Whether an entry is infinite or NaN.

    Under ``jax.vmap`` all members share one answer, so that a ``lax.cond`` on it stays a branch.
    """
    # A maximum over NaN is NaN, and no comparison holds for NaN.
    finite = (jnp.max(jnp.abs(array), initial=0) < jnp.inf for array in arrays)
    return _any_member(~functools.reduce(jnp.logical_and, finite))


@jax.custom_batching.custom_vmap
def _any_member(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    return flag


@_any_member.def_vmap
def _any_of_all_members(axis_size, in_batched, flags):
    del axis_size, in_batched
    return _any_member(jnp.any(flags, axis=0)), False


def exact_matmul(a: Float[Array, "*batch v k"], b: Float[Array, "*batch k n"]) -> Array:
    """The product ``a b`` in the full precision of its operands."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def finite_part(array: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Replaces NaN and infinities by zero."""
    return jnp.where(jnp.isfinite(array), array, 0)


def add_nonfinite_terms(
    y: Float[Array, "*batch v n"],
    a: Float[Array, "*batch v k"],
    b: Float[Array, "*batch k n"],
    present_a: Bool[Array, "v k"] | None,
    present_b: Bool[Array, "k n"] | None,
) -> Float[Array, "*batch v n"]:
    """Adds the terms of ``a b`` that are not finite to the product of the finite parts.

    A term counts only if both of its factors are present. This is slow: it adds one term after
    another.

    Args:
      y: the product of the finite parts of ``a`` and ``b``; entries without other terms are
        returned unchanged.
      a: left matrix, with leading axes or without.
      b: right matrix, with leading axes or without.
      present_a: False at entries of ``a`` that are no terms; None if all entries are.
      present_b: False at entries of ``b`` that are no terms; None if all entries are.
    """

    def add(k, y):
        x, z = _column(a, k), _row(b, k)
        contained = ~(jnp.isfinite(x) & jnp.isfinite(z))
        if present_a is not None:
            contained &= _column(present_a, k)
        if present_b is not None:
            contained &= _row(present_b, k)
        return jnp.where(contained, y + x * z, y)

    return lax.fori_loop(0, a.shape[-1], add, y)


def _column(matrix: Array, k: Array) -> Array:
    return lax.dynamic_slice_in_dim(matrix, k, 1, matrix.ndim - 1)


def _row(matrix: Array, k: Array) -> Array:
    return lax.dynamic_slice_in_dim(matrix, k, 1, matrix.ndim - 2)


@custom_vjp
def masked_product(a, b, present_a, present_b):
    """``a b`` and its gradients without the terms that ``present_a`` and ``present_b`` exclude.

    Both matrices have the same leading axes.
    """
    y = exact_matmul(finite_part(a), finite_part(b))
    return add_nonfinite_terms(y, a, b, present_a, present_b)


def _masked_product_forward(a, b, present_a, present_b):
    return masked_product(a, b, present_a, present_b), (a, b, present_a, present_b)


def _masked_product_backward(residuals, dy):
    a, b, present_a, present_b = residuals
    turned_a, turned_b = (None if t is None else t.mT for t in (present_a, present_b))
    da = masked_product(dy, b.mT, None, turned_b)
    db = masked_product(a.mT, dy, turned_a, None)
    return _masked(da, present_a), _masked(db, present_b), None, None


def _masked(gradient: Array, present: Bool[Array, "rows cols"] | None) -> Array:
    return gradient if present is None else jnp.where(present, gradient, 0)


masked_product.defvjp(_masked_product_forward, _masked_product_backward)
