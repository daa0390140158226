"""Products of the first layer of edges with rows of nodes, once for each node."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxgnn.ops._dense.fused_linear import fused_linear
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient


def node_products(h: Array, kernel: Array, bias: Array | None) -> Array:
    """The first layer's product for nodes that have edges, by the fastest implementation.

    A named implementation, from the argument or the session default, is for the edges alone.
    """
    with dispatch.default_implementation(None):
        return fused_linear(h, kernel, bias)


@custom_vjp
def masked_node_products(h: Array, kernel: Array, bias: Array | None) -> Array:
    """The first layer's product for nodes, some of which may have no edges.

    Nodes without edges do not affect the gradients, even if they are not finite.
    """
    return node_products(h, kernel, bias)


def _gradient_without_edges(h, kernel, bias, dz):
    # The gradient of a node without edges is zero: zero times NaN would be NaN.
    h = jnp.where(jnp.any(dz != 0, axis=-1, keepdims=True), h, 0)
    return jax.vjp(node_products, h, kernel, bias)[1](dz)


set_gradient(masked_node_products, _gradient_without_edges)
