"""Attention of graph attention networks."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.ops._attention import composed, kernels
from jaxgnn.ops._attention.attend import OfEdges, attend
from jaxgnn.ops._attention.checks import INSTEAD_OF_WEIGHTS, Checker, checked_senders
from jaxgnn.ops._attention.differentiable import Call
from jaxgnn.ops._attention.reference import gat_attention as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import from_numpy
from pallas_kernels.arguments.attention import Form, Operands

_OP = "gat_attention"
_KERNELS = kernels.computation(_OP, reference.scores)
FORWARD, WEIGHTS, BACKWARD = _KERNELS


def gat_attention(
    graph: CSRGraph,
    a_dst: Float[Array, "*batch rows heads"],
    a_src: Float[Array, "*batch cols heads"],
    v: Float[Array, "*batch cols heads dim"] | CBSR,
    *,
    negative_slope: float = 0.2,
    edge_logits: Float[Array, "*#batch edges heads"] | None = None,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    return_weights: bool = False,
    implementation: dispatch.Name | None = None,
) -> (
    Float[Array, "*batch rows heads dim"]
    | tuple[Float[Array, "*batch rows heads dim"], Float[Array, "*batch edges heads"]]
):
    """Attends to neighbours: ``y_i = Σ_j p_ij v_j``, scores ``leaky_relu(a_i + c_j + b_ij)``.

    ``p`` is the softmax of the scores over the edges of each row. ``a`` and ``c`` are the inner
    products of both ends with the vectors of Graph Attention Networks
    (https://arxiv.org/abs/1710.10903). Rows without edges, and rows whose scores are all -inf, are
    zero. Sums are accumulated in float32 (float64 for float64 input). A graph with weights or
    scales is refused.

    The kernels use no array of edges times heads times width. They keep one number for each row
    and head for the backward pass, which recomputes the scores.

    Differentiable in every floating array, any number of times, and no derivative uses an array of
    edges times heads times width. Where no kernel can run, None works in pieces of the edges.
    (``"xla"`` is the plain formula, which uses such arrays.)

    Args:
      graph: rows are receivers, columns are senders.
      a_dst: a, one number for each receiver and head, of the dtype of ``v`` or float32; leading
        axes share the graph.
      a_src: c, one number for each sender and head, of the dtype of ``v`` or float32.
      v: values of the senders; or their k-sparse form, a ``CBSR`` whose values are [..., columns,
        heads, k]. Only its kept entries are read where ``maxk_spmm`` would do so, with weights
        computed before; else it is expanded.
      negative_slope: static slope of leaky_relu for negative numbers.
      edge_logits: b, one number for each edge slot and head, of the dtype of ``v`` or float32, with
        the leading axes or without; -inf masks an edge.
      dropout: probability of dropping an edge for a head, after the softmax; the others are scaled
        up. Each member of the leading axes draws for itself.
      key: random key of the dropout, which is the same in every implementation; None without.
      return_weights: whether to also return the weights of the values, dropout included.
      implementation: ``"xla"``, ``"ffi"`` on a CPU, ``"pallas"`` on a GPU, or None for kernels, if
        they can run here.

    Returns:
      Sums of the receivers, of the dtype of ``v``; with ``return_weights`` also the weight of each
      edge slot and head, of this dtype, zero in padding slots.

    Raises:
      ValueError: if shapes, heads or dtypes do not match the graph or each other, the graph has
        weights or scales, ``dropout`` is no probability below one, or there is dropout without
        ``key`` or ``key`` without dropout.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> zeros, v = jnp.zeros((3, 1)), jnp.array([[[1.0]], [[2.0]], [[4.0]]])
      >>> ops.gat_attention(graph, zeros, zeros, v).ravel().tolist()
      [0.0, 1.0, 3.0]
    """
    opened = open_graph(_OP, graph, refuses=INSTEAD_OF_WEIGHTS)
    graph, of_edges = opened.graph, OfEdges.read(opened, key)
    a_src, v = opened.senders(a_src, v, axes=(-2, -3))
    values = checked_senders(_OP, "v", v)
    a_dst, a_src, edge_logits = from_numpy(a_dst, a_src, edge_logits)
    check = Checker.start(_OP, graph, "a_dst", a_dst, 2, values.dtype)
    heads = a_dst.shape[-1]
    check.nodes("a_dst", a_dst, "row", heads)
    check.nodes("a_src", a_src, "column", heads)
    check.nodes("v", values, "column", heads, None)
    check.same_dtype("a_dst", a_dst, or_float32=True)
    check.same_dtype("a_src", a_src, or_float32=True)
    check.edges("edge_logits", edge_logits, heads)
    rate, seed = check.dropout(dropout, key)
    form = Form(slope=check.number("negative_slope", negative_slope), dropout=rate)
    operands = Operands(a_dst, a_src, values, edge_logits, seed=seed)
    request = dispatch.resolve(_OP, implementation)
    call = Call(_KERNELS, composed.gat_scores, request, form, return_weights)
    y, weights = attend(call, check.graph, operands, len(check.batch), of_edges)
    return y if weights is None else (y, weights)
