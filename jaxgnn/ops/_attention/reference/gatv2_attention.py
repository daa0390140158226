"""Scores of GATv2, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._attention.reference.ends import (
    Edges,
    at_columns,
    at_rows,
    leaky_relu,
    of_real_edges,
)
from pallas_kernels.arguments.attention import Form, Operands


def scores(graph: Edges, operands: Operands, form: Form) -> Float[Array, "edges heads"]:
    """``s_ij = ⟨a, leaky_relu(x_i + z_j + W e_ij)⟩ + b_ij``."""
    sums = at_rows(graph, operands.rows) + at_columns(graph, operands.columns, operands.heads)
    features, logits = operands.edge_features, operands.edge_logits
    if features is not None:
        features = of_real_edges(graph, features).astype(sums.dtype)
    products = of_sums(sums, features, operands.attention, operands.edge_kernel, form.slope)
    if logits is None:
        return products
    return products + of_real_edges(graph, logits).astype(products.dtype)


def of_sums(
    sums: Float[Array, "edges heads dim"],
    features: Float[Array, "edges features"] | None,
    attention: Float[Array, "heads dim"],
    kernel: Float[Array, "features heads dim"] | None,
    slope: float,
) -> Float[Array, "edges heads"]:
    """``⟨a, leaky_relu(x_i + z_j + W e_ij)⟩`` of any edges, where ``sums`` are ``x_i + z_j``."""
    if features is not None and kernel is not None:
        sums = sums + jnp.einsum("ef,fhd->ehd", features, kernel.astype(sums.dtype))
    return jnp.sum(attention.astype(sums.dtype) * leaky_relu(sums, slope), axis=-1)
