"""Local extremum convolution: differences between a node and its neighbours."""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer, Nodes, widths_of_ends
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options


class LEConv(GraphLayer):
    """Differences to neighbours: ``y_i = W_self x_i + b + Σ_j w_ij (W_src x_j + c - W_dst x_i)``.

    The local extremum convolution of https://arxiv.org/abs/1911.07979, as PyTorch Geometric's
    ``LEConv`` computes it. Without self loops or a normalisation it can detect nodes whose features
    are extremes of their neighbourhood, which is used to select the nodes of a pooling.

    Args:
      in_features: width of the input, or a pair of the widths of receivers and of senders.
      use_bias: whether to add the biases b and c.

    Example:
      >>> papers = CSRGraph.from_edges([0, 3], [1, 0], 2, num_senders=4)
      >>> layer = nn.LEConv((8, 5), 4, rngs=nnx.Rngs(0))
      >>> layer(papers, (jnp.ones((2, 8)), jnp.ones((4, 5)))).shape
      (2, 4)
    """

    applies_weights = True

    @checked_options()
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.in_widths = widths_of_ends(self._name, in_features)
        check_widths(self._name, out_features)
        dst, src = self.in_widths
        self.sender_linear = self._linear(src, out_features, use_bias=use_bias, rngs=rngs)
        self.receiver_linear = self._linear(dst, out_features, use_bias=False, rngs=rngs)
        self.self_linear = self._linear(dst, out_features, use_bias=use_bias, rngs=rngs)

    def __call__(self, graph: CSRGraph, x: Nodes) -> Float[Array, "*batch rows out"]:
        """Applies the convolution.

        Args:
          graph: rows are receivers, columns are senders; its weights are used, and the scales of a
            normalised graph.
        """
        ends = self._ends(graph, x, self.in_widths)
        messages = self._apply(self.sender_linear, ends.src)
        options = {"implementation": self.implementation}
        ones = jnp.ones((graph.num_cols, 1), messages.dtype)
        totals = ops.spmm(graph, ones, **options)  # sums of the weights of each row
        differences = ops.spmm(graph, messages, **options) - totals * self._apply(
            self.receiver_linear, ends.dst
        )
        return self._apply(self.self_linear, ends.dst) + differences
