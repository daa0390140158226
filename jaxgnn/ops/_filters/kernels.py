"""Filtered sums of neighbours as multilinear ops, and the tables of their kernels.

Two numbers are linear in each of their arrays (see ``reference/filtered_sum.py``): one where the
filters are given, and one where a basis of each edge and a kernel make them. All arrays are without
leading axes, and the graph without weights. Kernels take the graph and ``order``, a permutation:
slot e has the entry ``order[e]`` of arrays of edges; None for its own entry.
"""

from __future__ import annotations

from jaxgnn._ffi import filtered_sum as ffi
from jaxgnn.ops._filters import pallas
from jaxgnn.ops._filters.reference import filtered_sum as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.multilinear import Multilinear

_DTYPES = ("float32", "bfloat16")

MOST_FEATURES = 64
"""Most features of a basis for which filters are made in the kernels, as these have registers."""


def _table(name: str, function: str, *, scatters: bool = True) -> dispatch.Kernel:
    plain, mosaic, native = (getattr(module, function) for module in (reference, pallas, ffi))
    return dispatch.sparse_kernel(name, _DTYPES, plain, mosaic, native, scatters=scatters)


GIVEN = _table("filtered_sum", "sum_at_rows")
GIVEN_AT_COLUMNS = _table("filtered_sum.to_x", "sum_at_columns")
FILTER_PRODUCTS = _table("filtered_sum.to_weights", "filter_products", scatters=False)
MADE = _table("filtered_sum.made", "made_at_rows")
MADE_AT_COLUMNS = _table("filtered_sum.made_to_x", "made_at_columns")
BASIS_PRODUCTS = _table("filtered_sum.to_basis", "basis_products", scatters=False)
KERNEL_PRODUCTS = _table("filtered_sum.to_kernel", "kernel_products", scatters=False)

GIVEN_SUM = Multilinear(
    operands=("x", "dy", "filters"),
    gradients={"dy": GIVEN, "x": GIVEN_AT_COLUMNS, "filters": FILTER_PRODUCTS},
    shaped={"filters": ("width", "dtype")},
)
MADE_SUM = Multilinear(
    operands=("x", "dy", "basis", "kernel"),
    gradients={
        "dy": MADE,
        "x": MADE_AT_COLUMNS,
        "basis": BASIS_PRODUCTS,
        "kernel": KERNEL_PRODUCTS,
    },
)
