"""HNHN: a convolution with hidden features and an activation on the hyperedges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CSRGraph, Incidence
from jaxgnn.nn.hypergraph.hypergraph_layer import HypergraphLayer, linear_around, power_or_zero
from jaxgnn.nn.shared.activations import function_of, name_of
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import any_activation, checked_options


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
