"""Interaction networks and graph network blocks: edges are updated, summed, and kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, GraphBatch
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.graph_ids import check_batch, rows_where, spread_to_nodes, sums
from jaxgnn.nn.shared.layer import Ends, GraphLayer, Nodes, widths_of_ends
from jaxgnn.nn.shared.linear import promoted
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.normed_mlp import NormedMLP, RowNorm, RowNormKind, norm_or_none
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import checked_options, int_at_least, one_of

_checked = checked_options(
    activation=known_activation,
    edge_dim=int_at_least(1),
    norm=norm_or_none,
    reduce=one_of("sum", "mean"),
    summed=one_of("update", "edges"),
)


class _EdgeUpdate(nnx.Module):
    """Parameters of ``ops.interaction``: the MLP of the edges, and its norm.

    Attributes:
      layers: the layers of the MLP; rows of the first kernel are those of the receiver, the sender,
        the edge and the context, in this order.
      norm: the norm of the updates.
    """

    def __init__(
        self, widths: Sequence[int], norm: RowNormKind | None, param_dtype: Any, **options: Any
    ):
        options |= {"param_dtype": param_dtype}
        self.layers = nnx.List(nnx.Linear(*pair, **options) for pair in pairwise(widths))
        self.norm = RowNorm(norm, widths[-1], param_dtype)

    def __call__(
        self,
        graph: CSRGraph,
        h: Ends[Array],
        edges: Array,
        context: Array | None = None,
        **options: Any,
    ) -> tuple[Array, Any]:
        """The new edges and their sums, in the dtype of the nodes."""
        dtype = h.dst.dtype
        _, kernels, biases = promoted(dtype, self.layers)
        scale, offset = self.norm.parameters(dtype)
        return ops.interaction(
            graph,
            h.dst if h.are_one else tuple(h),
            edges,
            ops.EdgeMLPParams(kernels, biases),
            context=context,
            norm=self.norm.kind,
            scale=scale,
            offset=offset,
            **options,
        )


class InteractionNetwork(GraphLayer):
    """Updates the features of all edges, sums them at the receivers, and updates the nodes.

    ``e'_ij = e_ij + norm(mlp([h_i ; h_j ; e_ij]))`` for receiver i and sender j, then
    ``h'_i = h_i + norm(mlp([h_i ; Σ_j (e'_ij - e_ij)]))``. This is the interaction network of
    https://arxiv.org/abs/1612.00222 with the norms and residual connections of learnt simulators
    (https://arxiv.org/abs/2002.09405) and of GraphCast (https://arxiv.org/abs/2212.12794), which
    stack it. ``norm=None, residual=False`` is the original. The edges are one op,
    ``ops.interaction``. A graph with weights or scales is refused.

    Args:
      features: width of the nodes, which it keeps; or a pair of the widths of receivers and of
        senders, of which only the receivers are updated.
      edge_dim: width of the edges, which it keeps.
      mlp_features: widths of the hidden layers of both MLPs, a sequence; None for one layer as wide
        as the receivers.
      norm: norm of both updates: ``"layer"``, ``"rms"`` or None.
      residual: whether to add the updates to the edges and to the nodes.
      summed: ``"update"`` to sum the updates, before they are added to the edges, or ``"edges"`` to
        sum the new edges.
      reduce: ``"sum"`` or ``"mean"`` over the edges of a receiver.
      activation: activation between the layers of both MLPs.

    Example:
      >>> graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3)
      >>> layer = nn.InteractionNetwork(8, 4, mlp_features=[16], rngs=nnx.Rngs(0))
      >>> h, edges = layer(graph, jnp.ones((3, 8)), jnp.ones((3, 4)))
      >>> h.shape, edges.shape
      ((3, 8), (3, 4))
    """

    @_checked
    def __init__(
        self,
        features: int | tuple[int, int],
        edge_dim: int,
        *,
        mlp_features: Sequence[int] | None = None,
        norm: RowNormKind | None = "layer",
        residual: bool = True,
        summed: Literal["update", "edges"] = "update",
        reduce: Literal["sum", "mean"] = "sum",
        activation: ops.Activation | None = "relu",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.in_widths = widths_of_ends(self._name, features)
        dst, src = self.in_widths
        hidden = [dst] if mlp_features is None else list(mlp_features)
        check_widths(self._name, *hidden)
        self.edge_dim = edge_dim
        self.residual, self.activation = residual, activation
        self.summed: Literal["update", "edges"] = summed
        self.reduce: Literal["sum", "mean"] = reduce
        options = self._dtypes | {"norm": norm, "rngs": rngs}
        self.edge_update = _EdgeUpdate([dst + src + edge_dim, *hidden, edge_dim], **options)
        self.node_update = NormedMLP(
            [dst + edge_dim, *hidden, dst],
            activation=activation,
            implementation=self.implementation,
            **options,
        )

    def __call__(
        self, graph: CSRGraph, x: Nodes, edge_features: Float[Array, "*#batch edges dim"]
    ) -> tuple[Float[Array, "*batch rows features"], Float[Array, "*batch edges dim"]]:
        """Returns the new features of the receivers, and those of the edges.

        Args:
          graph: rows are receivers, columns senders.
          x: features of the nodes; a pair ``(x_dst, x_src)`` for bipartite graphs.
        """
        ends = self._ends(graph, x, self.in_widths)
        edge_inputs = self._edge_features(graph, edge_features, self.edge_dim, ends.dst)
        assert edge_inputs is not None
        edges, received = self.edge_update(
            graph,
            ends,
            edge_inputs,
            residual=self.residual,
            summed=self.summed,
            reduce=self.reduce,
            activation=self.activation,
            implementation=self.implementation,
        )
        update = self.node_update(ends.dst, received)
        return (ends.dst + update if self.residual else update), edges


class GraphNetBlock(GraphLayer):
    """Updates edges, then nodes, then a global feature of each graph, each from all others.

    With receiver i, sender j and the graph's global feature u::

        e'_ij = mlp([h_i ; h_j ; e_ij ; u])
        h'_i  = mlp([h_i ; Σ e' of edges that i sends ; Σ e' of edges that i receives ; u])
        u'    = mlp([Σ h' ; Σ e' ; u])    over the nodes and edges of the graph

    This is the full block of https://arxiv.org/abs/1806.01261, with the sums of
    ``jraph.GraphNetwork``. A norm and residual connections are optional. Padding of a batch never
    contributes, and its nodes and graphs become zero. A graph with weights or scales is refused.

    Args:
      features: width of the nodes.
      edge_dim: width of the edges.
      global_features: width of the global feature.
      out_features: new width of nodes, edges and globals alike; None keeps that of each.
      mlp_features: widths of the hidden layers of the three MLPs, a sequence; None for one layer as
        wide as the nodes.
      norm: norm of the three results: ``"layer"``, ``"rms"`` or None.
      residual: whether to add the results to edges, nodes and globals, whose widths are then kept.
        Sums are those of the new edges.
      activation: activation between the layers of the MLPs.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))  # 3 graphs with padding
      >>> block = nn.GraphNetBlock(8, 4, 2, rngs=nnx.Rngs(0))
      >>> h, edges, of_graphs = block(batch, jnp.ones((8, 8)), jnp.ones((4, 4)), jnp.ones((3, 2)))
      >>> h.shape, edges.shape, of_graphs.shape
      ((8, 8), (4, 4), (3, 2))
    """

    @_checked
    def __init__(
        self,
        features: int,
        edge_dim: int,
        global_features: int,
        *,
        out_features: int | None = None,
        mlp_features: Sequence[int] | None = None,
        norm: RowNormKind | None = None,
        residual: bool = False,
        activation: ops.Activation | None = "relu",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        hidden = [features] if mlp_features is None else list(mlp_features)
        check_widths(self._name, features, global_features, *hidden)
        widths = (features, edge_dim, global_features)
        if out_features is not None:
            check_widths(self._name, out_features)
            if residual and widths != (out_features,) * 3:
                expected = "None with residual=True, which keeps the widths"
                raise bad_input(self._name, "out_features", expected, out_features)
        self.in_widths = widths
        self.residual, self.activation = residual, activation
        nodes, edges, of_graphs = (out_features or width for width in widths)
        options = self._dtypes | {"norm": norm, "rngs": rngs}
        inputs = 2 * features + edge_dim + global_features
        self.edge_update = _EdgeUpdate([inputs, *hidden, edges], **options)
        options |= {"activation": activation, "implementation": self.implementation}
        inputs = features + 2 * edges + global_features
        self.node_update = NormedMLP([inputs, *hidden, nodes], **options)
        inputs = nodes + edges + global_features
        self.global_update = NormedMLP([inputs, *hidden, of_graphs], **options)

    def __call__(
        self,
        graph: CSRGraph | GraphBatch,
        x: Float[Array, "*batch nodes features"],
        edge_features: Float[Array, "*#batch edges dim"],
        global_features: Float[Array, "*graphs globals"],
    ) -> tuple[Array, Array, Array]:
        """Returns the new features of nodes, of edges, and of graphs.

        Args:
          graph: square graph, whose rows are receivers, or a batch of graphs.
          x: features of the nodes; leading axes share the graph, unless it is a batch.
          global_features: one row for each graph slot of a batch; for a single graph one row, with
            the leading axes of ``x``.
        """
        features, edge_dim, _ = self.in_widths
        of_graphs = _Batch(self._name, graph, x) if isinstance(graph, GraphBatch) else _Single()
        graph = graph.graph if isinstance(graph, GraphBatch) else graph
        self._check_graph(graph)
        self._check_square(graph, "since all nodes have one update")
        (h,) = self._to_floats(self._checked_ends(graph, x, Ends(features, features)).dst)
        # Products of parameters with padding would make gradients of whatever it contains.
        h = of_graphs.real_nodes(h)
        edge_inputs = self._edge_features(graph, edge_features, edge_dim, h)
        u = self._globals(global_features, of_graphs.shape(h)).astype(h.dtype)
        u = of_graphs.real_graphs(u)
        context = of_graphs.spread(u, h)
        assert edge_inputs is not None
        edges, (received, sent) = self.edge_update(
            graph,
            Ends(h, h),
            edge_inputs,
            context,
            ends="both",
            residual=self.residual,
            summed="edges",
            activation=self.activation,
            implementation=self.implementation,
        )
        update = self.node_update(h, sent, received, context)
        nodes = of_graphs.real_nodes(h + update if self.residual else update)
        # The edges of a graph are those that its nodes receive.
        totals = (of_graphs.total(part).astype(h.dtype) for part in (nodes, received))
        update = self.global_update(*totals, u)
        return nodes, edges, of_graphs.real_graphs(u + update if self.residual else update)

    def _globals(self, global_features: Any, graphs: tuple[int, ...]) -> Array:
        """Checks the features of the graphs."""
        features = as_jax(self._name, "global_features", global_features)
        expected = (*graphs, self.in_widths[2])
        if features.shape != expected:
            shape = f"of shape {list(expected)}, a row for each graph"
            raise bad_input(self._name, "global_features", shape, f"shape {features.shape}")
        return features


class _Single:
    """Sums over the only graph, of nodes [*batch, nodes, width]."""

    def shape(self, h: Array) -> tuple[int, ...]:
        return h.shape[:-2]

    def spread(self, u: Array, h: Array) -> Array:
        return jnp.broadcast_to(u[..., None, :], (*h.shape[:-1], u.shape[-1]))

    def total(self, node_values: Array) -> Array:
        return jnp.sum(node_values, axis=-2)

    def real_nodes(self, h: Array) -> Array:
        return h

    def real_graphs(self, u: Array) -> Array:
        return u


class _Batch:
    """Sums of nodes [nodes, width] over each graph of a batch."""

    def __init__(self, where: str, batch: GraphBatch, x: Any):
        self.batch = check_batch(where, x, batch)
        if x.ndim != 2:
            raise bad_input(where, "x", "of shape [nodes, features]", f"shape {x.shape}")

    def shape(self, h: Array) -> tuple[int, ...]:
        return (self.batch.num_graphs,)

    def spread(self, u: Array, h: Array) -> Array:
        return spread_to_nodes(u, self.batch)

    def total(self, node_values: Array) -> Array:
        return sums(node_values, self.batch)

    def real_nodes(self, h: Array) -> Array:
        return rows_where(jnp.asarray(self.batch.node_mask), h)

    def real_graphs(self, u: Array) -> Array:
        return rows_where(jnp.asarray(self.batch.graph_mask), u)
