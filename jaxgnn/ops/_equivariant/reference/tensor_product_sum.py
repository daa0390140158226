"""Sums of tensor products of neighbours and spherical harmonics, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.equivariant import Path, TensorProduct
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype


def tensor_product_sum(
    graph: CSRGraph,
    x: Float[Array, "cols in"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    *,
    product: TensorProduct,
) -> Float[Array, "rows out"]:
    """``y_i = Σ_j product(x_j, harmonics_ij, weights_ij)``; padding slots are ignored."""
    dtype = accumulation_dtype(x.dtype, harmonics.dtype, weights.dtype)
    senders = x.astype(dtype)[graph.indices]
    harmonics, weights = (real(graph, a).astype(dtype) for a in (harmonics, weights))
    messages = tensor_products(senders, harmonics, weights, product)
    return sum_rows(messages, graph.indptr).astype(x.dtype)


def weights_of_basis(
    graph: CSRGraph, basis: Float[Array, "edges features"], kernel: Float[Array, "features weights"]
) -> Float[Array, "edges weights"]:
    """``weights_ij = basis_ij · kernel``, in the accumulation dtype; zero in padding slots."""
    dtype = accumulation_dtype(basis.dtype, kernel.dtype)
    basis = real(graph, basis).astype(dtype)
    return jnp.matmul(basis, kernel.astype(dtype), precision="highest")


def tensor_products(
    x: Float[Array, "edges in"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges weights"],
    product: TensorProduct,
) -> Float[Array, "edges out"]:
    """The product of each edge: for each entry of the result the sum of the paths to it."""
    entries: dict[int, Array] = {}
    for path, own in zip(product.paths, product.weight_slices, strict=True):
        message = _message(x, harmonics, weights[:, own], product, path)
        entries[path.i_out] = entries[path.i_out] + message if path.i_out in entries else message
    return jnp.concatenate([entries[index] for index in range(len(product.irreps_out))], axis=1)


def _message(
    x: Float[Array, "edges in"],
    harmonics: Float[Array, "edges sh"],
    weights: Float[Array, "edges channels"],
    product: TensorProduct,
    path: Path,
) -> Float[Array, "edges part"]:
    """``w_u Σ_ab C[a, b, c] x[u, a] harmonics[b]``; the harmonics meet the small table first."""
    table = jnp.asarray(product.table(path), x.dtype)
    edges, channels = weights.shape
    part = x[:, product.irreps_in.slices[path.i_in]].reshape(edges, channels, table.shape[0])
    harmonic = harmonics[:, product.irreps_sh.slices[path.i_sh]]
    matrix = jnp.einsum("eb,abc->eac", harmonic, table, precision="highest")
    moved = jnp.einsum("eua,eac->euc", part, matrix, precision="highest")
    return (weights[:, :, None] * moved).reshape(edges, channels * table.shape[2])


def real(graph: CSRGraph, of_edges: Float[Array, "edges width"]) -> Float[Array, "edges width"]:
    """The array with zeros in padding slots, whose gradients are then zero."""
    return jnp.where((graph.receivers() < graph.num_rows)[:, None], of_edges, 0)
