"""Adapters of a user's functions of messages and updates to the interfaces of steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._arrays.arrays import shown_sides
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.edge_list import way_to_edge_slots
from jaxgnn.graph.csr.require_graph import refuse_weights, require_graph
from jaxgnn.nn.messages.node_updates import PlainUpdate
from jaxgnn.ops.shared import at_ends

_WHERE = "MessagePassing"


def plain_function(value: Any) -> str | None:
    """Checks for a function without hidden modules, or a module, whose parameters are known."""
    if inspect.ismethod(value) and isinstance(value.__self__, nnx.Module):
        return "a function or a module: a method of one would hide its parameters"
    if any(isinstance(held, nnx.Module) for held in _closed_over(value)):
        return (
            "a function or a module: a function that reads a module from around it would hide its "
            "parameters, so make it the __call__ of a module that has the other one as an attribute"
        )
    return None if callable(value) else "a function or a module"


def takes_graph(messages: Any) -> bool:
    """Returns whether messages are called as an ``EdgeMLP``, with the graph and node features."""
    with suppress(ValueError):  # a builtin has no signature
        try:
            inspect.signature(messages).bind(None, None, None, weights=None, rngs=None)
        except TypeError:
            return False
    return True


def _closed_over(function: Any) -> list[Any]:
    """Lists the values that a function captures from enclosing functions, if they are set."""
    cells = getattr(function, "__closure__", None) or ()
    values = []
    for cell in cells:
        with suppress(ValueError):  # a cell may still be empty
            values.append(cell.cell_contents)
    return values


class FunctionMessages(nnx.Module):
    """Messages ``reduce_j function(x_i, x_j, e_ij)`` with the interface of an ``EdgeMLP``.

    The function is called with arrays [*batch, edges, ...], the last of which is None without
    features of edges, and ``rngs`` if there are any.
    """

    def __init__(
        self,
        function: Callable[..., Array],
        reduce: ops.Aggregation | Sequence[ops.Aggregation],
    ):
        self.function = function
        self.reduce: Any = reduce if isinstance(reduce, str) else tuple(reduce)

    def __call__(
        self,
        graph: CSRGraph,
        h: Any,
        edge_features: Float[Array, "*#batch edges e"] | None = None,
        *,
        weights: Any = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch rows m"]:
        """Returns the reduced messages of each row."""
        if weights is not None:
            expected = "None with a function of each edge, which may read them from edge_features"
            raise bad_input(_WHERE, "weights", expected, f"shape {jnp.shape(weights)}")
        dst, src = _checked_ends(graph, h)
        of_dst, of_src = at_ends("receivers", graph, dst), at_ends("senders", graph, src)
        edges = _checked_edges(graph, edge_features, dst.shape[:-2])
        messages = self.function(of_dst, of_src, edges, **_options(rngs))
        expected = *dst.shape[:-2], graph.num_edges
        if not hasattr(messages, "ndim") or messages.ndim < 2 or messages.shape[:-1] != expected:
            wanted = f"a function of messages [{', '.join(map(str, expected))}, features]"
            raise bad_input(_WHERE, "messages", wanted, _shape(messages))
        return ops.aggregate(graph, messages, self.reduce)


class FunctionUpdate(PlainUpdate):
    """The update ``x' = function(x, aggregated)``, or with ``inputs`` if the call has some."""

    def __init__(self, function: Callable[..., Array]):
        self.function = function

    def __call__(
        self,
        state: Any,
        messages: Float[Array, "*batch nodes m"],
        inputs: Float[Array, "*batch nodes x"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes d"]:
        """Returns the features after a step, in the dtype of those before it."""
        x = state[0] if isinstance(state, tuple | list) else state
        arguments = (x, messages) if inputs is None else (x, messages, inputs)
        new = self.function(*arguments, **_options(rngs))
        if not hasattr(new, "ndim") or new.ndim < 2 or new.shape[:-1] != x.shape[:-1]:
            rows = ", ".join(map(str, x.shape[:-1]))
            expected = f"a function of the features of nodes [{rows}, features]"
            raise bad_input(_WHERE, "update", expected, _shape(new))
        return new.astype(x.dtype)


def _options(rngs: nnx.Rngs | None) -> dict[str, nnx.Rngs]:
    return {} if rngs is None else {"rngs": rngs}


def _shape(result: Any) -> str:
    is_array = hasattr(result, "shape")
    return (
        f"one of shape {result.shape}" if is_array else f"one that returns {type(result).__name__}"
    )


def _checked_ends(graph: Any, h: Any) -> tuple[Array, Array]:
    """Returns the checked features of receivers and senders."""
    require_graph(_WHERE, "graph", graph)
    instead = "pass weights as edge_features, which the function of messages reads"
    refuse_weights(_WHERE, "graph", graph, instead)
    is_pair = isinstance(h, tuple | list)
    if is_pair and len(h) != 2:
        raise bad_input(_WHERE, "h", "an array, or a pair (x_dst, x_src)", f"{len(h)} of them")
    if not is_pair and not graph.is_square:
        expected = "square, or h a pair (x_dst, x_src)"
        raise bad_input(_WHERE, "graph", expected, shown_sides(graph))
    ends = tuple(h) if is_pair else (h, h)
    for x, count in zip(ends, graph.shape, strict=True):
        if getattr(x, "ndim", 0) < 2 or x.shape[-2] != count:
            expected = f"of shape [..., {count}, features]"
            raise bad_input(_WHERE, "h", expected, f"shape {jnp.shape(x)}")
    if ends[0].shape[:-2] != ends[1].shape[:-2]:
        expected = f"of leading axes {ends[0].shape[:-2]} at both ends"
        raise bad_input(_WHERE, "h", expected, f"shape {ends[1].shape}")
    return ends


def _checked_edges(graph: CSRGraph, features: Any, batch: tuple[int, ...]) -> Array | None:
    """The features of edges with the nodes' leading axes; padding has those of the last edge."""
    if features is None:
        return None
    fits = getattr(features, "ndim", 0) >= 2 and features.shape[-2] == graph.num_edges
    if not fits or features.shape[:-2] not in ((), batch):
        expected = f"of shape [{graph.num_edges}, features], one row for each edge slot"
        got = (
            f"shape {jnp.shape(features)}{way_to_edge_slots(graph.num_edges, jnp.shape(features))}"
        )
        raise bad_input(_WHERE, "edge_features", expected, got)
    features = jnp.asarray(features)
    if graph.num_edges > 0:
        count = graph.indptr[-1]
        last = features[..., jnp.maximum(count - 1, 0), :][..., None, :]
        is_real = (graph.receivers() < graph.num_rows)[:, None]
        features = jnp.where(is_real, features, jnp.where(count > 0, last, 0))
    return jnp.broadcast_to(features, (*batch, *features.shape[-2:]))
