"""Gated graph convolution: several steps of messages and a gated recurrent unit."""

from __future__ import annotations

from typing import Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, one_of
from jaxgnn.ops.shared import WEIGHTED


class GatedGraphConv(GraphLayer):
    """Gated graph convolution: ``h ← GRU(Σ_j w_ij W_t h_j, h)`` for each of several steps t.

    ::

        r = σ(U_r m + V_r h),  z = σ(U_z m + V_z h),  n = tanh(U_n m + r ⊙ (V_n h))
        GRU(m, h) = (1 - z) ⊙ n + z ⊙ h

    with a bias in each product except that with ``W_t``. The first h is x, padded with zeros if it
    is narrower than the output. See https://arxiv.org/abs/1511.05493. It computes what PyTorch
    Geometric's ``GatedGraphConv`` does. Each step has its own matrix ``W_t``, and all steps share
    the unit; ``nn.MessagePassing`` with an ``nn.GRUUpdate`` shares all parameters.

    Args:
      out_features: width of the output, at least that of the input.
      num_layers: number of steps.
      reduce: reduction of the messages, one of those of ``ops.neighbour_reduce``. Weights and
        scales of the graph count for ``"sum"`` and ``"mean"``; the others refuse a graph that has
        either.
      use_bias: whether the unit has biases.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.GatedGraphConv(8, num_layers=3, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 5))).shape
      (3, 8)
    """

    @checked_options(reduce=one_of(*get_args(ops.Aggregation)))
    def __init__(
        self,
        out_features: int,
        num_layers: int,
        *,
        reduce: ops.Aggregation = "sum",
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, out_features)
        self.out_features = out_features
        self.reduce: ops.Aggregation = reduce
        self.applies_weights = reduce in WEIGHTED
        square = (out_features, out_features)
        self.linears = nnx.List(
            self._linear(*square, use_bias=False, rngs=rngs) for _ in range(num_layers)
        )
        gates = {"use_bias": use_bias, "rngs": rngs}
        self.message_gates = self._linear(out_features, 3 * out_features, **gates)
        self.state_gates = self._linear(out_features, 3 * out_features, **gates)

    def __call__(
        self, graph: CSRGraph, x: Float[Array, "*batch nodes in"]
    ) -> Float[Array, "*batch nodes out"]:
        """Applies the steps.

        Args:
          graph: square graph; rows are receivers, columns are senders.
          x: features of the nodes, at most as wide as the output; leading axes share the graph.
        """
        h = self._ends(graph, x, None).src
        self._check_square(graph, "since nodes keep their state")
        missing = self.out_features - h.shape[-1]
        if missing < 0:
            expected = f"at most {self.out_features} wide, as the output"
            raise bad_input(self._name, "x", expected, f"shape {h.shape}")
        h = jnp.pad(h, [(0, 0)] * (h.ndim - 1) + [(0, missing)])
        for linear in self.linears:
            sent = self._apply(linear, h)
            options = {"implementation": self.implementation}
            h = self._unit(ops.neighbour_reduce(graph, sent, self.reduce, **options), h)
        return h

    def _unit(self, messages: Array, h: Array) -> Array:
        """The gated recurrent unit."""
        read, kept = self._apply(self.message_gates, messages), self._apply(self.state_gates, h)
        of_messages, of_state = jnp.split(read, 3, axis=-1), jnp.split(kept, 3, axis=-1)
        reset = jax.nn.sigmoid(of_messages[0] + of_state[0])
        update = jax.nn.sigmoid(of_messages[1] + of_state[1])
        new = jnp.tanh(of_messages[2] + reset * of_state[2])
        return (1 - update) * new + update * h
