"""Products of rows of edges with the kernel of a layer."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.ops._edge_mlp.reference.interaction import EdgeLists
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient
from jaxgnn.ops.core.edge_sums import summed_over_edges


@partial(custom_vjp, nondiff_argnums=(0,))
def product_of_edges(
    is_padded: bool, lists: EdgeLists, x: Float[Array, "edges in"], kernel: Float[Array, "in out"]
) -> Float[Array, "edges out"]:
    """``x @ kernel``, whose gradients do not depend on padding where ``x`` ``is_padded``."""
    return jnp.matmul(x, kernel)


def _gradient(is_padded, lists, x, kernel, dz):
    dx = jnp.matmul(dz, kernel.T)
    x = lists.real_only(x) if is_padded else x
    return None, dx, summed_over_edges(x, dz).astype(kernel.dtype)


set_gradient(product_of_edges, _gradient, 1)
