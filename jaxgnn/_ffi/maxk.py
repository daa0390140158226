"""Typed calls of the top-k kernels."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float, UInt

from jaxgnn._ffi._call import call, call_many
from jaxgnn.graph import CBSR, column_dtype


def maxk(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: int | None) -> CBSR:
    """See ``jaxgnn.ops.maxk``."""
    dim = x.shape[-1]
    shape = (*x.shape[:-1], k)
    values, indices = call_many(
        "jaxgnn_maxk",
        [(shape, x.dtype), (shape, column_dtype(dim))],
        x,
        by_magnitude=by == "magnitude",
        early_stop=np.int64(-1 if early_stop is None else early_stop),
    )
    return CBSR(values, indices, dim)


def maxk_cuda(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: None) -> CBSR:
    """See ``jaxgnn.ops.maxk``; exact only."""
    dim = x.shape[-1]
    shape = (*x.shape[:-1], k)
    values, indices = call_many(
        "jaxgnn_maxk",
        [(shape, x.dtype), (shape, column_dtype(dim))],
        x,
        by_magnitude=by == "magnitude",
    )
    return CBSR(values, indices, dim)


def todense(cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """Spreads the kept values out over rows of zeros."""
    return call("jaxgnn_todense", (cbsr.shape, cbsr.dtype), cbsr.values, cbsr.indices)


def gather_columns(
    dense: Float[Array, "*batch rows dim"], indices: UInt[Array, "*batch rows k"]
) -> Float[Array, "*batch rows k"]:
    """Picks the entries of each row that ``indices`` names."""
    return call("jaxgnn_gather_columns", (indices.shape, dense.dtype), dense, indices)
