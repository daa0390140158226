"""Attention of GATv2, whose scores are computed from the sum of the features of both ends."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.ops._attention import composed, kernels
from jaxgnn.ops._attention.attend import OfEdges, attend
from jaxgnn.ops._attention.checks import INSTEAD_OF_WEIGHTS, Checker, checked_senders, expanded
from jaxgnn.ops._attention.differentiable import Call
from jaxgnn.ops._attention.reference import gatv2_attention as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import from_numpy
from pallas_kernels.arguments.attention import Form, Operands

_OP = "gatv2_attention"
_KERNELS = kernels.computation(_OP, reference.scores)
FORWARD, WEIGHTS, BACKWARD = _KERNELS


def gatv2_attention(
    graph: CSRGraph,
    x_dst: Float[Array, "*batch rows heads dim"],
    x_src: Float[Array, "*batch cols heads dim"] | CBSR,
    attention: Float[Array, "heads dim"],
    *,
    negative_slope: float = 0.2,
    edge_features: Float[Array, "*#batch edges features"] | None = None,
    edge_kernel: Float[Array, "features heads dim"] | None = None,
    edge_logits: Float[Array, "*#batch edges heads"] | None = None,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    return_weights: bool = False,
    implementation: dispatch.Name | None = None,
) -> (
    Float[Array, "*batch rows heads dim"]
    | tuple[Float[Array, "*batch rows heads dim"], Float[Array, "*batch edges heads"]]
):
    """Attends to neighbours: ``y_i = Σ_j p_ij z_j``, scores ``⟨a, leaky_relu(t_ij)⟩ + b_ij``.

    ``t_ij = x_i + z_j + W e_ij`` with x of the receivers, z of the senders and e of the edges. p is
    the softmax of the scores over the edges of each row (https://arxiv.org/abs/2105.14491). Rows
    without edges, and rows whose scores are all -inf, are zero. Sums are accumulated in float32
    (float64 for float64 input). A graph with weights or scales is refused.

    The kernels use no array of edges times heads times width. They keep one number for each row
    and head for the backward pass, which recomputes the scores.

    Differentiable in every floating array, any number of times, and no derivative uses an array of
    edges times heads times width. Where no kernel can run, None works in pieces of the edges.
    (``"xla"`` is the plain formula, which uses such arrays.)

    Args:
      graph: rows are receivers, columns are senders.
      x_dst: x, features of the receivers by heads; leading axes share the graph.
      x_src: z, features of the senders by heads, of the dtype and the leading axes of ``x_dst``; or
        their k-sparse form, a ``CBSR`` whose values are [..., columns, heads, k], which is
        expanded.
      attention: a, one vector for each head, of the dtype of ``x_src`` or float32.
      negative_slope: static slope of leaky_relu for negative numbers.
      edge_features: e, features of each edge slot, of the dtype of ``x_src`` or float32, with the
        leading axes or without.
      edge_kernel: W, which maps the features of an edge to all heads, of the dtype of ``x_src`` or
        float32; given if and only if ``edge_features`` are.
      edge_logits: b, one number for each edge slot and head, of the dtype of ``x_src`` or float32,
        with the leading axes or without; -inf masks an edge.
      dropout: probability of dropping an edge for a head, after the softmax; the others are scaled
        up. Each member of the leading axes draws for itself.
      key: random key of the dropout, which is the same in every implementation; None without.
      return_weights: whether to also return the weights of the values, dropout included.
      implementation: ``"xla"``, ``"ffi"`` on a CPU, ``"pallas"`` on a GPU, or None for kernels, if
        they can run here.

    Returns:
      Sums of the receivers, of the dtype of ``x_src``; with ``return_weights`` also the weight of
      each edge slot and head, of this dtype, zero in padding slots.

    Raises:
      ValueError: if shapes, heads or dtypes do not match the graph or each other, one of
        ``edge_features`` and ``edge_kernel`` is missing, the graph has weights or scales,
        ``dropout`` is no probability below one, or there is dropout without ``key`` or ``key``
        without dropout.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> x = jnp.array([[[1.0]], [[2.0]], [[4.0]]])
      >>> ops.gatv2_attention(graph, x, x, jnp.zeros((1, 1))).ravel().tolist()
      [0.0, 1.0, 3.0]
    """
    opened = open_graph(_OP, graph, refuses=INSTEAD_OF_WEIGHTS)
    graph, of_edges = opened.graph, OfEdges.read(opened, key)
    (x_src,) = opened.senders(x_src, axes=(-3,))
    sources = expanded(checked_senders(_OP, "x_src", x_src), implementation)
    x_dst, attention, edge_features, edge_kernel, edge_logits = from_numpy(
        x_dst, attention, edge_features, edge_kernel, edge_logits
    )
    check = Checker.start(_OP, graph, "x_dst", x_dst, 3, sources.dtype)
    heads, dim = x_dst.shape[-2:]
    check.nodes("x_dst", x_dst, "row", heads, dim)
    check.nodes("x_src", sources, "column", heads, dim)
    check.same_dtype("x_dst", x_dst)
    check.shared("attention", attention, heads, dim)
    check.projected_edges(edge_features, edge_kernel, heads, dim)
    check.edges("edge_logits", edge_logits, heads)
    rate, seed = check.dropout(dropout, key)
    form = Form(slope=check.number("negative_slope", negative_slope), dropout=rate)
    operands = Operands(
        x_dst,
        sources,
        edge_logits=edge_logits,
        edge_features=edge_features,
        edge_kernel=edge_kernel,
        attention=attention,
        seed=seed,
    )
    request = dispatch.resolve(_OP, implementation)
    call = Call(_KERNELS, composed.gatv2_scores, request, form, return_weights)
    y, weights = attend(call, check.graph, operands, len(check.batch), of_edges)
    return y if weights is None else (y, weights)
