"""The checked arguments of a reduction over edges, and the shape of its result."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import offset_dtype
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.require_graph import refuse_weights
from jaxgnn.graph.local.local_graph import with_senders
from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.checks import check_choice, check_float, check_graph, from_numpy

Aggregation = Literal["sum", "mean", "max", "min", "std", "var", "softmax", "logsumexp"]
"""Ways to reduce the numbers of a column over the edges of a row."""
WEIGHTED: tuple[Aggregation, ...] = ("sum", "mean")
"""The reductions of ``neighbour_reduce`` that apply the weights and scales of a graph."""
Ties = Literal["share", "first"]
"""The gradient of several equal maxima or minima: to all in equal shares, or to the first."""


class Options(NamedTuple):
    """The unchecked options of a call; ``ops.aggregate`` describes them."""

    reduce: Any
    axis: Any
    temperature: Any
    ties: Any
    implementation: Any


@dataclass(frozen=True)
class Call:
    """The checked arguments of one call.

    Attributes:
      graph: checked graph.
      x: numbers of edges or of senders, [*batch, numbers, all features in one axis].
      by_edge: whether they are those of edges.
      features: the axes of the features, as given.
      reductions: the reductions.
      temperature: the temperature, None for 1.
      ties: gradient of several equal extremes.
      request: the implementation.
    """

    graph: CSRGraph
    x: Float[Array, "*batch numbers dim"]
    by_edge: bool
    features: tuple[int, ...]
    reductions: tuple[Aggregation, ...]
    temperature: Any
    ties: Ties
    request: dispatch.Request

    @classmethod
    def of(cls, op: str, graph: Any, x: Any, options: Options) -> Call:
        """Checks the arguments of ``"aggregate"`` or ``"neighbour_reduce"``."""
        by_edge = op == "aggregate"
        if by_edge:
            (graph,) = with_senders(graph)
        else:
            graph, x = with_senders(graph, x, axes=(options.axis,))
        graph = check_graph(op, graph)
        argument, size, what = (
            ("messages", graph.num_edges, "edge slot")
            if by_edge
            else ("x", graph.num_cols, "column")
        )
        (x,) = from_numpy(x)
        check_float(op, argument, x, 1, may_be_empty=True)
        axis = options.axis
        if not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
            raise bad_input(op, "axis", f"an axis of {argument}, of shape {x.shape}", repr(axis))
        at = axis % x.ndim
        if x.shape[at] != size:
            expected = f"of {size} entries along axis {axis}, one for each {what} of the graph"
            raise bad_input(op, argument, expected, f"shape {x.shape}")
        features = tuple(x.shape[at + 1 :])
        if 0 in features:
            raise bad_input(op, argument, "of at least one feature", f"shape {x.shape}")
        reductions = _reductions(op, options.reduce, features)
        if by_edge:
            refuse_weights(op, "graph", graph, "multiply the messages by them")
        elif not set(reductions) <= set(WEIGHTED):
            instead = "reduce x[graph.senders] times the weights with ops.aggregate"
            refuse_weights(op, "graph", graph, instead)
        return cls(
            graph=graph,
            x=x.reshape(*x.shape[: at + 1], math.prod(features)),
            by_edge=by_edge,
            features=features,
            reductions=reductions,
            temperature=_temperature(op, options.temperature),
            ties=_ties(op, options.ties, graph),
            request=dispatch.resolve(op, options.implementation),
        )

    def shaped(self, parts: list[Array], each: int) -> Array:
        """The result, from parts that have ``each`` reductions side by side.

        Args:
          parts: arrays [*batch, rows, each * dim].
          each: how many reductions every part has.
        """
        *batch, rows = parts[0].shape[:-1]
        if not self.features:
            return parts[0].reshape(*batch, rows)
        *outer, last = self.features
        parts = [part.reshape(*batch, rows, each, *outer, last) for part in parts]
        y = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=len(batch) + 1)
        count = each * len(parts)
        if outer and count > 1:
            y = jnp.moveaxis(y, len(batch) + 1, -2)
        return y.reshape(*batch, rows, *outer, count * last)


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
