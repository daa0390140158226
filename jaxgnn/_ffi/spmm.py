"""Typed calls of the dense-feature sparse kernels."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._ffi._call import call, coefficients, scales, structure
from jaxgnn.graph import CSRGraph


def spmm(graph: CSRGraph, x: Float[Array, "cols dim"]) -> Float[Array, "rows dim"]:
    """See ``jaxgnn.ops.spmm``."""
    shape = (graph.num_rows, x.shape[-1])
    return call("jaxgnn_spmm", (shape, x.dtype), *structure(graph), *coefficients(graph), x)


def sddmm(
    graph: CSRGraph, a: Float[Array, "rows dim"], b: Float[Array, "cols dim"]
) -> Float[Array, " edges"]:
    """See ``jaxgnn.ops.sddmm``; the result is float32."""
    shape = (graph.num_edges,)
    return call("jaxgnn_sddmm", (shape, jnp.float32), *structure(graph), *scales(graph), a, b)
