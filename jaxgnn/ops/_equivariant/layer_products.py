"""The layer that makes weights: all of them at once, or its gradients without all at once.

The products of an edge, the gradient to its weights, take the room of all weights. Those of some
paths are computed by the generated kernels, multiplied with the basis or the kernel, and dropped.
A barrier keeps XLA from computing the next ones before that.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._ffi import generated_tensor_product_sum as generated
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.radial_layer import PRECISIONS, Products, RadialLayer
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.edge_sums import summed_over_edges

_MOST_COLUMNS = 256  # of products that exist at once


def weights_of_layer(graph: CSRGraph, layer: RadialLayer) -> Float[Array, "edges weights"]:
    """The weights of a layer in the accumulation dtype; zero in padding slots."""
    basis = reference.real(graph, layer.basis)
    return _product(layer.precision, basis, layer.kernel)


@partial(custom_vjp, nondiff_argnums=(0,))
def _product(precision, basis, kernel):
    wide = accumulation_dtype(basis.dtype, kernel.dtype)
    return jnp.matmul(basis.astype(wide), kernel.astype(wide), precision=PRECISIONS[precision])


@partial(custom_vjp, nondiff_argnums=(0,))
def _to_basis(precision, dweights, kernel):
    wide = kernel.astype(dweights.dtype)
    return jnp.matmul(dweights, wide.T, precision=PRECISIONS[precision])


def _gradient(precision, basis, kernel, dweights):
    to_basis = _to_basis(precision, dweights, kernel)
    to_kernel = summed_over_edges(basis.astype(dweights.dtype), dweights, PRECISIONS[precision])
    return to_basis.astype(basis.dtype), to_kernel.astype(kernel.dtype)


def _gradient_of_basis(precision, dweights, kernel, basis):
    to_kernel = summed_over_edges(basis, dweights, PRECISIONS[precision])
    to_dweights = _product(precision, basis, kernel)
    return to_dweights.astype(dweights.dtype), to_kernel.astype(kernel.dtype)


set_gradient(_product, _gradient, 1)
set_gradient(_to_basis, _gradient_of_basis, 1)


def basis_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    kernel: Float[Array, "features weights"],
    *,
    product: TensorProduct,
    dtype: str,
    precision: Products,
) -> Float[Array, "edges features"]:
    """``dbasis_ij = kernel · dweights_ij``."""
    kernel = kernel.astype(jnp.float32)
    total = jnp.zeros((graph.num_edges, kernel.shape[0]), jnp.float32)
    for paths in parts(product):
        x, total = jax.lax.optimization_barrier((x, total))
        products = _products_of(paths, product, graph, x, dy, harmonics)
        columns = jnp.concatenate([kernel[:, product.weight_slices[i]] for i in paths], axis=1)
        total += jnp.matmul(products, columns.T, precision=PRECISIONS[precision])
    return total.astype(dtype)


def kernel_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    basis: Float[Array, "edges features"],
    *,
    product: TensorProduct,
    dtype: str,
    precision: Products,
) -> Float[Array, "features weights"]:
    """``dkernel = Σ_ij basis_ij dweights_ij``."""
    basis = reference.real(graph, basis.astype(jnp.float32))
    columns, own = dict[int, Array](), jnp.zeros((), jnp.float32)
    for paths in parts(product):
        x, _ = jax.lax.optimization_barrier((x, own))
        products = _products_of(paths, product, graph, x, dy, harmonics)
        own = summed_over_edges(basis, products, PRECISIONS[precision])
        widths = [product.channels(product.paths[i]) for i in paths]
        splits = [sum(widths[: n + 1]) for n in range(len(widths) - 1)]
        columns |= dict(zip(paths, jnp.split(own, splits, axis=1), strict=True))
    return jnp.concatenate([columns[i] for i in sorted(columns)], axis=1).astype(dtype)


def _products_of(
    paths: tuple[int, ...], product: TensorProduct, graph: CSRGraph, *arrays: Array
) -> Float[Array, "edges part"]:
    options = {"product": product, "dtype": "float32", "paths": paths}
    return generated.weight_products(graph, *arrays, **options)


def parts(product: TensorProduct) -> list[tuple[int, ...]]:
    """Paths whose products exist at once: they read the same entry of the features."""
    found: list[tuple[int, ...]] = []
    width = 0
    for i, path in sorted(enumerate(product.paths), key=lambda pair: pair[1].i_in):
        channels = product.channels(path)
        last = found[-1] if found else ()
        is_alike = bool(last) and product.paths[last[0]].i_in == path.i_in
        if is_alike and width + channels <= _MOST_COLUMNS:
            found[-1], width = (*last, i), width + channels
        else:
            found.append((i,))
            width = channels
    return found
