"""Layers of graph networks joined by hyper-connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.models._layer_scan import LayerScan
from jaxgnn.nn import HyperConnection, HyperHead, HyperStack, xla_or_fastest


class HyperBody(nnx.Module):
    """Layers wrapped in hyper-connections, a head that reduces the streams to one, and a norm.

    Args:
      layers: modules called as ``layer(graph, h, **options)``, whose result is as wide as ``h``.
      norm: applied to the head's result, or None.
      scan: whether to run the layers, which are then of one structure, by ``lax.scan``.
      options: ``features``, ``num_streams``, ``implementation`` and ``rngs`` of the connections.
    """

    def __init__(
        self,
        layers: Sequence[Callable[..., Array]],
        norm: nnx.Module | None,
        scan: bool,
        options: dict[str, Any],
    ):
        connections = [
            HyperConnection(layer, layer_index=i, features_argument=1, **options)
            for i, layer in enumerate(layers)
        ]
        self.num_streams = connections[0].num_streams
        self.implementation = connections[0].implementation
        self.stack = LayerScan(connections) if scan else HyperStack(connections)
        self.head = HyperHead(**options)
        self.norm = norm

    def __call__(
        self, graph: Any, h: Float[Array, "*batch nodes d"], **options: Any
    ) -> Float[Array, "*batch nodes d"]:
        """Returns the nodes' features after the layers, which get the other arguments."""
        with xla_or_fastest(self.implementation):
            x = ops.mhc_expand(h, self.num_streams)
        h = self.head(self.stack(graph, x, **options))
        return h if self.norm is None else self.norm(h)
