"""Scores of dot-product attention, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention.reference.ends import at_columns, at_rows, of_real_edges
from pallas_kernels.attention.arguments import Form, Operands


def scores(graph: CSRGraph, operands: Operands, form: Form) -> Float[Array, "edges heads"]:
    """``s_ij = scale ⟨q_i, k_j⟩ + b_ij``."""
    queries = at_rows(graph, operands.rows)
    keys = at_columns(graph, operands.columns, operands.heads)
    products = form.scale * jnp.sum(queries * keys, axis=-1)
    if operands.edge_logits is None:
        return products
    return products + of_real_edges(graph, operands.edge_logits).astype(products.dtype)
