"""Scores of GATv2, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention.reference.ends import at_columns, at_rows, leaky_relu, of_real_edges
from pallas_kernels.attention.arguments import Form, Operands


def scores(graph: CSRGraph, operands: Operands, form: Form) -> Float[Array, "edges heads"]:
    """``s_ij = ⟨a, leaky_relu(x_i + z_j + W e_ij)⟩ + b_ij``."""
    sums = at_rows(graph, operands.rows) + at_columns(graph, operands.columns, operands.heads)
    if operands.edge_features is not None:
        features = of_real_edges(graph, operands.edge_features).astype(sums.dtype)
        kernel = operands.edge_kernel.astype(sums.dtype)
        sums = sums + jnp.einsum("ef,fhd->ehd", features, kernel)
    attention = operands.attention.astype(sums.dtype)
    products = jnp.sum(attention * leaky_relu(sums, form.slope), axis=-1)
    if operands.edge_logits is None:
        return products
    return products + of_real_edges(graph, operands.edge_logits).astype(products.dtype)
