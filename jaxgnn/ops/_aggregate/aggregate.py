"""Reductions over the edges of each row: of messages, and of the neighbours themselves."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import offset_dtype
from jaxgnn._errors import bad_input
from jaxgnn._ffi import aggregate as ffi
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.masked_graph import row_presence
from jaxgnn.graph.csr.require_graph import refuse_weights
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._aggregate import pallas
from jaxgnn.ops._aggregate.reference import aggregate as reference
from jaxgnn.ops._aggregate.segment_order import ORDER as ORDER  # for jaxgnn info
from jaxgnn.ops._aggregate.segment_parts import SEGMENTS as SEGMENTS  # for jaxgnn info
from jaxgnn.ops._graph.reference.masked_reductions import masked_reductions
from jaxgnn.ops._graph.spmm import sums_by_rows
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import check_choice, check_float, from_numpy
from jaxgnn.ops.core.custom_gradient import custom_vjp
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.aggregate import Form, Statistics
from pallas_kernels.arguments.reductions import REDUCTIONS

Aggregation = Literal["sum", "mean", "max", "min", "std", "var", "softmax", "logsumexp"]
"""Ways to reduce the numbers of a column over the edges of a row."""
WEIGHTED = tuple(name for name, reduction in REDUCTIONS.items() if reduction.is_weighted)
"""The reductions of ``neighbour_reduce`` that apply the weights and scales of a graph."""
Ties = Literal["share", "first"]
"""The gradient of several equal maxima or minima: to all in equal shares, or to the first."""


_DTYPES = ("float32", "bfloat16", "float16")


FORWARD, FORWARD_OF_NEIGHBOURS = (
    dispatch.sparse_kernel(
        name, _DTYPES, reference.forward, pallas.forward, ffi.forward, native_limits=ffi.limits
    )
    for name in ("aggregate", "neighbour_reduce")
)
# Each edge has its own gradient: XLA fuses it to one kernel, which reads everything once.
BACKWARD = dispatch.sparse_kernel(
    "aggregate.backward",
    _DTYPES,
    reference.grad_edges,
    reference.grad_edges,
    ffi.grad_edges,
    scatters=False,
    native_limits=ffi.gradient_limits,
)
BACKWARD_OF_NEIGHBOURS = dispatch.sparse_kernel(
    "neighbour_reduce.backward",
    _DTYPES,
    reference.grad_columns,
    pallas.grad_columns,
    ffi.grad_columns,
    native_limits=ffi.gradient_limits,
)


def aggregate(
    graph: CSRGraph,
    messages: Float[Array, "*batch edges *features"],
    reduce: Aggregation | Sequence[Aggregation] = "sum",
    *,
    axis: int = -2,
    temperature: float | Float[Array, ""] = 1.0,
    ties: Ties = "share",
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch rows *features"]:
    """Reduces the messages of the edges that enter each row, column by column.

    ``sum``, ``mean``, ``max``, ``min``; ``var``, the mean squared distance from the mean, and
    ``std``, its root; ``softmax``, the mean weighted by the softmax of the numbers themselves,
    ``Σ_e p_e m_e`` with ``p = softmax(m / T)``; ``logsumexp``, ``T log Σ_e exp(m_e / T)``. Rows
    without edges are zero, whatever the reduction. Padding slots are ignored. A graph with
    weights or scales is refused: messages come as they are to be reduced.

    Several reductions are computed in one pass over the edges, and their results are side by side
    in the last axis, as in the aggregation of Principal Neighbourhood Aggregation
    (https://arxiv.org/abs/2004.05718) and in PyTorch Geometric's ``MultiAggregation``.

    Numbers are accumulated in float32 (float64 for float64 input) and results are rounded once. A
    NaN spreads to the results of its row in its column. Differentiable in ``messages`` and
    ``temperature``, also twice.

    Args:
      graph: rows are receivers.
      messages: one entry for each edge slot along ``axis``, in the graph's edge order.
      reduce: a reduction, or several.
      axis: the axis of the edges. Axes before it share the graph; axes after it are features.
      temperature: T of ``softmax`` and ``logsumexp``, positive. As it falls, ``softmax`` goes from
        the mean to the maximum. If other reductions are requested too and T is not 1, these take a
        second pass.
      ties: gradient of ``max`` and ``min`` if several edges have the extreme: ``"share"`` divides
        it equally, like the gradients of ``jax.ops.segment_max`` and ``jnp.max``; ``"first"`` gives
        it to the first of them in the graph's order.
      implementation: ``"xla"``, ``"ffi"`` on a CPU, ``"pallas"``, or None for the one measured to
        be fastest.

    Returns:
      The messages' dtype and shape, with rows instead of edges. With several
      reductions the last axis is as many times as long: all columns of the first reduction, then
      all of the second, and so on.

    Raises:
      ValueError: if ``messages`` does not have one entry for each edge slot along ``axis``, the
        graph has weights or scales, a reduction is unknown or named twice, several are asked for
        without an axis of features, or ``temperature`` is no positive number.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> messages = jnp.array([[5.0], [1.0], [2.0]])
      >>> ops.aggregate(graph, messages, ("max", "mean")).tolist()
      [[0.0, 0.0], [5.0, 5.0], [2.0, 1.5]]
    """
    options = reduce, axis, temperature, ties, implementation
    return _reduced(_Call.of("aggregate", graph, messages, options))


def neighbour_reduce(
    graph: CSRGraph,
    x: Float[Array, "*batch cols *features"],
    reduce: Aggregation | Sequence[Aggregation] = "sum",
    *,
    axis: int = -2,
    temperature: float | Float[Array, ""] = 1.0,
    ties: Ties = "share",
    implementation: dispatch.Name | None = None,
) -> Float[Array, "*batch rows *features"]:
    """Reduces the features of the neighbours of each row, column by column.

    The same as ``aggregate`` of ``x[graph.senders]``, without the array of all messages: the
    reductions, empty rows, ties, several reductions and gradients are those of ``aggregate``.

    ``sum`` and ``mean`` multiply each neighbour with the weight of its edge and the scales of a
    normalised graph: ``sum`` is ``spmm``, and ``mean`` divides it by the number of edges of
    the row, not by the sum of their weights. They are differentiable in ``graph.weights``. The
    other reductions refuse a graph with weights or scales.

    If requested together, all reductions of a graph without weights and scales read the neighbours
    once; otherwise ``sum`` and ``mean`` each take a pass of their own.

    Args:
      graph: rows are receivers, columns are senders.
      x: features of the senders along ``axis``.
      reduce: a reduction, or several.
      axis: the axis of the senders. Axes before it share the graph; axes after it are features.
      temperature: T of ``softmax`` and ``logsumexp``, as in ``aggregate``.
      ties: gradient of ``max`` and ``min``, as in ``aggregate``.
      implementation: ``"xla"``, ``"ffi"`` on a CPU, ``"pallas"``, or None for the one measured to
        be fastest.

    Returns:
      The dtype and shape of ``x``, with rows instead of senders; several reductions are side by
      side in the last axis, as in ``aggregate``.

    Raises:
      ValueError: if ``x`` does not have one row for each column of the graph along ``axis``, a
        reduction is unknown or named twice, or would not apply the weights or scales that the graph
        has, several are asked for without an axis of features, or ``temperature`` is no positive
        number.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> x = jnp.array([[1.0], [2.0], [4.0]])
      >>> ops.neighbour_reduce(graph, x, ("min", "std")).tolist()
      [[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]]
    """
    options = reduce, axis, temperature, ties, implementation
    return _reduced(_Call.of("neighbour_reduce", graph, x, options))


@dataclass(frozen=True)
class _Call:
    """The checked arguments of one call."""

    graph: CSRGraph
    x: Float[Array, "*batch numbers dim"]  # all features in one axis
    by_edge: bool
    features: tuple[int, ...]  # the axes of the features, as given
    reductions: tuple[Aggregation, ...]
    temperature: Any  # None for 1
    ties: Ties
    request: dispatch.Request
    presence: Float[Array, " edges"] | None = None  # of a masked graph

    @classmethod
    def of(cls, op: str, graph: Any, x: Any, options: tuple[Any, ...]) -> _Call:
        """Checks the arguments of ``"aggregate"`` or ``"neighbour_reduce"``."""
        reduce, axis, temperature, ties, implementation = options
        by_edge = op == "aggregate"
        bare = getattr(graph, "given_weights", None) is None
        opened = open_graph(op, graph, apart=bare and not getattr(graph, "is_normalized", False))
        graph = opened.graph
        if by_edge:
            (x,) = from_numpy(x)
            argument, size, what = "messages", graph.num_edges, "edge slot"
        else:
            (x,) = opened.senders(x, axes=(axis,))
            argument, size, what = "x", graph.num_cols, "column"
        check_float(op, argument, x, 1, may_be_empty=True)
        if not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
            raise bad_input(op, "axis", f"an axis of {argument}, of shape {x.shape}", repr(axis))
        at = axis % x.ndim
        if x.shape[at] != size:
            expected = f"of {size} entries along axis {axis}, one for each {what} of the graph"
            raise bad_input(op, argument, expected, f"shape {x.shape}")
        features = tuple(x.shape[at + 1 :])
        if 0 in features:
            raise bad_input(op, argument, "of at least one feature", f"shape {x.shape}")
        reductions = _reductions(op, reduce, features)
        if by_edge:
            refuse_weights(op, "graph", graph, "multiply the messages by them")
        elif not set(reductions) <= set(WEIGHTED):
            instead = "reduce x[graph.senders] times the weights with ops.aggregate"
            refuse_weights(op, "graph", graph, instead)
        return cls(
            graph=graph,
            x=_reshaped(x, (*x.shape[: at + 1], math.prod(features))),
            by_edge=by_edge,
            features=features,
            reductions=reductions,
            temperature=_temperature(op, temperature),
            ties=_ties(op, ties, graph),
            request=dispatch.resolve(op, implementation),
            presence=opened.presence,
        )

    def shaped(self, parts: list[Array], each: int) -> Array:
        """The result, from parts [*batch, rows, each * dim] of ``each`` reductions side by side."""
        *batch, rows = parts[0].shape[:-1]
        if not self.features:
            return parts[0].reshape(*batch, rows)
        *outer, last = self.features
        count = each * len(parts)
        if count == 1:
            return _reshaped(parts[0], (*batch, rows, *self.features))
        parts = [part.reshape(*batch, rows, each, *outer, last) for part in parts]
        y = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=len(batch) + 1)
        if outer:
            y = jnp.moveaxis(y, len(batch) + 1, -2)
        return y.reshape(*batch, rows, *outer, count * last)


def _reshaped(x: Array, shape: tuple[Any, ...]) -> Array:
    """Returns ``x`` in this shape, without an operation if it has it."""
    return x if x.shape == shape else x.reshape(shape)


def _reductions(op: str, reduce: Any, features: tuple[int, ...]) -> tuple[Aggregation, ...]:
    names = (reduce,) if isinstance(reduce, str) else reduce
    known = ", ".join(get_args(Aggregation))
    if not isinstance(names, Sequence) or not names:
        raise bad_input(op, "reduce", f"one of {known}, or a sequence of them", repr(reduce))
    for name in names:
        if not isinstance(name, str) or name not in get_args(Aggregation):
            raise bad_input(op, "reduce", f"among {known}", repr(name))
    if len(set(names)) != len(names):
        raise bad_input(op, "reduce", "of different reductions", repr(reduce))
    if len(names) > 1 and not features:
        expected = "one reduction for an array without an axis of features"
        raise bad_input(op, "reduce", expected, repr(reduce))
    return cast(tuple[Aggregation, ...], tuple(names))


def _ties(op: str, ties: Any, graph: CSRGraph) -> Ties:
    check_choice(op, "ties", ties, *get_args(Ties))
    if ties == "first" and offset_dtype(graph.num_edges) is np.int64:
        expected = "'share' for a graph of more than 2^31 - 1 edge slots"
        raise bad_input(op, "ties", expected, repr(ties))
    return ties


def _temperature(op: str, temperature: Any) -> Any:
    if isinstance(temperature, bool) or not hasattr(temperature, "dtype"):
        is_real = isinstance(temperature, numbers.Real) and not isinstance(temperature, bool)
        if not is_real or not 0 < float(temperature) < math.inf:
            raise bad_input(op, "temperature", "positive and finite", repr(temperature))
        return None if temperature == 1 else float(temperature)
    if temperature.shape != () or not jnp.issubdtype(temperature.dtype, jnp.floating):
        got = f"{temperature.dtype}{list(temperature.shape)}"
        raise bad_input(op, "temperature", "a positive number or a scalar array", got)
    return temperature


def _reduced(call: _Call) -> Array:
    """The results of all reductions, in the shape of the op's result."""
    results: dict[Aggregation, Array] = {}
    rest = list(call.reductions)
    if call.temperature is not None:
        results |= _soft(call, [name for name in rest if REDUCTIONS[name].has_temperature])
        rest = [name for name in rest if not REDUCTIONS[name].has_temperature]
    if not call.by_edge and _sums_by_themselves(call, rest):
        for name in rest:
            if name in WEIGHTED:
                results[name] = _linear(call, name)
        rest = [name for name in rest if name not in WEIGHTED]
    if not results:
        return call.shaped([_in_one_pass(call, call.x, rest)], len(rest))
    results |= _apart(call, call.x, rest)
    return call.shaped([results[name] for name in call.reductions], 1)


def _sums_by_themselves(call: _Call, names: Sequence[Aggregation]) -> bool:
    """Whether sums are those of ``spmm``: they have factors, or only one is requested.

    ``spmm`` has no kernels for float16.
    """
    graph = call.graph
    if call.presence is not None and graph.weights is None:
        return False
    has_factors = any(a is not None for a in (graph.weights, graph.row_scale, graph.col_scale))
    is_alone = len(names) == 1 and names[0] in WEIGHTED
    return has_factors or (is_alone and call.x.dtype != jnp.float16)


def _linear(call: _Call, name: str) -> Array:
    """The sum or the mean of weighted neighbours."""
    graph = call.graph
    if name == "mean":
        wide = accumulation_dtype(call.x.dtype)
        each = 1 / jnp.maximum(jnp.diff(graph.indptr).astype(wide), 1)
        if call.presence is not None:
            presence = call.presence.astype(wide)
            count = sum_rows(presence, graph.indptr)
            each = row_presence(graph.indptr, presence, None) / jnp.where(count > 0, count, 1)
        scale = each if graph.row_scale is None else each * graph.row_scale
        graph = graph._with_fields(row_scale=scale)
    return sums_by_rows(call.request, graph, call.x)


def _soft(call: _Call, names: Sequence[Aggregation]) -> dict[Aggregation, Array]:
    """Reductions of ``x / T``, times T."""
    wide = accumulation_dtype(call.x.dtype)
    temperature = jnp.asarray(call.temperature, wide)
    results = _apart(call, call.x.astype(wide) / temperature, names)
    return {name: (y * temperature).astype(call.x.dtype) for name, y in results.items()}


def _apart(call: _Call, x: Array, names: Sequence[Aggregation]) -> dict[Aggregation, Array]:
    """Each of these reductions, computed in one pass."""
    if not names:
        return {}
    y = _in_one_pass(call, x, names)
    return dict(zip(names, jnp.split(y, len(names), axis=-1), strict=True))


def _in_one_pass(call: _Call, x: Array, names: Sequence[Aggregation]) -> Array:
    """All these reductions, side by side."""
    if call.presence is not None:
        return _masked(call, call.presence, x, names)
    form = Form(tuple(names), call.by_edge, call.ties)

    def run(structure, x):
        if call.request.name == "xla":
            return _run(call.request, form, structure, x, keep=False)[0]
        return _aggregate(call.request, form, False, structure, x)[0]

    return dispatch.over_leading_axes(run, x.ndim - 2, call.graph, x)


def _masked(call: _Call, presence: Array, x: Array, names: Sequence[Aggregation]) -> Array:
    """These reductions of edges that are present to a degree."""

    def run(graph, x):
        messages = x if call.by_edge else x[graph.indices]
        return masked_reductions(graph, presence, messages, names)

    return dispatch.over_leading_axes(run, x.ndim - 2, call.graph, x)


# The structure is a graph without weights and scales.


def _run(request, form, structure, x, *, keep):
    kernel = FORWARD if form.by_edge else FORWARD_OF_NEIGHBOURS
    return kernel(request, structure, x, form=form, keep=keep)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _aggregate(request, form, keep, structure, x):
    """The result, and with ``keep`` the statistics for its gradient, which have no gradient."""
    return _run(request, form, structure, x, keep=keep)


def _aggregate_forward(request, form, keep, structure, x):
    y, statistics = _aggregate(request, form, True, structure, x)
    return (y, statistics if keep else Statistics()), (structure, x, y, statistics)


def _aggregate_backward(request, form, keep, residuals, gradients):
    return None, _gradient(request, form, *residuals, gradients[0])


_aggregate.defvjp(_aggregate_forward, _aggregate_backward)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _gradient(request, form, structure, x, y, statistics, dy):
    terms = reference.terms_of(form, structure, y, statistics, dy)
    kernel = BACKWARD if form.by_edge else BACKWARD_OF_NEIGHBOURS
    return kernel(request, structure, x, terms).astype(x.dtype)


def _gradient_forward(request, form, structure, x, y, statistics, dy):
    return _gradient(request, form, structure, x, y, statistics, dy), (structure, x, dy)


def _gradient_backward(request, form, residuals, slope):
    """Second derivatives, by JAX and the plain formula, since they are rare.

    ``y`` and the statistics are functions of ``x``. The gradient of the reference is the same
    function with these computed from ``x``, so its derivative is complete.
    """
    structure, x, dy = residuals

    def plain(x, dy):
        _, pull_back = jax.vjp(
            lambda x: reference.forward(structure, x, form=form, keep=False)[0], x
        )
        return pull_back(dy)[0]

    _, pull_back = jax.vjp(plain, x, dy)
    dx, ddy = pull_back(slope)
    return None, dx, None, None, ddy


_gradient.defvjp(_gradient_forward, _gradient_backward)
