"""Calls of the Mosaic GPU kernels of reductions over the edges of each row."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph.pallas import pieces
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.pallas_call import compiled, vary_like
from pallas_kernels.arguments.aggregate import Form, Statistics, Terms, count_of

# Where more than an eighth of the edges share the extreme of their row, additions to each of them
# take longer than a comparison of all edges.
_EDGES_FOR_EACH_ADDITION = 8


@partial(jax.jit, inline=True, static_argnames=("form", "keep"))
def forward(
    graph: CSRGraph, x: Float[Array, "numbers dim"], *, form: Form, keep: bool
) -> tuple[Float[Array, "rows columns"], Statistics]:
    """The reductions side by side, and with ``keep`` the statistics for their gradients."""
    from pallas_kernels.aggregate import aggregate as kernels

    made = kernels.forward(pieces(graph), x, form, keep)
    return jax.tree.map(partial(vary_like, x), made)


@compiled
def grad_columns(
    graph: CSRGraph, x: Float[Array, "cols dim"], terms: Terms
) -> Float[Array, "cols dim"]:
    """The gradient to the senders.

    The gradients of extremes are added to the senders that have them, atomically. If a fixed order
    is asked for, or most extremes are shared, they are compared with the numbers of all edges, and
    all is summed in order along the rows of the transposed graph.
    """
    return vary_like(x, _grad_columns(graph, x, terms))


def _grad_columns(graph, x, terms):
    extremes = _extremes(terms)
    if not extremes or dispatch.is_deterministic():
        return _in_order(graph, x, terms)
    if all(extreme.best is None for extreme in extremes):
        return _scattered(graph, x, terms)
    choice = _once(_are_most_shared(graph, extremes))
    return lax.cond(choice, _in_order, _scattered, graph, x, terms)


def _in_order(graph, x, terms):
    from pallas_kernels.aggregate import gradient as kernels

    by_slot = any(_is_slot(array) for array in (terms.top, terms.bottom))
    slots = graph.made_plan("permutation").permutation if by_slot else None
    return kernels.grad_columns(pieces(graph.transpose()), slots, x, terms, x.dtype)


def _scattered(graph, x, terms):
    from pallas_kernels.aggregate import extremes as kernels
    from pallas_kernels.aggregate.gradient import grad_columns

    transposed, sums = pieces(graph.transpose()), terms.without_extremes()
    dx = grad_columns(transposed, None, x, sums, jnp.float32)
    return kernels.add_extremes(pieces(graph), x, _extremes(terms), dx).astype(x.dtype)


def _extremes(terms):
    from pallas_kernels.aggregate.extremes import Extreme

    found = (
        (terms.top, terms.top_gradient, terms.top_holder),
        (terms.bottom, terms.bottom_gradient, terms.bottom_holder),
    )
    return [
        Extreme(None if _is_slot(best) else best, gradient, holder)
        for best, gradient, holder in found
        if holder is not None
    ]


def _is_slot(extreme):
    return extreme is not None and jnp.issubdtype(extreme.dtype, jnp.integer)


def _are_most_shared(graph, extremes):
    """Whether additions to all edges that share an extreme take longer than comparisons."""
    shared = [jnp.sum(jnp.where(e.holder < ~0, count_of(e.holder), 0)) for e in extremes]
    numbers = len(extremes) * graph.num_edges * extremes[0].holder.shape[-1]
    return sum(shared) > numbers / _EDGES_FOR_EACH_ADDITION


@custom_vmap
def _once(choice):
    """A choice that is the same for all members of a batch, so that only one side of it runs."""
    return choice


@_once.def_vmap
def _(size, is_batched, choice):
    return _once(jnp.any(choice)), False
