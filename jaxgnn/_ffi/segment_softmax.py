"""Typed calls of the softmax over the edges of each row."""

from __future__ import annotations

from jaxtyping import Array, Float

from jaxgnn._ffi._call import call
from jaxgnn.graph import CSRGraph

TARGETS = {"jaxgnn_segment_softmax": ("cpu",), "jaxgnn_segment_softmax_grad": ("cpu",)}


def segment_softmax(
    graph: CSRGraph, logits: Float[Array, "edges heads"]
) -> Float[Array, "edges heads"]:
    """Softmax over the edges of each row, for each head; zero in padding slots."""
    return call("jaxgnn_segment_softmax", (logits.shape, logits.dtype), graph.indptr, logits)


def grad_logits(
    graph: CSRGraph, probabilities: Float[Array, "edges heads"], dy: Float[Array, "edges heads"]
) -> Float[Array, "edges heads"]:
    """Gradient of ``segment_softmax`` to the logits."""
    shape = dy.shape, dy.dtype
    return call("jaxgnn_segment_softmax_grad", shape, graph.indptr, probabilities, dy)
