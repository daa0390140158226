"""Typed calls of the top-k kernels."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float, UInt

from jaxgnn._ffi._call import call, call_many
from jaxgnn._ffi._launch import WARP, Launch, run
from jaxgnn.graph import CBSR, column_dtype

_NAMES = "jaxgnn_maxk", "jaxgnn_todense", "jaxgnn_gather_columns"
TARGETS = dict.fromkeys(_NAMES, ("cpu",))
MOST_COLUMNS = 32 * WARP
"""Most entries of a row that a warp holds in registers."""

_WARPS = 8
_ROWS = -1  # The number of tasks is the number of rows.
# Kernels that keep nothing from row to row need no stride.
_MANY_BLOCKS = 1 << 20


def maxk(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: int | None) -> CBSR:
    """Keeps the ``k`` largest entries of each row, on a CPU."""
    steps = np.int64(-1 if early_stop is None else early_stop)
    values, indices = call_many(
        "jaxgnn_maxk", _kept(x, k), x, by_magnitude=by == "magnitude", early_stop=steps
    )
    return CBSR(values, indices, x.shape[-1])


def maxk_cuda(x: Float[Array, "*batch dim"], *, k: int, by: str, early_stop: None) -> CBSR:
    """Keeps the ``k`` largest entries of each row, on a GPU; it has no early stop."""
    dim = x.shape[-1]
    columns = np.dtype(column_dtype(dim))
    own = next(own for own in (4, 8, 16, 32) if dim <= own * WARP)
    shared = -(-k * columns.itemsize * _WARPS // 4) * 4
    values, indices = run(
        "maxk",
        dict(zip(("values", "columns"), _kept(x, k), strict=True)),
        {"x": x},
        [Launch.striding("maxk", _ROWS, threads_y=_WARPS, shared_bytes=shared)],
        {"dim": dim, "k": k},
        types={"T": x.dtype, "Column": columns},
        constants={"kOwn": own, "kWide": dim % own == 0, "kByMagnitude": by == "magnitude"},
        by_row=True,
    )
    return CBSR(values, indices, dim)


def _kept(x, k):
    shape = (*x.shape[:-1], k)
    return [(shape, x.dtype), (shape, column_dtype(x.shape[-1]))]


def todense(cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """Spreads the kept values out over rows of zeros, on a CPU."""
    return call("jaxgnn_todense", (cbsr.shape, cbsr.dtype), cbsr.values, cbsr.indices)


def gather_columns(
    dense: Float[Array, "*batch rows dim"], indices: UInt[Array, "*batch rows k"]
) -> Float[Array, "*batch rows k"]:
    """Picks the entries of each row that ``indices`` names, on a CPU."""
    return call("jaxgnn_gather_columns", (indices.shape, dense.dtype), dense, indices)


def todense_cuda(cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """Spreads the kept values out over rows of zeros, on a GPU."""
    arrays = {"values": cbsr.values, "columns": cbsr.indices}
    return _of_rows("todense", arrays, "dense", cbsr.shape, dim=cbsr.dim, k=cbsr.k)


def gather_columns_cuda(
    dense: Float[Array, "*batch rows dim"], indices: UInt[Array, "*batch rows k"]
) -> Float[Array, "*batch rows k"]:
    """Picks the entries of each row that ``indices`` names, on a GPU."""
    dim, k = dense.shape[-1], indices.shape[-1]
    arrays = {"dense": dense, "columns": indices}
    return _of_rows("gather_columns", arrays, "values", indices.shape, dim=dim, k=k)


def _of_rows(file, arrays, result, shape, **numbers):
    """Calls a kernel that moves entries of rows, of the dtype of its first operand."""
    dtype = next(iter(arrays.values())).dtype
    return run(
        file,
        {result: (shape, dtype)},
        arrays,
        [Launch(file, _ROWS, _WARPS, _MANY_BLOCKS, threads_y=_WARPS)],
        numbers,
        types={"T": dtype, "Column": arrays["columns"].dtype},
        by_row=True,
    )[0]
