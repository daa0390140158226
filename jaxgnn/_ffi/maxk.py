"""Typed calls of the top-k kernels."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float, UInt

from jaxgnn._ffi._call import call, call_many
from jaxgnn.graph import CBSR, column_dtype

_NAMES = "jaxgnn_maxk", "jaxgnn_todense", "jaxgnn_gather_columns"
TARGETS = dict.fromkeys(_NAMES, ("cpu", "cuda"))


def maxk(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: int | None) -> CBSR:
    """Keeps the ``k`` largest entries of each row, on a CPU."""
    steps = np.int64(-1 if early_stop is None else early_stop)
    return _maxk(x, k, by_magnitude=by == "magnitude", early_stop=steps)


def maxk_cuda(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: None) -> CBSR:
    """Keeps the ``k`` largest entries of each row, on a GPU; it has no early stop."""
    return _maxk(x, k, by_magnitude=by == "magnitude")


def _maxk(x, k, **attributes):
    shape = (*x.shape[:-1], k)
    results = [(shape, x.dtype), (shape, column_dtype(x.shape[-1]))]
    values, indices = call_many("jaxgnn_maxk", results, x, **attributes)
    return CBSR(values, indices, x.shape[-1])


def todense(cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """Spreads the kept values out over rows of zeros."""
    return call("jaxgnn_todense", (cbsr.shape, cbsr.dtype), cbsr.values, cbsr.indices)


def gather_columns(
    dense: Float[Array, "*batch rows dim"], indices: UInt[Array, "*batch rows k"]
) -> Float[Array, "*batch rows k"]:
    """Picks the entries of each row that ``indices`` names."""
    return call("jaxgnn_gather_columns", (indices.shape, dense.dtype), dense, indices)
