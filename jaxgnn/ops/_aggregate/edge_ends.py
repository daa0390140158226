"""Features of nodes at the ends of edges, with gradients that are row sums, not scatters."""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._aggregate.aggregate import aggregate
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import check_rows, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp

End = Literal["receivers", "senders"]
"""An end of an edge."""


def at_ends(
    end: End,
    graph: CSRGraph,
    x: Float[Array, "*batch nodes dim"],
    *,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch edges dim"]:
    """The features of the node at one end of each edge slot; ``x`` has a row for each such node.

    Padding slots have those of the last edge, so that a function of all slots is as finite in them
    as it is for the edges; without any edge they have zeros. The gradient to a padding slot must be
    zero, as ``aggregate`` returns it.

    The gradient of a node is the sum over its edges, by ``aggregate`` with ``implementation``: for
    receivers along the rows of the graph, for senders along those of its transpose. It can be
    differentiated again.

    Raises:
      ValueError: if ``x`` does not have one row for each node of that end.
    """
    op = "aggregate"
    opened = open_graph(op, graph)
    graph = opened.graph
    if end == "senders":
        (x,) = opened.senders(x)
        check_rows(op, "x", x, graph.num_cols, "column")
    else:
        (x,) = from_numpy(x)
        check_rows(op, "x", x, graph.num_rows, "row")
    request = dispatch.resolve(op, implementation)
    edges, x = dispatch.match_varying(graph.without_weights(), x)
    if request.name == "xla":
        return _taken(end, edges, x)
    return _at_ends(end, request.name, edges, x)


def _taken(end: End, edges: CSRGraph, x: Array) -> Array:
    places = edges.receivers()
    count = edges.num_rows if end == "receivers" else edges.num_cols
    if edges.num_edges > 0:
        is_real = places < edges.num_rows
        nodes = jnp.asarray(places if end == "receivers" else edges.senders)
        # Padding slots may name any sender. Without edges all are out of range.
        last = jnp.where(edges.indptr[-1] > 0, nodes[jnp.maximum(edges.indptr[-1] - 1, 0)], count)
        places = jnp.where(is_real, nodes, last)
    is_sorted = end == "receivers"
    return x.at[..., places, :].get(mode="fill", fill_value=0, indices_are_sorted=is_sorted)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _at_ends(end, name, edges, x):
    return _taken(end, edges, x)


def _at_ends_forward(end, name, edges, x):
    return _at_ends(end, name, edges, x), edges


def _at_ends_backward(end, name, edges, of_edges):
    if end == "senders":
        order = edges.made_plan("schedule", "transpose", "permutation").permutation
        of_edges = of_edges.at[..., order, :].get(mode="promise_in_bounds", unique_indices=True)
        edges = edges.transpose()
    return None, aggregate(edges, of_edges, "sum", implementation=name)


_at_ends.defvjp(_at_ends_forward, _at_ends_backward)
