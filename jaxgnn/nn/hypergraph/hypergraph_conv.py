"""Hypergraph convolution and attention, and HGNN+."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import Incidence
from jaxgnn.nn.hypergraph.hypergraph_layer import HyperedgeWeights, HypergraphLayer
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import checked_options

_kernel_init = nnx.initializers.glorot_uniform()


class HypergraphConv(HypergraphLayer):
    """Hypergraph convolution ``D⁻¹ H W B⁻¹ Hᵀ x Θ + b``, with or without attention.

    Args:
      in_features: width of the input, and of the hyperedges' attributes.
      out_features: width of the output; with attention, of each head.
      num_hyperedges: number of hyperedges whose positive weights W are learnt; None to take weights
        from the call, or ones.
      weighting: ``"paper"``, or ``"pyg"`` for W in D alone, as in torch-geometric.
      normalization: ``"mean"``, or ``"sym"`` for HGNN (https://arxiv.org/abs/1809.09401).
      use_attention: whether each incidence has an attention coefficient.
      attention_mode: ``"node"`` for a softmax over the nodes of each hyperedge, ``"edge"`` for one
        over the hyperedges of each node.
      dropout: probability of dropping an incidence from attention in training.
      activation: one of ``"relu"``, ``"gelu"``, ``"gelu_exact"``, ``"silu"``, ``"mish"``,
        ``"squared_relu"``, or None for no activation.
      path: ``"sums"`` over the incidences, ``"mixing"`` by one matrix, or ``"auto"`` for the matrix
        where the hypergraph has at most 128 nodes.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> layer = nn.HypergraphConv(8, 16, num_hyperedges=2, rngs=nnx.Rngs(0))
      >>> layer(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    @checked_options(activation=known_activation)
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_hyperedges: int | None = None,
        weighting: ops.Weighting = "paper",
        normalization: Literal["mean", "sym"] = "mean",
        use_attention: bool = False,
        attention_mode: ops.AttentionMode = "node",
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        use_bias: bool = True,
        activation: ops.Activation | None = None,
        precision: ops.Precision | None = None,
        path: ops.HypergraphPath = "auto",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(dropout=dropout, **common)
        check_widths(self._name, in_features, out_features)
        if not use_attention:
            for option, value, default in (("heads", heads, 1), ("dropout", dropout, 0)):
                if value != default:
                    raise bad_input(self._name, option, f"{default} without attention", value)
        self.in_features = in_features
        self.out_features = out_features
        width = heads * out_features
        self.kernel = nnx.Param(_kernel_init(rngs.params(), (in_features, width), self.param_dtype))
        self.bias = self._zeros(width if concat else out_features, use_bias)
        attention = None
        if use_attention:
            shape = heads, 2 * out_features
            attention = nnx.Param(_kernel_init(rngs.params(), shape, self.param_dtype))
        self.attention = attention
        weights = None
        if num_hyperedges is not None:
            weights = HyperedgeWeights(num_hyperedges, param_dtype=self.param_dtype)
        self.weights = weights
        self.weighting: ops.Weighting = weighting
        self.normalization: Literal["mean", "sym"] = normalization
        self.attention_mode: ops.AttentionMode = attention_mode
        self.concat = concat
        self.negative_slope = negative_slope
        self.activation: ops.Activation | None = activation
        self.precision: ops.Precision | None = precision
        self.path: ops.HypergraphPath = path

    def __call__(
        self,
        incidence: Incidence,
        x: Float[Array, "*batch nodes in"],
        weight: Float[Array, " hyperedges"] | None = None,
        attributes: Float[Array, "*batch hyperedges in"] | None = None,
        *,
        residual: Float[Array, "*batch nodes out"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution.

        Args:
          x: features of the nodes; all leading axes share the hypergraph.
          weight: weights of the hyperedges, for layers without learnt weights; None for ones.
          attributes: features of the hyperedges, for attention.
          residual: array added after the activation, of the shape of the result; None for none.
        """
        self._check(incidence, x, self.in_features)
        if self.weights is not None:
            weight = self.weights.of(self._name, incidence, weight)
        rngs = self._training_rngs(rngs)
        parameters = (
            None if p is None else p[...] for p in (self.kernel, self.bias, self.attention)
        )
        x, attributes, residual, kernel, bias, attention = promote_dtype(
            (x, attributes, residual, *parameters), dtype=self.dtype
        )
        return ops.hypergraph_conv(
            x,
            incidence,
            weight,
            attributes,
            kernel=kernel,
            bias=bias,
            attention=attention,
            weighting=self.weighting,
            normalization=self.normalization,
            attention_mode=self.attention_mode,
            concat=self.concat,
            negative_slope=self.negative_slope,
            dropout=self.dropout_rate,
            key=None if rngs is None else rngs.dropout(),
            activation=self.activation,
            residual=residual,
            precision=self.precision,
            path=self.path,
            implementation=self.implementation,
        )


class HGNNPlusConv(HypergraphLayer):
    """HGNN+: ``D⁻¹ H W B⁻¹ Hᵀ x Θ + b`` with one weight for each group of hyperedges.

    See https://doi.org/10.1109/TPAMI.2022.3182052. Hyperedges are ordered by group; the weight of a
    group is ``σ`` of a learnt parameter.

    Args:
      group_sizes: number of hyperedges in each group; None for no groups, with weights passed in
        the call.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}, {0, 3}], num_nodes=4)
      >>> layer = nn.HGNNPlusConv(8, 16, group_sizes=[1, 2], rngs=nnx.Rngs(0))
      >>> layer(hypergraph, jnp.ones((4, 8))).shape
      (4, 16)
    """

    @checked_options()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group_sizes: Sequence[int] | np.ndarray | None = None,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, in_features, out_features)
        self.conv = HypergraphConv(
            in_features, out_features, use_bias=use_bias, rngs=rngs, **common
        )
        sizes = _group_sizes(() if group_sizes is None else group_sizes)
        self.group_sizes = sizes or None
        self.group_logits = nnx.Param(jnp.zeros(len(sizes), self.param_dtype)) if sizes else None

    def __call__(
        self,
        incidence: Incidence,
        x: Float[Array, "*batch nodes in"],
        weight: Float[Array, " hyperedges"] | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution; ``weight`` is multiplied by the weight of the group."""
        self._check(incidence, x, self.conv.in_features)
        if self.group_sizes is not None:
            if sum(self.group_sizes) != incidence.num_hyperedges:
                expected = f"of {sum(self.group_sizes)} hyperedges, as group_sizes says"
                raise bad_input(self._name, "incidence", expected, incidence.num_hyperedges)
            weight = self._times_group(weight, incidence.num_hyperedges)
        return self.conv(incidence, x, weight)

    def _times_group(self, weight: Array | None, num_hyperedges: int) -> Array:
        assert self.group_sizes is not None and self.group_logits is not None
        groups = np.repeat(np.arange(len(self.group_sizes)), self.group_sizes)
        of_group = jax.nn.sigmoid(self.group_logits[...])[groups]
        if weight is None:
            return of_group
        if jnp.shape(weight) != (num_hyperedges,):
            expected = f"of shape ({num_hyperedges},), one for each hyperedge"
            raise bad_input(self._name, "weight", expected, f"shape {jnp.shape(weight)}")
        return of_group * weight.astype(of_group.dtype)


def _group_sizes(groups: Sequence[int] | np.ndarray) -> tuple[int, ...]:
    """Returns the numbers of hyperedges of the groups as a static tuple."""
    is_listed = isinstance(groups, Iterable)
    sizes = tuple(groups) if is_listed else (groups,)
    if not is_listed or not all(isinstance(size, int | np.integer) and size >= 0 for size in sizes):
        raise bad_input("HGNNPlusConv", "group_sizes", "numbers of hyperedges", sizes)
    return tuple(map(int, sizes))
