"""Dropout of whole edges and of whole nodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, LocalGraph
from jaxgnn.graph.local.edges import with_edges
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.dropout import training_rngs
from jaxgnn.nn.shared.node_draws import bernoulli_of_rows, bits_of_edges
from jaxgnn.nn.shared.options import checked_options, flag, rate


class DropEdge(DocumentedModule):
    """Drops some edges of a graph in training, others in each call.

    Each edge is kept with probability ``1 - rate``. Kept edges are not scaled up: normalise the
    graph after this layer, as convolutions do for a graph that is not normalised yet. See
    https://arxiv.org/abs/1907.10903.

    The new graph has the same number of edge slots as the old one, with dropped edges at the end,
    so that nothing is compiled again.

    Args:
      rate: probability of dropping an edge.
      undirected: whether both directions of a pair, and all of its repeats, are dropped together.

    Attributes:
      deterministic: None to drop edges when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop none.

    Example:
      >>> graph = CSRGraph.from_edges([0, 1, 1, 2], [1, 0, 2, 1], 3)
      >>> layer = nn.DropEdge(0.5, undirected=True)
      >>> layer(graph, rngs=nnx.Rngs(dropout=2)).degrees().tolist()
      [0, 1, 1]
      >>> layer(graph).degrees().tolist()
      [1, 2, 1]
    """

    @checked_options(rate=rate, undirected=flag)
    def __init__(self, rate: float, *, undirected: bool = False):
        self.rate = rate
        self.undirected = undirected
        self.deterministic: bool | None = None

    def __call__(
        self, graph: CSRGraph, edge_data: PyTree = None, *, rngs: nnx.Rngs | None = None
    ) -> Any:
        """Drops some edges.

        Args:
          graph: a graph that is not normalised.
          edge_data: None, or a pytree of arrays [edges, ...] in the order of the graph's edges.

        Returns:
          The graph; with ``edge_data`` a pair of the graph and the data in its order.

        Raises:
          ValueError: if ``graph`` is not a graph or is normalised, or ``rngs`` lack the stream.
        """
        if not isinstance(graph, CSRGraph):
            raise bad_input("DropEdge", "graph", "a jaxgnn.CSRGraph", type(graph).__name__)
        if graph.is_normalized:
            expected = "not normalised yet, since degrees change"
            raise bad_input("DropEdge", "graph", expected, repr(graph.normalization))
        drawn_from = training_rngs("DropEdge", self.deterministic, self.rate, rngs)
        if drawn_from is None:
            return graph if edge_data is None else (graph, edge_data)
        stays = self._stays(graph, drawn_from.dropout())
        if isinstance(graph, LocalGraph):
            made, order = with_edges(graph, stays)
        else:
            made, order = _with_edges(graph, stays)
        if edge_data is None:
            return made
        return made, jax.tree.map(lambda leaf: jnp.asarray(leaf)[order], edge_data)

    def _stays(self, graph: CSRGraph, key: Array) -> Bool[Array, " edges"]:
        """Mask of the kept edge slots; False for padding."""
        receivers = jnp.asarray(graph.receivers())
        if not self.undirected:
            draws = bits_of_edges("DropEdge", key, graph)
        elif isinstance(graph, LocalGraph):  # by the numbers of the nodes in the whole graph
            senders = graph.sender_table(graph.halo.ids)[jnp.asarray(graph.indices)]
            draws = _of_pairs(senders, graph.row_numbers().at[receivers].get(mode="clip"), key)
        else:
            draws = _of_pairs(jnp.asarray(graph.indices), receivers, key)
        return (receivers < graph.num_rows) & (draws >= _threshold(self.rate))


class DropNode(DocumentedModule):
    """Zeroes all features of some nodes in training, and scales up those of the others.

    ``y_i = z_i x_i / (1 - rate)``, where ``z_i`` is zero with probability ``rate``, otherwise one.
    A dropped node still receives from its neighbours. See https://arxiv.org/abs/2005.11079.

    Args:
      rate: probability of dropping a node.

    Attributes:
      deterministic: None to drop nodes when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop none.

    Example:
      >>> nn.DropNode(0.5)(jnp.ones((4, 2)), rngs=nnx.Rngs(dropout=0)).sum(axis=1).tolist()
      [0.0, 4.0, 4.0, 4.0]
    """

    @checked_options(rate=rate)
    def __init__(self, rate: float):
        self.rate = rate
        self.deterministic: bool | None = None

    def __call__(
        self,
        x: Float[Array, "*batch nodes features"],
        graph: CSRGraph | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes features"]:
        """Zeroes the features of some nodes.

        Args:
          graph: the graph of the nodes, required if it is spread over devices, so that the same
            nodes are dropped on any number of them.

        Raises:
          ValueError: if ``x`` has fewer than two axes, or ``rngs`` lack the stream.
        """
        if x.ndim < 2:
            raise bad_input("DropNode", "x", "of shape [..., nodes, features]", f"shape {x.shape}")
        drawn_from = training_rngs("DropNode", self.deterministic, self.rate, rngs)
        if drawn_from is None:
            return x
        key, shape = drawn_from.dropout(), (*x.shape[:-1], 1)
        kept: Bool[Array, "*batch nodes 1"] = bernoulli_of_rows(
            "DropNode", key, 1 - self.rate, graph, shape, x.ndim - 2
        )
        return jnp.where(kept, x / (1 - self.rate), 0)


def _with_edges(graph: CSRGraph, stays: Bool[Array, " edges"]) -> tuple[CSRGraph, Array]:
    """The graph of the kept edges, and the old slot of each new one."""
    indptr = jnp.asarray(graph.indptr)
    before = jnp.pad(jnp.cumsum(stays, dtype=indptr.dtype), (1, 0))
    slots, total = jnp.arange(stays.shape[0], dtype=indptr.dtype), before[-1]
    # The new slot of each old one: kept edges in their order, and the others after them.
    places = jnp.where(stays, before[:-1], total + slots - before[:-1])
    order = jnp.zeros_like(slots).at[places].set(slots, unique_indices=True)
    made = CSRGraph(
        indptr=before[indptr],
        indices=jnp.where(slots < total, jnp.asarray(graph.indices)[order], 0),
        weights=None if graph.weights is None else jnp.asarray(graph.weights)[order],
        num_cols=graph.num_cols,
        in_range=graph.in_range,
    )
    return made, order


def _threshold(rate: float) -> UInt32[Array, ""]:
    """The bound below which a random number of 32 bits is with probability ``rate``."""
    return jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def _of_pairs(senders: Array, receivers: Array, key: Array) -> UInt32[Array, " edges"]:
    """A random number for each pair of nodes, the same for both directions and all repeats.

    The numbers of the nodes are mixed with two random ones by multiplications and shifts, those of
    MurmurHash3's finalizer, after which each bit depends on all bits.
    """
    seeds = jax.random.bits(key, (2,), jnp.uint32)
    low, high = jnp.minimum(senders, receivers), jnp.maximum(senders, receivers)
    mixed = _mixed(low.astype(jnp.uint32) ^ seeds[0])
    return _mixed(mixed ^ _mixed(high.astype(jnp.uint32) ^ seeds[1]))


def _mixed(bits: UInt32[Array, " edges"]) -> UInt32[Array, " edges"]:
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
