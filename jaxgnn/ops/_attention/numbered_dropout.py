"""Dropout of attention that draws from given numbers of the edges instead of their slots.

The kernels number edges by their slots. On a part of a graph that is spread over devices these are
not the numbers in the whole graph. Dropout has to draw from the latter, so that it is the same on
any number of devices. Then two passes replace one: a pass over the kept edges, whose softmax is too
large, and a pass over all edges, whose logarithm of the sum of exponentials gives the correction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention.differentiable import Call
from jaxgnn.ops._attention.reference import dropout
from jaxgnn.ops._attention.reference.ends import at_rows
from jaxgnn.ops._graph.edge_products import products_with_edges
from jaxgnn.ops.core import dispatch
from pallas_kernels.arguments.attention import Operands


def with_numbered_dropout(
    compute: Callable[[Call, CSRGraph, Operands], tuple[Array, Array, Any]],
    call: Call,
    graph: CSRGraph,
    operands: Operands,
    numbers: UInt32[Array, " edges"] | None,
) -> tuple[Float[Array, "rows heads dim"], Any]:
    """The sums, and the weights or None.

    Args:
      compute: returns sums, logarithms of the sums of exponentials, and weights or None.
      call: the static description.
      graph: without weights and scales.
      operands: arrays without batch axes.
      numbers: number of each edge from which dropout draws; None for the edge slots.
    """
    if operands.seed is None or numbers is None:
        y, _, weights = compute(call, graph, operands)
        return y, weights
    kept = dropout.kept(operands.seed, numbers, operands.heads, call.form.dropped)
    operands = operands.replace(seed=None)
    given = operands.edge_logits
    zero = jnp.zeros((), operands.summed.dtype)
    logits = jnp.where(kept, zero if given is None else given, -jnp.inf)
    plain = call._replace(form=dataclasses.replace(call.form, dropout=0.0))
    y, lse, weights = compute(plain, graph, operands.replace(edge_logits=logits))
    _, of_all, _ = compute(plain._replace(return_weights=False), graph, operands)
    empty = lse == -jnp.inf
    share = jnp.exp(jnp.where(empty, 0, lse) - jnp.where(empty, 0, of_all))
    share = jnp.where(empty, 0, share * call.form.kept_scale)
    if weights is not None:
        weights = weights * _at_rows(call, graph, share)
    return y * share[:, :, None], weights


def _at_rows(call: Call, graph: CSRGraph, share: Float[Array, "rows heads"]) -> Array:
    """The entry of the receiver of each edge; zero in padding slots.

    The gradient of a gather is a scatter, whose order is not fixed on a GPU. So the entries are
    read by a product with ones, whose gradient has a kernel. ``"xla"`` is plain JAX and gathers.
    """
    if call.request.name == "xla":
        return at_rows(graph, share)
    ones, _ = dispatch.match_varying(jnp.ones((graph.num_edges, 1), share.dtype), share)
    return products_with_edges(call.request, graph, share[:, :, None], ones)
