"""Tables of the kernels of filtered sums, and their gradients, which have derivatives of any order.

Two numbers are linear in each of their arrays (see ``reference/filtered_sum.py``). Each function
here is the gradient of such a number to one array, so its own gradients are the other functions.
All arrays are without leading axes, and the graph without weights. ``order`` is a permutation: slot
e has the entry ``order[e]`` of arrays of edges; None for its own entry.
"""

from __future__ import annotations

from functools import partial

from jaxtyping import Array, Float, Int

from jaxgnn._ffi import filtered_sum as ffi
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._filters import pallas
from jaxgnn.ops._filters.reference import filtered_sum as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient

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


@partial(custom_vjp, nondiff_argnums=(0,))
def sum_at_rows(
    request: dispatch.Request,
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ w_ij``."""
    return GIVEN(request, graph, order, x, filters)


@partial(custom_vjp, nondiff_argnums=(0,))
def sum_at_columns(
    request: dispatch.Request,
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    filters: Float[Array, "edges width"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ w_ij``."""
    return GIVEN_AT_COLUMNS(request, graph, order, dy, filters)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def filter_products(
    request: dispatch.Request,
    width: int,
    dtype: str,
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
) -> Float[Array, "edges width"]:
    """``dw_ij = x_j ⊙ dy_i``."""
    return FILTER_PRODUCTS(request, graph, order, x, dy, width=width, dtype=dtype)


@partial(custom_vjp, nondiff_argnums=(0,))
def made_at_rows(
    request: dispatch.Request,
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "rows columns"]:
    """``y_i = Σ_j x_j ⊙ (basis_ij · kernel)``."""
    return MADE(request, graph, order, x, basis, kernel)


@partial(custom_vjp, nondiff_argnums=(0,))
def made_at_columns(
    request: dispatch.Request,
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "cols columns"]:
    """``dx_j = Σ_i dy_i ⊙ (basis_ij · kernel)``."""
    return MADE_AT_COLUMNS(request, graph, order, dy, basis, kernel)


@partial(custom_vjp, nondiff_argnums=(0,))
def basis_products(
    request: dispatch.Request,
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    kernel: Float[Array, "features columns"],
) -> Float[Array, "edges features"]:
    """``(x_j ⊙ dy_i) · kernelᵀ``, in the dtype of the kernel."""
    return BASIS_PRODUCTS(request, graph, order, x, dy, kernel)


@partial(custom_vjp, nondiff_argnums=(0,))
def kernel_products(
    request: dispatch.Request,
    graph: CSRGraph,
    order: Int[Array, " edges"] | None,
    x: Float[Array, "cols columns"],
    dy: Float[Array, "rows columns"],
    basis: Float[Array, "edges features"],
) -> Float[Array, "features columns"]:
    """``Σ_ij basis_ij ⊗ (x_j ⊙ dy_i)``, in the dtype of the basis."""
    return KERNEL_PRODUCTS(request, graph, order, x, dy, basis)


# The gradients. Those to the graph and to the order are None.


def _of_rows(request, graph, order, x, filters, dy):
    width, dtype = filters.shape[1], filters.dtype.name
    to_filters = filter_products(request, width, dtype, graph, order, x, dy)
    return None, None, sum_at_columns(request, graph, order, dy, filters), to_filters


def _of_columns(request, graph, order, dy, filters, x):
    width, dtype = filters.shape[1], filters.dtype.name
    to_filters = filter_products(request, width, dtype, graph, order, x, dy)
    return None, None, sum_at_rows(request, graph, order, x, filters), to_filters


def _of_filters(request, width, dtype, graph, order, x, dy, filters):
    to_x = sum_at_columns(request, graph, order, dy, filters)
    to_dy = sum_at_rows(request, graph, order, x, filters)
    return None, None, to_x.astype(x.dtype), to_dy.astype(dy.dtype)


def _of_made_rows(request, graph, order, x, basis, kernel, dy):
    return (
        None,
        None,
        made_at_columns(request, graph, order, dy, basis, kernel),
        basis_products(request, graph, order, x, dy, kernel),
        kernel_products(request, graph, order, x, dy, basis),
    )


def _of_made_columns(request, graph, order, dy, basis, kernel, x):
    return (
        None,
        None,
        made_at_rows(request, graph, order, x, basis, kernel),
        basis_products(request, graph, order, x, dy, kernel),
        kernel_products(request, graph, order, x, dy, basis),
    )


def _of_basis(request, graph, order, x, dy, kernel, basis):
    return (
        None,
        None,
        made_at_columns(request, graph, order, dy, basis, kernel),
        made_at_rows(request, graph, order, x, basis, kernel),
        kernel_products(request, graph, order, x, dy, basis),
    )


def _of_kernel(request, graph, order, x, dy, basis, kernel):
    return (
        None,
        None,
        made_at_columns(request, graph, order, dy, basis, kernel),
        made_at_rows(request, graph, order, x, basis, kernel),
        basis_products(request, graph, order, x, dy, kernel),
    )


set_gradient(sum_at_rows, _of_rows, 1)
set_gradient(sum_at_columns, _of_columns, 1)
set_gradient(filter_products, _of_filters, 3)
set_gradient(made_at_rows, _of_made_rows, 1)
set_gradient(made_at_columns, _of_made_columns, 1)
set_gradient(basis_products, _of_basis, 1)
set_gradient(kernel_products, _of_kernel, 1)
