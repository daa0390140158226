"""Dot-product attention over neighbours: the graph transformer."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.ops._attention import composed, kernels
from jaxgnn.ops._attention.attend import OfEdges, attend
from jaxgnn.ops._attention.checks import INSTEAD_OF_WEIGHTS, Checker, checked_senders
from jaxgnn.ops._attention.differentiable import Call
from jaxgnn.ops._attention.reference import dot_attention as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import from_numpy
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.attention import Form, Operands

EdgeKernel = (
    Float[Array, "features groups dim"]
    | tuple[Float[Array, "features groups dim"] | None, Float[Array, "features groups out"] | None]
    | None
)
"""A linear map of the features of edges, or a pair of one to keys and one to values."""

_OP = "dot_attention"
_KERNELS = kernels.computation(_OP, reference.scores)
FORWARD, WEIGHTS, BACKWARD = _KERNELS


def dot_attention(
    graph: CSRGraph,
    q: Float[Array, "*batch rows heads dim"],
    k: Float[Array, "*batch cols groups dim"],
    v: Float[Array, "*batch cols groups out"] | CBSR,
    *,
    scale: float | None = None,
    edge_features: Float[Array, "*#batch edges features"] | None = None,
    edge_kernel: EdgeKernel = None,
    edge_logits: Float[Array, "*#batch edges heads"] | None = None,
    edge_values: Float[Array, "*#batch edges groups out"] | None = None,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    return_weights: bool = False,
    implementation: dispatch.Name | None = None,
) -> (
    Float[Array, "*batch rows heads out"]
    | tuple[Float[Array, "*batch rows heads out"], Float[Array, "*batch edges heads"]]
):
    """Attends to neighbours: ``y_i = Σ_j p_ij v_j``, ``p_i = softmax_j(scale ⟨q_i, k_j⟩ + b_ij)``.

    With features of edges it is ``k_j + W e_ij`` and ``v_j + W e_ij``.

    The softmax of "Attention Is All You Need" (https://arxiv.org/abs/1706.03762) over the edges of
    each row, as in graph transformers (https://arxiv.org/abs/2009.03509). Rows without edges,
    and rows whose scores are all -inf, are zero. Sums are accumulated in float32 (float64 for
    float64 input). A graph with weights or scales is refused.

    The kernels use no array of edges times heads times width. They keep one number for each row
    and head for the backward pass, which recomputes the scores. Features of edges are multiplied
    with the queries mapped by W, ``⟨q_i, W e⟩ = ⟨Wᵀ q_i, e⟩``, and summed before W is applied.

    Differentiable in every floating array, any number of times, and no derivative uses an array of
    edges times heads times width. Where no kernel can run, None works in pieces of the edges.
    (``"xla"`` is the plain formula, which uses such arrays.)

    Args:
      graph: rows are receivers, columns are senders.
      q: queries of the receivers; leading axes share the graph.
      k: keys of the senders, of the dtype and the leading axes of ``q``. With fewer heads than the
        queries, consecutive heads of the queries share a head of the keys.
      v: values of the senders, with as many heads as ``k``; or their k-sparse form, a ``CBSR``
        whose values are [..., columns, groups, k]. Only its kept entries are read where
        ``maxk_spmm`` would do so, with weights computed before; else it is expanded.
      scale: static factor of the inner products; None for ``1 / sqrt(dim)``.
      edge_features: e, features of each edge slot, of the dtype of ``v`` or float32, with the
        leading axes or without.
      edge_kernel: W, [features, groups, dim], which maps the features of an edge to an addend of
        the key and of the value; or a pair of the map for keys and the map for values, None for
        no such term. Of the dtype of ``v`` or float32; given if and only if ``edge_features`` are.
      edge_logits: b, one number for each edge slot and head, of the dtype of ``v`` or float32, with
        the leading axes or without; -inf masks an edge.
      edge_values: what each edge adds to the values of its sender, of the dtype of ``v`` or
        float32, with the leading axes or without.
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
      >>> ops.dot_attention(graph, jnp.zeros((3, 1, 1)), x, x).ravel().tolist()
      [0.0, 1.0, 3.0]
    """
    opened = open_graph(_OP, graph, refuses=INSTEAD_OF_WEIGHTS)
    graph, of_edges = opened.graph, OfEdges.read(opened, key)
    k, v = opened.senders(k, v, axes=(-3, -3))
    values = checked_senders(_OP, "v", v)
    q, k, edge_features, edge_kernel, edge_logits, edge_values = from_numpy(
        q, k, edge_features, edge_kernel, edge_logits, edge_values
    )
    check = Checker.start(_OP, graph, "q", q, 3, values.dtype)
    heads, dim = q.shape[-2:]
    check.nodes("q", q, "row", heads, dim)
    check.nodes("k", k, "column", None, dim)
    groups = k.shape[-2]
    if groups == 0 or heads % groups:
        raise bad_input(_OP, "k", f"of a number of heads that divides those of q, {heads}", groups)
    check.nodes("v", values, "column", groups, None)
    check.same_dtype("q", q)
    check.same_dtype("k", k)
    to_keys, to_values = _kernels_of_edges(check, edge_features, edge_kernel, (groups, dim), values)
    check.edges("edge_logits", edge_logits, heads)
    check.edges("edge_values", edge_values, groups, values.shape[-1])
    rate, seed = check.dropout(dropout, key)
    form = Form(scale=dim**-0.5 if scale is None else check.number("scale", scale), dropout=rate)
    operands = Operands(
        q,
        k,
        values,
        edge_logits=edge_logits,
        edge_values=edge_values,
        edge_features=edge_features,
        edge_kernel=to_keys,
        edge_value_kernel=to_values,
        seed=seed,
    )
    request = dispatch.resolve(_OP, implementation)
    call = Call(_KERNELS, composed.dot_scores, request, form, return_weights)
    y, weights = attend(call, check.graph, operands, len(check.batch), of_edges)
    return y if weights is None else (y, weights)


def _kernels_of_edges(
    check: Checker, features: Any, kernel: Any, keys: tuple[int, int], values: Any
) -> tuple[Any, Any]:
    """The linear maps of the features of edges to keys and to values; None where there is none."""
    if not isinstance(kernel, tuple | list):
        check.projected_edges(features, kernel, *keys)
        if kernel is not None and values.shape[-1] != keys[1]:
            expected = f"a pair where the values are not as wide as the keys, {keys[1]}"
            raise bad_input(
                _OP, "edge_kernel", expected, f"one map, and values of {values.shape[-1]}"
            )
        if kernel is not None:  # wide, so that both gradients are added before they are rounded
            kernel = kernel.astype(accumulation_dtype(check.dtype))
        return kernel, kernel
    if len(kernel) != 2 or kernel[0] is kernel[1] is None:
        expected = "a map, or a pair of the one to keys and the one to values, one at least"
        raise bad_input(_OP, "edge_kernel", expected, f"a {type(kernel).__name__} of {len(kernel)}")
    for given, *sizes in ((kernel[0], *keys), (kernel[1], keys[0], values.shape[-1])):
        if given is not None:
            check.projected_edges(features, given, *sizes)
    return tuple(kernel)
