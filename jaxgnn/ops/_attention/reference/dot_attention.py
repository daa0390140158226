"""Scores of dot-product attention, in plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention.reference.ends import (
    Edges,
    at_columns,
    at_rows,
    of_real_edges,
    repeat_groups,
)
from pallas_kernels.arguments.attention import Form, Operands


def scores(graph: Edges, operands: Operands, form: Form) -> Float[Array, "edges heads"]:
    """``s_ij = scale ⟨q_i, k_j⟩ + b_ij``."""
    queries = at_rows(graph, operands.rows)
    keys = at_columns(graph, operands.columns, operands.heads)
    products = form.scale * jnp.sum(queries * keys, axis=-1)
    if operands.edge_logits is None:
        return products
    return products + of_real_edges(graph, operands.edge_logits).astype(products.dtype)


def with_edge_terms(graph: CSRGraph, operands: Operands, form: Form) -> Operands:
    """The same attention, with features of edges as logits and values of edges.

    ``scale ⟨q_i, k_j + W e_ij⟩`` has the logit ``scale ⟨q_i, W e_ij⟩``, and ``v_j + U e_ij`` has
    the value ``U e_ij``.
    """
    logits, values = operands.edge_logits, operands.edge_values
    features = of_real_edges(graph, operands.edge_features)

    def mapped(kernel):
        return jnp.einsum("ef,fgd->egd", features, kernel.astype(features.dtype))

    if operands.edge_kernel is not None:
        keys = repeat_groups(mapped(operands.edge_kernel), operands.heads)
        products = form.scale * jnp.sum(at_rows(graph, operands.rows) * keys, axis=-1)
        logits = products if logits is None else products + logits.astype(products.dtype)
    if operands.edge_value_kernel is not None:
        added = mapped(operands.edge_value_kernel)
        values = added if values is None else added + values.astype(added.dtype)
    rest = dict.fromkeys(("edge_features", "edge_kernel", "edge_value_kernel"))
    return operands.replace(edge_logits=logits, edge_values=values, **rest)
