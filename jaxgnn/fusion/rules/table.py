"""All rules, in the order in which they are tried."""

from jaxgnn.fusion.rules import (
    by_nodes,
    dense,
    edge_mlp,
    interaction,
    linear_order,
    maxk,
    neighbour_lists,
    neighbour_sum,
    segments,
    softmax,
    sparse_products,
    tensor_products,
    unrolled_loop,
)
from jaxgnn.fusion.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    unrolled_loop.RULE,
    tensor_products.RULE,
    interaction.RULE,
    edge_mlp.RULE,
    by_nodes.PROJECTION,
    by_nodes.SUM,
    linear_order.RULE,
    neighbour_lists.RULE,
    sparse_products.SPARSE,
    sparse_products.KNOWN,
    neighbour_sum.RULE,
    segments.EXTREME,
    softmax.RULE,
    maxk.RULE,
    segments.SEGMENTS,
    dense.MLP,
    dense.LINEAR,
)
"""Those with the largest patterns come first."""
