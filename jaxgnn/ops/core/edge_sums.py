"""Products of rows of edges, summed over the edges: the gradients of kernels of layers."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.dtypes import accumulation_dtype

# Parts of the edges whose products are computed by different multiprocessors of a GPU, best first.
# XLA also splits such products, by a power of two, for which it copies both arrays with padding: on
# an H200 that took twice as long. Parts are multiples of four edges: with an odd number of them one
# program failed with a misaligned address in one of XLA's candidates.
_PARTS = sorted(range(32, 129), key=lambda count: abs(count - 64))
_MULTIPLE = 4
_FEWEST_EDGES = 8192


def summed_over_edges(
    x: Float[Array, "edges in"],
    dz: Float[Array, "edges out"],
    precision: lax.Precision | None = None,
) -> Float[Array, "in out"]:
    """``xᵀ dz``, in the accumulation dtype."""
    edges, wide = x.shape[0], accumulation_dtype(x.dtype)
    parts = 1
    is_known = isinstance(edges, int)  # not a size of an exported program
    if dispatch.current_platform() == "cuda" and is_known and edges >= _FEWEST_EDGES:
        parts = next((n for n in _PARTS if edges % (n * _MULTIPLE) == 0), 1)
    x, dz = (a.reshape(parts, edges // parts, a.shape[1]) for a in (x, dz))
    contracted = ((1,), (1,)), ((0,), (0,))
    products = lax.dot_general(x, dz, contracted, precision=precision, preferred_element_type=wide)
    return jnp.sum(products, axis=0)
