"""Networks as users write them without this library's ops: plain JAX, jraph and jraphx.

Examples and benchmarks of ``jaxgnn.fuse`` use them. Each is built for an edge list and a width, and
is then a function of arrays: its features and parameters.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import jraph
from flax import nnx

from jaxgnn import ops
from jaxgnn.graph import CSRGraph

Function = Callable[..., Any]


@dataclass(frozen=True)
class Edges:
    """An edge list: senders and receivers, int32 [edges], and the number of nodes."""

    senders: jax.Array
    receivers: jax.Array
    nodes: int

    def sum(self, messages: Any) -> Any:
        """The sum of the messages that arrive at each node."""
        return jax.ops.segment_sum(messages, self.receivers, self.nodes)

    def softmax(self, logits: Any) -> Any:
        """The softmax over the edges that arrive at each node."""
        return jraph.segment_softmax(logits, self.receivers, self.nodes)

    def tuple(self, x: Any) -> jraph.GraphsTuple:
        """The graph as a ``GraphsTuple`` of jraph."""
        counts = jnp.array([self.nodes]), jnp.array([self.senders.size])
        return jraph.GraphsTuple(x, None, self.receivers, self.senders, None, *counts)

    @cached_property
    def graph(self) -> CSRGraph:
        """The graph as a ``CSRGraph`` of this library."""
        return CSRGraph.from_edges(self.senders, self.receivers, self.nodes)


@dataclass(frozen=True)
class PlainNetwork:
    """A network with its input and parameters.

    Attributes:
      run: the function.
      arrays: features of nodes, and parameters.
      by_hand: the same function, written with this library's ops; None if there is none.
    """

    run: Function
    arrays: tuple[Any, ...]
    by_hand: Function | None = None


@dataclass(frozen=True)
class _Family:
    """A network of any width.

    Attributes:
      build: function of the edges, the features and the parameters.
      shapes: shapes of the parameters, by the width.
      by_hand: the same function as ``build``, written with this library's ops.
    """

    build: Function
    shapes: Callable[[int], Sequence[tuple[int, ...]]]
    by_hand: Function | None = None

    def of(self, edges: Edges, dim: int) -> PlainNetwork:
        shapes = self.shapes(dim)
        keys = jax.random.split(jax.random.key(0), len(shapes) + 1)
        x = jax.random.normal(keys[0], (edges.nodes, dim))
        parameters = [
            jax.random.normal(k, s) / s[0] ** 0.5 for k, s in zip(keys[1:], shapes, strict=True)
        ]
        by_hand = None if self.by_hand is None else partial(self.by_hand, edges)
        return PlainNetwork(partial(self.build, edges), (x, *parameters), by_hand)


# -- jraph -------------------------------------------------------------------------------------


def _convolution(edges: Edges, x: Any, kernel: Any) -> Any:
    layer = jraph.GraphConvolution(lambda x: x @ kernel, add_self_edges=True)
    return layer(edges.tuple(x)).nodes


def _scores(vector: Any) -> Function:
    def logits(sent: Any, received: Any, _: Any) -> Any:
        return jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1) @ vector)

    return logits


def _gat(edges: Edges, x: Any, kernel: Any, vector: Any) -> Any:
    return jraph.GAT(lambda x: x @ kernel, _scores(vector))(edges.tuple(x)).nodes


def _message(first: Any, bias: Any, last: Any) -> Function:
    def of_edges(_: Any, sent: Any, received: Any, *globals_: Any) -> Any:
        columns = jnp.concatenate([received, sent], axis=-1)
        return jax.nn.relu(columns @ first + bias) @ last

    return of_edges


def _interaction(edges: Edges, x: Any, first: Any, bias: Any, last: Any, update: Any) -> Any:
    def of_nodes(nodes: Any, received: Any) -> Any:
        return jnp.concatenate([nodes, received], axis=-1) @ update

    layer = jraph.InteractionNetwork(_message(first, bias, last), of_nodes)
    return layer(edges.tuple(x)._replace(edges=jnp.zeros((edges.senders.size, 1)))).nodes


def _graph_network(edges: Edges, x: Any, first: Any, bias: Any, last: Any, update: Any) -> Any:
    def of_nodes(nodes: Any, sent: Any, received: Any, _: Any) -> Any:
        return jnp.concatenate([nodes, received], axis=-1) @ update

    layer = jraph.GraphNetwork(_message(first, bias, last), of_nodes)
    return layer(edges.tuple(x)._replace(edges=jnp.zeros((edges.senders.size, 1)))).nodes


# -- by hand -----------------------------------------------------------------------------------


def _dot_attention(edges: Edges, x: Any, query: Any, key: Any, value: Any) -> Any:
    sent, received = edges.senders, edges.receivers
    scores = jnp.sum((x @ query)[received] * (x @ key)[sent], axis=-1) / x.shape[1] ** 0.5
    return edges.sum((x @ value)[sent] * edges.softmax(scores)[:, None])


def _gatv2(edges: Edges, x: Any, left: Any, right: Any, vector: Any) -> Any:
    values = x @ left
    both = (x @ right)[edges.receivers] + values[edges.senders]
    scores = jax.nn.leaky_relu(both) @ vector
    return edges.sum(values[edges.senders] * edges.softmax(scores)[:, None])


def _mean(edges: Edges, x: Any, kernel: Any) -> Any:
    return jraph.segment_mean(x[edges.senders], edges.receivers, edges.nodes) @ kernel


def _maximum(edges: Edges, x: Any, kernel: Any) -> Any:
    y = jax.ops.segment_max(x[edges.senders], edges.receivers, edges.nodes)
    return jnp.where(jnp.isfinite(y), y, 0) @ kernel


def _dense(edges: Edges, x: Any, first: Any, bias: Any, last: Any) -> Any:
    return jax.nn.relu(x @ first + bias) @ last


def _chain(edges: Edges, x: Any, *kernels: Any) -> Any:
    for kernel in kernels[:-1]:
        x = jax.nn.relu(x @ kernel)
    return x @ kernels[-1]


def _kept(x: Any) -> int:
    return max(x.shape[1] // 8, 1)


def _maxk(edges: Edges, x: Any, kernel: Any) -> Any:
    x = x @ kernel
    values, columns = jax.lax.top_k(x, _kept(x))
    kept = jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], columns].set(values)
    return edges.sum(kept[edges.senders])


def _maxk_by_hand(edges: Edges, x: Any, kernel: Any) -> Any:
    return ops.maxk_spmm(edges.graph, ops.maxk(x @ kernel, _kept(x)))


def _hypergraph(edges: Edges, x: Any, kernel: Any) -> Any:
    """Hypergraph convolution by two sums; receivers are the hyperedges of the senders."""
    ones = jnp.ones(edges.senders.shape)
    sizes = edges.sum(ones)
    degrees = jax.ops.segment_sum(ones, edges.senders, edges.nodes)
    of_hyperedges = edges.sum((x @ kernel)[edges.senders]) / jnp.maximum(sizes, 1)[:, None]
    back = of_hyperedges[edges.receivers]
    return jax.ops.segment_sum(back, edges.senders, edges.nodes) / jnp.maximum(degrees, 1)[:, None]


_STEPS = 4  # of the Sudoku network


def _sudoku(edges: Edges, x: Any, first: Any, middle: Any, last: Any, update: Any) -> Any:
    """Steps of a recurrent relational network: an MLP of both ends, its sum, a new state."""

    def messages(h: Any) -> Any:
        ends = jnp.concatenate([h[edges.receivers], h[edges.senders]], axis=-1)
        return edges.sum(jax.nn.relu(jax.nn.relu(ends @ first) @ middle) @ last)

    return _recurrent(messages, x, update)


def _sudoku_by_hand(edges: Edges, x: Any, first: Any, middle: Any, last: Any, update: Any) -> Any:
    parameters = ops.EdgeMLPParams([first, middle, last], [None] * 3)

    def messages(h: Any) -> Any:
        return ops.edge_mlp_aggregate(edges.graph, (h, h), parameters, activation="relu")

    return _recurrent(messages, x, update)


def _recurrent(messages: Function, x: Any, update: Any) -> Any:
    h = x
    for _ in range(_STEPS):
        h = jnp.tanh(jnp.concatenate([h, x, messages(h)], axis=-1) @ update)
    return h


# -- jraphx ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Jraphx:
    """A convolution of jraphx, a module of Flax, as a function of its parameters.

    Attributes:
      name: the class.
      options: arguments of the constructor, by the width.
    """

    name: str
    options: Callable[[int], dict[str, Any]] = lambda d: {"in_features": d, "out_features": d}

    def of(self, edges: Edges, dim: int) -> PlainNetwork:
        from jraphx.nn import conv

        module = getattr(conv, self.name)(**self.options(dim), rngs=nnx.Rngs(0))
        definition, parameters, rest = nnx.split(module, nnx.Param, ...)
        leaves, structure = jax.tree.flatten(parameters)
        index = jnp.stack([edges.senders, edges.receivers])

        def run(x: Any, *leaves: Any) -> Any:
            merged = nnx.merge(definition, jax.tree.unflatten(structure, leaves), rest)
            return merged(x, index)

        x = jax.random.normal(jax.random.key(0), (edges.nodes, dim))
        return PlainNetwork(run, (x, *leaves))


def _gin_options(dim: int) -> dict[str, Any]:
    return {"nn": nnx.Linear(dim, dim, rngs=nnx.Rngs(1))}


def _of_messages(d: int) -> list[tuple[int, ...]]:
    return [(2 * d, d), (d,), (d, d), (2 * d, d)]


_FAMILIES: dict[str, _Family | _Jraphx] = {
    "jraph.GraphConvolution": _Family(_convolution, lambda d: [(d, d)]),
    "jraph.GAT": _Family(_gat, lambda d: [(d, d), (2 * d, 1)]),
    "jraph.InteractionNetwork": _Family(_interaction, _of_messages),
    "jraph.GraphNetwork": _Family(_graph_network, _of_messages),
    "mean": _Family(_mean, lambda d: [(d, d)]),
    "maximum": _Family(_maximum, lambda d: [(d, d)]),
    "maxk": _Family(_maxk, lambda d: [(d, d)], _maxk_by_hand),
    "hypergraph": _Family(_hypergraph, lambda d: [(d, d)]),
    "dot": _Family(_dot_attention, lambda d: [(d, d)] * 3),
    "gatv2": _Family(_gatv2, lambda d: [(d, d), (d, d), (d,)]),
    "dense": _Family(_dense, lambda d: [(d, d), (d,), (d, d)]),
    "fifty layers": _Family(_chain, lambda d: [(d, d)] * 50),
    "sudoku": _Family(_sudoku, lambda d: [(2 * d, d), (d, d), (d, d), (3 * d, d)], _sudoku_by_hand),
    "jraphx.GCNConv": _Jraphx("GCNConv"),
    "jraphx.SAGEConv": _Jraphx("SAGEConv"),
    "jraphx.GATConv": _Jraphx("GATConv"),
    "jraphx.GATv2Conv": _Jraphx("GATv2Conv"),
    "jraphx.GINConv": _Jraphx("GINConv", _gin_options),
}

NAMES: tuple[str, ...] = tuple(_FAMILIES)
"""All networks."""


def available() -> tuple[str, ...]:
    """Networks whose packages are installed."""
    has_jraphx = importlib.util.find_spec("jraphx") is not None
    return tuple(name for name in NAMES if has_jraphx or not name.startswith("jraphx."))


def plain_network(name: str, edges: Edges, dim: int) -> PlainNetwork:
    """A network by its name, with random features and parameters.

    Args:
      name: one of ``NAMES``.
      edges: its edge list, a constant of the function.
      dim: the width of the features and of all layers.
    """
    return _FAMILIES[name].of(edges, dim)
