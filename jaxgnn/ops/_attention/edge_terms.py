"""Features of edges in dot-product attention, without an array of edges, heads, columns.

The linear maps of the features are moved from the edges to the receivers, of which there are
fewer: ``⟨q_i, W e⟩ = ⟨Wᵀ q_i, e⟩`` and ``Σ_j p_ij U e_ij = U Σ_j p_ij e_ij``. So the largest arrays
are [E, H], [E, F] and [N, H, F].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention.differentiable import Call
from jaxgnn.ops._graph.edge_products import products_with_edges, sums_of_edges
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.attention import Operands


def with_edge_terms(
    without: Callable[[Call, CSRGraph, Operands], tuple[Array, Any]],
    call: Call,
    graph: CSRGraph,
    operands: Operands,
) -> tuple[Float[Array, "rows heads dim"], Any]:
    """Sums and weights, in the accumulation dtype, with the terms of the features of edges.

    Args:
      without: returns sums and weights of operands without features of edges.
      call: the static description.
      graph: without weights and scales.
      operands: arrays of ``dot_attention`` without batch axes: features e [E, F], and W [F, K, D],
        which maps them to addends of the keys, or U [F, K, Dv], to addends of the values, or both.
    """
    wide = accumulation_dtype(operands.summed.dtype)
    features, to_values = operands.edge_features.astype(wide), operands.edge_value_kernel
    queries, logits = operands.rows, operands.edge_logits
    if operands.edge_kernel is not None:
        # Widened once, so that the two parts of the gradient are added before they are rounded.
        queries = queries.astype(wide)
        of_rows = call.form.scale * _mapped("ngsd,fgd->ngsf", queries, operands.edge_kernel)
        products = products_with_edges(call.request, graph, of_rows, features)
        logits = products if logits is None else products + logits.astype(wide)
    rest = dict.fromkeys(("edge_features", "edge_kernel", "edge_value_kernel"))
    rest = operands.replace(rows=queries, edge_logits=logits, **rest)
    if to_values is None:
        return without(call, graph, rest)
    y, weights = without(call._replace(return_weights=True), graph, rest)
    sums = sums_of_edges(call.request, graph, weights, features)
    y = y.astype(wide) + _mapped("ngsf,fgd->ngsd", sums, to_values)
    return y, weights if call.return_weights else None


def _mapped(
    axes: str, of_rows: Float[Array, "rows heads from"], kernel: Float[Array, "features groups dim"]
) -> Float[Array, "rows heads to"]:
    """The product with a kernel, as ``axes`` say; some heads share a group of it."""
    rows, heads, _ = of_rows.shape
    groups = kernel.shape[1]
    by_group = of_rows.reshape(rows, groups, heads // groups, -1)
    made = jnp.einsum(axes, by_group, kernel.astype(of_rows.dtype), precision="highest")
    return made.reshape(rows, heads, -1)
