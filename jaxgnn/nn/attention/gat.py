"""Graph attention networks: GAT and GATv2."""

from __future__ import annotations

import functools
from typing import Any, Unpack

from flax import nnx
from jaxtyping import Array

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, FillValue
from jaxgnn.nn.attention.attention_layer import AttentionLayer, EdgeOptions, Heads, checked
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import Ends
from jaxgnn.nn.shared.linear import FusedLinear
from jaxgnn.ops._core.dtypes import accumulation_dtype


class _GraphAttention(AttentionLayer):
    """Shared part of GAT and GATv2: the result from the attended sums."""

    residual_linear: FusedLinear | None
    bias: nnx.Param | None

    def _result(self, y: Array, ends: Ends[Array]) -> Array:
        y = self._joined(y)
        if self.residual_linear is not None:
            y = y + self._apply(self.residual_linear, ends.dst)
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)


class GATConv(_GraphAttention):
    """Graph attention: ``y_i = Σ_j p_ij W x_j + b``, ``p_i = softmax_j(leaky_relu(s_ij))``.

    ``s_ij = ⟨a_dst, W x_i⟩ + ⟨a_src, W x_j⟩ + ⟨a_edge, W_e e_ij⟩`` for each head, without the last
    term if edges have no features. See https://arxiv.org/abs/1710.10903. It computes what PyTorch
    Geometric's ``GATConv`` does with the same weights. A graph with weights or scales is refused.

    By default existing self loops are removed, and each node gets one. For a concrete graph this is
    done once. For a graph that is an argument of a jitted function it is done in every call:
    prepare it outside with ``jaxgnn.graph.with_one_loop_each``, and set ``add_self_loops=False``.

    Args:
      in_features: width of the input; or a pair of the widths of receivers and of senders, which
        then have separate matrices W.
      out_features: width of the output of each head.
      dropout: probability of dropping an edge for a head in training, after the softmax.
      add_self_loops: whether each node gets one self loop instead of those that it has. In a
        bipartite graph node ``i`` of the receivers and of the senders count as one; where they are
        nodes of different kinds, it should be False.
      fill_value: features of self loops: ``"mean"``, ``"add"``, ``"min"``, ``"max"`` or ``"mul"``
        of those of the edges that enter the node; a number; or one number for each feature.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.GATConv(8, 4, heads=2, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 8))).shape
      (3, 8)
      >>> cited = CSRGraph.from_edges([0, 4], [1, 0], num_nodes=2, num_senders=5)
      >>> layer = nn.GATConv((8, 6), 4, add_self_loops=False, rngs=nnx.Rngs(0))
      >>> layer(cited, (jnp.ones((2, 8)), jnp.ones((5, 6)))).shape
      (2, 4)
    """

    @checked
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: FillValue = "mean",
        residual: bool = False,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(
            in_features,
            Heads(heads, out_features, concat),
            EdgeOptions(add_self_loops, edge_dim, fill_value),
            dropout=dropout,
            **common,
        )
        dst, src = (
            functools.partial(self._glorot_linear, width, self.heads.width, rngs=rngs)
            for width in self.in_widths
        )
        self.negative_slope = negative_slope
        self.src_linear = src()
        self.dst_linear = dst() if isinstance(in_features, tuple | list) else None
        self.src_attention, self.dst_attention = self._vectors(rngs), self._vectors(rngs)
        self.edge_linear = self._edge_linear(rngs)
        self.edge_attention = None if edge_dim is None else self._vectors(rngs)
        self.residual_linear = self._residual_linear(residual, rngs)
        self.bias = self._bias(use_bias)

    def _attend(
        self, graph: CSRGraph, ends: Ends[Array], edge_features: Array | None, options: Any
    ) -> Any:
        logits = None
        if edge_features is not None:
            assert self.edge_linear is not None and self.edge_attention is not None
            logits = self._scores(self.edge_linear, self.edge_attention, edge_features)
        dst_linear = self.src_linear if self.dst_linear is None else self.dst_linear
        return ops.gat_attention(
            graph,
            self._scores(dst_linear, self.dst_attention, ends.dst),
            self._scores(self.src_linear, self.src_attention, ends.src),
            self._projected(self.src_linear, ends.src),
            negative_slope=self.negative_slope,
            edge_logits=logits,
            **options,
        )


class GATv2Conv(_GraphAttention):
    """Dynamic graph attention: ``y_i = Σ_j p_ij W_src x_j + b``, ``p_i = softmax_j(s_ij)``.

    ``s_ij = ⟨a, leaky_relu(W_dst x_i + W_src x_j + W_e e_ij)⟩`` for each head, without the last
    term if edges have no features. Unlike in GAT, the ranking of the neighbours depends on the
    receiver. See https://arxiv.org/abs/2105.14491. It computes what PyTorch Geometric's
    ``GATv2Conv`` does with the same weights. A graph with weights or scales is refused.

    By default existing self loops are removed, and each node gets one. For a concrete graph this is
    done once. For a graph that is an argument of a jitted function it is done in every call:
    prepare it outside with ``jaxgnn.graph.with_one_loop_each``, and set ``add_self_loops=False``.

    Args:
      in_features: width of the input, or a pair of the widths of receivers and of senders.
      out_features: width of the output of each head.
      negative_slope: slope of the leaky ReLU below zero.
      dropout: probability of dropping an edge for a head in training, after the softmax.
      add_self_loops: whether each node gets one self loop instead of those that it has. In a
        bipartite graph node ``i`` of the receivers and of the senders count as one; where they are
        nodes of different kinds, it should be False.
      fill_value: features of self loops: ``"mean"``, ``"add"``, ``"min"``, ``"max"`` or ``"mul"``
        of those of the edges that enter the node; a number; or one number for each feature.
      share_weights: whether the matrices and biases of receivers and senders are the same.
      use_bias: whether to add the bias b, and biases in the linear maps of receivers and senders.

    Raises:
      ValueError: if an option has a type or value other than described above, or ends of different
        widths should share weights.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.GATv2Conv(8, 4, heads=2, edge_dim=3, rngs=nnx.Rngs(0))
      >>> x, edges = jnp.ones((3, 8)), jnp.ones((graph.num_edges, 3))
      >>> y, (looped, weights) = layer(graph, x, edges, return_attention_weights=True)
      >>> y.shape, weights.shape  # each node has a self loop; one had it before
      ((3, 8), (5, 2))
    """

    @checked
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: FillValue = "mean",
        share_weights: bool = False,
        residual: bool = False,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(
            in_features,
            Heads(heads, out_features, concat),
            EdgeOptions(add_self_loops, edge_dim, fill_value),
            dropout=dropout,
            **common,
        )
        if share_weights and self.in_widths.dst != self.in_widths.src:
            expected = f"False where the ends are of different widths, {tuple(self.in_widths)}"
            raise bad_input(self._name, "share_weights", expected, share_weights)
        self.negative_slope = negative_slope
        dst, src = (
            functools.partial(
                self._glorot_linear, width, self.heads.width, use_bias=use_bias, rngs=rngs
            )
            for width in self.in_widths
        )
        self.src_linear = src()
        self.dst_linear = None if share_weights else dst()
        self.attention = self._vectors(rngs)
        self.edge_linear = self._edge_linear(rngs)
        self.residual_linear = self._residual_linear(residual, rngs)
        self.bias = self._bias(use_bias)

    def _attend(
        self, graph: CSRGraph, ends: Ends[Array], edge_features: Array | None, options: Any
    ) -> Any:
        senders = receivers = self._projected(self.src_linear, ends.src)
        if self.dst_linear is not None:
            receivers = self._projected(self.dst_linear, ends.dst)
        elif not ends.are_one:
            receivers = self._projected(self.src_linear, ends.dst)
        wide = accumulation_dtype(senders.dtype)
        return ops.gatv2_attention(
            graph,
            receivers,
            senders,
            self.attention[...].astype(wide),
            negative_slope=self.negative_slope,
            edge_features=edge_features,
            edge_kernel=self._edge_kernel(senders.dtype),
            **options,
        )
