"""The rules, each in its own module, whose docstring says when it is sound."""

from jaxgnn.fusion._rewrite import Rule
from jaxgnn.fusion._rules import (
    dense,
    edge_mlp,
    edge_projection,
    edge_sum,
    linear_order,
    maxk,
    mhc,
    neighbour_extreme,
    neighbour_sum,
    segment_softmax,
    segments,
    sinkhorn,
    unrolled_loop,
)

RULES: tuple[Rule, ...] = (
    unrolled_loop.RULE,
    edge_mlp.RULE,
    edge_projection.RULE,
    edge_sum.RULE,
    linear_order.RULE,
    neighbour_sum.RULE,
    neighbour_extreme.RULE,
    segment_softmax.RULE,
    maxk.RULE,
    segments.RULE,
    mhc.PRE,
    mhc.POST,
    sinkhorn.RULE,
    dense.MLP,
    dense.LINEAR,
)
"""Every rule, in the order in which they are tried: those with the largest patterns come first."""
