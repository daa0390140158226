"""The networks of the comparison: layers of attention between linear ones."""

from __future__ import annotations

from typing import Any, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import CSRGraph, nn, ops
from jaxgnn.nn.shared.dropout import Dropout

_LAYERS = {"gat": nn.GATConv, "gatv2": nn.GATv2Conv}


class AttentionGNN(nnx.Module):
    """Node classifier with graph attention layers.

    ``lin_in``, then ``num_layers`` times dropout, ``nn.GATConv`` or ``nn.GATv2Conv`` and ELU, then
    dropout and ``lin_out``. The linear layers at the ends are those of ``models.MaxKGNN`` and
    ``models.GraphTransformer``, so that the networks differ in between.

    Args:
      in_features: width of the node features.
      hidden_features: width of the hidden layers, a multiple of ``heads``.
      out_features: number of classes, or of tasks.
      kind: kind of layer.
      num_layers: number of layers.
      heads: number of attention heads.
      dropout: probability of zeroing an entry before a layer.
      attention_dropout: probability of dropping a neighbour for a head.
      implementation: name of the kernels of the sparse ops.
      dtype: dtype of the computation.
      rngs: random streams from which the initial parameters are drawn.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        kind: Literal["gat", "gatv2"],
        num_layers: int,
        heads: int,
        dropout: float,
        attention_dropout: float,
        implementation: ops.Name | None,
        dtype: Any,
        rngs: nnx.Rngs,
    ):
        options: dict[str, Any] = {"dtype": dtype, "rngs": rngs}
        self.implementation: ops.Name | None = implementation
        self.lin_in = nn.FusedLinear(in_features, hidden_features, **options)
        self.layers = nnx.List(
            _LAYERS[kind](
                hidden_features,
                hidden_features // heads,
                heads=heads,
                dropout=attention_dropout,
                add_self_loops=False,  # the graph already has them
                implementation=implementation,
                **options,
            )
            for _ in range(num_layers)
        )
        self.dropout = Dropout(dropout, "AttentionGNN")
        self.lin_out = nn.FusedLinear(hidden_features, out_features, **options)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "nodes in"] | CSRGraph,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "nodes out"]:
        """Returns the scores of each node.

        Args:
          graph: graph with self loops.
          x: node features, also as a sparse matrix.
          rngs: random streams with one named ``dropout`` in training; None in evaluation.
        """
        h = nn.apply_linear(self.lin_in, x, self.implementation)
        for layer in self.layers:
            attended: Any = layer(graph, self.dropout(h, rngs, graph), rngs=rngs)
            h = jax.nn.elu(attended)
        return nn.apply_linear(self.lin_out, self.dropout(h, rngs, graph), self.implementation)
