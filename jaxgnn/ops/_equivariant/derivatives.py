"""Sums of tensor products and their gradients, with derivatives of any order.

A number is linear in each of four arrays (see ``reference/tensor_product_sum.py``). Each function
here is the gradient of that number to one of them, so its own gradients are the other functions.
All arrays are without leading axes, and the graph without weights.

The weights are an array, or a ``RadialLayer``: then the number is linear in the layer's basis and
in its kernel, which have a gradient each in the place of that to the weights.

Training on forces needs gradients of gradients. Those of ``slopes``, the gradients of the sums,
are derivatives in the direction of tangents, with several products at each edge, which one kernel
adds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Float

from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.radial_layer import Products, RadialLayer
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._equivariant.kernels import (
    BASIS_PRODUCTS,
    COLUMNS_TANGENT,
    HARMONIC_PRODUCTS,
    KERNEL_PRODUCTS,
    SUM,
    SUM_AT_COLUMNS,
    SUM_TANGENT,
    WEIGHT_PRODUCTS,
    WEIGHTS_TANGENT,
)
from jaxgnn.ops._equivariant.reference import tensor_product_sum as plain
from jaxgnn.ops._equivariant.reference.tensor_product_sum import Weights
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient


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


@partial(custom_vjp, nondiff_argnums=(0, 1))
def slopes(
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
) -> tuple[Array, Array, Array]:
    """The gradients of the sums to ``x``, harmonics and weights."""
    to_x = sum_at_columns(request, product, graph, dy, harmonics, weights)
    of_edges = _of_edges(request, product, graph, x, dy, harmonics, weights)
    return to_x, *of_edges


@partial(custom_vjp, nondiff_argnums=(0, 1))
def sum_tangent(
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dx: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    dharmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    dweights: Float[Array, "edges weights"],
) -> Float[Array, "rows out"]:
    """The derivative of the sums in the direction of the tangents."""
    arrays = x, dx, harmonics, dharmonics, weights, dweights
    return SUM_TANGENT(request, graph, *arrays, product=product)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def columns_tangent(
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    dharmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    dweights: Float[Array, "edges weights"],
) -> Float[Array, "cols in"]:
    """The derivative of the gradient to ``x`` in the direction of the tangents."""
    arrays = dy, harmonics, dharmonics, weights, dweights
    return COLUMNS_TANGENT(request, graph, *arrays, product=product)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def weights_tangent(
    request: dispatch.Request,
    product: TensorProduct,
    dtype: str,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dx: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    dharmonics: Float[Array, "edges sh"],
) -> Float[Array, "edges weights"]:
    """The derivative of the gradient to the weights in the direction of the tangents."""
    arrays = x, dx, dy, harmonics, dharmonics
    return WEIGHTS_TANGENT(request, graph, *arrays, product=product, dtype=dtype)


# The gradients. Those to the graph are None.


def _of_edges(request, product, graph, x, dy, harmonics, weights) -> tuple[Array, Any]:
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
    if not isinstance(weights, RadialLayer):
        return None, *slopes(request, product, graph, x, dy, harmonics, weights)
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


def _of_slopes(request, product, graph, x, dy, harmonics, weights, along):
    dx, dharmonics, dweights = along
    of_edges = harmonics, dharmonics, weights, dweights
    to_x = columns_tangent(request, product, graph, dy, *of_edges)
    to_dy = sum_tangent(request, product, graph, x, dx, *of_edges)
    of_harmonics = request, product, harmonics.dtype.name, graph
    to_harmonics = harmonic_products(*of_harmonics, dx, dy, weights)
    to_harmonics += harmonic_products(*of_harmonics, x, dy, dweights)
    arrays = x, dx, dy, harmonics, dharmonics
    to_weights = weights_tangent(request, product, weights.dtype.name, graph, *arrays)
    return None, to_x.astype(x.dtype), to_dy.astype(dy.dtype), to_harmonics, to_weights


# Third derivatives take the products of tangents one by one.


def _of_sum_tangent(request, product, graph, *arrays_and_slope):
    *arrays, slope = arrays_and_slope
    of_rows = partial(sum_at_rows, request, product, graph)
    return None, *jax.vjp(partial(plain.sum_tangent_by, of_rows), *arrays)[1](slope)


def _of_columns_tangent(request, product, graph, *arrays_and_slope):
    *arrays, slope = arrays_and_slope
    of_columns = partial(sum_at_columns, request, product, graph)
    return None, *jax.vjp(partial(plain.columns_tangent_by, of_columns), *arrays)[1](slope)


def _of_weights_tangent(request, product, dtype, graph, *arrays_and_slope):
    *arrays, slope = arrays_and_slope
    of_weights = partial(weight_products, request, product, dtype, graph)
    return None, *jax.vjp(partial(plain.weights_tangent_by, of_weights), *arrays)[1](slope)


set_gradient(sum_at_rows, _of_rows, 2)
set_gradient(slopes, _of_slopes, 2)
set_gradient(sum_tangent, _of_sum_tangent, 2)
set_gradient(columns_tangent, _of_columns_tangent, 2)
set_gradient(weights_tangent, _of_weights_tangent, 3)
set_gradient(sum_at_columns, _of_columns, 2)
set_gradient(weight_products, _of_weights, 3)
set_gradient(harmonic_products, _of_harmonics, 3)
set_gradient(basis_products, _of_basis, 4)
set_gradient(kernel_products, _of_kernel, 4)
