"""Tables of the kernels of sums of tensor products, and gradients with derivatives of any order.

A number is linear in each of four arrays (see ``reference/tensor_product_sum.py``). Each function
here is the gradient of that number to one of them, so its own gradients are the other functions.
All arrays are without leading axes, and the graph without weights.

The weights are an array, or a ``RadialLayer``: then the number is linear in the layer's basis and
in its kernel, which have a gradient each in the place of that to the weights.

The kernels of a CPU read sparse tables of the product, and weights from memory. Those of a GPU are
generated for the product, and make the weights of a layer themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Array, Float

from jaxgnn._ffi import generated_tensor_product_sum as generated
from jaxgnn._ffi import tensor_product_sum as native
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.radial_layer import Products, RadialLayer
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._equivariant import layer_products
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops._equivariant.reference.tensor_product_sum import Weights
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient

_DTYPES = ("float32", "bfloat16", "float64")
_TF32_ERROR = 2e-3  # relative to the largest entry


def _table(
    name: str,
    plain: Callable[..., Any],
    cpu: Callable[..., Any],
    cuda: Callable[..., Any],
    *,
    scatters: bool = False,
) -> dispatch.Kernel:
    of_gpu = {"cuda": cuda, "cuda_limits": generated.limits, "cuda_library": "nvrtc"}
    made = dispatch.ffi(dtypes=_DTYPES, cpu=cpu, tolerance=_tolerance, **of_gpu)
    return dispatch.Kernel(name, {"xla": dispatch.xla(plain, scatters=scatters), "ffi": made})


def _tolerance(graph: CSRGraph, *arrays: Any, precision: str = "highest", **_: Any) -> float | None:
    """The error that TF32 products of a radial layer may have on a GPU, or None."""
    layers = [array for array in arrays if isinstance(array, RadialLayer)]
    is_tf32 = "tf32" in (precision, *(layer.precision for layer in layers))
    return _TF32_ERROR if is_tf32 and dispatch.current_platform() == "cuda" else None


def _of_array(run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that reads weights, for weights of both kinds."""

    def of_weights(graph: CSRGraph, a: Array, b: Array, weights: Weights, **options: Any) -> Array:
        return run(graph, a, b, reference.as_array(graph, weights), **options)

    return of_weights


SUM = _table(
    "tensor_product_sum",
    reference.tensor_product_sum,
    _of_array(native.sum_at_rows),
    generated.sum_at_rows,
    scatters=True,
)
SUM_AT_COLUMNS = _table(
    "tensor_product_sum.to_x",
    reference.sum_at_columns,
    _of_array(native.sum_at_columns),
    generated.sum_at_columns,
    scatters=True,
)
HARMONIC_PRODUCTS = _table(
    "tensor_product_sum.to_harmonics",
    reference.harmonic_products,
    _of_array(native.harmonic_products),
    generated.harmonic_products,
)
WEIGHT_PRODUCTS = _table(
    "tensor_product_sum.to_weights",
    reference.weight_products,
    native.weight_products,
    generated.weight_products,
)
BASIS_PRODUCTS = _table(
    "tensor_product_sum.to_basis",
    reference.basis_products,
    partial(reference.basis_products, of_weights=native.weight_products),
    layer_products.basis_products,
)
KERNEL_PRODUCTS = _table(
    "tensor_product_sum.to_kernel",
    reference.kernel_products,
    partial(reference.kernel_products, of_weights=native.weight_products),
    layer_products.kernel_products,
)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def sum_at_rows(
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Weights,
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
    weights: Weights,
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
    weights: Weights,
) -> Float[Array, "edges sh"]:
    """The gradient of the sums to ``harmonics``."""
    return HARMONIC_PRODUCTS(request, graph, x, dy, weights, product=product, dtype=dtype)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def basis_products(
    request: dispatch.Request,
    product: TensorProduct,
    dtype: str,
    precision: Products,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    kernel: Float[Array, "features weights"],
) -> Float[Array, "edges features"]:
    """The gradient of the sums to the basis of a radial layer."""
    options = {"product": product, "dtype": dtype, "precision": precision}
    return BASIS_PRODUCTS(request, graph, x, dy, harmonics, kernel, **options)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def kernel_products(
    request: dispatch.Request,
    product: TensorProduct,
    dtype: str,
    precision: Products,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    basis: Float[Array, "edges features"],
) -> Float[Array, "features weights"]:
    """The gradient of the sums to the kernel of a radial layer."""
    options = {"product": product, "dtype": dtype, "precision": precision}
    return KERNEL_PRODUCTS(request, graph, x, dy, harmonics, basis, **options)


# The gradients. Those to the graph are None.


def _of_edges(request, product, graph, x, dy, harmonics, weights):
    """The gradients to harmonics and weights."""
    return (
        harmonic_products(request, product, harmonics.dtype.name, graph, x, dy, weights),
        _to_weights(request, product, graph, x, dy, harmonics, weights),
    )


def _to_weights(request, product, graph, x, dy, harmonics, weights):
    """The gradient to the weights, or to the layer that makes them."""
    if not isinstance(weights, RadialLayer):
        dtype = weights.dtype.name
        return weight_products(request, product, dtype, graph, x, dy, harmonics)
    basis, kernel, precision = weights.basis, weights.kernel, weights.precision
    arrays = graph, x, dy, harmonics
    return weights.like(
        basis_products(request, product, basis.dtype.name, precision, *arrays, kernel),
        kernel_products(request, product, kernel.dtype.name, precision, *arrays, basis),
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
    return None, *of_ends, _to_weights(request, product, graph, x, dy, harmonics, weights)


def _of_basis(request, product, dtype, precision, graph, x, dy, harmonics, kernel, basis):
    layer = RadialLayer(basis, kernel, precision)
    to_arrays = _of_weights(request, product, dtype, graph, x, dy, harmonics, layer)
    arrays = graph, x, dy, harmonics, basis
    to_kernel = kernel_products(request, product, kernel.dtype.name, precision, *arrays)
    return *to_arrays, to_kernel


def _of_kernel(request, product, dtype, precision, graph, x, dy, harmonics, basis, kernel):
    layer = RadialLayer(basis, kernel, precision)
    to_arrays = _of_weights(request, product, dtype, graph, x, dy, harmonics, layer)
    arrays = graph, x, dy, harmonics, kernel
    to_basis = basis_products(request, product, basis.dtype.name, precision, *arrays)
    return *to_arrays, to_basis


set_gradient(sum_at_rows, _of_rows, 2)
set_gradient(sum_at_columns, _of_columns, 2)
set_gradient(weight_products, _of_weights, 3)
set_gradient(harmonic_products, _of_harmonics, 3)
set_gradient(basis_products, _of_basis, 4)
set_gradient(kernel_products, _of_kernel, 4)
