"""Sums of tensor products as multilinear ops, and the tables of their kernels.

A number is linear in each of four arrays (see ``reference/tensor_product_sum.py``); where a radial
layer makes the weights, it is linear in the layer's basis and in its kernel.
All arrays are without leading axes, and the graph without weights. The weights are an array, or a
``RadialLayer``. The kernels of a CPU read sparse tables of the product, and weights from memory.
Those of a GPU are generated for the product, and make the weights of a layer themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Array, Float

from jaxgnn._ffi import generated_tensor_product_sum as generated
from jaxgnn._ffi import tensor_product_sum as native
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.radial_layer import RadialLayer
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._equivariant import layer_products
from jaxgnn.ops._equivariant.reference import tensor_product_sum as reference
from jaxgnn.ops._equivariant.reference.tensor_product_sum import Weights
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.multilinear import Multilinear

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
    compiled = dispatch.ffi(
        dtypes=_DTYPES, cpu=cpu, cuda=cuda, cuda_limits=generated.limits, tolerance=_tolerance
    )
    return dispatch.Kernel(name, {"xla": dispatch.xla(plain, scatters=scatters), "ffi": compiled})


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
SUM_TANGENT = _table(
    "tensor_product_sum.tangent",
    reference.sum_tangent,
    partial(reference.sum_tangent, of_rows=native.sum_at_rows),
    generated.sum_tangent,
    scatters=True,
)
COLUMNS_TANGENT = _table(
    "tensor_product_sum.tangent_to_x",
    reference.columns_tangent,
    partial(reference.columns_tangent, of_columns=native.sum_at_columns),
    generated.columns_tangent,
    scatters=True,
)
WEIGHTS_TANGENT = _table(
    "tensor_product_sum.tangent_to_weights",
    reference.weights_tangent,
    partial(reference.weights_tangent, of_weights=native.weight_products),
    generated.weights_tangent,
)


def _with_layer(kernel: dispatch.Kernel) -> Callable[..., Array]:
    """A kernel of weights, for the basis and the kernel of the layer that makes them."""

    def run(request: dispatch.Request, graph: CSRGraph, *arrays: Any, **options: Any) -> Array:
        *others, basis, kernel_of_layer = arrays
        layer = RadialLayer(basis, kernel_of_layer, options.pop("precision"))
        return kernel(request, graph, *others, layer, **options)

    return run


SUM_OF_PRODUCTS = Multilinear(
    operands=("x", "dy", "harmonics", "weights"),
    gradients={
        "dy": SUM,
        "x": SUM_AT_COLUMNS,
        "harmonics": HARMONIC_PRODUCTS,
        "weights": WEIGHT_PRODUCTS,
    },
    # Training on forces needs gradients of gradients, with several products at each edge, which one
    # kernel adds.
    tangents={"dy": SUM_TANGENT, "x": COLUMNS_TANGENT, "weights": WEIGHTS_TANGENT},
    shaped={"harmonics": ("dtype",), "weights": ("dtype",)},
)
SUM_OF_LAYER = Multilinear(
    operands=("x", "dy", "harmonics", "basis", "kernel"),
    gradients={
        "dy": _with_layer(SUM),
        "x": _with_layer(SUM_AT_COLUMNS),
        "harmonics": _with_layer(HARMONIC_PRODUCTS),
        "basis": BASIS_PRODUCTS,
        "kernel": KERNEL_PRODUCTS,
    },
    shaped=dict.fromkeys(("harmonics", "basis", "kernel"), ("dtype",)),
)


def sum_at_rows(
    request: dispatch.Request,
    product: TensorProduct,
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Weights,
) -> Float[Array, "rows out"]:
    """``y_i = Σ_j product(x_j, harmonics_ij, weights_ij)``, differentiable any number of times."""
    if not isinstance(weights, RadialLayer):
        return SUM_OF_PRODUCTS(request, (graph,), x, harmonics, weights, product=product)
    options = {"product": product, "precision": weights.precision}
    layer = weights.basis, weights.kernel
    return SUM_OF_LAYER(request, (graph,), x, harmonics, *layer, **options)
