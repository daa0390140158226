"""Sums of neighbours that are filtered channel by channel, as in SchNet and PaiNN."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._filters import kernels
from jaxgnn.ops._filters.kernels import BASIS_PRODUCTS as BASIS_PRODUCTS  # for jaxgnn info
from jaxgnn.ops._filters.kernels import FILTER_PRODUCTS as FILTER_PRODUCTS
from jaxgnn.ops._filters.kernels import GIVEN as GIVEN
from jaxgnn.ops._filters.kernels import GIVEN_AT_COLUMNS as GIVEN_AT_COLUMNS
from jaxgnn.ops._filters.kernels import KERNEL_PRODUCTS as KERNEL_PRODUCTS
from jaxgnn.ops._filters.kernels import MADE as MADE
from jaxgnn.ops._filters.kernels import MADE_AT_COLUMNS as MADE_AT_COLUMNS
from jaxgnn.ops._graph.spmm import sums_by_rows
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import Arrays, open_graph
from jaxgnn.ops.core.checks import check_float, from_numpy
from jaxgnn.ops.core.dtypes import accumulation_dtype

_OP = "filtered_sum"
_INSTEAD_OF_WEIGHTS = "multiply the filters, or the envelope, by them"


def filtered_sum(
    graph: CSRGraph,
    x: Float[Array, "*batch cols dim"] | Float[Array, "*batch cols heads dim"],
    weights: Float[Array, "*#batch edges dim"]
    | Float[Array, "*#batch edges heads dim"]
    | None = None,
    *,
    basis: Float[Array, "*#batch edges features"] | None = None,
    kernel: Float[Array, "features dim"] | Float[Array, "features heads dim"] | None = None,
    bias: Float[Array, " dim"] | Float[Array, "heads dim"] | None = None,
    envelope: Float[Array, "*#batch edges"] | None = None,
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch rows dim"] | Float[Array, "*batch rows heads dim"]:
    """Sums neighbours, each multiplied channel by channel by the filter of its edge.

    ``y_i = Σ_j x_j ⊙ w_ij``: the continuous-filter convolution of SchNet
    (https://arxiv.org/abs/1706.08566), and the message of PaiNN and of other networks for
    molecules and particles.

    The filters are either given as ``weights``, or made from features of the edges, such as a
    radial basis of distances, by one linear map: ``w_ij = (basis_ij · kernel + bias) envelope_ij``.
    Then no array of edges times ``dim`` is stored, neither for the value nor for a derivative, as
    long as ``basis`` has at most 64 features, with the bias as one of them. A larger basis makes
    the filters first.

    Sums are accumulated in float32 (float64 for float64 input) and rounded once. Rows without edges
    are zero. Padding slots are ignored. Leading axes of ``x`` share the graph.

    Differentiable in all arrays, any number of times: forces are a gradient, and training
    differentiates them again. The order of all sums is fixed.

    Args:
      graph: rows are receivers, columns are senders. Its weights and scales are refused.
      x: features of the senders. With an axis of heads if ``weights`` or ``kernel`` has one.
      weights: a filter for each edge slot, in the graph's edge order, with the leading axes of
        ``x`` or without any. The axes of heads and channels broadcast against those of ``x``:
        [edges, 1, dim] is one filter for all heads, such as the components of a vector, and
        [edges, heads, 1] is one number for all channels, which is ``spmm``.
      basis: features of each edge slot, instead of ``weights``.
      kernel: the map from these features to filters, whose axes broadcast like those of
        ``weights``.
      bias: what is added to the filters that ``kernel`` makes; of the shape of its rows.
      envelope: a factor of each edge slot's filter that ``kernel`` makes, such as a smooth cutoff.
      implementation: ``"xla"``, ``"ffi"`` on a CPU, ``"pallas"``, or None for the one measured to
        be fastest.

    Returns:
      Features of the receivers, of the dtype of ``x``.

    Raises:
      ValueError: if shapes do not match, the graph has weights or scales, or not exactly one of
        ``weights`` and the pair ``basis`` and ``kernel`` is given.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> x = jnp.array([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
      >>> filters = jnp.array([[1.0, 5.0], [1.0, 6.0], [0.5, 7.0]])
      >>> ops.filtered_sum(graph, x, filters).tolist()
      [[0.0, 0.0], [1.0, 5.0], [4.0, 13.0]]
      >>> distances = jnp.array([[1.0], [2.0], [3.0]])
      >>> kernel = jnp.array([[1.0, 10.0]])
      >>> ops.filtered_sum(graph, x, basis=distances, kernel=kernel).tolist()
      [[0.0, 0.0], [1.0, 10.0], [16.0, 50.0]]
    """
    made = MadeFilters(basis, kernel, bias, envelope)
    return filtered_sum_in_order(graph, None, x, weights, made, implementation)


def filtered_sum_in_order(
    graph: Any,
    order: Int[Array, " edges"] | None,
    x: Any,
    weights: Any,
    made: MadeFilters,
    implementation: dispatch.Name | None = None,
) -> Array:
    """``filtered_sum`` of arrays of edges in another order than that of the edge slots.

    Args:
      graph: as of ``filtered_sum``.
      order: the entry of arrays of edges that each edge slot has, which must be a permutation; None
        for the order of the slots.
      x: as of ``filtered_sum``.
      weights: as of ``filtered_sum``.
      made: the arrays that filters are made of.
      implementation: as of ``filtered_sum``.
    """
    _check_choice(weights, made)
    weights, made = from_numpy(weights, made)
    has_heads = _has_heads(graph, weights) if weights is not None else _ndim(made.kernel) == 3
    tail = (None, None) if has_heads else (None,)
    opened = open_graph(_OP, graph, refuses=_INSTEAD_OF_WEIGHTS)
    (x,) = opened.senders(x, axes=(-1 - len(tail),))
    check_float(_OP, "x", x, 1 + len(tail))
    check = Arrays(_OP, opened.graph, x.shape[: -1 - len(tail)])
    check.nodes("x", x, "column", *tail)
    check.edges("weights", weights, *tail)
    check.edges("basis", made.basis, None)
    check.edges("envelope", made.envelope)
    if weights is None:
        _check_kernel(made, 1 + len(tail))
    arrays = {"weights": weights, **made._asdict(), "presence": opened.presence, "order": order}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    in_axes = check.in_axes(arrays, {"weights": 1 + len(tail), "basis": 2, "envelope": 1})
    run = partial(_run, dispatch.resolve(_OP, implementation))
    return check.map(run, x, arrays, in_axes=(0, in_axes))


class MadeFilters(NamedTuple):
    """The arrays that filters are made of, None for those that are not given."""

    basis: Any = None
    kernel: Any = None
    bias: Any = None
    envelope: Any = None


def _check_choice(weights: Any, made: MadeFilters) -> None:
    """Raises ValueError unless filters are given, or both arrays that make them are."""
    if weights is None:
        for name in ("basis", "kernel"):
            if getattr(made, name) is None:
                raise bad_input(_OP, name, "given, as weights are not", None)
        return
    for name, array in made._asdict().items():
        if array is not None:
            raise bad_input(_OP, name, "None where weights are given", type(array).__name__)


def _ndim(array: Any) -> int:
    return getattr(array, "ndim", 0)


def _has_heads(graph: Any, weights: Any) -> bool:
    """Whether the filters have an axis of heads, by the position of the axis of edges."""
    shape, edges = getattr(weights, "shape", ()), getattr(graph, "num_edges", None)
    return len(shape) >= 3 and shape[-3] == edges and shape[-2] != edges


def _check_kernel(made: MadeFilters, axes: int) -> None:
    check_float(_OP, "kernel", made.kernel, 2)
    features = made.basis.shape[-1]
    if features == 0:
        raise bad_input(_OP, "basis", "of at least one feature", f"shape {made.basis.shape}")
    if made.kernel.ndim != axes or made.kernel.shape[0] != features:
        expected = f"of shape [{features}, dim] or [{features}, heads, dim], as basis"
        raise bad_input(_OP, "kernel", expected, f"shape {made.kernel.shape}")
    if made.bias is not None:
        check_float(_OP, "bias", made.bias, 1)
        if made.bias.shape != made.kernel.shape[1:]:
            expected = f"of shape {made.kernel.shape[1:]}, as the rows of kernel"
            raise bad_input(_OP, "bias", expected, f"shape {made.bias.shape}")


def _run(request: dispatch.Request, graph: CSRGraph, x: Array, arrays: dict[str, Array]) -> Array:
    """The sum without leading axes."""
    edges = _Edges(graph, arrays.get("order"))
    weights, presence = arrays.get("weights"), arrays.get("presence")
    if weights is not None:
        if presence is not None:
            factors = edges.in_order(presence.astype(weights.dtype))
            factors = factors.reshape(graph.num_edges, *[1] * (weights.ndim - 1))
            weights = edges.real(weights) * factors
        return _of_given(request, edges, x, weights)
    dtype = accumulation_dtype(x.dtype, arrays["basis"].dtype, arrays["kernel"].dtype)
    basis, kernel = arrays["basis"].astype(dtype), arrays["kernel"].astype(dtype)
    if "bias" in arrays:
        basis = jnp.concatenate([basis, jnp.ones((basis.shape[0], 1), dtype)], axis=1)
        kernel = jnp.concatenate([kernel, arrays["bias"].astype(dtype)[None]])
    for factor in (arrays.get("envelope"), None if presence is None else edges.in_order(presence)):
        if factor is not None:
            basis = edges.real(basis) * edges.real(factor.astype(dtype))[:, None]
    return _of_made(request, edges, x, basis, kernel)


class _Edges(NamedTuple):
    """The graph, and the entry of arrays of edges that each slot has; None for its own."""

    graph: CSRGraph
    order: Array | None

    def in_order(self, of_slots: Array) -> Array:
        """An array of the slots in the order of the others."""
        if self.order is None:
            return of_slots
        return jnp.zeros_like(of_slots).at[self.order].set(of_slots, unique_indices=True)

    def real(self, of_edges: Array) -> Array:
        """The array with zeros in padding slots, whose gradients are then zero."""
        slots = jnp.arange(self.graph.num_edges, dtype=self.graph.indptr.dtype)
        real = self.in_order(slots < self.graph.indptr[-1])
        real = real.reshape(self.graph.num_edges, *[1] * (of_edges.ndim - 1))
        return jnp.where(real, of_edges, 0)


def _of_given(request: dispatch.Request, edges: _Edges, x: Array, weights: Array) -> Array:
    graph, order = edges
    tail = _tail("weights", x, weights)
    x = jnp.broadcast_to(x, (x.shape[0], *tail))
    if weights.shape[-1] == 1 and tail[-1] != 1:
        numbers = jnp.broadcast_to(weights[..., 0], (weights.shape[0], *tail[:-1]))
        numbers = numbers if order is None else numbers[order]
        return sums_by_rows(request, graph.with_weights(numbers), x)
    if weights.shape[1:] != (1, *tail[1:]):  # filters may repeat over the heads
        weights = jnp.broadcast_to(weights, (weights.shape[0], *tail))
    arrays = _flat(x), _flat(weights)
    if request.name == "xla":
        y = GIVEN(request, graph, order, *arrays)
    else:
        y = kernels.GIVEN_SUM(request, (graph, order), *arrays)
    return y.reshape(graph.num_rows, *tail)


def _of_made(
    request: dispatch.Request, edges: _Edges, x: Array, basis: Array, kernel: Array
) -> Array:
    graph, order = edges
    tail, features = _tail("kernel", x, kernel), basis.shape[1]
    if features > kernels.MOST_FEATURES:
        weights = (basis @ _flat(kernel)).astype(x.dtype)
        return _of_given(request, edges, x, weights.reshape(basis.shape[0], *kernel.shape[1:]))
    x = jnp.broadcast_to(x, (x.shape[0], *tail))
    arrays = _flat(x), basis, _flat(jnp.broadcast_to(kernel, (features, *tail)))
    if request.name == "xla":
        y = MADE(request, graph, order, *arrays)
    else:
        y = kernels.MADE_SUM(request, (graph, order), *arrays)
    return y.reshape(graph.num_rows, *tail)


def _tail(argument: str, x: Array, other: Array) -> tuple[Any, ...]:
    """The axes of heads and channels of the result.

    Raises:
      ValueError: if those of an argument do not broadcast against those of ``x``.
    """
    try:
        return jnp.broadcast_shapes(x.shape[1:], other.shape[1:])
    except ValueError:
        expected = f"of last axes {list(x.shape[1:])}, as x, or ones"
        raise bad_input(_OP, argument, expected, f"last axes {list(other.shape[1:])}") from None


def _flat(array: Array) -> Array:
    """The array with all axes but the first merged."""
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))
