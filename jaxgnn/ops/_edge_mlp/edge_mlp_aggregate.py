"""Message passing: an MLP over both ends of each edge, summed, averaged or maximised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import require_no_heads
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, LocalGraph, edge_presence
from jaxgnn.graph.csr.edge_list import way_to_edge_slots
from jaxgnn.graph.csr.masked_graph import without_presence
from jaxgnn.ops._dense.checks import check_layer
from jaxgnn.ops._dense.fused_linear import fused_linear
from jaxgnn.ops._edge_mlp import pallas
from jaxgnn.ops._edge_mlp.fold import folded_by_vmap
from jaxgnn.ops._edge_mlp.reference import edge_mlp_aggregate as reference
from jaxgnn.ops._edge_mlp.reference.edge_mlp_aggregate import EdgeOperands, EdgeOptions, Reduce
from jaxgnn.ops._graph.calls import graph_and_senders
from jaxgnn.ops.core import dispatch, verify
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.checks import check_choice, check_float, check_rows, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp, differentiable_again, set_gradient

_OP = "edge_mlp_aggregate"

# The formula edge by edge, differentiated by JAX.
REFERENCE = dispatch.Kernel(_OP, {"xla": dispatch.xla(reference.edge_mlp_aggregate)})


def _kernel(name: str, run: Any, mosaic: Any, limits: Any) -> dispatch.Kernel:
    """The implementations of a kernel for the layers that are evaluated for every edge."""
    options = {"dtypes": pallas.DTYPES, "limits": limits, "not_worth": pallas.not_worth}
    return dispatch.Kernel(
        name,
        {"xla": dispatch.xla(run), "pallas": dispatch.pallas(mosaic, **options)},
        preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
    )


FORWARD = _kernel(_OP, reference.edge_reduce, pallas.edge_reduce, pallas.limits)
BACKWARD = _kernel(
    f"{_OP}.backward",
    reference.edge_reduce_backward,
    pallas.edge_reduce_backward,
    pallas.backward_limits,
)


class EdgeMLPParams(NamedTuple):
    """Layers of the MLP of ``edge_mlp_aggregate``.

    Attributes:
      kernels: weights of the layers, each [in, out] with the out of one as the in of the next. The
        rows of the first belong to the receiver, to the sender, and to the features of the edge, in
        this order.
      biases: the bias of each layer, [out], or None for zeros.
    """

    kernels: Sequence[Float[Array, "in out"]]
    biases: Sequence[Float[Array, " out"] | None]


def edge_mlp_aggregate(
    graph: CSRGraph,
    h: Float[Array, "*batch nodes d"] | tuple[Array, Array],
    params: EdgeMLPParams,
    edge_features: Float[Array, "*batch edges e"] | None = None,
    *,
    reduce: Reduce = "sum",
    weights: Float[Array, "*batch edges"] | None = None,
    activation: Activation | None = "relu",
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch nodes out"]:
    """Message passing: ``y_i = reduce_j w_ij mlp([h_i ; h_j ; e_ij])``.

    An MLP of both ends of each edge and of its features, reduced at the receivers
    (https://arxiv.org/abs/1704.01212). The result is exact, with products moved to the nodes::

        [h_i ; h_j ; e_ij] W = h_i W_r + h_j W_s + e_ij W_e        one product a node, not an edge
        Σ_j w_ij (a_ij W + b) = (Σ_j w_ij a_ij) W + (Σ_j w_ij) b   the same, for sum and mean

    In an MLP of two layers only the activation is then computed for every edge; in a deeper one the
    layers between the first and the last, and for the maximum also the last. Nothing of the size
    edges × width is kept for the backward pass, which recomputes it. Differentiable in ``h``,
    in all of ``params``, in ``edge_features`` and in weights.

    Sums are accumulated in float32 (float64 for float64 input). Operands of products with kernels,
    and the products of nodes that edges read, are rounded to the dtype of ``h``.

    Args:
      graph: rows are receivers, columns senders. Its weights apply unless ``weights`` are given,
        its scales always.
      h: features of the nodes, any leading axes. The graph is shared by the leading axes and by
        members of ``jax.vmap``, and is not copied for them. A pair ``(receivers, senders)`` for
        bipartite graphs.
      params: kernels and biases of the dtype of ``h``, one layer or more, activation between them.
      edge_features: features of the edges in the graph's edge order, [edges, e] to share them among
        all leading axes, or with the leading axes of ``h``. None for no features.
      reduce: ``"sum"``; ``"mean"``, ``Σ_j w_ij m_ij / Σ_j w_ij``, the plain mean without weights;
        or ``"max"``, of ``w_ij m_ij``, where edges that tie share the gradient evenly. A node
        without edges gets zero. In a mean, so does a node whose weights do not have a positive sum.
      weights: a number for each edge, [edges] or with the leading axes of ``h``. They may depend on
        ``h``, as attention does, but not on the messages. None for the weights of the graph.
      activation: function between the layers: ``"relu"``, ``"gelu"`` (by tanh), ``"gelu_exact"``
        (by erf), ``"silu"``, ``"mish"``, ``"squared_relu"`` or None.
      implementation: ``"xla"`` for the first formula, computed edge by edge; ``"pallas"`` for
        kernels of the layers of edges, with the fastest products for the nodes; or None to choose
        these kernels where they were timed (graphs of one known degree, layers up to 128 wide, no
        features of edges, at least 4,096 rows) and plain JAX elsewhere.

    Returns:
      [*batch, rows, out], of the dtype of ``h``.

    Raises:
      ValueError: if shapes or dtypes do not match, an option is not as above, or the graph is
        normalised already and ``reduce`` is not ``"sum"``.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> difference = jnp.array([[1.0, -1.0], [-1.0, 1.0]]), jnp.array([[1.0], [1.0]])
      >>> params = ops.EdgeMLPParams(difference, (None, None))  # |h_i - h_j|
      >>> h = jnp.array([[1.0], [2.0], [4.0]])
      >>> ops.edge_mlp_aggregate(graph, h, params).tolist()
      [[0.0], [1.0], [2.0]]
      >>> ops.edge_mlp_aggregate(graph, h, params, reduce="mean").tolist()
      [[0.0], [1.0], [1.0]]
    """
    # That of a normalised graph is part of its weights.
    presence = None if getattr(graph, "is_normalized", False) else edge_presence(graph)
    if presence is not None:
        graph = without_presence(graph)
    if isinstance(graph, LocalGraph):
        receivers, senders = _both_ends(graph, h)
        graph, senders = graph_and_senders(_OP, graph, senders)
        h = receivers, senders
    else:
        (graph,) = graph_and_senders(_OP, graph)
    if weights is None:
        require_no_heads(_OP, "graph", graph.weights)
    h, params, edge_features, weights = from_numpy(h, params, edge_features, weights)
    receivers, senders = _both_ends(graph, h)
    _check_edge_arrays(graph, receivers, edge_features, weights)
    if not isinstance(params, EdgeMLPParams):
        raise bad_input(_OP, "params", "ops.EdgeMLPParams", type(params).__name__)
    _check_edge_mlp(params, receivers, senders, edge_features)
    _check_reduction(graph, reduce, activation, weights)
    request = dispatch.resolve(_OP, implementation)
    degrees = graph.uniform_degrees()
    if None not in degrees:  # then edges are summed by column in the order of the transpose
        graph = graph.with_parts("permutation")
    layers = EdgeMLPParams(tuple(params.kernels), tuple(params.biases))
    graph, receivers, senders, layers, edge_features, weights = dispatch.match_varying(
        graph, receivers, senders, layers, edge_features, weights
    )
    weights = reference.edge_weights(graph, weights, receivers.dtype)
    graph = graph.without_weights()
    arrays = graph, receivers, senders, layers, edge_features, weights
    options = {"reduce": reduce, "activation": activation}
    if request.name == "xla" or presence is not None:
        request = request._replace(name="xla")
        return _edge_by_edge(request, *arrays, presence, **options)
    run = partial(_by_nodes_and_edges, request, degrees, **options)
    if request.verify.mode != "off":  # each kernel checks its own piece
        formula = partial(_edge_by_edge, request._replace(name="xla"), **options)
        run = verify.contained(f"{_OP}[split]", run, formula)
    return run(*arrays)


def _edge_by_edge(
    request, graph, receivers, senders, layers, edge_features, weights, presence=None, **options
) -> Array:
    batch_dims = receivers.ndim - 2
    own_features = edge_features is not None and edge_features.ndim > 2
    own_weights = weights is not None and weights.ndim > 1

    def run(receivers, senders, edge_features, weights):
        of_edges = edge_features, weights, presence
        return REFERENCE(request, graph, receivers, senders, *layers, *of_edges, **options)

    in_axes = (0, 0, 0 if own_features else None, 0 if own_weights else None)
    mapped = dispatch.vmap_leading(run, batch_dims, in_axes)
    return mapped(receivers, senders, edge_features, weights)


def _by_nodes_and_edges(
    request, degrees, graph, receivers, senders, layers, features, weights, *, reduce, activation
) -> Array:
    """Evaluates the first and the last layer by nodes, and the rest by edges.

    For the maximum the last layer is evaluated also by edges.
    """
    batch = receivers.shape[:-2]
    receivers, senders = _one_batch_axis(receivers, 2), _one_batch_axis(senders, 2)
    features = None if features is None else _one_batch_axis(features, 2)
    weights = None if weights is None else _one_batch_axis(weights, 1)
    totals = None
    if reduce != "max":
        options: dict[str, Any] = {"mean": reduce == "mean", "degree": degrees[0]}
        weights, totals = reference.weights_of_sum(graph, weights, receivers.dtype, **options)
    # The last layer is evaluated by nodes, unless it is also the first.
    to_nodes = reduce != "max" and len(layers.kernels) > 1
    (first, *kernels), (first_bias, *biases) = layers
    *kernels, last = kernels if to_nodes else (*kernels, None)
    *biases, last_bias = biases if to_nodes else (*biases, None)
    ends = receivers.shape[-1], receivers.shape[-1] + senders.shape[-1]
    static = EdgeOptions(activation, to_nodes, reduce == "max", *degrees)
    by_rows, by_columns = (
        _masked_node_products if not degree else _node_products for degree in degrees
    )
    operands = EdgeOperands(
        receivers=by_rows(receivers, first[: ends[0]], first_bias),
        senders=by_columns(senders, first[ends[0] : ends[1]], None),
        features=features,
        weights=weights,
        feature_kernel=None if features is None else first[ends[1] :],
        kernels=tuple(kernels),
        biases=tuple(biases),
    )
    y = _edge_reduce_op(request, static, graph, operands)
    if to_nodes:
        real = None if degrees[0] else graph.degrees() > 0
        y = reference.last_layer(y, last, last_bias, totals, real)
    return y.reshape(*batch, *y.shape[1:])


def _node_products(h: Array, kernel: Array, bias: Array | None) -> Array:
    """The first layer's product for nodes that have edges, by the fastest implementation.

    A named implementation, from the argument or the session default, is for the edges alone.
    """
    with dispatch.default_implementation(None):
        return fused_linear(h, kernel, bias)


@custom_vjp
def _masked_node_products(h: Array, kernel: Array, bias: Array | None) -> Array:
    """The first layer's product for nodes, some of which may have no edges.

    Nodes without edges do not affect the gradients, even if they are not finite.
    """
    return _node_products(h, kernel, bias)


def _gradient_without_edges(h, kernel, bias, dz):
    # The gradient of a node without edges is zero: zero times NaN would be NaN.
    h = jnp.where(jnp.any(dz != 0, axis=-1, keepdims=True), h, 0)
    return jax.vjp(_node_products, h, kernel, bias)[1](dz)


set_gradient(_masked_node_products, _gradient_without_edges)


def _one_batch_axis(x: Array, own_axes: int) -> Array:
    """Merges all leading axes into one, of size one if there are none."""
    leading, own = x.shape[: x.ndim - own_axes], x.shape[x.ndim - own_axes :]
    return x.reshape(math.prod(leading), *own)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _edge_reduce(request, options, structure, operands):
    return FORWARD(request, structure, operands, options=options)


def _edge_reduce_forward(request, options, structure, operands):
    return _edge_reduce_op(request, options, structure, operands), (structure, operands)


def _edge_reduce_backward(request, options, residuals, dy):
    return None, _gradient((request, options), *residuals, dy)


def _by_kernel(static, structure, operands, dy):
    request, options = static
    return BACKWARD(request, structure, operands, dy, options=options)


def _by_formula(static, structure, operands, dy):
    return reference.edge_reduce_backward(structure, operands, dy, options=static[1])


_gradient = differentiable_again(_by_kernel, _by_formula)
_edge_reduce.defvjp(_edge_reduce_forward, _edge_reduce_backward)
_edge_reduce_folded = folded_by_vmap(_OP, _edge_reduce)


def _edge_reduce_op(request, options, structure, operands):
    # With verification each member of a batch runs separately.
    run = _edge_reduce_folded if request.verify.mode == "off" else _edge_reduce
    return run(request, options, structure, operands)


def _both_ends(graph: CSRGraph, h: Any) -> tuple[Any, Any]:
    """Features of the receivers and of the senders.

    Raises:
      ValueError: unless ``h`` is an array for the nodes of a square graph, or a pair of arrays of
        one dtype and the same leading axes, for its rows and its columns.
    """
    if not isinstance(h, tuple | list):
        check_rows(_OP, "h", h, graph.num_rows, "row")
        if not graph.is_square:
            expected = "a pair (receivers, senders) for a graph of unequal numbers of these"
            raise bad_input(_OP, "h", expected, f"one array of shape {h.shape}")
        return h, h
    if len(h) != 2:
        raise bad_input(_OP, "h", "one array or a pair (receivers, senders)", f"{len(h)} arrays")
    receivers, senders = h
    check_rows(_OP, "h[0]", receivers, graph.num_rows, "row")
    check_rows(_OP, "h[1]", senders, graph.num_cols, "column")
    if (senders.dtype, senders.shape[:-2]) != (receivers.dtype, receivers.shape[:-2]):
        expected = f"{receivers.dtype} with leading axes {receivers.shape[:-2]}, as h[0]"
        raise bad_input(_OP, "h[1]", expected, f"{senders.dtype} of shape {senders.shape}")
    return receivers, senders


def _check_edge_arrays(graph: CSRGraph, receivers: Any, edge_features: Any, weights: Any) -> None:
    """Raises ValueError unless features and weights fit the edge slots and the axes of ``h``."""
    leading = receivers.shape[:-2]
    slots = f"{graph.num_edges} edge slots"
    if edge_features is not None:
        check_float(_OP, "edge_features", edge_features, 2)
        *axes, edges, _ = edge_features.shape
        fits = edges == graph.num_edges and tuple(axes) in ((), leading)
        if not fits or edge_features.dtype != receivers.dtype:
            shape = f"({graph.num_edges}, features), for {slots}, or {leading} in front of that"
            expected = f"{receivers.dtype} of shape {shape}"
            got = f"{edge_features.dtype} of shape {edge_features.shape}"
            got += way_to_edge_slots(graph.num_edges, edge_features.shape)
            raise bad_input(_OP, "edge_features", expected, got)
    if weights is not None:
        check_float(_OP, "weights", weights, 1, may_be_empty=True)
        *axes, edges = weights.shape
        if edges != graph.num_edges or tuple(axes) not in ((), leading):
            expected = f"of shape ({graph.num_edges},), for {slots}, or {leading} in front of that"
            raise bad_input(_OP, "weights", expected, f"shape {weights.shape}")


def _check_edge_mlp(params: Any, receivers: Any, senders: Any, edge_features: Any) -> None:
    """Raises ValueError unless the layers fit the ends of an edge, its features and each other."""
    kernels, biases = params.kernels, params.biases
    for argument, value in (("params.kernels", kernels), ("params.biases", biases)):
        if not isinstance(value, Sequence):
            expected = "a list or tuple, an entry for each layer"
            raise bad_input(_OP, argument, expected, type(value).__name__)
    if not kernels or len(kernels) != len(biases):
        expected = "of one layer or more, and with a bias or None for each"
        raise bad_input(_OP, "params", expected, f"{len(kernels)} kernels, {len(biases)} biases")
    parts = [receivers.shape[-1], senders.shape[-1]]
    parts += [] if edge_features is None else [edge_features.shape[-1]]
    names = ("receiver", "sender", "edge features")
    source = "[" + " ; ".join(f"{n} {w}" for n, w in zip(names, parts, strict=False)) + "]"
    width = sum(parts)
    for index, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        check_layer(_OP, receivers, kernel, bias, index=index, in_features=width, source=source)
        width, source = kernel.shape[1], None


def _check_reduction(graph: CSRGraph, reduce: Any, activation: Any, weights: Any) -> None:
    """Raises ValueError unless reduction and activation are known and fit the graph."""
    check_choice(_OP, "reduce", reduce, "sum", "mean", "max")
    check_choice(_OP, "activation", activation, *ACTIVATIONS)
    folded = graph.normalization is not None and weights is None
    scaled = graph.row_scale is not None or graph.col_scale is not None
    if reduce != "sum" and (folded or scaled):
        expected = f"not normalised for reduce={reduce!r}"
        raise bad_input(_OP, "graph", expected, f"normalization={graph.normalization!r}")
