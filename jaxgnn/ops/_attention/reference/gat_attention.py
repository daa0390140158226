"""Scores of graph attention networks, in plain JAX."""

from __future__ import annotations

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
    """``s_ij = leaky_relu(a_i + c_j + b_ij)``."""
    sums = at_rows(graph, operands.rows) + at_columns(graph, operands.columns, operands.heads)
    if operands.edge_logits is not None:
        sums = sums + of_real_edges(graph, operands.edge_logits).astype(sums.dtype)
    return leaky_relu(sums, form.slope)
