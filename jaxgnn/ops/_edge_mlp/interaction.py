"""The interaction block: new features of edges from both of their ends, and their sums."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph.csr.masked_graph import masked, without_presence
from jaxgnn.ops._aggregate.aggregate import aggregate
from jaxgnn.ops._edge_mlp.checks import (
    EdgeMLPParams,
    both_ends,
    check_edge_mlp,
)
from jaxgnn.ops._edge_mlp.edge_ends import sum_at, take_at
from jaxgnn.ops._edge_mlp.edge_products import product_of_edges
from jaxgnn.ops._edge_mlp.node_products import masked_node_products
from jaxgnn.ops._edge_mlp.reference import interaction as reference
from jaxgnn.ops._edge_mlp.reference.interaction import (
    EdgeLists,
    Ends,
    InteractionOptions,
    Norm,
    Summed,
    UpdateOperands,
)
from jaxgnn.ops._edge_mlp.update_edges import BACKWARD as BACKWARD  # for jaxgnn info
from jaxgnn.ops._edge_mlp.update_edges import FORWARD as FORWARD
from jaxgnn.ops._edge_mlp.update_edges import update_edges
from jaxgnn.ops.core import dispatch, verify
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.arguments import Arrays, open_graph
from jaxgnn.ops.core.checks import check_choice, check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.eager import run_compiled

_OP = "interaction"
# What a GPU computes again in the backward pass is all but the products with kernels, for these
# dtypes: those of float32 take long. Of shorter numbers it keeps nothing.
_KEEPS_PRODUCTS = ("float32",)
_PRODUCT = "jaxgnn product of edges"

# The formula edge by edge, differentiated by JAX.
REFERENCE = dispatch.Kernel(_OP, {"xla": dispatch.xla(reference.interaction)})


def interaction(
    graph: CSRGraph,
    h: Float[Array, "*batch nodes d"] | tuple[Array, Array],
    e: Float[Array, "*batch edges e"] | None,
    params: EdgeMLPParams,
    *,
    context: Float[Array, "*batch rows g"] | Float[Array, "*batch g"] | None = None,
    activation: Activation | None = "relu",
    activate_last: bool = False,
    norm: Norm | None = "layer",
    scale: Float[Array, " out"] | None = None,
    offset: Float[Array, " out"] | None = None,
    eps: float = 1e-5,
    residual: bool = True,
    summed: Summed = "update",
    ends: Ends = "receivers",
    reduce: Literal["sum", "mean"] = "sum",
    implementation: dispatch.Name | None = None,
) -> tuple[Float[Array, "*batch edges out"], Any]:
    """Updates the edges from both of their ends, and sums them at the nodes.

    The block of interaction networks (https://arxiv.org/abs/1612.00222) that learnt simulators and
    weather models repeat (https://arxiv.org/abs/2002.09405, https://arxiv.org/abs/2212.12794)::

        update_ij = norm(mlp([h_i ; h_j ; e_ij ; context_i])) scale + offset
        edges_ij  = e_ij + update_ij                        update_ij without ``residual``
        sums_i    = Σ_j update_ij                           or Σ_j edges_ij

    Products with rows of nodes are evaluated once for each node, and the edges read their
    results: ``[h_i ; h_j ; e_ij] W = h_i W_r + h_j W_s + e_ij W_e``. The normalisation, the
    residual and the sum are one pass over the edges. On a GPU the backward pass computes the values
    of edges again. Of the size edges × width only ``e`` is kept for it, and in float32 the product
    of each layer, which would take long to compute again.

    Sums and statistics are accumulated in float32 (float64 for float64 input). The result of each
    layer is rounded to the dtype of ``h``. Differentiable in ``h``, ``e``, ``context``, ``params``,
    ``scale`` and ``offset``, also twice.

    Args:
      graph: rows are receivers, columns senders. A graph with weights is refused.
      h: features of the nodes, any leading axes, which share the graph. A pair
        ``(receivers, senders)`` for bipartite graphs.
      e: features of the edges in the graph's edge order, with the leading axes of ``h`` or without
        any. None for no features; then ``residual`` must be False.
      params: kernels and biases of the dtype of ``h``. The rows of the first kernel belong to the
        receiver, the sender, the edge and the context, in this order.
      context: further features of each receiver, such as those of its graph; or one row for all.
      activation: function between the layers: ``"relu"``, ``"gelu"`` (by tanh), ``"gelu_exact"``
        (by erf), ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"`` or None.
      activate_last: whether it is also applied after the last layer.
      norm: ``"layer"`` for ``(y - mean) / sqrt(var + eps)`` over the features of an edge, ``"rms"``
        for ``y / sqrt(mean(y²) + eps)``, or None.
      scale: factors of the normalised features, or None for ones.
      offset: what is added to them, or None for zeros.
      eps: see ``norm``.
      residual: whether the update is added to ``e``, which then is as wide as the last layer.
      summed: ``"update"``, as in GraphCast and learnt simulators, or ``"edges"``, as in
        ``jraph.GraphNetwork``.
      ends: ``"receivers"``, ``"senders"``, or ``"both"`` for a pair of sums.
      reduce: ``"sum"``, or ``"mean"``, which divides by the number of edges of a node.
      implementation: ``"xla"`` for the formula, computed edge by edge; ``"pallas"`` for GPU kernels
        that normalise and sum; or None for the fastest that was measured.

    Returns:
      The new features of the edges, [*batch, edges, out], zero in padding slots; and their sums,
      [*batch, nodes, out], zero for nodes without edges. Both are of the dtype of ``h``.

    Raises:
      ValueError: if shapes or dtypes do not match, an option is not as above, the graph has weights
        or scales, or is part of a graph on several devices and ``ends`` is not ``"receivers"``.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> h = jnp.array([[1.0], [2.0], [4.0]])
      >>> e = jnp.array([[10.0], [20.0], [30.0]])
      >>> difference = ops.EdgeMLPParams((jnp.array([[1.0], [-1.0], [0.0]]),), (None,))
      >>> edges, sums = ops.interaction(graph, h, e, difference, norm=None)
      >>> edges.ravel().tolist(), sums.ravel().tolist()
      ([11.0, 22.0, 30.0], [0.0, 1.0, 2.0])
    """
    call = _checked(graph, h, e, params, context, scale, offset, residual, ends)
    graph, presence, receivers, senders, layers, e, context, scale, offset = call
    check_choice(_OP, "activation", activation, *ACTIVATIONS)
    check_choice(_OP, "norm", norm, "layer", "rms", None)
    check_choice(_OP, "summed", summed, "update", "edges")
    check_choice(_OP, "reduce", reduce, "sum", "mean")
    if not eps > 0 and norm is not None:
        raise bad_input(_OP, "eps", "positive", repr(eps))
    form = activation, bool(activate_last), norm, float(eps), bool(residual), summed
    options = InteractionOptions(*form, is_padded=_may_have_padding(graph))
    static = _Static(dispatch.resolve(_OP, implementation), options, ends, reduce)
    arrays = receivers, senders, e, context, (layers, scale, offset)
    return run_compiled(_over_leading_axes, static, (graph, presence, *arrays))


class _Static(NamedTuple):
    """The arguments of a call that are no arrays."""

    request: dispatch.Request
    options: InteractionOptions
    ends: Ends
    reduce: Literal["sum", "mean"]


def _over_leading_axes(static: _Static, given: Any) -> tuple[Array, Any]:
    graph, presence, receivers, senders, e, context, parameters = given
    axes, request = receivers.ndim - 2, static.request
    if request.name is None and any(map(jax.export.is_symbolic_dim, receivers.shape[:-2])):
        # Pallas maps no kernel over an axis of unknown size.
        static = static._replace(request=request._replace(name="xla"))
    is_formula = request.name == "xla" or presence is not None
    run = partial(_by_formula, presence) if is_formula else _by_nodes_and_edges
    own = [None if x is None or x.ndim < axes + 2 else 0 for x in (e, context)]
    arrays = receivers, senders, e, context, parameters
    in_axes = (0, 0, *own, None)
    return dispatch.over_leading_axes(partial(run, static), axes, graph, *arrays, in_axes=in_axes)


# -- arguments -------------------------------------------------------------------------------------


def _checked(graph, h, e, params, context, scale, offset, residual, ends) -> tuple[Any, ...]:
    """The graph, its presence if it is masked, and the arrays, checked and in JAX's dtypes."""
    check_choice(_OP, "ends", ends, "receivers", "senders", "both")
    opened = open_graph(_OP, graph, refuses="multiply features by them")
    graph, presence = opened.graph, opened.presence
    if opened.spread is not None:
        if ends != "receivers":
            expected = "'receivers' for a graph whose senders may be on other devices"
            raise bad_input(_OP, "ends", expected, repr(ends))
        receivers, senders = both_ends(_OP, opened.spread, h)
        h = receivers, *opened.senders(senders)
    h, e, params, context, scale, offset = from_numpy(h, e, params, context, scale, offset)
    receivers, senders = both_ends(_OP, graph, h)
    check = Arrays(_OP, graph, receivers.shape[:-2])
    check.edges("e", e, None, dtype=receivers.dtype)
    context = _rows_of_context(context, receivers)
    inputs = {"receiver": receivers, "sender": senders, "edge": e, "context": context}
    check_edge_mlp(_OP, params, **inputs)
    width = params.kernels[-1].shape[1]
    _check_residual(e, width, residual)
    for name, array in (("scale", scale), ("offset", offset)):
        if array is not None:
            check_float(_OP, name, array, 1)
            if array.shape != (width,):
                raise bad_input(_OP, name, f"of shape ({width},)", f"shape {array.shape}")
    layers = EdgeMLPParams(tuple(params.kernels), tuple(params.biases))
    graph = graph.with_parts("schedule", "transpose", "permutation")
    return graph, presence, receivers, senders, layers, e, context, scale, offset


def _rows_of_context(context: Any, receivers: Any) -> Any:
    """The context with a row for each receiver, and the leading axes of these or none.

    Raises:
      ValueError: unless it has a row for each receiver, or one for all.
    """
    if context is None:
        return None
    check_float(_OP, "context", context, 1)
    leading, rows = receivers.shape[:-2], receivers.shape[-2]
    if context.dtype == receivers.dtype:
        if context.ndim > 1 and context.shape[:-1] in ((rows,), (*leading, rows)):
            return context
        if context.shape[:-1] in ((), leading):
            shape = (*context.shape[:-1], rows, context.shape[-1])
            return jnp.broadcast_to(context[..., None, :], shape)
    expected = f"{receivers.dtype} of shape (features,) or ({rows}, features), for each receiver"
    raise bad_input(_OP, "context", expected, f"{context.dtype} of shape {context.shape}")


def _check_residual(e: Any, width: int, residual: Any) -> None:
    if not residual:
        return
    if e is None:
        raise bad_input(_OP, "residual", "False without features of edges", repr(residual))
    if e.shape[-1] != width:
        expected = f"as wide as the last layer, {width}, where the update is added to it"
        raise bad_input(_OP, "e", expected, f"shape {e.shape}")


# -- edge by edge ----------------------------------------------------------------------------------


def _by_formula(
    presence, static, graph, receivers, senders, e, context, parameters
) -> tuple[Array, Any]:
    _, options, ends, reduce = static
    layers, scale, offset = parameters
    lists, dtype = EdgeLists.of(graph), receivers.dtype
    with dispatch.default_implementation("xla"):
        request = dispatch.resolve(_OP, "xla")
        arrays = receivers, senders, e, context, *layers, scale, offset
        update, edges = REFERENCE(request, lists, *arrays, options=options)
        values = edges if options.summed == "edges" else update
        whole = graph if presence is None else masked(graph, presence)
        sums = _sums_by_formula(whole, values, ends, reduce, dtype)
    return edges.astype(dtype), sums


def _sums_by_formula(graph: CSRGraph, values: Array, ends: Ends, reduce: Any, dtype: Any) -> Any:
    def at_receivers():
        return aggregate(graph, values, reduce).astype(dtype)

    def at_senders():
        order = without_presence(graph).made_plan("permutation").permutation
        return aggregate(graph.transpose(), values[order], reduce).astype(dtype)

    made = {"receivers": at_receivers, "senders": at_senders}
    return (at_receivers(), at_senders()) if ends == "both" else made[ends]()


# -- products by nodes, the rest by edges ----------------------------------------------------------


def _by_nodes_and_edges(static, graph, *arrays) -> tuple[Array, Any]:
    request, options, ends, reduce = static

    def run(graph, receivers, senders, e, context, parameters):
        lists = EdgeLists.of(graph)
        arrays = receivers, senders, e, context, parameters
        edges, sums = updated_edges(request, lists, *arrays, options, ends)
        return edges, _means(graph, sums, ends) if reduce == "mean" else sums

    if request.verify.mode == "off":
        return run(graph, *arrays)
    formula = partial(_by_formula, None, static)
    return verify.contained(f"{_OP}[split]", run, formula)(graph, *arrays)


def updated_edges(
    request: dispatch.Request,
    lists: EdgeLists,
    receivers: Float[Array, "rows r"],
    senders: Float[Array, "cols s"],
    e: Float[Array, "edges e"] | None,
    context: Float[Array, "rows g"] | None,
    parameters: tuple[EdgeMLPParams, Array | None, Array | None],
    options: InteractionOptions,
    ends: Ends,
) -> tuple[Float[Array, "edges out"], Any]:
    """``interaction`` of checked arrays, whose edges may be in any order, with sums.

    ``parameters`` are the layers, the scale and the offset.
    """
    layers, scale, offset = parameters
    (first, *kernels), (bias, *biases) = layers
    *biases, last_bias = bias, *biases
    r, s = receivers.shape[-1], receivers.shape[-1] + senders.shape[-1]
    c = s + (0 if e is None else e.shape[-1])
    # The bias of the first layer is added by nodes, that of the last one with the normalisation.
    of_receivers = masked_node_products(receivers, first[:r], biases[0] if kernels else None)
    if context is not None:
        of_receivers += masked_node_products(context, first[c:], None)
    of_senders = masked_node_products(senders, first[r:s], None)
    operands = _Operands(
        of_receivers, of_senders, e, first[s:c], list(kernels), biases[1:], last_bias, scale, offset
    )
    run = partial(_edges_and_sums, request, options, ends)
    if dispatch.current_platform() == "cuda":  # the backward pass computes values of edges again
        keeps = receivers.dtype.name in _KEEPS_PRODUCTS
        names = [_PRODUCT] if keeps else []
        run = jax.checkpoint(run, policy=jax.checkpoint_policies.save_only_these_names(*names))
    return run(lists, operands)


class _Operands(NamedTuple):
    """Arrays from which the values of the edges are computed.

    Attributes:
      receivers: products of the first layer with the rows of receivers, with its bias unless it is
        the last layer.
      senders: its products with the rows of senders.
      e: features of the edges, or None.
      feature_kernel: rows of its kernel for these.
      kernels: weights of the layers after the first.
      biases: the bias of each of these but the last.
      bias: the bias of the last layer.
      scale: factors of the normalised features.
      offset: what is added to them.
    """

    receivers: Float[Array, "rows first"]
    senders: Float[Array, "cols first"]
    e: Float[Array, "edges e"] | None
    feature_kernel: Float[Array, "e first"]
    kernels: list[Array]
    biases: list[Array | None]
    bias: Float[Array, " out"] | None
    scale: Float[Array, " out"] | None
    offset: Float[Array, " out"] | None


def _edges_and_sums(request, options, ends, lists, operands) -> tuple[Array, Any]:
    """The new features of the edges, and the sums at the nodes."""
    dtype = operands.receivers.dtype
    wide = accumulation_dtype(dtype)
    z = take_at(request, "receivers", lists, operands.receivers).astype(wide)
    z += take_at(request, "senders", lists, operands.senders).astype(wide)
    if operands.e is not None:
        of_edges = lists, operands.e, operands.feature_kernel
        made = product_of_edges(options.is_padded, *of_edges)
        z += checkpoint_name(made, _PRODUCT).astype(wide)
    activated = partial(_activated, options.activation, dtype, lists)
    biases = [None, *operands.biases][: len(operands.kernels)]
    for kernel, bias in zip(operands.kernels, biases, strict=True):
        z = z if bias is None else z + bias.astype(wide)
        made = product_of_edges(False, lists, activated(z), kernel)
        z = checkpoint_name(made, _PRODUCT).astype(wide)
    bias = operands.bias
    if options.activate_last:
        z, bias = activated(z if bias is None else z + bias.astype(wide)), None
    e = operands.e if options.residual else None
    update = UpdateOperands(z.astype(dtype), bias, e, operands.scale, operands.offset)
    if ends == "receivers":
        return update_edges(request, options, lists, update)
    return _with_sums_of_senders(request, options, ends, lists, update)


def _with_sums_of_senders(request, options, ends, lists, operands) -> tuple[Array, Any]:
    """The new features of edges, and sums at the senders or at both ends."""
    e = operands.e
    if e is not None and options.summed == "update":  # the update is stored, to be summed twice
        operands = operands._replace(e=None)
    summed, at_receivers = update_edges(request, options, lists, operands)
    at_senders = sum_at(request, "senders", lists, summed)
    edges = summed if operands.e is e else _residual_sum(lists, e, summed)
    return edges, at_senders if ends == "senders" else (at_receivers, at_senders)


def _residual_sum(lists: EdgeLists, e: Array, update: Array) -> Array:
    wide = accumulation_dtype(e.dtype)
    return (lists.real_only(e).astype(wide) + update.astype(wide)).astype(e.dtype)


def _means(graph: CSRGraph, sums: Any, ends: Ends) -> Any:
    """Divides sums by the number of edges of a node, and leaves those of no edges zero."""
    of_rows, of_columns = ((g.degrees()[:, None]) for g in (graph, graph.transpose()))

    def divided(total: Array, degrees: Array) -> Array:
        wide = accumulation_dtype(total.dtype)
        return (total.astype(wide) / jnp.maximum(degrees, 1).astype(wide)).astype(total.dtype)

    if ends == "both":
        return divided(sums[0], of_rows), divided(sums[1], of_columns)
    return divided(sums, of_rows if ends == "receivers" else of_columns)


def _may_have_padding(graph: CSRGraph) -> bool:
    """Whether edge slots may be padding, as far as the host knows."""
    return not (is_concrete(graph.indptr) and np.asarray(graph.indptr)[-1] == graph.num_edges)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _activated(activation, dtype, lists, z):
    """The activation of z, rounded; zero in padding."""
    return lists.real_only(ACTIVATIONS[activation].value(z)).astype(dtype)


def _activated_forward(activation, dtype, lists, z):
    y = _activated(activation, dtype, lists, z)
    return y, (lists, y if ACTIVATIONS[activation].of_output else z.astype(dtype))


def _activated_backward(activation, dtype, residuals, dy):
    lists, known = residuals
    wide = accumulation_dtype(dtype)
    dz = ACTIVATIONS[activation].pull_back(known.astype(wide), dy.astype(wide))
    return None, lists.real_only(dz)


_activated.defvjp(_activated_forward, _activated_backward)
