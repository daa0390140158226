"""Message passing: an MLP over both ends of each edge, summed, averaged or maximised."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import require_no_heads
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._edge_mlp import pallas
from jaxgnn.ops._edge_mlp.checks import (
    EdgeMLPParams,
    both_ends,
    check_edge_mlp,
)
from jaxgnn.ops._edge_mlp.fold import folded_by_vmap
from jaxgnn.ops._edge_mlp.node_products import masked_node_products, node_products
from jaxgnn.ops._edge_mlp.reference import edge_mlp_aggregate as reference
from jaxgnn.ops._edge_mlp.reference.edge_mlp_aggregate import EdgeOperands, EdgeOptions, Reduce
from jaxgnn.ops.core import dispatch, verify
from jaxgnn.ops.core.activations import ACTIVATIONS
from jaxgnn.ops.core.activations import Name as Activation
from jaxgnn.ops.core.arguments import Arrays, open_graph
from jaxgnn.ops.core.checks import check_choice, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp, differentiable_again

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
        (by erf), ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"`` or
        None.
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
    apart = not getattr(graph, "is_normalized", False)
    opened = open_graph(_OP, graph, apart=apart)
    if opened.spread is not None:
        receivers, senders = both_ends(_OP, opened.spread, h)
        h = receivers, *opened.senders(senders)
    graph = opened.graph
    # The weights of a normalised graph include the presence.
    presence = opened.presence if apart else None
    if weights is None:
        require_no_heads(_OP, "graph", graph.weights)
    h, params, edge_features, weights = from_numpy(h, params, edge_features, weights)
    receivers, senders = both_ends(_OP, graph, h)
    check = Arrays(_OP, graph, receivers.shape[:-2])
    check.edges("edge_features", edge_features, None, dtype=receivers.dtype)
    check.edges("weights", weights)
    ends = {"receiver": receivers, "sender": senders}
    check_edge_mlp(_OP, params, **ends, edge_features=edge_features)
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
        masked_node_products if not degree else node_products for degree in degrees
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


def _check_reduction(graph: CSRGraph, reduce: Any, activation: Any, weights: Any) -> None:
    """Raises ValueError unless reduction and activation are known and fit the graph."""
    check_choice(_OP, "reduce", reduce, "sum", "mean", "max")
    check_choice(_OP, "activation", activation, *ACTIVATIONS)
    folded = graph.normalization is not None and weights is None
    scaled = graph.row_scale is not None or graph.col_scale is not None
    if reduce != "sum" and (folded or scaled):
        expected = f"not normalised for reduce={reduce!r}"
        raise bad_input(_OP, "graph", expected, f"normalization={graph.normalization!r}")
