"""Doubly stochastic matrices from logits, in plain JAX: Sinkhorn-Knopp, and permutations."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.ops.core.dtypes import accumulation_dtype

Last = Literal["rows", "columns"]

# The axes that one iteration sums over: a row's sum is over axis -1.
_AXES = {"rows": (-2, -1), "columns": (-1, -2)}

# The number n of streams for each number n! of permutations, which is the number of logits.
STREAMS = {math.factorial(n): n for n in range(1, 7)}

# Weight of the identity in the equations of the implicit gradient, which a permutation matrix
# would make singular. About the rounding of a float32 sum.
_RIDGE = 1e-6


def sinkhorn(
    logits: Float[Array, "*batch n n"], *, iterations: int, eps: float, last: Last
) -> Float[Array, "*batch n n"]:
    """Divides ``exp(logits)`` in turn by its sums along both axes, ``iterations`` times.

    The very first division is a softmax, which can not overflow; ``eps`` is added to its result
    and to every later sum.
    """
    values = logits.astype(accumulation_dtype(logits.dtype))
    m, _ = _normalize(_spread_nan(values), iterations, eps, last)
    return _entries(m, eps).astype(logits.dtype)


def sinkhorn_backward(
    logits: Float[Array, "*batch n n"],
    dh: Float[Array, "*batch n n"],
    *,
    iterations: int,
    eps: float,
    last: Last,
) -> Float[Array, "*batch n n"]:
    """The exact gradient: runs the iterations again, keeps their sums, and undoes them in turn.

    With ``z = m ∂L/∂m``, the gradient to ``log m``, one division ``m' = m / (Σm + eps)`` takes
    ``z'`` to ``z = z' - m' Σz'``, for every ``eps``; and ``m = m' (Σm + eps)``.
    """
    first, second = _AXES[last]
    accumulator = accumulation_dtype(logits.dtype, dh.dtype)
    values = _spread_nan(logits.astype(accumulator))
    m, (sums, more_sums) = _normalize(values, iterations, eps, last)

    def undo(state, axis, sums):
        z, m = state
        z = z - _entries(m, eps) * jnp.sum(z, axis, keepdims=True)
        return z, m + sums if eps == 0 else m * sums

    def undo_iteration(state, sums):
        return undo(undo(state, second, sums[1]), first, sums[0]), None

    state = (_entries(m, eps) * dh.astype(accumulator), m)
    state, _ = lax.scan(undo_iteration, state, more_sums, reverse=True)
    z, _ = undo(state, second, sums)
    p = jax.nn.softmax(values, first)
    z = z if eps == 0 else z * (p / (p + eps))
    return (z - p * jnp.sum(z, first, keepdims=True)).astype(logits.dtype)


def implicit_backward(
    h: Float[Array, "*batch n n"], dh: Float[Array, "*batch n n"]
) -> Float[Array, "*batch n n"]:
    """The gradient to the logits as if the iterations had converged to ``h``.

    On the manifold ``dL/dlogits = h (dh - u - vᵀ)``, with ``u`` and ``v`` such that its sums along
    rows and along columns vanish: a linear system of ``n`` equations once ``u`` is eliminated.
    """
    accumulator = accumulation_dtype(h.dtype, dh.dtype)
    h = h.astype(accumulator)
    g = h * dh.astype(accumulator)
    rows, columns = h.sum(-1), h.sum(-2)
    scaled = h / rows[..., None]  # diag(1 / rows) h
    n = h.shape[-1]
    # The system determines v up to a constant, which moves to u. The mean picks one.
    system = jnp.eye(n, dtype=accumulator) * (columns[..., None] + _RIDGE)
    system = system - jnp.einsum("...ki,...kj->...ij", scaled, h, precision="highest") + 1 / n
    known = g.sum(-2) - jnp.einsum("...ki,...k->...i", scaled, g.sum(-1), precision="highest")
    v = jnp.linalg.solve(system, known[..., None])[..., 0]
    u = g.sum(-1) / rows - jnp.einsum("...ij,...j->...i", scaled, v, precision="highest")
    return g - h * (u[..., :, None] + v[..., None, :])


def permutation_mixture(
    logits: Float[Array, "*batch permutations"],
) -> Float[Array, "*batch n n"]:
    """``Σ_k softmax(logits)_k P_k`` over the permutation matrices, in lexicographic order."""
    p = jax.nn.softmax(logits.astype(accumulation_dtype(logits.dtype)), axis=-1)
    table = permutation_matrices(STREAMS[logits.shape[-1]]).astype(p.dtype)
    return jnp.einsum("...k,kij->...ij", p, table, precision="highest").astype(logits.dtype)


def permutation_mixture_backward(
    logits: Float[Array, "*batch permutations"], dh: Float[Array, "*batch n n"]
) -> Float[Array, "*batch permutations"]:
    """``p_k (⟨P_k, dh⟩ - Σ_j p_j ⟨P_j, dh⟩)``."""
    p = jax.nn.softmax(logits.astype(accumulation_dtype(logits.dtype, dh.dtype)), axis=-1)
    table = permutation_matrices(dh.shape[-1]).astype(p.dtype)
    dp = jnp.einsum("...ij,kij->...k", dh.astype(p.dtype), table, precision="highest")
    return (p * (dp - jnp.sum(p * dp, axis=-1, keepdims=True))).astype(logits.dtype)


def permutation_matrices(n: int) -> np.ndarray:
    """All ``n!`` permutation matrices [n!, n, n], the identity first."""
    return np.eye(n, dtype=np.float32)[list(itertools.permutations(range(n)))]


def _normalize(logits, iterations, eps, last):
    """The matrix and the sums it was divided by, except for the first sum of the first iteration.

    Without eps, entries may differ by more than the range of floats, so logarithms are used.
    """
    first, second = _AXES[last]
    m = jax.nn.log_softmax(logits, first) if eps == 0 else jax.nn.softmax(logits, first) + eps

    def iterate(m, _):
        m, first_sums = _divide(m, first, eps)
        m, second_sums = _divide(m, second, eps)
        return m, (first_sums, second_sums)

    m, sums = _divide(m, second, eps)
    m, more_sums = lax.scan(iterate, m, length=iterations - 1)
    return m, (sums, more_sums)


def _divide(m, axis, eps):
    """``m`` divided by its sums along ``axis``, and the sums; all logarithms if eps is 0."""
    if eps == 0:
        sums = jax.nn.logsumexp(m, axis, keepdims=True)
        return m - sums, sums
    sums = jnp.sum(m, axis, keepdims=True) + eps
    return m / sums, sums


def _entries(m, eps):
    return jnp.exp(m) if eps == 0 else m


def _spread_nan(logits):
    """Fills a matrix that has a NaN or an infinity with NaN; returns other matrices unchanged."""
    return logits + jnp.sum(0 * logits, axis=(-2, -1), keepdims=True)
