"""Computes the result of a checked call: batch axes, and the choice of the method."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, UInt32

from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.graph.csr.masked_graph import log_presence
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._attention import edge_terms, k_sparse, numbered_dropout
from jaxgnn.ops._attention.checks import expanded
from jaxgnn.ops._attention.differentiable import Call, differentiable_kernels, run_kernels
from jaxgnn.ops._attention.reference import softmax_sum
from jaxgnn.ops._attention.reference.dot_attention import with_edge_terms
from jaxgnn.ops._attention.reference.ends import at_rows
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import Opened
from pallas_kernels.arguments.attention import Operands


class OfEdges(NamedTuple):
    """Arrays of a graph's edges, shared by the members of a batch.

    Attributes:
      numbers: number of each edge, from which dropout draws; None for the edge slots.
      presence: presence of each edge of a ``MaskedGraph``; None if all are present.
    """

    numbers: UInt32[Array, " edges"] | None
    presence: Float[Array, " edges"] | None

    @classmethod
    def read(cls, opened: Opened, key: jax.Array | None) -> OfEdges:
        """Returns those of the graph of a call; without ``key`` there is no dropout."""
        return cls(None if key is None else opened.numbers(), opened.presence)


def attend(
    call: Call, graph: CSRGraph, operands: Operands, batch_dims: int, of_edges: OfEdges
) -> tuple[Float[Array, "*batch rows heads dim"], Float[Array, "*batch edges heads"] | None]:
    """The weighted sums, of the dtype of the values, and the weights or None.

    Args:
      call: what is static.
      graph: checked graph, without weights and scales.
      operands: checked arrays; leading batch axes share the graph. The values may be k-sparse.
      batch_dims: number of batch axes; of arrays of edges each has all of them or none.
      of_edges: other arrays of the edges.
    """

    def run(graph, operands, of_edges):
        numbers, presence = of_edges
        compute = _by_formula if call.request.name == "xla" else _by_kernels
        if presence is not None:
            compute = partial(_masked, presence)
        y, weights = compute(call, graph, operands, numbers)
        dtype = operands.summed.dtype
        return y.astype(dtype), None if weights is None else weights.astype(dtype)

    in_axes = _batched(operands, batch_dims), None
    return dispatch.over_leading_axes(run, batch_dims, graph, operands, of_edges, in_axes=in_axes)


# Axes of the arrays of one member of a batch.
_EDGE_AXES = {"edge_logits": 2, "edge_values": 3, "edge_features": 2}
_SHARED = ("edge_kernel", "edge_value_kernel", "attention")


def _batched(operands: Operands, batch_dims: int) -> Operands:
    """For each array the axis to map over: 0 if it has the batch axes, None if it is shared."""
    shared = [
        name
        for name, axes in _EDGE_AXES.items()
        if getattr(operands, name) is not None and getattr(operands, name).ndim != axes + batch_dims
    ]
    mapped = jax.tree.map(lambda _: 0, operands)
    return mapped.replace(**dict.fromkeys((*shared, *_SHARED)))


def _by_formula(call, graph, operands, numbers):
    """The reference, which JAX differentiates; it gathers an array of edges, heads and columns."""
    operands = operands.replace(values=expanded(operands.values, "xla"))
    if _adds_edges_to_ends(operands):
        operands = with_edge_terms(graph, operands, call.form)
    call = call._replace(kernels=call.kernels.of_formula())
    return numbered_dropout.with_numbered_dropout(run_kernels, call, graph, operands, numbers)


def _masked(presence, call, graph, operands, numbers):
    """The formula, with the exponentials of edges multiplied by their presence.

    The sum over the shares of a row is multiplied by the mean presence, as ``MaskedGraph`` says.
    """
    del numbers  # those of a graph on several devices, which is not masked
    operands = operands.replace(values=expanded(operands.values, "xla"))
    if _adds_edges_to_ends(operands):
        operands = with_edge_terms(graph, operands, call.form)
    request = call.request._replace(name="xla")

    def scores(graph, operands, form):
        made = call.scores(request, graph, operands, form)
        return made + log_presence(presence)[:, None].astype(made.dtype)

    y, lse = softmax_sum.forward(scores, graph, operands, form=call.form)
    shares = softmax_sum.probabilities(graph, scores(graph, operands, call.form), lse)
    of_rows = sum_rows(shares * presence[:, None].astype(shares.dtype), graph.indptr)
    y = y * of_rows[:, :, None]
    if not call.return_weights:
        return y, None
    weights = softmax_sum.weights(scores, graph, operands, lse, form=call.form)
    return y, weights * at_rows(graph, of_rows)


def _by_kernels(call, graph, operands, numbers):
    """The kernels, with other steps around them that need no array of edges, heads and columns."""
    _require_kernels(call)
    if _adds_edges_to_ends(operands):
        without = partial(_by_kernels, numbers=numbers)
        return edge_terms.with_edge_terms(without, call, graph, operands)
    values = operands.values
    sums = k_sparse.plan_sums(call.request, graph, values) if isinstance(values, CBSR) else None
    if sums is not None:
        return k_sparse.sum_k_sparse_values(sums, call, graph, operands, numbers)
    operands = operands.replace(values=expanded(values, call.request.name))
    if numbers is None or operands.seed is None:
        y, _, weights = differentiable_kernels(call, graph, operands)
        return y, weights
    return numbered_dropout.with_numbered_dropout(
        differentiable_kernels, call, graph, operands, numbers
    )


def _require_kernels(call: Call) -> None:
    """Raises NotImplementedError if the named implementation has no kernels here.

    The kernels raise the same error. Here it is raised before others run, with the name of the op.
    """
    kernel, name = call.kernels.forward, call.request.name
    reason = name and kernel.unavailable(name, dispatch.current_platform())
    if reason:
        raise NotImplementedError(f"{kernel.name}[{name}]: {reason}")


def _adds_edges_to_ends(operands: Operands) -> bool:
    """Whether features of edges are added to keys or values; GATv2 adds them to a sum instead."""
    return operands.edge_features is not None and operands.attention is None
