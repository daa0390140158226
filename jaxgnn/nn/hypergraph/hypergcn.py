"""HyperGCN's clique form: a graph convolution between the nodes of each hyperedge."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import Incidence
from jaxgnn.nn.hypergraph.hypergraph_layer import (
    HypergraphConvolution,
    linear_around,
    power_or_zero,
)


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

    def __call__(
        self, incidence: Incidence, x: Float[Array, "*batch nodes in"]
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the convolution; all leading axes of ``x`` share the hypergraph."""
        incidence = self._check(incidence, x, self.linear.in_features)
        by_hyperedge, by_node = incidence.by_hyperedge(), incidence.by_node()
        sizes = incidence.hyperedge_sizes().astype(jnp.float32)  # pairs may overflow int32
        pair = 2 * power_or_zero(sizes * (sizes - 1), -1)
        # Each incidence subtracts its own term from the sum over its hyperedge.
        own = self._row_sums(by_node, pair)
        joined = self._row_sums(by_node, pair * sizes.astype(pair.dtype)) - own
        root = power_or_zero(1 + joined, -0.5)
        itself = root * root * (1 - own)

        def propagate(x):
            h = self._sums(by_hyperedge, x, rows=pair, columns=root)
            sums = self._sums(by_node, h, rows=root)
            return sums + (x.astype(itself.dtype) * itself[:, None]).astype(x.dtype)

        return linear_around(self.linear, propagate, x)
