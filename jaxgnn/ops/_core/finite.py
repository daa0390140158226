"""Sums that a number reaches only if they contain it, also if it is not finite.

In a product of matrices a zero stands for what a sum does not contain, and zero times NaN is NaN.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


def any_not_finite(*arrays: Float[Array, "*any"]) -> Bool[Array, ""]:
    """Whether an entry is infinite or NaN.

    Under ``jax.vmap`` it is one answer for all members, so that a ``lax.cond`` by it stays one.
    """
    # NaN is the larger of itself and any other, and no comparison holds for it.
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
    """Their product, never of fewer bits than they have."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def finite_part(array: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Zero where it is not finite."""
    return jnp.where(jnp.isfinite(array), array, 0)


def add_the_rest(
    y: Float[Array, "*batch v n"],
    a: Float[Array, "*batch v k"],
    b: Float[Array, "*batch k n"],
    there_a: Bool[Array, "v k"] | None,
    there_b: Bool[Array, "k n"] | None,
) -> Float[Array, "*batch v n"]:
    """``a b`` from the product of their finite parts, with the terms whose factors are both there.

    What is not there is zero, or a number that is not finite. Slow: one term after another.

    Args:
      y: the product of the finite parts; of it remains each bit where nothing else is.
      a: a matrix, with leading axes or without.
      b: likewise.
      there_a: False where nothing is; None where everything is.
      there_b: likewise.
    """

    def add(k, y):
        x, z = _column(a, k), _row(b, k)
        contained = ~(jnp.isfinite(x) & jnp.isfinite(z))
        if there_a is not None:
            contained &= _column(there_a, k)
        if there_b is not None:
            contained &= _row(there_b, k)
        return jnp.where(contained, y + x * z, y)

    return lax.fori_loop(0, a.shape[-1], add, y)


def _column(matrix: Array, k: Array) -> Array:
    return lax.dynamic_slice_in_dim(matrix, k, 1, matrix.ndim - 1)


def _row(matrix: Array, k: Array) -> Array:
    return lax.dynamic_slice_in_dim(matrix, k, 1, matrix.ndim - 2)


@jax.custom_vjp
def product_of_what_is_there(a, b, there_a, there_b):
    """``a b`` as ``add_the_rest`` has it, of the same leading axes; so are its gradients."""
    y = exact_matmul(finite_part(a), finite_part(b))
    return add_the_rest(y, a, b, there_a, there_b)


def _forward(a, b, there_a, there_b):
    return product_of_what_is_there(a, b, there_a, there_b), (a, b, there_a, there_b)


def _backward(residuals, dy):
    a, b, there_a, there_b = residuals
    turned_a, turned_b = (None if t is None else t.mT for t in (there_a, there_b))
    da = product_of_what_is_there(dy, b.mT, None, turned_b)
    db = product_of_what_is_there(a.mT, dy, turned_a, None)
    return _only(da, there_a), _only(db, there_b), None, None


def _only(gradient: Array, there: Bool[Array, "rows cols"] | None) -> Array:
    return gradient if there is None else jnp.where(there, gradient, 0)


product_of_what_is_there.defvjp(_forward, _backward)
