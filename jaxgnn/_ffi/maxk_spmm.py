"""Typed calls of the k-sparse kernels."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._ffi._call import call, coefficients, scales, structure
from jaxgnn.graph import CBSR, CSRGraph


def maxk_spmm(graph: CSRGraph, cbsr: CBSR) -> Float[Array, "rows dim"]:
    """See ``jaxgnn.ops.maxk_spmm``."""
    return call(
        "jaxgnn_maxk_spmm",
        ((graph.num_rows, cbsr.dim), cbsr.dtype),
        *structure(graph),
        *coefficients(graph),
        cbsr.values,
        cbsr.indices,
    )


def grad_values(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, "cols k"]:
    """Gradient to the kept values."""
    return call(
        "jaxgnn_maxk_spmm_grad_values",
        (cbsr.values.shape, cbsr.dtype),
        *structure(graph),
        *coefficients(graph),
        cbsr.indices,
        dy,
    )


def grad_weights(
    graph: CSRGraph, cbsr: CBSR, dy: Float[Array, "rows dim"]
) -> Float[Array, " edges"]:
    """Gradient to the edge weights, float32."""
    return call(
        "jaxgnn_maxk_spmm_grad_weights",
        ((graph.num_edges,), jnp.float32),
        *structure(graph),
        *scales(graph),
        cbsr.values,
        cbsr.indices,
        dy,
    )
