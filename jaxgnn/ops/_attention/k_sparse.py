"""Attention over k-sparse values: weights by the kernels of attention, sums by ``maxk_spmm``.

The kernels of attention get values of one column, so that they compute the weights [E, H] and their
gradients and read nothing else of the senders. ``maxk_spmm`` reads the kept entries of each
neighbour instead of a row, and computes the gradient at the kept columns only. Neither pass uses
the expanded values [M, H, D].
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.ops._attention import numbered_dropout
from jaxgnn.ops._attention.composed import sum_by_group
from jaxgnn.ops._attention.differentiable import Call, differentiable_kernels
from jaxgnn.ops._graph.edge_products import sums_of_edges
from jaxgnn.ops._maxk_spmm import maxk_spmm
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from pallas_kernels.arguments.attention import Operands

# Up to this k / dim reading kept entries was faster than expanding them, forward and backward
# together, for heads of 64 columns: ``python -m experiments.benchmarks.attention_k_sparse``. On a
# GPU the break-even of ``maxk_spmm`` holds; on an H100 it was right within 2 %, on a graph like
# Flickr.
_LARGEST_RATIO_ON_A_CPU = 0.125


def plan_sums(request: dispatch.Request, graph: CSRGraph, values: CBSR) -> dispatch.Plan | None:
    """The plan of sums of k-sparse values; None where they do not run, or are not chosen.

    Args:
      request: the implementation to run.
      graph: without weights and scales.
      values: of one member of a batch, [M, K, k].
    """
    of_group = jax.tree.map(lambda array: array[:, 0], values)
    platform = dispatch.current_platform()
    if request.name is not None:
        reason = maxk_spmm.FORWARD.why_not(request.name, platform, graph, of_group)
        return None if reason else maxk_spmm.plan_kernels(request, graph, of_group)
    plan = maxk_spmm.plan_kernels(request, graph, of_group)
    if platform == "cuda":
        is_faster = maxk_spmm.is_worth_it(plan, graph, of_group)
    else:
        is_faster = plan.here != "xla" and values.k <= _LARGEST_RATIO_ON_A_CPU * values.dim
    return plan if is_faster else None


def sum_k_sparse_values(
    plan: dispatch.Plan,
    call: Call,
    graph: CSRGraph,
    operands: Operands,
    numbers: UInt32[Array, " edges"] | None,
) -> tuple[Float[Array, "rows heads dim"], Any]:
    """Sums and weights.

    Args:
      plan: of the sums, from ``plan_sums``.
      call: the static description.
      graph: without weights and scales.
      operands: arrays without batch axes; the values are a ``CBSR`` of [M, K, k].
      numbers: number of each edge, from which dropout draws; None for the edge slots.
    """
    kept, request = operands.values, call.request
    one_column = jnp.zeros_like(kept.values[:, :, :1])
    rest = operands.replace(values=one_column, edge_values=None)
    weighing = call._replace(return_weights=True)
    _, weights = numbered_dropout.with_numbered_dropout(
        differentiable_kernels, weighing, graph, rest, numbers
    )

    listed = open_graph("maxk_spmm", graph).graph  # Its plan has the parts that the sums need.

    def of_senders(weights, kept):
        def of_head(weights):
            return maxk_spmm.sum_kept(plan, listed.with_weights(weights), kept)

        return jax.vmap(of_head, in_axes=1, out_axes=1)(weights)

    of_edges = partial(sums_of_edges, request, graph)
    y = sum_by_group(of_senders, weights, kept)
    if operands.edge_values is not None:
        values = operands.edge_values.astype(weights.dtype)
        y = y.astype(weights.dtype) + sum_by_group(of_edges, weights, values)
    return y, weights if call.return_weights else None
