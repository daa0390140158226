"""Tables of the kernels of sums of tensor products, and gradients with derivatives of any order.

A number is linear in each of four arrays (see ``reference/tensor_product_sum.py``). Each function
here is the gradient of that number to one of them, so its own gradients are the other functions.
All arrays are without leading axes, and the graph without weights.

The kernels of a CPU read sparse tables of the product. Those of a GPU are generated for it.
"""

from __future__ import annotations

from functools import partial

from jaxtyping import Array, Float

from jaxgnn._ffi import tensor_product_sum as ffi
from jaxgnn.equivariant import TensorProduct
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient

_DTYPES = ("float32", "bfloat16", "float64")


def _table(name: str, plain, native, native_cuda, *, scatters: bool = True) -> dispatch.Kernel:
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(plain, scatters=scatters),
            "ffi": dispatch.ffi(
                dtypes=_DTYPES,
                cpu=native,
                cuda=native_cuda,
                cuda_limits=ffi.cuda_limits,
                cuda_library="nvrtc",
            ),
        },
    )


SUM = _table(
    "tensor_product_sum", reference.tensor_product_sum, ffi.sum_at_rows, ffi.sum_at_rows_cuda
)
SUM_AT_COLUMNS = _table(
    "tensor_product_sum.to_x",
    reference.sum_at_columns,
    ffi.sum_at_columns,
    ffi.sum_at_columns_cuda,
)
WEIGHT_PRODUCTS = _table(
    "tensor_product_sum.to_weights",
    reference.weight_products,
    ffi.weight_products,
    ffi.weight_products_cuda,
    scatters=False,
)
HARMONIC_PRODUCTS = _table(
    "tensor_product_sum.to_harmonics",
    reference.harmonic_products,
    ffi.harmonic_products,
    ffi.harmonic_products_cuda,
    scatters=False,
)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def sum_at_rows(
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
) -> Float[Array, "rows out"]:
    """``y_i = Σ_j product(x_j, harmonics_ij, weights_ij)``."""
    return SUM(request, graph, x, harmonics, weights, product=product)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def sum_at_columns(
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
) -> Float[Array, "cols in"]:
    """The gradient of the sums to ``x``."""
    return SUM_AT_COLUMNS(request, graph, dy, harmonics, weights, product=product)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def weight_products(
    request: dispatch.Request,
    product: TensorProduct,
    dtype: str,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
) -> Float[Array, "edges weights"]:
    """The gradient of the sums to ``weights``."""
    return WEIGHT_PRODUCTS(request, graph, x, dy, harmonics, product=product, dtype=dtype)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def harmonic_products(
    request: dispatch.Request,
    product: TensorProduct,
    dtype: str,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    weights: Float[Array, "edges weights"],
) -> Float[Array, "edges sh"]:
    """The gradient of the sums to ``harmonics``."""
    return HARMONIC_PRODUCTS(request, graph, x, dy, weights, product=product, dtype=dtype)


# The gradients. Those to the graph are None.


def _of_edges(request, product, graph, x, dy, harmonics, weights):
    """The gradients to both arrays of edges."""
    return (
        harmonic_products(request, product, harmonics.dtype.name, graph, x, dy, weights),
        weight_products(request, product, weights.dtype.name, graph, x, dy, harmonics),
    )


def _of_ends(request, product, graph, x, dy, harmonics, weights):
    """The gradients to both arrays of nodes."""
    return (
        sum_at_columns(request, product, graph, dy, harmonics, weights).astype(x.dtype),
        sum_at_rows(request, product, graph, x, harmonics, weights).astype(dy.dtype),
    )


def _of_rows(request, product, graph, x, harmonics, weights, dy):
    to_x = sum_at_columns(request, product, graph, dy, harmonics, weights)
    return None, to_x, *_of_edges(request, product, graph, x, dy, harmonics, weights)


def _of_columns(request, product, graph, dy, harmonics, weights, x):
    to_dy = sum_at_rows(request, product, graph, x, harmonics, weights)
    return None, to_dy, *_of_edges(request, product, graph, x, dy, harmonics, weights)


def _of_weights(request, product, _, graph, x, dy, harmonics, weights):
    of_ends = _of_ends(request, product, graph, x, dy, harmonics, weights)
    dtype = harmonics.dtype.name
    to_harmonics = harmonic_products(request, product, dtype, graph, x, dy, weights)
    return None, *of_ends, to_harmonics


def _of_harmonics(request, product, _, graph, x, dy, weights, harmonics):
    of_ends = _of_ends(request, product, graph, x, dy, harmonics, weights)
    dtype = weights.dtype.name
    return None, *of_ends, weight_products(request, product, dtype, graph, x, dy, harmonics)


set_gradient(sum_at_rows, _of_rows, 2)
set_gradient(sum_at_columns, _of_columns, 2)
set_gradient(weight_products, _of_weights, 3)
set_gradient(harmonic_products, _of_harmonics, 3)
