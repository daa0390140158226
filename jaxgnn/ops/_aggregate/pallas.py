"""Calls of the Mosaic GPU kernels of reductions over the edges of each row."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._core.pallas_call import compiled, vary_like
from jaxgnn.ops._graph.pallas import pieces
from pallas_kernels.aggregate.arguments import Form, Statistics, Terms


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
    """The gradient to the senders, summed in order along the rows of the transposed graph."""
    from pallas_kernels.aggregate import gradient as kernels

    arrays = [a for a in (terms.top, terms.bottom) if a is not None]
    by_slot = any(jnp.issubdtype(a.dtype, jnp.integer) for a in arrays)
    slots = graph.made_plan("permutation").permutation if by_slot else None
    return vary_like(x, kernels.grad_columns(pieces(graph.transpose()), slots, x, terms))
