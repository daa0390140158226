"""Softmax over the edges of each row: attention weights."""

from __future__ import annotations

import math
from functools import partial

from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn._ffi import segment_softmax as ffi
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._graph import pallas
from jaxgnn.ops._graph.reference import segment_softmax as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp, differentiable_again

_DTYPES = ("float32", "bfloat16")
FORWARD = dispatch.sparse_kernel(
    "segment_softmax",
    _DTYPES,
    reference.segment_softmax,
    pallas.segment_softmax,
    ffi.segment_softmax,
)
BACKWARD = dispatch.sparse_kernel(
    "segment_softmax.grad_logits",
    _DTYPES,
    reference.grad_logits,
    pallas.grad_logits,
    ffi.grad_logits,
)


def segment_softmax(
    graph: CSRGraph,
    logits: Float[Array, "edges *heads"],
    *,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "edges *heads"]:
    """Normalises edge scores over the edges that enter each row.

    ``p_e = exp(l_e) / Σ_e' exp(l_e')`` with ``e'`` over the edges of the row of ``e``, shifted by
    the row's maximum. A row of only -inf gives NaN, and a NaN or +inf spreads over its row, which
    is what ``jax.nn.softmax`` does. Differentiable twice in ``logits``; gradients are computed from
    the rounded probabilities. A graph with weights or scales is refused.

    Args:
      graph: rows are receivers.
      logits: one score for each edge slot, in the graph's edge order, and any further axes
        (attention heads), each normalised separately.
      implementation: ``"xla"``, ``"ffi"`` on a CPU, ``"pallas"``, or None for the one measured to
        be fastest.

    Returns:
      Probabilities of the shape and dtype of ``logits``; zero in padding slots.

    Raises:
      ValueError: if ``logits`` does not have one entry for each edge slot, or the graph has weights
        or scales.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> ops.segment_softmax(graph, jnp.array([5.0, 1.0, 1.0])).tolist()
      [1.0, 0.5, 0.5]
    """
    instead = "add their logarithms to the logits"
    opened = open_graph("segment_softmax", graph, refuses=instead)
    graph, presence = opened.graph, opened.presence
    (logits,) = from_numpy(logits)
    check_float("segment_softmax", "logits", logits, 1, may_be_empty=True)
    if logits.shape[0] != graph.num_edges:
        expected = f"of shape [{graph.num_edges}, ...], one entry for each edge slot"
        raise bad_input("segment_softmax", "logits", expected, f"shape {logits.shape}")
    request = dispatch.resolve("segment_softmax", implementation)
    graph, logits = dispatch.match_varying(graph, logits)
    heads = logits.reshape(graph.num_edges, math.prod(logits.shape[1:]))
    if presence is not None:
        return reference.masked_softmax(graph, heads, presence).reshape(logits.shape)
    if request.name == "xla":
        return FORWARD(request, graph, heads).reshape(logits.shape)
    return _segment_softmax(request, graph, heads).reshape(logits.shape)


@partial(custom_vjp, nondiff_argnums=(0,))
def _segment_softmax(request, structure, logits):
    return FORWARD(request, structure, logits)


def _segment_softmax_forward(request, structure, logits):
    probabilities = _segment_softmax(request, structure, logits)
    return probabilities, (structure, probabilities)


def _segment_softmax_backward(request, residuals, dy):
    structure, probabilities = residuals
    return None, _grad_logits(request, structure, probabilities, dy)


_segment_softmax.defvjp(_segment_softmax_forward, _segment_softmax_backward)


def _by_formula(request, *arrays):
    return reference.grad_logits(*arrays)


_grad_logits = differentiable_again(BACKWARD, _by_formula)
