"""Layers of sums over hyperedges and back: UniGNN, HyperGCN and HNHN.

UniGNN's layers (https://arxiv.org/abs/2105.00956) first compute ``h_e``, the mean of the nodes of a
hyperedge. They add no self loops: call ``incidence.with_self_loops()`` to give each node its own
hyperedge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CSRGraph, Incidence
from jaxgnn.nn.hypergraph.hypergraph_layer import (
    HypergraphConvolution,
    HypergraphLayer,
    join_heads,
    linear_around,
    power_or_zero,
    split_heads,
)
from jaxgnn.nn.shared.activations import function_of, name_of
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import any_activation, checked_options
from jaxgnn.ops.shared import edge_scores, row_scores, row_softmax, weighted_sums


class HyperGCNConv(HypergraphConvolution):
    """A graph convolution on the hypergraph's cliques: ``D̃^-½ (A + I) D̃^-½ x Θ + b``.

    In A every hyperedge joins all pairs of its nodes, each with a weight of
    ``2 / (|e| (|e| - 1))``, so that the weights sum to one. D̃ are the row sums of ``A + I``. For
    up to three nodes this equals HyperGCN with mediators (https://arxiv.org/abs/1809.02589). For a
    larger hyperedge, HyperGCN selects two nodes by their features and joins them with the others;
    this form does not. A node that occurs repeatedly in a hyperedge is joined with itself.

    A itself, which has an entry for each pair, is never built: the product with it is computed by
    two sums over the incidences.

    Args:
      in_features: width of the input.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> nn.HyperGCNConv(8, 16, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    def _propagation(self, incidence: Incidence) -> Callable[[Array], Array]:
        by_hyperedge, by_node = incidence.by_hyperedge(), incidence.by_node()
        sizes = incidence.hyperedge_sizes().astype(jnp.float32)  # pairs may overflow int32
        pair = 2 * power_or_zero(sizes * (sizes - 1), -1)
        # Each incidence subtracts its own term from the sum over its hyperedge.
        self_terms = self._row_sums(by_node, pair)
        joined = self._row_sums(by_node, pair * sizes.astype(pair.dtype)) - self_terms
        root = power_or_zero(1 + joined, -0.5)
        itself = root * root * (1 - self_terms)

        def propagate(x):
            h = self._sums(by_hyperedge, x, rows=pair, columns=root)
            sums = self._sums(by_node, h, rows=root)
            return sums + (x.astype(itself.dtype) * itself[:, None]).astype(x.dtype)

        return propagate


class HNHNConv(HypergraphLayer):
    """Nodes to hyperedges, an activation, and back, each with a linear map and a bias.

    See https://arxiv.org/abs/2006.12278::

        h_e = act(Σ_v d_v^β (W_1 x_v) / Σ_v d_v^β + b_1)
        y_v = Σ_e |e|^α (W_2 h_e) / Σ_e |e|^α + b_2

    Sums are over the nodes of a hyperedge and the hyperedges of a node; ``d_v`` is the number of
    hyperedges of a node, ``|e|`` the number of nodes of a hyperedge. With exponents of zero the
    sums are plain means. No activation is applied to ``y``.

    Args:
      hidden_features: width of the hyperedge features; ``out_features`` by default.
      activation: activation of the hyperedge features: a function, one of ``"relu"``, ``"gelu"``,
        ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, or None for no activation.
      alpha: exponent α of the sizes of hyperedges.
      beta: exponent β of the degrees of nodes.
      use_bias: whether to add the two biases.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> layer = nn.HNHNConv(8, 16, alpha=-1.5, beta=-0.5, rngs=nnx.Rngs(0))
      >>> layer(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    @checked_options(activation=any_activation)
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden_features: int | None = None,
        activation: Callable[[Array], Array] | ops.Activation | None = "relu",
        alpha: float = 0.0,
        beta: float = 0.0,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        hidden = out_features if hidden_features is None else hidden_features
        super().__init__(**common)
        check_widths(self._name, in_features, hidden, out_features)
        self.to_hyperedges = self._linear(in_features, hidden, use_bias=use_bias, rngs=rngs)
        self.to_nodes = self._linear(hidden, out_features, use_bias=use_bias, rngs=rngs)
        self.activation = name_of(activation)
        self.alpha = alpha
        self.beta = beta

    def __call__(
        self, incidence: Incidence, x: Float[Array, "*batch nodes in"]
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution; all leading axes of ``x`` share the hypergraph."""
        incidence = self._check(incidence, x, self.to_hyperedges.in_features)
        degrees = power_or_zero(incidence.node_degrees(), self.beta)
        sizes = power_or_zero(incidence.hyperedge_sizes(), self.alpha)
        means = self._means(incidence.by_hyperedge(), degrees)
        h = function_of(self.activation)(linear_around(self.to_hyperedges, means, x))
        return linear_around(self.to_nodes, self._means(incidence.by_node(), sizes), h)

    def _means(self, graph: CSRGraph, weights: Float[Array, " cols"]) -> Callable[[Array], Array]:
        """Computes the weighted mean over the columns of each row."""
        rows = power_or_zero(self._row_sums(graph, weights), -1)

        def means(x):
            return self._sums(graph, x, rows=rows, columns=weights)

        return means


class UniGCNConv(HypergraphConvolution):
    """``y_i = Σ_e W h_e / √(d_i d_e) + b`` with ``d_e`` the mean degree of the hyperedge's nodes.

    Args:
      in_features: width of the input.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> layer = nn.UniGCNConv(8, 16, rngs=nnx.Rngs(0))
      >>> layer(hypergraph.with_self_loops(), jnp.ones((4, 8))).shape
      (4, 16)
    """

    def _propagation(self, incidence: Incidence) -> Callable[[Array], Array]:
        by_hyperedge, by_node = incidence.by_hyperedge(), incidence.by_node()
        degrees = incidence.node_degrees().astype(jnp.float32)
        share = power_or_zero(incidence.hyperedge_sizes(), -1)
        of_hyperedge = share * self._row_sums(by_hyperedge, degrees)
        scale = share * power_or_zero(of_hyperedge, -0.5)

        def propagate(x):
            h = self._sums(by_hyperedge, x, rows=scale)
            rows = power_or_zero(degrees, -0.5)
            return self._sums(by_node, h, rows=rows)

        return propagate


class UniSAGEConv(HypergraphConvolution):
    """``y_i = W (x_i + Σ_e h_e) + b``, or the mean of ``h_e`` instead of their sum.

    Args:
      aggregation: ``"sum"`` or ``"mean"``, over the hyperedges of a node.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> nn.UniSAGEConv(8, 16, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    @checked_options()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        aggregation: Literal["sum", "mean"] = "sum",
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(in_features, out_features, use_bias=use_bias, rngs=rngs, **common)
        self.aggregation: Literal["sum", "mean"] = aggregation

    def _propagation(self, incidence: Incidence) -> Callable[[Array], Array]:
        rows = None
        if self.aggregation == "mean":
            rows = power_or_zero(incidence.node_degrees(), -1)

        def propagate(x):
            h = self._hyperedge_means(incidence, x)
            return x + self._sums(incidence.by_node(), h, rows=rows)

        return propagate


class UniGINConv(HypergraphConvolution):
    """``y_i = W ((1 + ε) x_i + Σ_e h_e) + b``; ε is learnt, from zero.

    Args:
      in_features: width of the input.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> nn.UniGINConv(8, 16, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    def _make_parameters(self) -> None:
        self.epsilon = nnx.Param(jnp.zeros((), self.param_dtype))

    def _propagation(self, incidence: Incidence) -> Callable[[Array], Array]:
        def propagate(x):
            h = self._hyperedge_means(incidence, x)
            sums = self._sums(incidence.by_node(), h)
            return (1 + self.epsilon[...].astype(x.dtype)) * x + sums

        return propagate


class UniGATConv(HypergraphLayer):
    """Attention of nodes to their hyperedges: ``y_i = Σ_e α_ie W h_e + b``.

    ``α_ie`` is the softmax of ``leaky_relu(a · [W x_i; W h_e])`` over the hyperedges of the node.

    Args:
      out_features: width of the output of each head.
      dropout: probability of dropping an attention coefficient in training.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> layer = nn.UniGATConv(8, 16, heads=2, rngs=nnx.Rngs(0))
      >>> layer(hypergraph.with_self_loops(), jnp.ones((4, 8))).shape
      (4, 32)
    """

    @checked_options()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(dropout=dropout, **common)
        check_widths(self._name, in_features, out_features)
        width = heads * out_features
        self.linear = self._linear(in_features, width, use_bias=False, rngs=rngs)
        initial = nnx.initializers.glorot_uniform()
        shape = heads, 2 * out_features
        self.attention = nnx.Param(initial(rngs.params(), shape, self.param_dtype))
        self.bias = self._zeros(width if concat else out_features, use_bias)
        self.concat = concat
        self.negative_slope = negative_slope

    def __call__(
        self,
        incidence: Incidence,
        x: Float[Array, "*batch nodes in"],
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution; all leading axes of ``x`` share the hypergraph.

        Args:
          incidence: the hypergraph.
        """
        incidence = self._check(incidence, x, self.linear.in_features)
        z = self.linear(x)
        heads = self.attention.shape[0]
        nodes = split_heads(z, heads)
        hyperedges = split_heads(self._hyperedge_means(incidence, z), heads)
        of_node, of_hyperedge = jnp.split(self.attention[...], 2, axis=-1)
        by_node = incidence.by_node()
        ends = row_scores(nodes, of_node), row_scores(hyperedges, of_hyperedge)
        scores = edge_scores(by_node, *ends, self.implementation)
        scores = jax.nn.leaky_relu(scores, self.negative_slope)
        rngs = self._training_rngs(rngs)
        alpha = row_softmax(by_node, scores, self.implementation)
        alpha = dropout(alpha, self.dropout_rate, rngs)
        y = weighted_sums(by_node, alpha, hyperedges, self.implementation)
        return self._biased(join_heads(y) if self.concat else jnp.mean(y, axis=-3))
