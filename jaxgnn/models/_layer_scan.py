"""Layers of graph networks run by one scan, or joined by hyper-connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.nn import HyperConnection, HyperHead, HyperStack, xla_or_fastest
from jaxgnn.nn.shared.dropout import require_stream
from jaxgnn.ops.core.eager import run_compiled


class LayerScan[M: nnx.Module](nnx.Module):
    """Runs ``h = layer(graph, h)`` over layers that differ only in their arrays.

    Args:
      layers: modules called as ``layer(graph, h, rngs=..., **options)``, whose result has the shape
        and dtype of ``h``, an array or a pytree of arrays. They must not change state.

    Raises:
      ValueError: if there are no layers, or their structures differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import CSRGraph, nn
      >>> rngs = nnx.Rngs(0)
      >>> scan = LayerScan([nn.GCNConv(8, 8, activation="relu", rngs=rngs) for _ in range(64)])
      >>> scan(CSRGraph.from_edges([0, 1], [1, 0], 2), jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __init__(self, layers: Sequence[M]):
        graphdefs, states = zip(*map(nnx.split, layers), strict=True) if layers else ((), ())
        if len(set(graphdefs)) != 1:
            expected = "one or more of one structure"
            raise bad_input("LayerScan", "layers", expected, f"{len(set(graphdefs))} structures")
        self.num_layers = len(layers)
        # One module whose arrays are stacked along a first axis of layers.
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *states)
        self.layers = nnx.merge(graphdefs[0], stacked)

    def __call__[H](self, graph: Any, h: H, *, rngs: nnx.Rngs | None = None, **options: Any) -> H:
        """Returns the result of the last layer; each layer has a key of its own for dropout."""
        graphdef, state = nnx.split(self.layers)
        if rngs is not None:
            require_stream("LayerScan", rngs)
        keys = None if rngs is None else jax.random.split(rngs.dropout(), self.num_layers)
        arguments = graph, h, state, keys, options
        if any(isinstance(option, nnx.Pytree) for option in options.values()):
            return _scan(graphdef, arguments)  # not compiled: that would copy these objects
        return run_compiled(_scan, graphdef, arguments)


def _scan(graphdef: Any, arguments: tuple[Any, ...]) -> Any:
    graph, h, state, keys, options = arguments

    def step(h, layer):
        state, key = layer
        dropout = None if key is None else nnx.Rngs(dropout=key)
        return nnx.merge(graphdef, state)(graph, h, rngs=dropout, **options), None

    return jax.lax.scan(step, h, (state, keys))[0]


class HyperBody(nnx.Module):
    """Layers wrapped in hyper-connections, a head that reduces the streams to one, and a norm.

    Layers are called as ``layer(graph, h, **options)``. With ``scan`` they have one structure, and
    run by ``lax.scan``. ``options`` are those of the connections.
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
