"""Sparse times dense, the aggregation of graph networks, and its companion ``sddmm``."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import _ffi
from jaxgnn._errors import bad_input
from jaxgnn._ffi import spmm as ffi
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.local.local_graph import sum_of_parts
from jaxgnn.ops._graph import pallas
from jaxgnn.ops._graph.reference import spmm as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import check_float, check_rows, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient

_DTYPES = ("float32", "bfloat16")
# On an H200 CUDA takes 0.63 of the time of Pallas with 0.9 M edges in float32, and 1.2 times its
# time in bfloat16; with 78 M edges and more they are within 3 %.
_FEW_EDGES = 2**20


def _cuda_is_faster(graph, x):
    if x.dtype != jnp.float32 or x.ndim > 2 or graph.num_edges > _FEW_EDGES:
        return None
    return None if _ffi.why_missing("cuda") else "the CUDA kernel is faster in small float32 graphs"


SPMM = dispatch.Kernel(
    "spmm",
    {
        "xla": dispatch.xla(reference.spmm),
        "pallas": dispatch.pallas(pallas.spmm, dtypes=_DTYPES, not_worth=_cuda_is_faster),
        "ffi": dispatch.ffi(dtypes=_DTYPES, cpu=ffi.spmm, cuda=ffi.spmm_cuda),
    },
)
SDDMM = dispatch.Kernel(
    "sddmm",
    {
        "xla": dispatch.xla(reference.sddmm, scatters=False),
        "pallas": dispatch.pallas(pallas.sddmm, dtypes=_DTYPES, limits=ffi.sddmm_limits),
        "ffi": dispatch.ffi(
            dtypes=_DTYPES, cpu=ffi.sddmm, cuda=ffi.sddmm_cuda, cuda_limits=ffi.sddmm_limits
        ),
    },
)


def spmm(
    graph: CSRGraph,
    x: Float[Array, "*batch cols dim"] | Float[Array, "*batch cols heads dim"],
    *,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch rows dim"] | Float[Array, "*batch rows heads dim"]:
    """Aggregates neighbours: ``y_i = r_i Σ_j w_ij c_j x_j``.

    ``w`` are the edge weights (ones if the graph has none), ``r`` and ``c`` the scales of a
    normalised graph. Sums are accumulated in float32 (float64 for float64 input) and rounded
    once. Rows without edges are zero. Leading axes of ``x`` share the graph, which is not copied.

    Weights may be given by head, ``graph.with_weights(w)`` with ``w`` [edges, heads]: then ``x`` is
    [..., cols, heads, dim], and each head is summed with its own weights. With the probabilities of
    ``segment_softmax`` as weights this is the sum of attention.

    Differentiable in ``x`` and in ``graph.weights``, also twice. The kernels use no array of edges
    times features.

    Args:
      graph: rows are receivers, columns are senders.
      x: features of the senders, any leading axes; with an axis of heads where weights have one.
      implementation: ``"xla"``, ``"ffi"``, ``"pallas"``, or None for the one measured to be
        fastest.

    Returns:
      Features of the receivers, of the dtype of ``x``.

    Raises:
      ValueError: if ``x`` does not have one row for each column of the graph, or not the heads of
        the weights.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> x = jnp.array([[1.0], [2.0], [4.0]])
      >>> ops.spmm(graph, x).tolist()
      [[0.0], [1.0], [6.0]]
      >>> two_heads = graph.with_weights(jnp.array([[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]]))
      >>> ops.spmm(two_heads, jnp.stack([x, x], axis=1))[..., 0].tolist()
      [[0.0, 0.0], [1.0, 0.0], [6.0, 3.0]]
    """
    weights = getattr(graph, "weights", None)
    node_axis = -2 if weights is None else -1 - weights.ndim
    summed = sum_of_parts(graph, x, node_axis, partial(spmm, implementation=implementation))
    if summed is not None:
        return summed
    opened = open_graph("spmm", graph)
    graph, (x,) = opened.graph, opened.senders(x, axes=(node_axis,))
    _check_features(graph, x)
    return sums_by_rows(dispatch.resolve("spmm", implementation), graph, x)


def sums_by_rows(
    request: dispatch.Request, graph: CSRGraph, x: Float[Array, "*batch cols *heads dim"]
) -> Float[Array, "*batch rows *heads dim"]:
    """``spmm`` of an opened graph and checked features, for other ops."""

    def run(graph, features):
        if request.name == "xla":
            return SPMM(request, graph, features)
        return spmm_of_request(request, graph.structure, graph.weights, features)

    own_axes = 2 if graph.weights is None else graph.weights.ndim + 1
    return dispatch.over_leading_axes(run, x.ndim - own_axes, graph, x)


def _check_features(graph: CSRGraph, x: Array) -> None:
    """Raises ValueError unless ``x`` has a row for each sender, and the heads of the weights."""
    if graph.weights is None or graph.weights.ndim == 1:
        check_rows("spmm", "x", x, graph.num_cols, "column")
        return
    check_float("spmm", "x", x, 3)
    heads = graph.weights.shape[1]
    if heads == 0 or x.shape[-3:-1] != (graph.num_cols, heads):
        expected = (
            f"of shape [..., {graph.num_cols}, {heads}, features], one row for each column of the "
            "graph and head of its weights"
        )
        raise bad_input("spmm", "x", expected, f"shape {x.shape}")


def sddmm(
    graph: CSRGraph,
    a: Float[Array, "*batch rows dim"],
    b: Float[Array, "*batch cols dim"],
    *,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch edges"]:
    """Inner products along edges: ``e_ij = r_i c_j ⟨a_i, b_j⟩``.

    This is the gradient of ``spmm`` to the weights, and a way to score edges. The scales of a
    normalised graph are applied. A graph with weights is refused, since some libraries multiply by
    them and others do not. Differentiable in ``a`` and ``b``.

    Args:
      graph: rows belong to ``a``, columns to ``b``.
      a: features of the receivers.
      b: features of the senders, same dtype and leading axes as ``a``.
      implementation: ``"xla"``, ``"ffi"``, ``"pallas"``, or None for the one measured to be
        fastest.

    Returns:
      One number for each edge slot, of the dtype of ``a``; zero in padding slots.

    Raises:
      ValueError: if shapes or dtypes do not match the graph or each other, or the graph has
        weights.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> x = jnp.array([[1.0], [2.0], [4.0]])
      >>> ops.sddmm(graph, x, x).tolist()
      [2.0, 8.0, 16.0]
    """
    instead = "multiply the products by them"
    opened = open_graph("sddmm", graph, refuses=instead, scales=True)
    graph, (b,) = opened.graph, opened.senders(b)
    (a,) = from_numpy(a)
    check_rows("sddmm", "a", a, graph.num_rows, "row")
    check_rows("sddmm", "b", b, graph.num_cols, "column")
    if (a.dtype, a.shape[-1], a.shape[:-2]) != (b.dtype, b.shape[-1], b.shape[:-2]):
        expected = f"{a.dtype}[{', '.join(map(str, (*a.shape[:-2], graph.num_cols, a.shape[-1])))}]"
        raise bad_input("sddmm", "b", f"like a, {expected}", f"{b.dtype}{list(b.shape)}")
    request = dispatch.resolve("sddmm", implementation)

    def run(graph, left, right):
        products = SDDMM if request.name == "xla" else sddmm_of_request
        return products(request, graph, left, right).astype(left.dtype)

    return dispatch.over_leading_axes(run, a.ndim - 2, graph, a, b)


# The structure is a graph without weights: the weights are a separate argument, because they have a
# gradient and the structure has none. Features are [nodes, dim] with weights [edges], and
# [nodes, heads, dim] with weights [edges, heads].


@partial(custom_vjp, nondiff_argnums=(0,))
def spmm_of_request(request, structure, weights, x):
    """``spmm`` of checked arrays without batch axes, with a separate gradient to weights."""
    graph = structure if weights is None else structure._with_fields(weights=weights)
    return SPMM(request, graph, x)


def _spmm_forward(request, structure, weights, x):
    kept = None if weights is None else x
    return spmm_of_request(request, structure, weights, x), (structure, weights, kept)


def _spmm_backward(request, residuals, dy):
    structure, weights, x = residuals
    transposed = structure.with_weights(weights).transpose()
    dx = spmm_of_request(request, transposed.with_weights(None), transposed.weights, dy)
    if weights is None:
        return None, None, dx
    return None, sddmm_of_request(request, structure, dy, x).astype(weights.dtype), dx


spmm_of_request.defvjp(_spmm_forward, _spmm_backward)


@partial(custom_vjp, nondiff_argnums=(0,))
def sddmm_of_request(request, structure, a, b):
    """``sddmm`` of checked arrays without batch axes, in the accumulation dtype; with heads too."""
    return SDDMM(request, structure, a, b)


def _gradient_of_sddmm(request, structure, a, b, de):
    transposed = structure.with_weights(de).transpose()
    da = spmm_of_request(request, structure, de, b)
    db = spmm_of_request(request, transposed.with_weights(None), transposed.weights, a)
    return None, da, db


set_gradient(sddmm_of_request, _gradient_of_sddmm, 1)
