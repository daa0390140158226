"""AllSet: learnt set functions from nodes to hyperedges and back (arxiv.org/abs/2106.13264)."""

from __future__ import annotations

from typing import Literal, Unpack

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, Incidence
from jaxgnn.nn.hypergraph.hypergraph_layer import (
    HypergraphLayer,
    join_heads,
    power_or_zero,
    split_heads,
)
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.nn.shared.linear import FusedMLP, apply_mlp
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import checked_options
from jaxgnn.ops.shared import edge_scores, row_scores, row_softmax, weighted_sums


class AllDeepSetsConv(HypergraphLayer):
    """AllSet with deep sets: ``f(S) = mlp₂(Σ_s mlp₁(s))``, to the hyperedges and to the nodes.

    For an empty set, f is ``mlp₂(0)``. No activation is applied to the output.

    Args:
      out_features: width of the output, and of the hyperedges.
      hidden_features: width of the hidden layer of each of the four MLPs; ``out_features`` by
        default.
      aggregation: ``"sum"`` or ``"mean"``.
      activation: activation between the layers of each MLP, one of ``"relu"``, ``"gelu"``,
        ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``, or
        None for no activation.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> nn.AllDeepSetsConv(8, 16, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    @checked_options(activation=known_activation)
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden_features: int | None = None,
        aggregation: Literal["sum", "mean"] = "sum",
        activation: ops.Activation | None = "relu",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        hidden = out_features if hidden_features is None else hidden_features
        check_widths(self._name, in_features, hidden, out_features)

        def mlp(width: int) -> FusedMLP:
            widths = [width, hidden, out_features]
            return FusedMLP(widths, activation=activation, **self._dtypes, rngs=rngs)

        self.in_features = in_features
        self.of_nodes, self.to_hyperedges = mlp(in_features), mlp(out_features)
        self.of_hyperedges, self.to_nodes = mlp(out_features), mlp(out_features)
        self.aggregation: Literal["sum", "mean"] = aggregation

    def __call__(
        self, incidence: Incidence, x: Float[Array, "*batch nodes in"]
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution; all leading axes of ``x`` share the hypergraph."""
        incidence = self._check(incidence, x, self.in_features)
        h = self._total(incidence.by_hyperedge(), self._apply(self.of_nodes, x))
        h = self._apply(self.of_hyperedges, self._apply(self.to_hyperedges, h))
        return self._apply(self.to_nodes, self._total(incidence.by_node(), h))

    def _apply(self, mlp: FusedMLP, x: Array) -> Array:
        return apply_mlp(mlp, x, self.implementation)

    def _total(self, graph: CSRGraph, x: Array) -> Array:
        """Computes the sum or mean over the columns of each row."""
        rows = power_or_zero(graph.degrees(), -1) if self.aggregation == "mean" else None
        return self._sums(graph, x, rows=rows)


class AllSetTransformerConv(HypergraphLayer):
    """AllSet with attention; the two directions have separate parameters.

    For a set S with linear keys K and values V and a learnt query θ, each head computes::

        y = norm(θ + softmax(θ K(S)ᵀ) V(S))        f(S) = norm(y + mlp(y))

    Attention over an empty set gives zero. No activation is applied to the output.

    Args:
      out_features: width of the output, a multiple of ``heads``.
      hidden_features: width of the hidden layer of each MLP; ``out_features`` by default.
      activation: activation between the layers of each MLP, one of ``"relu"``, ``"gelu"``,
        ``"gelu_exact"``, ``"silu"``, ``"mish"``, ``"squared_relu"``, ``"tanh"``, ``"sigmoid"``, or
        None for no activation.
      dropout: probability of dropping an attention coefficient in training.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> layer = nn.AllSetTransformerConv(8, 16, heads=4, rngs=nnx.Rngs(0))
      >>> layer(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    @checked_options(activation=known_activation)
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        hidden_features: int | None = None,
        activation: ops.Activation | None = "relu",
        dropout: float = 0.0,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(dropout=dropout, **common)
        hidden = out_features if hidden_features is None else hidden_features
        check_widths(self._name, in_features, hidden, out_features)
        if out_features % heads:
            expected = f"a multiple of {heads} heads"
            raise bad_input(self._name, "out_features", expected, out_features)
        self.in_features = in_features
        options = self._dtypes | {"rngs": rngs}
        widths = hidden, out_features, heads, activation
        self.to_hyperedges = _SetAttention(in_features, *widths, **options)
        self.to_nodes = _SetAttention(out_features, *widths, **options)

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
        incidence = self._check(incidence, x, self.in_features)
        options = self.dropout_rate, self._training_rngs(rngs), self.implementation
        h = self.to_hyperedges(incidence.by_hyperedge(), x, *options)
        return self.to_nodes(incidence.by_node(), h, *options)


class _SetAttention(nnx.Module):
    """The set function ``f`` of ``AllSetTransformerConv``, applied to the columns of each row."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        heads: int,
        activation: ops.Activation | None,
        *,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        options = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        initial = nnx.initializers.glorot_uniform()
        shape = heads, out_features // heads
        self.query = nnx.Param(initial(rngs.params(), shape, param_dtype))
        self.key = nnx.Linear(in_features, out_features, **options)
        self.value = nnx.Linear(in_features, out_features, **options)
        # Norms are computed in full precision and rounded afterwards.
        norm = {"param_dtype": param_dtype, "rngs": rngs}
        self.norms = nnx.List([nnx.LayerNorm(out_features, **norm) for _ in range(2)])
        widths = [out_features, hidden_features, out_features]
        self.mlp = FusedMLP(widths, activation=activation, **options)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch cols in"],
        rate: float,
        rngs: nnx.Rngs | None,
        implementation: ops.Name | None,
    ) -> Float[Array, "*batch rows out"]:
        """Returns one row of features for each set."""
        query = self.query[...]
        heads = query.shape[0]
        keys = row_scores(split_heads(self.key(x), heads), query)
        values = split_heads(self.value(x), heads)
        nothing = jnp.zeros((*keys.shape[:-1], graph.num_rows), keys.dtype)
        alpha = row_softmax(
            graph, edge_scores(graph, nothing, keys, implementation), implementation
        )
        alpha = dropout(alpha, rate, rngs)
        attended = weighted_sums(graph, alpha, values, implementation).astype(keys.dtype)
        y = self.norms[0](join_heads(attended + query.astype(keys.dtype)[:, None]))
        update = apply_mlp(self.mlp, y.astype(values.dtype), implementation)
        y = self.norms[1](y + update.astype(y.dtype))
        return y.astype(values.dtype)
