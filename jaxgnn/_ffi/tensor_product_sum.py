"""Typed calls of the kernels of sums of tensor products.

Those of a GPU are generated for each product and compiled when they are first used. They read and
write float32.
"""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import match_varying
from jaxgnn._ffi import _nvrtc
from jaxgnn._ffi._call import Shape, call
from jaxgnn._ffi._tensor_product_source import Kind, Source, source
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.couplings import coupling_arrays
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.operands import structure

TARGETS = {
    "jaxgnn_tensor_product_sum": ("cpu",),
    "jaxgnn_tensor_weight_products": ("cpu",),
    "jaxgnn_tensor_harmonic_products": ("cpu",),
    "jaxgnn_generated": ("nvrtc",),
}
_FAMILY = "tensor_product_sum"


def sum_at_rows(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
) -> Float[Array, "rows out"]:
    """``y_i = Σ_j product(x_j, harmonics_ij, weights_ij)``."""
    dtype, arrays = x.dtype, _of_one_dtype(x, harmonics, weights)
    tables = _tables(product, arrays[0])
    return _sum(graph, None, arrays, tables, product.irreps_out.dim).astype(dtype)


def sum_at_columns(
    graph: CSRGraph,
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
) -> Float[Array, "cols in"]:
    """``dx_j``, along the transposed graph by exchanged couplings."""
    slots = graph.made_plan("schedule", "transpose", "permutation").permutation
    dtype, arrays = dy.dtype, _of_one_dtype(dy, harmonics, weights)
    tables = _tables(product, arrays[0], exchanged=True)
    dx = _sum(graph.transpose(), slots.astype(jnp.int32), arrays, tables, product.irreps_in.dim)
    return dx.astype(dtype)


def weight_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges weights"]:
    """``dweights_ij``; zero in padding slots."""
    arrays = _of_one_dtype(x, dy, harmonics, least=dtype)
    result = (graph.num_edges, product.num_weights), arrays[0].dtype
    operands = *structure(graph), *arrays, *_tables(product, arrays[0])
    return call("jaxgnn_tensor_weight_products", result, *operands).astype(dtype)


def harmonic_products(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    weights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges sh"]:
    """``dharmonics_ij``; zero in padding slots."""
    arrays = _of_one_dtype(x, dy, weights, least=dtype)
    result = (graph.num_edges, product.irreps_sh.dim), arrays[0].dtype
    operands = *structure(graph), *arrays, *_tables(product, arrays[0])
    return call("jaxgnn_tensor_harmonic_products", result, *operands).astype(dtype)


def _sum(
    graph: CSRGraph,
    slots: Int[Array, " edges"] | None,
    arrays: tuple[Array, ...],
    tables: tuple[Array, ...],
    width: int,
) -> Array:
    """Sums at the rows of a graph, whose edges read the arrays of edges in these slots."""
    result = (graph.num_rows, width), arrays[0].dtype
    operands = *structure(graph), slots, *arrays, *tables
    return call("jaxgnn_tensor_product_sum", result, *operands)


def _of_one_dtype(*arrays: Array, least: str = "bfloat16") -> tuple[Array, ...]:
    """The arrays in the widest dtype: kernels for several dtypes would take longer to compile."""
    dtypes = (*(array.dtype for array in arrays), jnp.dtype(least))
    widest = max(dtypes, key=lambda dtype: dtype.itemsize)
    return tuple(array.astype(widest) for array in arrays)


def _tables(product: TensorProduct, like: Array, *, exchanged: bool = False) -> tuple[Array, ...]:
    """The couplings as operands, with coefficients in the dtype of sums of arrays like this."""
    paths, entries, coefficients = coupling_arrays(product, exchanged=exchanged)
    dtype = jnp.float64 if like.dtype == jnp.float64 else jnp.float32
    tables = jnp.asarray(paths), jnp.asarray(entries), jnp.asarray(coefficients, dtype)
    return tuple(match_varying(table, like)[0] for table in tables)


def sum_at_rows_cuda(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
) -> Float[Array, "rows out"]:
    """``y_i = Σ_j product(x_j, harmonics_ij, weights_ij)``, on a GPU."""
    shape = graph.num_rows, product.irreps_out.dim
    y = _generated(product, "rows", shape, graph, None, x, harmonics, weights)
    return y.astype(x.dtype)


def sum_at_columns_cuda(
    graph: CSRGraph,
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
) -> Float[Array, "cols in"]:
    """``dx_j``, along the transposed graph by exchanged couplings, on a GPU."""
    slots = graph.made_plan("schedule", "transpose", "permutation").permutation
    slots, shape = slots.astype(jnp.int32), (graph.num_cols, product.irreps_in.dim)
    arrays = dy, harmonics, weights
    return _generated(product, "columns", shape, graph.transpose(), slots, *arrays).astype(dy.dtype)


def weight_products_cuda(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    harmonics: Float[Array, "edges sh"],
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges weights"]:
    """``dweights_ij``, on a GPU; zero in padding slots."""
    shape = graph.num_edges, product.num_weights
    return _generated(product, "weights", shape, graph, None, x, dy, harmonics).astype(dtype)


def harmonic_products_cuda(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    dy: Float[Array, "rows out"],
    weights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
    dtype: str,
) -> Float[Array, "edges sh"]:
    """``dharmonics_ij``, on a GPU; zero in padding slots. A warp sums 32 channels, XLA the rest."""
    parts, width = source(product, "harmonics").columns, product.irreps_sh.dim
    shape = graph.num_edges, parts * width
    sums = _generated(product, "harmonics", shape, graph, None, x, dy, weights)
    return jnp.sum(sums.reshape(graph.num_edges, parts, width), axis=1).astype(dtype)


def cuda_limits(
    graph: CSRGraph, *arrays: Float[Array, "rows width"], product: TensorProduct, **options: str
) -> str | None:
    """The reason why the generated kernels can not compute these arguments; None if they can."""
    dtypes = {array.dtype.name for array in arrays} | {options.get("dtype", "float32")}
    if "float64" in dtypes:
        return "needs float32 or bfloat16 values on a GPU, got float64"
    if graph.indptr.dtype.itemsize > 4:
        return f"needs offsets of edges in int32 on a GPU, got {graph.indptr.dtype.name}"
    return None if product.paths else "needs a path on a GPU, got a product without any"


def _generated(
    product: TensorProduct,
    kind: Kind,
    shape: Shape,
    graph: CSRGraph,
    slots: Int[Array, " edges"] | None,
    *arrays: Array,
) -> Array:
    """Calls the kernels of this kind on float32 arrays."""
    name = f"{_FAMILY}:{_described(product, kind)}"
    _nvrtc.add(name)
    operands = graph.indptr, graph.indices, slots, *(array.astype(jnp.float32) for array in arrays)
    return call("jaxgnn_generated", (shape, jnp.float32), *operands, program=name)


def _described(product: TensorProduct, kind: Kind) -> str:
    """A text from which ``_source_of`` makes the source."""
    irreps = product.irreps_in, product.irreps_sh, product.irreps_out
    paths = ",".join("-".join(map(str, path)) for path in product.paths)
    return ";".join([kind, *map(str, irreps), paths])


def _source_of(description: str) -> Source:
    kind, of_in, of_sh, of_out, paths = description.split(";")
    instructions = [tuple(map(int, path.split("-"))) for path in paths.split(",")]
    return source(TensorProduct.of(of_in, of_sh, of_out, instructions), cast(Kind, kind))


_nvrtc.register(_FAMILY, _source_of)
