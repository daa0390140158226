"""Message passing: an MLP over both ends of each edge, summed, averaged or maximised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._core import dispatch, verify
from jaxgnn.ops._core.activations import Name as Activation
from jaxgnn.ops._core.checks import check_graph, from_numpy
from jaxgnn.ops._dense.fused_linear import fused_linear
from jaxgnn.ops._edge_mlp import pallas
from jaxgnn.ops._edge_mlp.checks import (
    both_ends,
    check_edge_arrays,
    check_edge_mlp,
    check_reduction,
)
from jaxgnn.ops._edge_mlp.fold import folded_by_vmap
from jaxgnn.ops._edge_mlp.reference import edge_mlp_aggregate as reference
from jaxgnn.ops._edge_mlp.reference import edge_reduce, edge_weights
from jaxgnn.ops._edge_mlp.reference.edge_mlp_aggregate import Reduce
from jaxgnn.ops._edge_mlp.reference.edge_reduce import EdgeOperands, EdgeOptions

_OP = "edge_mlp_aggregate"

# The formula as it stands, differentiated by JAX.
REFERENCE = dispatch.Kernel(_OP, {"xla": dispatch.xla(reference.edge_mlp_aggregate)})


def _kernel(name: str, run: Any, mosaic: Any, limits: Any) -> dispatch.Kernel:
    """A kernel over edges, between the layers that are left to nodes."""
    options = {"dtypes": pallas.DTYPES, "limits": limits, "not_worth": pallas.not_worth}
    return dispatch.Kernel(
        name,
        {"xla": dispatch.xla(run), "pallas": dispatch.pallas(mosaic, **options)},
        preference={"cpu": ("xla",), "cuda": ("pallas", "xla")},
    )


FORWARD = _kernel(_OP, edge_reduce.edge_reduce, pallas.edge_reduce, pallas.limits)
BACKWARD = _kernel(
    f"{_OP}.backward",
    edge_reduce.edge_reduce_backward,
    pallas.edge_reduce_backward,
    pallas.backward_limits,
)


class EdgeMLPParams(NamedTuple):
    """Layers of the MLP of ``edge_mlp_aggregate``.

    Attributes:
      kernels: weights, each layer's as high as the one before is wide. The rows of the first belong
        to the receiver, to the sender, and to the features of the edge, in this order.
      biases: one for each layer, or None.
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

    An MLP of both ends of each edge and of its features, reduced where edges arrive
    (https://arxiv.org/abs/1704.01212). Exactly that, but products are left to the nodes::

        [h_i ; h_j ; e_ij] W = h_i W_r + h_j W_s + e_ij W_e        one product a node, not an edge
        Σ_j w_ij (a_ij W + b) = (Σ_j w_ij a_ij) W + (Σ_j w_ij) b   likewise, for sum and mean

    so that of an MLP of two layers only its activation is left to the edges, of a deeper one the
    layers between the first and the last, and for the maximum the last too. Nothing of the size
    edges × width is kept for the backward pass, which makes it again. Differentiable in ``h``, in
    all of ``params``, in ``edge_features`` and in weights.

    Sums are accumulated in float32 (float64 for float64 input); what an edge multiplies with a
    kernel, and what a node hands to the edges, is rounded to the dtype of ``h``.

    Args:
      graph: rows are receivers, columns senders. Its weights count unless ``weights`` are given,
        its scales always.
      h: features of the nodes, any leading axes, which share the graph: it is not copied for them,
        nor under ``jax.vmap``, which is the same. A pair ``(receivers, senders)`` for bipartite
        graphs.
      params: kernels and biases of the dtype of ``h``, one layer or more, activation between them.
      edge_features: [edges, e] for all leading axes, or with those of ``h``; in the graph's edge
        order.
      reduce: ``"sum"``; ``"mean"``, ``Σ_j w_ij m_ij / Σ_j w_ij``, the plain mean without weights;
        or ``"max"``, of ``w_ij m_ij``, where edges that tie share the gradient evenly. A node
        without edges gets zero, and so does one whose weights have a sum that is not positive in a
        mean.
      weights: [edges] or with the leading axes of ``h``; they may depend on ``h``, attention for
        one, but then not on the messages. None for those of the graph.
      activation: one of the names that ``fused_linear`` has, or None.
      implementation: ``"xla"`` for the formula as it stands, ``"pallas"`` for kernels of what is
        left to edges, beside products of nodes as is fastest, or None to take these where they were
        timed: graphs of one known degree, up to 128 wide, no features of edges, at least 4,096
        rows; and else plain JAX.

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
    graph = check_graph(_OP, graph)
    h, params, edge_features, weights = from_numpy(h, params, edge_features, weights)
    receivers, senders = both_ends(_OP, graph, h)
    check_edge_arrays(_OP, graph, receivers, edge_features, weights)
    if not isinstance(params, EdgeMLPParams):
        raise bad_input(_OP, "params", "ops.EdgeMLPParams", type(params).__name__)
    check_edge_mlp(_OP, params, receivers, senders, edge_features)
    check_reduction(_OP, graph, reduce, activation, weights)
    request = dispatch.resolve(_OP, implementation)
    degrees = graph.uniform_degrees()
    layers = EdgeMLPParams(tuple(params.kernels), tuple(params.biases))
    graph, receivers, senders, layers, edge_features, weights = dispatch.match_varying(
        graph, receivers, senders, layers, edge_features, weights
    )
    weights = edge_weights.of_edges(graph, weights, receivers.dtype)
    graph = edge_weights.structure(graph)
    arrays = graph, receivers, senders, layers, edge_features, weights
    if request.name == "xla":
        return _as_it_stands(request, *arrays, reduce=reduce, activation=activation)
    options = {"reduce": reduce, "activation": activation}
    run = partial(_split, request, degrees, **options)
    if request.verify.mode != "off":  # of each piece its kernel sees to itself
        formula = partial(_as_it_stands, request._replace(name="xla"), **options)
        run = verify.contained(f"{_OP}[split]", run, formula)
    return run(*arrays)


def _as_it_stands(
    request, graph, receivers, senders, layers, edge_features, weights, **options
) -> Array:
    batch_dims = receivers.ndim - 2
    own_features = edge_features is not None and edge_features.ndim > 2
    own_weights = weights is not None and weights.ndim > 1

    def run(receivers, senders, edge_features, weights):
        return REFERENCE(
            request, graph, receivers, senders, *layers, edge_features, weights, **options
        )

    in_axes = (0, 0, 0 if own_features else None, 0 if own_weights else None)
    mapped = dispatch.vmap_leading(run, batch_dims, in_axes)
    return mapped(receivers, senders, edge_features, weights)


def _split(
    request, degrees, graph, receivers, senders, layers, features, weights, *, reduce, activation
) -> Array:
    """The first layer and, but for the maximum, the last by nodes; what is between by edges."""
    batch = receivers.shape[:-2]
    receivers, senders = _one_batch_axis(receivers, 2), _one_batch_axis(senders, 2)
    features = None if features is None else _one_batch_axis(features, 2)
    weights = None if weights is None else _one_batch_axis(weights, 1)
    totals = None
    if reduce != "max":
        options: dict[str, Any] = {"mean": reduce == "mean", "degree": degrees[0]}
        weights, totals = edge_weights.of_sum(graph, weights, receivers.dtype, **options)
    # The last layer is left to the nodes, if it is not the first as well.
    to_nodes = reduce != "max" and len(layers.kernels) > 1
    (first, *kernels), (first_bias, *biases) = layers
    *kernels, last = kernels if to_nodes else (*kernels, None)
    *biases, last_bias = biases if to_nodes else (*biases, None)
    ends = receivers.shape[-1], receivers.shape[-1] + senders.shape[-1]
    static = EdgeOptions(activation, to_nodes, reduce == "max", *degrees)
    by_rows, by_columns = (_by_nodes if not degree else _by_nodes_with_edges for degree in degrees)
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
        y = edge_weights.last_layer(y, last, last_bias, totals, real)
    return y.reshape(*batch, *y.shape[1:])


def _by_nodes_with_edges(h: Array, kernel: Array, bias: Array | None) -> Array:
    """What a node hands to its edges; names of kernels, argument or default, are for the edges."""
    with dispatch.default_implementation(None):
        return fused_linear(h, kernel, bias)


@jax.custom_vjp
def _by_nodes(h: Array, kernel: Array, bias: Array | None) -> Array:
    """As ``_by_nodes_with_edges``, where there may be others.

    Those have no part in the gradients, also if they are not finite.
    """
    return _by_nodes_with_edges(h, kernel, bias)


def _by_nodes_forward(*inputs):
    return _by_nodes(*inputs), inputs


def _by_nodes_backward(inputs, dz):
    h, *layer = inputs
    # The gradient of a node without edges is zero: zero times NaN would be NaN.
    h = jnp.where(jnp.any(dz != 0, axis=-1, keepdims=True), h, 0)
    return jax.vjp(_by_nodes_with_edges, h, *layer)[1](dz)


_by_nodes.defvjp(_by_nodes_forward, _by_nodes_backward)


def _one_batch_axis(x: Array, own_axes: int) -> Array:
    """One leading axis in the place of any number, of size one in the place of none."""
    leading, own = x.shape[: x.ndim - own_axes], x.shape[x.ndim - own_axes :]
    return x.reshape(math.prod(leading), *own)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _of_one_batch(request, options, structure, operands):
    return FORWARD(request, structure, operands, options=options)


def _edge_reduce_forward(request, options, structure, operands):
    return _edge_reduce_op(request, options, structure, operands), (structure, operands)


def _edge_reduce_backward(request, options, residuals, dy):
    structure, operands = residuals
    return None, BACKWARD(request, structure, operands, dy, options=options)


_of_one_batch.defvjp(_edge_reduce_forward, _edge_reduce_backward)
_of_any_batch = folded_by_vmap(_OP, _of_one_batch)


def _edge_reduce_op(request, options, structure, operands):
    # What is verified runs as it is asked for, member by member.
    run = _of_any_batch if request.verify.mode == "off" else _of_one_batch
    return run(request, options, structure, operands)
