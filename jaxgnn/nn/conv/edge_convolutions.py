"""Convolutions that compute a message for each edge: GINEConv, EdgeConv and ResGatedGraphConv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import Ends, GraphLayer, Nodes, widths_of_ends
from jaxgnn.nn.shared.linear import FusedLinear, FusedMLP, promoted
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, flag, function, int_at_least, one_of, or_none

_checked = checked_options(edge_dim=or_none(int_at_least(1)), root_weight=flag)


class GINEConv(GraphLayer):
    """Isomorphism convolution: ``y_i = mlp((1 + ε) x_i + Σ_j relu(x_j + W_e e_ij + b))``.

    See https://arxiv.org/abs/1905.12265. ε is learnt, from zero. Without ``edge_dim`` the features
    of edges are as wide as those of nodes, and are added as they are. It computes what PyTorch
    Geometric's ``GINEConv`` does. A graph with weights or scales is refused.

    Args:
      in_features: width of the features of nodes, of both ends.
      edge_dim: width of the features of edges; None if it is ``in_features``, without W_e
        and b.
      mlp: module applied to the sum; None returns the sum itself.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 0], num_nodes=2)
      >>> rngs = nnx.Rngs(0)
      >>> mlp = nn.FusedMLP([8, 16, 4], activation="relu", rngs=rngs)
      >>> layer = nn.GINEConv(8, edge_dim=3, mlp=mlp, rngs=rngs)
      >>> layer(graph, jnp.ones((2, 8)), jnp.ones((2, 3))).shape
      (2, 4)
    """

    @_checked
    def __init__(
        self,
        in_features: int,
        *,
        edge_dim: int | None = None,
        mlp: Callable[[Array], Array] | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths(type(self).__name__, in_features)
        super().__init__(**common)
        self.in_features = in_features
        self.edge_dim = in_features if edge_dim is None else edge_dim
        linear = None if edge_dim is None else self._linear(edge_dim, in_features, rngs=rngs)
        self.edge_linear = linear
        self.epsilon = nnx.Param(jnp.zeros((), self.param_dtype))
        self.mlp = mlp

    def __call__(
        self,
        graph: CSRGraph,
        x: Nodes,
        edge_features: Float[Array, "*#batch edges edge_dim"],
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          graph: rows are receivers, columns are senders.
        """
        ends = self._ends(graph, x, Ends(self.in_features, self.in_features))
        edges: Any = self._edge_features(graph, edge_features, self.edge_dim, ends.dst)
        if self.edge_linear is not None:
            edges = self._apply(self.edge_linear, edges)
        messages = jax.nn.relu(self._gather_senders(graph, ends.src) + edges)
        total = (1 + self.epsilon[...].astype(ends.dst.dtype)) * ends.dst
        total = total + self._aggregate_edges(graph, messages, "sum")
        return total if self.mlp is None else self._apply_mlp(self.mlp, total)


class EdgeConv(GraphLayer):
    """Dynamic edge convolution: ``y_i = max_j mlp([x_i ; x_j - x_i])``.

    See https://arxiv.org/abs/1801.07829. It computes what PyTorch Geometric's ``EdgeConv`` does,
    and its ``DynamicEdgeConv`` on the graph of ``jaxgnn.graph.knn_graph_on_device``. A graph with
    weights or scales is refused.

    An ``nn.FusedMLP``, and an ``nn.FusedLinear`` without activation, is not evaluated on all edges
    if the reduction is a sum, mean or maximum. With the rows ``W = [A ; B]`` of its first kernel,
    ``[x_i ; x_j - x_i] W = x_i (A - B) + x_j B``, so that this layer is one product a node, and
    ``ops.edge_mlp_aggregate`` computes the rest without an array of all edges. In half precision
    the two products are rounded before they are added. Any other function is evaluated edge by
    edge.

    Args:
      mlp: module or function of ``[x_i ; x_j - x_i]``, [..., edges, 2 · in], evaluated on the last
        axis.
      reduce: reduction of the messages, one of those of ``ops.aggregate``.
      dtype: dtype of the features passed to ``mlp``; None for that of ``x``.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> mlp = nn.FusedMLP([16, 32, 4], activation="relu", rngs=nnx.Rngs(0))
      >>> nn.EdgeConv(mlp)(graph, jnp.ones((3, 8))).shape
      (3, 4)
    """

    @checked_options(mlp=function, reduce=one_of(*get_args(ops.Aggregation)))
    def __init__(
        self,
        mlp: Callable[[Array], Array],
        *,
        reduce: ops.Aggregation = "max",
        implementation: ops.Name | None = None,
        dtype: DTypeLike | None = None,
    ):
        super().__init__(implementation=implementation, dtype=dtype)
        self.mlp = mlp
        self.reduce: ops.Aggregation = reduce

    def __call__(self, graph: CSRGraph, x: Nodes) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          x: features of the nodes of a square graph, whose leading axes share the graph; or a pair
            ``(x_dst, x_src)`` of the receivers' and the senders' features, of one width.
        """
        ends = self._ends(graph, x, None)
        width = ends.dst.shape[-1]
        self._check_nodes("x[1]", ends.src, graph.num_cols, width, "senders")
        if self._is_fusible():
            return self._fused_reduction(graph, ends, width)
        receivers = self._gather_receivers(graph, ends.dst)
        differences = self._gather_senders(graph, ends.src) - receivers
        messages = self._apply_mlp(self.mlp, jnp.concatenate([receivers, differences], axis=-1))
        return self._aggregate_edges(graph, messages, self.reduce)

    def _is_fusible(self) -> bool:
        """Returns whether ``ops.edge_mlp_aggregate`` supports the MLP; it has no C++ kernels."""
        mlp = self.mlp
        is_mlp = type(mlp) is FusedMLP
        is_linear = type(mlp) is FusedLinear and mlp.activation is None
        return (
            (is_mlp or is_linear)
            and getattr(mlp, "precision", None) is None
            and self.reduce in get_args(ops.Reduce)
            and ops.requested_implementation(self.implementation) != "ffi"
        )

    def _fused_reduction(self, graph: CSRGraph, ends: Ends[Array], width: int) -> Array:
        """Evaluates the MLP by ``ops.edge_mlp_aggregate``: the first layer is applied to nodes."""
        mlp: Any = self.mlp
        reduce: Any = self.reduce
        layers = mlp.layers if isinstance(mlp, FusedMLP) else [mlp]
        (dst, src), (first, *kernels), biases = promoted(mlp.dtype, layers, *ends)
        if first.shape[0] != 2 * width:
            self._check_nodes("x", ends.dst, graph.num_rows, first.shape[0] // 2, "receivers")
        of_receivers, of_differences = first[:width], first[width:]
        first = jnp.concatenate([of_receivers - of_differences, of_differences])
        return ops.edge_mlp_aggregate(
            graph,
            (dst, src),
            ops.EdgeMLPParams([first, *kernels], biases),
            reduce=reduce,
            activation=mlp.activation,
            implementation=self.implementation,
        )


class ResGatedGraphConv(GraphLayer):
    """Gated convolution: ``y_i = W_root x_i + b + Σ_j σ(k_i + q_j + g_ij) ⊙ (v_j + u_ij)``.

    Keys, queries and values are linear maps of the features of nodes with biases of their own,
    ``k = W_k x + b_k``, and so on. ``g = W_g e`` and ``u = W_u e`` are linear maps of the features
    of edges. See https://arxiv.org/abs/1711.07553. It computes what PyTorch Geometric's
    ``ResGatedGraphConv`` does, where the gate of an edge has two matrices that are only used as
    their sum. A graph with weights or scales is refused.

    Args:
      in_features: width of the input, or a pair of the widths of receivers and of senders.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> nn.ResGatedGraphConv(8, 4, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 8))).shape
      (3, 4)
    """

    @_checked
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        edge_dim: int | None = None,
        root_weight: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.in_widths: Ends[int] = widths_of_ends(self._name, in_features)
        check_widths(self._name, out_features)
        self.edge_dim = edge_dim

        of = self.in_widths
        self.key_linear = self._linear(of.dst, out_features, rngs=rngs)
        self.query_linear = self._linear(of.src, out_features, rngs=rngs)
        self.value_linear = self._linear(of.src, out_features, rngs=rngs)
        plain: dict[str, Any] = {"use_bias": False, "rngs": rngs}

        def plain_linear(width: int | None) -> FusedLinear | None:
            return None if width is None else self._linear(width, out_features, **plain)

        self.edge_gate_linear = plain_linear(edge_dim)
        self.edge_value_linear = plain_linear(edge_dim)
        self.root_linear = plain_linear(of.dst if root_weight else None)
        self.bias = self._zeros(out_features, use_bias)

    def __call__(
        self,
        graph: CSRGraph,
        x: Nodes,
        edge_features: Float[Array, "*#batch edges edge_dim"] | None = None,
    ) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          graph: rows are receivers, columns are senders.
        """
        ends = self._ends(graph, x, self.in_widths)
        edges = self._edge_features(graph, edge_features, self.edge_dim, ends.dst)
        linears = self.query_linear, self.value_linear
        of_senders = jnp.concatenate([self._apply(linear, ends.src) for linear in linears], axis=-1)
        queries, values = jnp.split(self._gather_senders(graph, of_senders), 2, axis=-1)
        gates = self._gather_receivers(graph, self._apply(self.key_linear, ends.dst)) + queries
        if self.edge_gate_linear is not None and self.edge_value_linear is not None:
            gates = gates + self._apply(self.edge_gate_linear, edges)
            values = values + self._apply(self.edge_value_linear, edges)
        y = self._aggregate_edges(graph, jax.nn.sigmoid(gates) * values, "sum")
        if self.root_linear is not None:
            y = y + self._apply(self.root_linear, ends.dst)
        return self._biased(y)
