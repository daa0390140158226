"""Graph attention networks: GAT, GATv2 and SuperGAT."""

from __future__ import annotations

import functools
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, FillValue, LocalGraph, sum_over_devices, with_one_loop_each
from jaxgnn.nn.attention.attention_layer import AttentionLayer, EdgeOptions, Heads, checked
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import Ends
from jaxgnn.ops.core.dtypes import accumulation_dtype


class GATConv(AttentionLayer):
    """Graph attention: ``y_i = Σ_j p_ij W x_j + b``, ``p_i = softmax_j(leaky_relu(s_ij))``.

    ``s_ij = ⟨a_dst, W x_i⟩ + ⟨a_src, W x_j⟩ + ⟨a_edge, W_e e_ij⟩`` for each head, without the last
    term if edges have no features. See https://arxiv.org/abs/1710.10903. It computes what PyTorch
    Geometric's ``GATConv`` does with the same weights. A graph with weights or scales is refused.

    Args:
      in_features: width of the input; or a pair of the widths of receivers and of senders, which
        then have separate matrices W.

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
        self._make_result(residual, use_bias, rngs)

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


class GATv2Conv(AttentionLayer):
    """Dynamic graph attention: ``y_i = Σ_j p_ij W_src x_j + b``, ``p_i = softmax_j(s_ij)``.

    ``s_ij = ⟨a, leaky_relu(W_dst x_i + W_src x_j + W_e e_ij)⟩`` for each head, without the last
    term if edges have no features. Unlike in GAT, the ranking of the neighbours depends on the
    receiver. See https://arxiv.org/abs/2105.14491. It computes what PyTorch Geometric's
    ``GATv2Conv`` does with the same weights. A graph with weights or scales is refused.

    Args:
      negative_slope: slope of the leaky ReLU below zero.
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
        self._make_result(residual, use_bias, rngs)

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


AttentionType = Literal["MX", "SD"]
"""Types of scores: ``"MX"`` mixed with GAT's, ``"SD"`` only scaled inner products."""


class SuperGATConv(AttentionLayer):
    """Self-supervised graph attention: ``y_i = Σ_j p_ij z_j + b`` with ``z = W x``.

    ``p_i = softmax_j(leaky_relu(s_ij))`` for each head. With inner products ``φ_ij = ⟨z_i, z_j⟩``
    the scores are ``s_ij = (⟨a_src, z_j⟩ + ⟨a_dst, z_i⟩) σ(φ_ij)`` for ``"MX"``, and
    ``s_ij = φ_ij / √out_features`` for ``"SD"``. ``attention_loss`` asks the inner products to tell
    edges from pairs of nodes without one; add it, times a factor, to the loss of the task. See "How
    to Find Your Friendly Neighborhood" (https://openreview.net/forum?id=Wi5KUNlqWty). It computes
    what PyTorch Geometric's ``SuperGATConv`` does with the same weights. A graph with
    weights or scales is refused.

    Args:
      attention_type: ``"MX"`` or ``"SD"``.

    Example:
      >>> import jax
      >>> from jaxgnn.sampling import negative_edges
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.SuperGATConv(8, 4, heads=2, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 8))).shape
      (3, 8)
      >>> negatives = negative_edges(graph, 2, jax.random.key(0))
      >>> layer.attention_loss(graph, jnp.ones((3, 8)), negatives).shape
      ()
    """

    @checked
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        attention_type: AttentionType = "MX",
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        if isinstance(in_features, tuple | list):
            expected = "an int, since receivers and senders share a matrix"
            raise bad_input(self._name, "in_features", expected, in_features)
        super().__init__(
            in_features,
            Heads(heads, out_features, concat),
            EdgeOptions(add_self_loops),
            dropout=dropout,
            **common,
        )
        self.negative_slope, self.attention_type = negative_slope, attention_type
        self.linear = self._glorot_linear(in_features, self.heads.width, rngs=rngs)
        is_mixed = attention_type == "MX"
        self.src_attention = self._vectors(rngs) if is_mixed else None
        self.dst_attention = self._vectors(rngs) if is_mixed else None
        self._make_result(False, use_bias, rngs)

    def attention_loss(
        self, graph: CSRGraph, x: Float[Array, "nodes in"], negatives: Int[Array, "2 pairs"]
    ) -> Float[Array, ""]:
        """Auxiliary loss of the inner products as classifiers of edges and pairs without an edge.

        The mean of the binary cross-entropies of all edges, including the self loops that the layer
        adds, and of all ``negatives``. The logit is the mean of the heads' inner products, which
        ``"SD"`` divides by ``√out_features``.

        Args:
          graph: square graph, as in the layer's call.
          x: features of the nodes, as in the layer's call.
          negatives: senders and receivers of pairs without an edge; pairs with negative ids are
            ignored. ``jaxgnn.sampling.negative_edges`` draws them. For a graph that is spread over
            devices, pass ids in the whole graph, the same pairs on each device.

        Raises:
          ValueError: if graph, features and pairs do not fit each other.
        """
        x = self._ends(graph, x, self.in_widths).src
        self._check_square(graph, "since pairs of its nodes are compared")
        if x.ndim != 2:
            raise bad_input(self._name, "x", "of shape [nodes, in]", f"shape {x.shape}")
        senders, receivers = self._pairs(negatives)
        if self.edges.add_self_loops:
            graph = with_one_loop_each(graph).graph
        z = self._apply(self.linear, x)
        drawn = (senders >= 0) & (receivers >= 0)
        ends = jnp.where(drawn, senders, 0), jnp.where(drawn, receivers, 0)
        named = z
        if isinstance(graph, LocalGraph):  # each device counts an equal part of the pairs
            named = graph.of_all_nodes(z)
            place = jnp.arange(drawn.shape[0]) % graph.halo.devices
            drawn &= place == jax.lax.axis_index(graph.halo.axis)
        pairs, drawn = CSRGraph.from_edges(*ends, named.shape[0], edge_data=drawn)
        real = graph.receivers() < graph.num_rows
        of_edges = jax.nn.softplus(-self._mean_products(graph, z))
        of_pairs = jax.nn.softplus(self._mean_products(pairs, named))
        total = jnp.sum(jnp.where(real, of_edges, 0)) + jnp.sum(jnp.where(drawn, of_pairs, 0))
        total, count = sum_over_devices(graph, (total, jnp.sum(real) + jnp.sum(drawn)))
        return total / jnp.maximum(count, 1).astype(total.dtype)

    def _pairs(self, negatives: Any) -> tuple[Array, Array]:
        """Returns the checked senders and receivers of the pairs."""
        arrays = negatives if isinstance(negatives, tuple | list) else (negatives,)
        ends = [jnp.asarray(array) for array in arrays if array is not None]
        kinds = [(array.shape, array.dtype.name) for array in ends]
        if len(ends) == 1 and ends[0].ndim == 2:
            ends = list(ends[0]) if len(ends[0]) == 2 else []
        are_ids = [a.ndim == 1 and jnp.issubdtype(a.dtype, jnp.integer) for a in ends]
        if are_ids != [True, True] or len(ends[0]) != len(ends[1]):
            expected = "integers of shape [2, pairs], or a pair of arrays of one length"
            got = " and ".join(f"{dtype} of shape {shape}" for shape, dtype in kinds) or "none"
            raise bad_input(self._name, "negatives", expected, got)
        return ends[0], ends[1]

    def _products(
        self,
        graph: CSRGraph,
        receivers: Float[Array, "*batch rows heads dim"],
        senders: Float[Array, "*batch cols heads dim"],
    ) -> Float[Array, "*batch edges heads"]:
        """The inner products of both ends of each edge, by head, in the accumulation dtype."""
        wide = accumulation_dtype(senders.dtype)
        ends = (jnp.moveaxis(z.astype(wide), -2, -3) for z in (receivers, senders))
        products = ops.sddmm(graph, *ends, implementation=self.implementation)
        return jnp.moveaxis(products, -2, -1)

    def _mean_products(self, graph: CSRGraph, z: Float[Array, "nodes width"]) -> Array:
        """Computes the mean of the edges' logits over the heads as one inner product."""
        of_all = z[:, None, :]
        return self._products(graph, of_all, of_all)[:, 0] * (self._scale / self.heads.count)

    @property
    def _scale(self) -> float:
        return 1.0 if self.attention_type == "MX" else self.heads.features**-0.5

    def _attend(
        self, graph: CSRGraph, ends: Ends[Array], edge_features: Array | None, options: Any
    ) -> Any:
        senders = receivers = self._projected(self.linear, ends.src)
        if not ends.are_one:
            receivers = self._projected(self.linear, ends.dst)
        wide = accumulation_dtype(senders.dtype)
        scores = self._scale * self._products(graph, receivers, senders)
        if self.src_attention is not None and self.dst_attention is not None:
            of_src = self._scores(self.linear, self.src_attention, ends.src)
            of_dst = self._scores(self.linear, self.dst_attention, ends.dst)
            # The sum of a number of each end is an inner product too: ⟨(b, 1), (1, c)⟩ = b + c.
            at_dst = jnp.stack([of_dst, jnp.ones_like(of_dst)], axis=-1)
            at_src = jnp.stack([jnp.ones_like(of_src), of_src], axis=-1)
            scores = self._products(graph, at_dst, at_src) * jax.nn.sigmoid(scores)
        # The scores are sums of terms of edges and ends, to which the op applies the leaky ReLU.
        return ops.gat_attention(
            graph,
            jnp.zeros(receivers.shape[:-1], wide),
            jnp.zeros(senders.shape[:-1], wide),
            senders,
            negative_slope=self.negative_slope,
            edge_logits=scores,
            **options,
        )
