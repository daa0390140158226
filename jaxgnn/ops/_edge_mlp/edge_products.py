"""Products of rows of edges with the kernel of a layer."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.ops._edge_mlp.reference.interaction import EdgeLists
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient
from jaxgnn.ops.core.dtypes import accumulation_dtype

# Parts of the edges whose products are computed by different multiprocessors of a GPU, best first.
# XLA also splits such products, by a power of two, for which it copies both arrays with padding: on
# an H200 that took twice as long. Parts are multiples of four edges: with an odd number of them one
# program failed with a misaligned address in one of XLA's candidates.
_PARTS = sorted(range(32, 129), key=lambda count: abs(count - 64))
_MULTIPLE = 4
_FEWEST_EDGES = 8192


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


def summed_over_edges(
    x: Float[Array, "edges in"], dz: Float[Array, "edges out"]
) -> Float[Array, "in out"]:
    """``xᵀ dz``, in the accumulation dtype."""
    edges, wide = x.shape[0], accumulation_dtype(x.dtype)
    parts = 1
    is_known = isinstance(edges, int)  # not a size of an exported program
    if dispatch.current_platform() == "cuda" and is_known and edges >= _FEWEST_EDGES:
        parts = next((n for n in _PARTS if edges % (n * _MULTIPLE) == 0), 1)
    x, dz = (a.reshape(parts, edges // parts, a.shape[1]) for a in (x, dz))
    contracted = ((1,), (1,)), ((0,), (0,))
    return jnp.sum(lax.dot_general(x, dz, contracted, preferred_element_type=wide), axis=0)
