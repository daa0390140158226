"""Typed calls of the kernels of sums of tensor products on a CPU.

Those of a GPU are in ``generated_tensor_product_sum.py``.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import match_varying
from jaxgnn._ffi._call import call
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.couplings import coupling_arrays
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.operands import structure

TARGETS = {
    "jaxgnn_tensor_product_sum": ("cpu",),
    "jaxgnn_tensor_weight_products": ("cpu",),
    "jaxgnn_tensor_harmonic_products": ("cpu",),
}


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
