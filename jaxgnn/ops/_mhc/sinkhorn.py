"""Doubly stochastic matrices from logits: by Sinkhorn-Knopp, and as a mixture of permutations."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.checks import check_count, check_number
from jaxgnn.ops._mhc.kernels import of_matrices, plain, with_backward
from jaxgnn.ops._mhc.reference import sinkhorn as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_choice, check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp

SINKHORN = of_matrices("sinkhorn", reference.sinkhorn, pallas.sinkhorn)
BACKWARD = of_matrices(
    "sinkhorn.backward",
    reference.sinkhorn_backward,
    pallas.sinkhorn_backward,
    pallas.most_sinkhorn_iterations,
)
IMPLICIT_BACKWARD = plain("sinkhorn.implicit_backward", reference.implicit_backward)
PERMUTATION_MIXTURE = plain("permutation_mixture", reference.permutation_mixture)
PERMUTATION_BACKWARD = plain("permutation_mixture.backward", reference.permutation_mixture_backward)
_sinkhorn = with_backward(SINKHORN, BACKWARD)
_permutation_mixture = with_backward(PERMUTATION_MIXTURE, PERMUTATION_BACKWARD)


def sinkhorn(
    logits: Float[Array, "*batch n n"],
    *,
    iterations: int = 20,
    eps: float = 1e-6,
    last: reference.Last = "rows",
    gradient: Literal["exact", "implicit"] = "exact",
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch n n"]:
    """Brings ``exp(logits)`` near a doubly stochastic matrix, by Sinkhorn and Knopp's iteration.

    An iteration divides the columns by their sums, then the rows by their sums
    (https://arxiv.org/abs/2512.24880). Rows then add up to 1, up to ``eps``; columns add up to 1 if
    the iteration has converged. The first division is a softmax, which can not overflow; ``eps`` is
    added to its result and to every later sum. With ``eps=0`` everything is computed in logarithms,
    so that no intermediate entry underflows.

    If a token has a NaN or an infinity among its logits, its whole result is NaN.

    Args:
      logits: square matrices, any leading axes. Sums are accumulated in float32.
      iterations: pairs of divisions, at least 1.
      eps: added to the result of the first division and to every later sum.
      last: the axis that an iteration normalises last: ``"rows"``, or ``"columns"`` after rows.
      gradient: ``"exact"`` differentiates the iterations, which the backward pass recomputes.
        ``"implicit"`` solves for the gradient at the limit instead, from the result alone. It is
        inexact unless the iteration has converged (20 iterations are not enough for logits far
        apart, or near a permutation matrix) and ``eps`` is small.
      implementation: ``"xla"``; ``"pallas"`` on a GPU, for float32 matrices of 2, 4 or 8 rows, with
        the exact gradient; or None for the one measured to be fastest.

    Returns:
      Matrices of the shape and dtype of ``logits``.

    Raises:
      ValueError: if ``logits`` are not square or another argument is not as above.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from jaxgnn import ops
      >>> print(np.asarray(ops.sinkhorn(jnp.log(jnp.array([[1.0, 2.0], [8.0, 4.0]])))).round(3))
      [[0.333 0.667]
       [0.667 0.333]]
    """
    (logits,) = from_numpy(logits)
    check_float("sinkhorn", "logits", logits, 2)
    if logits.shape[-1] != logits.shape[-2]:
        raise bad_input("sinkhorn", "logits", "square, [..., n, n]", f"shape {logits.shape}")
    check_choice("sinkhorn", "gradient", gradient, "exact", "implicit")
    options = sinkhorn_options("sinkhorn", iterations, eps, last)
    request = dispatch.resolve("sinkhorn", implementation)
    if request.name != "xla":
        return (_sinkhorn if gradient == "exact" else _implicit)(request, options, logits)
    if gradient == "implicit":
        return _implicit_by_jax(request, options, logits)
    return SINKHORN(request, logits, **dict(options))


def sinkhorn_options(
    op: str, iterations: int, eps: float, last: reference.Last
) -> tuple[tuple[str, Any], ...]:
    """The options of ``sinkhorn`` as a hashable list of names and checked values."""
    check_choice(op, "last", last, "rows", "columns")
    return (
        ("iterations", check_count(op, "iterations", iterations)),
        ("eps", check_number(op, "eps", eps)),
        ("last", last),
    )


def permutation_mixture(
    logits: Float[Array, "*batch permutations"], *, implementation: dispatch.Name | None = None
) -> Float[Array, "*batch n n"]:
    """The doubly stochastic matrix ``Σ_k softmax(logits)_k P_k`` over all permutation matrices.

    mHC-lite (https://arxiv.org/abs/2601.05732) uses it instead of ``sinkhorn``: it is exact, but
    needs n! logits.

    Args:
      logits: one for each permutation of the n streams, in lexicographic order, any leading axes:
        n! for n up to 6. Sums are accumulated in float32.
      implementation: ``"xla"``, or None for the one measured to be fastest.

    Returns:
      Matrices of the dtype of ``logits``.

    Raises:
      ValueError: if the number of logits is no factorial up to 6!.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from jaxgnn import ops
      >>> np.asarray(ops.permutation_mixture(jnp.log(jnp.array([1.0, 3.0])))).round(3).tolist()
      [[0.25, 0.75], [0.75, 0.25]]
    """
    (logits,) = from_numpy(logits)
    check_float("permutation_mixture", "logits", logits, 1)
    if logits.shape[-1] not in reference.STREAMS:
        expected = "of 1, 2, 6, 24, 120 or 720 entries, one for each permutation"
        raise bad_input("permutation_mixture", "logits", expected, f"shape {logits.shape}")
    request = dispatch.resolve("permutation_mixture", implementation)
    if request.name == "xla":
        return PERMUTATION_MIXTURE(request, logits)
    return _permutation_mixture(request, (), logits)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _implicit(request, options, logits):
    return SINKHORN(request, logits, **dict(options))


def _implicit_forward(request, options, logits):
    h = _implicit(request, options, logits)
    return h, h


def _implicit_backward(request, options, h, dh):
    return (IMPLICIT_BACKWARD(request, h, dh).astype(h.dtype),)


_implicit.defvjp(_implicit_forward, _implicit_backward)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _implicit_by_jax(request, options, logits):
    return SINKHORN(request, logits, **dict(options))


@_implicit_by_jax.defjvp
def _implicit_by_jax_along(request, options, logits, tangents):
    # At the limit the derivative is a symmetric matrix, so one map takes gradients and tangents.
    h = _implicit_by_jax(request, options, *logits)
    return h, IMPLICIT_BACKWARD(request, h, *tangents).astype(h.dtype)
