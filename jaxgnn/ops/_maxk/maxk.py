"""The MaxK nonlinearity: the k largest entries of each row, compressed."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Float

from jaxgnn import _ffi
from jaxgnn._errors import bad_input
from jaxgnn._ffi import maxk as ffi
from jaxgnn.graph import CBSR
from jaxgnn.ops._maxk import pallas
from jaxgnn.ops._maxk.reference import maxk as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_cbsr, check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp

_DTYPES = ("float32", "bfloat16", "float16")


def _cuda_limits(x, *, k, by, early_stop):
    if early_stop is not None:
        return f"needs early_stop None on a GPU, got {early_stop}"
    if x.shape[-1] > ffi.MOST_COLUMNS:
        return f"needs at most {ffi.MOST_COLUMNS} columns, got {x.shape[-1]}"
    return None


def _cuda_is_faster(x, *, k, by, early_stop):
    # Measured on an H200: 1.04 to 1.45 times as fast where Pallas has one row a warp, not eight.
    if not pallas.has_eight_rows(x.shape[-1]) and _ffi.why_missing("cuda") is None:
        return f"the CUDA kernel is faster with {x.shape[-1]} columns"
    return None


def _table(
    name: str,
    native: dispatch.Implementation,
    on_cuda: tuple[dispatch.Name, ...] = ("pallas", "ffi", "xla"),
    **limits: Any,
) -> dispatch.Kernel:
    return dispatch.Kernel(
        name,
        # Columns of a row are distinct, so even the scatter of todense has only one result.
        {
            "xla": dispatch.xla(getattr(reference, name), scatters=False),
            "pallas": dispatch.pallas(getattr(pallas, name), dtypes=_DTYPES, **limits),
            "ffi": native,
        },
        preference={"cpu": ("ffi", "xla"), "cuda": on_cuda},
    )


MAXK = _table(
    "maxk",
    dispatch.ffi(dtypes=_DTYPES, cpu=ffi.maxk, cuda=ffi.maxk_cuda, cuda_limits=_cuda_limits),
    limits=_cuda_limits,
    not_worth=_cuda_is_faster,
)
# On an H200 Pallas takes 0.25 to 0.9 of the time of CUDA where rows have up to 4
# KiB, and the same time where they have 16.
TODENSE = _table("todense", dispatch.ffi(dtypes=_DTYPES, cpu=ffi.todense, cuda=ffi.todense_cuda))
# On an H200 XLA's gather takes 0.8 of the time of CUDA.
GATHER_COLUMNS = _table(
    "gather_columns",
    dispatch.ffi(dtypes=_DTYPES, cpu=ffi.gather_columns, cuda=ffi.gather_columns_cuda),
    ("xla",),
)


def maxk(
    x: Float[Array, "*batch dim"],
    k: int,
    *,
    by: Literal["value", "magnitude"] = "value",
    early_stop: int | None = None,
    implementation: dispatch.Name | None = None,
) -> CBSR:
    """Keeps the ``k`` largest entries of each row; the rest becomes zero.

    The nonlinearity of MaxK-GNN (https://arxiv.org/abs/2312.08656). Exact for float32, bfloat16 and
    float16. Ties go to the lowest column, -0 equals +0, and NaN ranks with +inf, so that it is kept
    and stays visible. The gradient passes through at the kept columns and is zero elsewhere.

    Args:
      x: dense rows, any leading axes.
      k: entries kept per row, 1 to ``dim``.
      by: rank by signed ``"value"``, as the paper does, or by ``"magnitude"``.
      early_stop: None for the exact result, or a number of bisection steps. The steps look, between
        the smallest and the largest rank of a row, for a threshold that at least ``k`` entries
        reach; the first ``k`` columns that reach it are kept (RTop-K,
        https://arxiv.org/abs/2409.00822). Infinities count as the largest finite number there, and
        make the range a wide one.
      implementation: ``"xla"``, ``"ffi"``, ``"pallas"``, or None for the one measured to be
        fastest.

    Returns:
      The kept values and their columns, ascending.

    Raises:
      ValueError: if ``k`` is not in 1..dim, or another argument is not as above.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> kept = ops.maxk(jnp.array([[3.0, -5.0, 1.0, 2.0]]), k=2)
      >>> kept.values.tolist(), kept.indices.tolist()
      ([[3.0, 2.0]], [[0, 3]])
    """
    (x,) = from_numpy(x)
    check_float("maxk", "x", x, 1)
    check_k("maxk", "k", k, x.shape[-1])
    if by not in ("value", "magnitude"):
        raise bad_input("maxk", "by", "'value' or 'magnitude'", repr(by))
    if early_stop is not None:
        _check_steps(early_stop)
    options = (("k", int(k)), ("by", by), ("early_stop", early_stop))
    request = dispatch.resolve("maxk", implementation)
    if request.name == "xla":
        kept = MAXK(request, x, **dict(options))
        values, indices = kept.values, kept.indices
    else:
        values, indices = _maxk(request, options, x)
    return CBSR(values, indices, x.shape[-1], in_range=True)


def todense(
    cbsr: CBSR, *, implementation: dispatch.Name | None = None
) -> Float[Array, "*batch rows dim"]:
    """Expands compressed rows. Differentiable in the values.

    Args:
      cbsr: kept values of each row and their columns, the result of ``maxk``.
      implementation: ``"xla"``, ``"ffi"``, ``"pallas"``, or None for the one measured to be
        fastest.

    Returns:
      The dense matrix, zeros where nothing was kept.

    Raises:
      ValueError: if ``cbsr`` is malformed.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> ops.todense(ops.maxk(jnp.array([[3.0, -5.0, 1.0, 2.0]]), k=2)).tolist()
      [[3.0, 0.0, 0.0, 2.0]]
    """
    cbsr = check_cbsr("todense", cbsr)
    request = dispatch.resolve("todense", implementation)
    if request.name == "xla":
        return TODENSE(request, cbsr)
    return _todense(request, cbsr.dim, *dispatch.match_varying(cbsr.values, cbsr.indices))


def _check_steps(steps):
    is_integer = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
    if not is_integer or not 0 <= steps < 2**31:
        expected = "None or a number of steps from 0 to 2^31 - 1"
        raise bad_input("maxk", "early_stop", expected, repr(steps))


def check_k(op: str, argument: str, k: Any, dim: int) -> None:
    """Raises ValueError unless ``k`` is an int in 1..dim."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise bad_input(op, argument, "an int", repr(k))
    if not 1 <= k <= dim:
        raise bad_input(op, argument, f"in 1..{dim}, the number of columns", k)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _maxk(request, options, x):
    kept = MAXK(request, x, **dict(options))
    return kept.values, kept.indices


def _maxk_forward(request, options, x):
    values, indices = _maxk(request, options, x)
    return (values, indices), (indices, x.shape[-1])


def _maxk_backward(request, options, residuals, cotangents):
    indices, dim = residuals
    return (_todense(request, dim, cotangents[0], indices),)


_maxk.defvjp(_maxk_forward, _maxk_backward)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _todense(request, dim, values, indices):
    return TODENSE(request, CBSR(values, indices, dim))


def _todense_forward(request, dim, values, indices):
    return _todense(request, dim, values, indices), indices


def _todense_backward(request, dim, indices, dy):
    return _gather_columns(request, dy, indices), None


_todense.defvjp(_todense_forward, _todense_backward)


@partial(custom_vjp, nondiff_argnums=(0,))
def _gather_columns(request, dense, indices):
    return GATHER_COLUMNS(request, dense, indices)


def _gather_columns_forward(request, dense, indices):
    return _gather_columns(request, dense, indices), (indices, dense.shape[-1])


def _gather_columns_backward(request, residuals, dvalues):
    indices, dim = residuals
    return _todense(request, dim, dvalues, indices), None


_gather_columns.defvjp(_gather_columns_forward, _gather_columns_backward)
